"""Row 1: recipes are found by name in any folder. tests/wheel does the same with a wheel."""

import pytest

from turnwise.cli.main import main
from turnwise.config import load_config
from turnwise.recipes import packaged_recipes


@pytest.mark.parametrize("name", packaged_recipes())
def test_every_packaged_recipe_is_found_by_name_in_an_empty_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config(name) == load_config(packaged_recipes()[name])


def test_they_are_listed_in_an_empty_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["recipes"]) == 0
    printed = capsys.readouterr().out
    assert [name for name in packaged_recipes() if name not in printed] == []


def test_a_misspelt_name_is_answered_with_the_right_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "encyclopedia-gpro"]) == 2
    assert "did you mean encyclopedia-grpo?" in capsys.readouterr().err
