"""Every recipe we ship parses, is short, and names what exists."""

import re
from pathlib import Path

import pytest

from turnwise import recipes
from turnwise.config import Config, load_config
from turnwise.envs.registry import MixtureSettings, make_env
from turnwise.errors import EnvError
from turnwise.models.loading import SMALL
from turnwise.settings import dump_settings, load_yaml, parse_settings

FOLDER = Path(recipes.__file__).parent
ROOT = Path(__file__).parents[2]
RECIPES = sorted(FOLDER.glob("*.yaml"))


def test_there_are_recipes():
    assert FOLDER / "encyclopedia-grpo.yaml" in RECIPES, "the demo's"
    assert {path.suffix for path in FOLDER.iterdir() if path.is_file()} == {".yaml", ".py"}


def test_the_recipes_that_our_own_words_name_exist():
    sources = [*FOLDER.parent.rglob("*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]
    recipe = re.compile(r"turnwise train ([a-z][\w-]+)(?![\w/.-])")
    named = {name for source in sources for name in recipe.findall(source.read_text())}
    assert "encyclopedia-grpo" in named
    assert named - {path.stem for path in RECIPES} == set()


@pytest.mark.parametrize("size", sorted((FOLDER / "sizes").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_size_says_how_its_model_is_trained_and_nothing_of_the_task(size):
    data = load_yaml(size.read_text(encoding="utf-8"), source=str(size))
    assert set(data) == {"model", "sft", "learner"}
    users = [path for path in RECIPES if f"sizes/{size.name}]" in path.read_text(encoding="utf-8")]
    assert users
    for path in users:
        config = load_config(path)
        assert config.sft is not None
        assert config.model.name == data["model"]["name"]
        assert config.learner.optimizer.lr == data["learner"]["optimizer"]["lr"]
        assert config.sft.optimizer.lr == data["sft"]["optimizer"]["lr"]
        assert config.sft.optimizer.schedule == "cosine", "the task's own"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_short_and_says_what_it_is(recipe):
    lines = recipe.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 40
    assert lines[0].startswith("# ")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_names_what_exists_and_fits(recipe):
    config = load_config(recipe)
    entries = config.env.mixture.values() if isinstance(config.env, MixtureSettings) else [config.env]
    named = [entry.args.get(key) for entry in entries for key in ("corpus", "questions")]
    given = [path for path in named if isinstance(path, str)]
    if absent := [path for path in given if not Path(path).exists()]:
        pytest.skip(f"this recipe reads what a user brings: {', '.join(absent)}")
    if any("encoder" in entry.args for entry in entries):
        pytest.skip("this recipe has an encoder, which a hub brings")
    try:
        env = make_env(config.env)
    except EnvError as error:
        if "pip install 'turnwise[" not in str(error):
            raise
        pytest.skip(str(error))
    for split in ("train", config.evaluate.split):
        assert len(env.tasks(split)) > 0
    assert len(env.tasks(config.evaluate.split)) >= config.evaluate.tasks
    if config.model.name == SMALL:
        assert (config.rollout.context_tokens or config.rollout.turn_tokens) <= config.model.small.positions


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_the_config_written_into_a_run_parses_back_to_itself(recipe):
    config = load_config(recipe)
    data = load_yaml(dump_settings(config), source="the dump")
    assert isinstance(data, dict)
    assert parse_settings(Config, data, source="the dump") == config
