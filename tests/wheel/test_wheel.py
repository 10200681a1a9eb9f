"""A wheel built from the tree, installed into a fresh virtual environment, works in an empty folder.

The virtual environment has the wheel of its own and borrows the dependencies, so that no test needs the network.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from turnwise.recipes import packaged_recipes

ROOT = Path(__file__).parents[2]
TINY = (
    "env.args.people=6",
    "env.args.passages=1",
    "model.small={layers: 1, width: 32, heads: 2, positions: 512, vocabulary: 512, induction: false}",
    "sft={demonstrations: 8, batch: 8}",
    "rollout.groups_per_step=2",
    "rollout.group_size=2",
    "evaluate.tasks=4",
)
"""The recipe at the size of a test."""

pytestmark = pytest.mark.slow


def run(*command: object, cwd: Path | None = None, expected: int = 0) -> str:
    """What a command prints, errors last; all of it is shown where its exit code is another."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    variables |= {"HF_HUB_OFFLINE": "1", "COLUMNS": "200", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, env=variables, cwd=cwd)
    assert done.returncode == expected, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that the tree is left without build folders."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("src", "benchmarks"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    build = ("--no-build-isolation", "--no-deps", "--no-index", "--quiet", "--wheel-dir", out)
    run(sys.executable, "-m", "pip", "wheel", *build, tree)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def turnwise(wheel, tmp_path_factory):
    """The command of a fresh virtual environment with the wheel in it."""
    venv = tmp_path_factory.mktemp("installed") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    python = venv / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet", wheel)
    (own,) = venv.glob("lib/python*/site-packages")
    # A folder named in a .pth file has its modules imported, but not its .pth files read: no editable install counts.
    (own / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    found = run(python, "-c", "import turnwise; print(turnwise.__file__)", cwd=venv)
    assert Path(found.strip()).is_relative_to(own), "the wheel's own package, not the tree's"
    return venv / "bin" / "turnwise"


@pytest.fixture
def empty(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def test_the_wheel_has_the_package_with_its_recipes_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    metadata = {name for name in names if ".dist-info/" in name}
    assert {name.partition("/")[0] for name in names - metadata} == {"turnwise"}, "no benchmarks, no tests"
    assert "turnwise/py.typed" in names
    recipes = {Path(name).stem for name in names if Path(name).match("turnwise/recipes/*.yaml")}
    assert recipes == set(packaged_recipes())
    files = (path for path in (ROOT / "src/turnwise").rglob("*") if path.is_file() and path.suffix != ".pyc")
    assert names - metadata == {path.relative_to(ROOT / "src").as_posix() for path in files}, "every file of the tree"


def test_recipes_are_listed_and_benchmarks_are_not_there(turnwise, empty):
    assert "encyclopedia-grpo" in run(turnwise, "recipes", cwd=empty)
    assert "come with a checkout of turnwise" in run(turnwise, "bench", "credit", "--quick", cwd=empty, expected=2)


def test_training_by_a_packaged_recipe(turnwise, empty):
    run(turnwise, "train", "encyclopedia-grpo", "steps=2", *TINY, cwd=empty)
    lines = (empty / "runs/encyclopedia-grpo/metrics.jsonl").read_text().splitlines()
    steps = [record["step"] for record in map(json.loads, lines) if record["stage"] == "train"]
    assert steps == [1, 2]
    assert (empty / "runs/encyclopedia-grpo/report.html").is_file()


def test_the_example_in_the_readme(turnwise, empty):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (empty / "mine.py").write_text(readme.split("```python\n")[1].split("```")[0], encoding="utf-8")
    run(turnwise.with_name("python"), "mine.py", cwd=empty)
    assert (empty / "runs/guess/report.html").is_file()


def test_the_demo(turnwise, empty):
    assert "after reinforcement learning" in run(turnwise, "demo", "steps=1", *TINY, cwd=empty)
    assert json.loads((empty / "runs/demo/summary.json").read_text())["questions"] == 4
