"""What the docs tell a reader to type works: commands parse, settings and files exist, the README's example runs."""

import re
import shlex
import types
from pathlib import Path
from typing import Annotated, Union, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel

import turnwise
from benchmarks.harness import BENCHMARKS
from snippets import snippets_of
from turnwise.algorithms import ALGORITHM
from turnwise.cli.arguments import accept_rest
from turnwise.cli.main import make_parser
from turnwise.config import Config, load_config
from turnwise.envs.registry import EnvSettings, make_env
from turnwise.errors import EnvError
from turnwise.recipes import packaged_recipes, read_recipe
from turnwise.settings import parse_settings

ROOT = Path(__file__).parents[2]
SOURCE = Path(turnwise.__file__).parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TYPED = [page for page in PAGES if page.name != "first-hour.md"]
"""Pages whose commands work in a checkout; those of the first hour work in the folder that it makes."""
INLINE = re.compile(r"`([^`]+)`")
SHOWN = {one.file: one.text for page in PAGES for one in snippets_of(page) if one.kind == "file"}
"""Files that pages show and the reader writes: `grpo.yaml`."""


def pages_with(found: dict[Path, list[str]]) -> list[object]:
    return [pytest.param(item, id=f"{page.name}: {item}") for page, items in found.items() for item in items]


def commands_of(page: Path) -> list[str]:
    """Command lines in code blocks and in sentences, without their comments; a bare `turnwise train` is no command."""
    prose, lines = [], []
    for line in page.read_text(encoding="utf-8").splitlines():
        (lines if line.startswith("    ") else prose).append(line.strip())
    shown = [line.partition("  #")[0].strip() for line in lines]
    named = [" ".join(code.split()) for code in INLINE.findall("\n".join(prose))]
    started = (re.sub(r"^torchrun .*-m (-- )?(?=turnwise )", "", command) for command in (*shown, *named))
    found = [command for command in started if re.match(r"turnwise [\w-]+ ?", command)]
    return list(dict.fromkeys(command for command in found if len(command.split()) > 2))


def settings_of(page: Path) -> list[str]:
    """Settings by their whole path: `rollout.group_size`, `stability.mode=auto`."""
    found = [code.partition("=")[0] for code in INLINE.findall(page.read_text(encoding="utf-8"))]
    dotted = (path for path in found if re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", path))
    sections = {path for path in dotted if path.split(".")[0] in Config.model_fields}
    return sorted(path for path in sections if not path.endswith((".py", ".md", ".yaml", ".json")))


def recipes_of(page: Path) -> list[str]:
    """Blocks of YAML, each of them a part of a recipe."""
    return re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def files_of(page: Path) -> list[str]:
    """Files and folders of the project that a page names: `learner/batch.py`, `docs/walk.md`, `engines/local/`."""
    codes = INLINE.findall(page.read_text(encoding="utf-8"))
    return sorted({code for code in codes if re.fullmatch(r"[\w./-]+(\.py|\.md|/)", code) and "/" in code})


def resolve(path: str) -> bool:
    """Whether a path of dots names a setting of the config."""
    kinds: list[object] = [Config]
    for name in path.split("."):
        models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if any(get_origin(kind) is dict for kind in kinds):
            return True  # what an environment or another plug-in takes is its own
        fields = [model.model_fields[name].annotation for model in models if name in model.model_fields]
        if not fields:
            return False
        kinds = [kind for field in fields for kind in _alternatives(field)]
    return True


def _alternatives(annotation: object) -> list[object]:
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [kind for one in get_args(annotation) for kind in _alternatives(one)]
    return [annotation]


@pytest.mark.parametrize("command", pages_with({page: commands_of(page) for page in TYPED}))
def test_a_command_parses_and_names_what_exists(command, tmp_path):
    options, rest = make_parser().parse_known_args(shlex.split(command)[1:])
    assert not [word for word in rest if word.startswith("-")], "an option that the command does not have"
    accept_rest(options, rest)
    name = command.split()[1]
    if name == "train":
        shown = tmp_path / "shown.yaml"
        shown.write_text(SHOWN.get(options.recipe, ""), encoding="utf-8")
        load_config(shown if options.recipe in SHOWN else options.recipe, options.overrides)
    elif name == "eval":
        packaged = options.what in packaged_recipes()
        assert packaged or options.what.startswith("runs/"), "a recipe of ours, or a run of the reader's"
        load_config(options.what if packaged else "encyclopedia-grpo", options.overrides)
    elif name == "bench":
        assert options.name in BENCHMARKS
    elif name in ("play", "check"):
        _check_env(options.env, options.overrides)


def _check_env(name: str, overrides: list[str]) -> None:
    data: dict[str, object] = {"name": name}
    if name in packaged_recipes():
        data = dict(read_recipe(name)["env"])
    settings = parse_settings(EnvSettings, data, overrides=[f"args.{one}" for one in overrides], source=name)
    place, colon, cls = settings.name.rpartition(":")
    if place == "file.py":
        return  # a file of the reader's
    if colon:
        settings = settings.model_copy(update={"name": f"{ROOT / place}:{cls}"})
    if "questions" in settings.args:  # which are files of the reader's
        return
    try:
        make_env(settings)
    except EnvError as error:
        if "pip install 'turnwise[" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("path", pages_with({page: settings_of(page) for page in PAGES}))
def test_a_setting_exists(path):
    assert resolve(path)


@pytest.mark.parametrize("page", [page for page in PAGES if recipes_of(page)], ids=lambda page: page.name)
def test_a_part_of_a_recipe_has_the_sections_of_a_recipe(page):
    sections = {*Config.model_fields, ALGORITHM}
    for part in recipes_of(page):
        assert [section for section in yaml.safe_load(part) if section not in sections] == []


def test_a_setting_that_does_not_exist_is_found_out():
    assert resolve("rollout.group_size")
    assert resolve("sft.optimizer.lr")
    assert resolve("env.args.anything")
    assert not resolve("rollout.responses")
    assert not resolve("sft.optimizer.rate")


@pytest.mark.parametrize("file", pages_with({page: files_of(page) for page in PAGES}))
def test_a_file_of_the_project_exists(file):
    """Written by a page as it is seen from the root, or from src/turnwise; what a run or the reader writes is not."""
    if file.startswith(("runs/", "checkpoints/", "trajectories/", "documents/")) or "RECIPE" in file:
        return
    assert (ROOT / file).exists() or (SOURCE / file).exists()


def test_the_walk_has_a_line_for_every_room():
    walk = (ROOT / "docs/walk.md").read_text(encoding="utf-8")
    rooms = [f"{path.parent.name}/" for path in SOURCE.glob("*/__init__.py")]
    modules = [path.name for path in SOURCE.glob("*.py") if not path.name.startswith("__")]
    assert [name for name in sorted(rooms + modules) if f"`{name}" not in walk] == []


def test_every_promise_of_reliability_names_a_test_that_exists():
    page = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    promised = [code for code in INLINE.findall(page) if code.startswith("test_") and not code.endswith(".py")]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(promised) > 20
    assert [name for name in promised if f"def {name}(" not in sources] == []


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
