"""`turnwise new` makes a folder that works at once, and never overwrites or hides what is there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from turnwise.cli.main import main
from turnwise.cli.new import fill_template
from turnwise.config import load_config
from turnwise.errors import ConfigError

TINY = ["sft.demonstrations=16", "steps=1", "rollout.groups_per_step=2", "rollout.group_size=2", "evaluate.tasks=4"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A new folder, and within it."""
    monkeypatch.chdir(tmp_path)
    assert main(["new", "help-desk"]) == 0
    monkeypatch.chdir("help-desk")
    return tmp_path / "help-desk"


def test_it_has_an_environment_a_recipe_a_test_and_a_readme(folder):
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["README.md", "help_desk.py", "recipe.yaml", "test_help_desk.py"]
    texts = [path.read_text(encoding="utf-8") for path in folder.iterdir()]
    assert not [text for text in texts if "my_agent" in text or "MyAgent" in text], "the template's own name"
    assert all("help_desk" in text or "HelpDesk" in text for text in texts)


def test_it_keeps_the_contract(folder, capsys):
    assert main(["check", "help_desk.py:HelpDesk"]) == 0
    assert "HelpDesk keeps the contract" in capsys.readouterr().out


def test_its_own_test_passes(folder):
    assert "4 passed" in run_its_tests()


def test_its_own_test_can_fail(folder):
    """With a reward that pays for anything, the folder's test says so."""
    file = folder / "help_desk.py"
    paying = file.read_text(encoding="utf-8").replace("return float(episode.answer ==", "return float(True or")
    file.write_text(paying, encoding="utf-8")
    assert "2 failed, 2 passed" in run_its_tests()


def run_its_tests() -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(command, capture_output=True, text=True).stdout


def test_it_trains(folder):
    assert main(["train", "recipe.yaml", *TINY]) == 0
    lines = (folder / "runs/recipe/metrics.jsonl").read_text().splitlines()
    assert [record["step"] for record in map(json.loads, lines) if record["stage"] == "train"] == [1]


def test_its_files_pass_the_linter(folder):
    for check in (["check", "--select", "E,F,I,UP,B,SIM,C4,RUF,ANN,PT"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *check, "--isolated", "--no-cache", "--line-length", "120"],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_what_it_prints_comes_next(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "agents/shop"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "Next: cd agents/shop && turnwise train recipe.yaml"
    assert load_config("agents/shop/recipe.yaml").env.name == "shop.py:Shop"


def test_it_overwrites_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("shop").mkdir()
    (Path("shop") / "mine.txt").write_text("mine")
    Path("file").write_text("mine")
    for name in ("shop", "file"):
        assert main(["new", name]) == 2
        assert f"{name}: there is something there already" in capsys.readouterr().err
    assert [path.name for path in Path("shop").iterdir()] == ["mine.txt"]


def test_an_empty_folder_is_filled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("shop").mkdir()
    assert main(["new", "shop"]) == 0
    assert len(list(Path("shop").iterdir())) == 4


@pytest.mark.parametrize("name", ["2shop", "my shop", "class", "", "shop!", "..", "lämpchen"])
def test_a_name_that_python_cannot_import_is_refused(name):
    with pytest.raises(ConfigError, match="cannot name an environment"):
        fill_template(name)


@pytest.mark.parametrize("name", ["json", "turnwise", "torch", "pytest"])
def test_a_name_that_would_hide_a_module_is_refused(name):
    with pytest.raises(ConfigError, match=f"would hide the module '{name}'"):
        fill_template(name)
