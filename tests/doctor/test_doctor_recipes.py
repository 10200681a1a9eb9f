"""The recipes we ship give no false alarm: some of them in `make test`, all by TURNWISE_FAULTS=long."""

import os

import pytest

from doctor_recipes import RECIPES, sound_config
from turnwise.doctor.preflight import examine_recipe
from turnwise.errors import EnvError

LONG = os.environ.get("TURNWISE_FAULTS") == "long"
SHORT = ("games-bandit", "starpo-s-bandit", "gpu-multihop-qwen-500m-lora")
"""A game, one with a critic and a filter, and a search agent whose model and data are not here."""


@pytest.mark.parametrize("recipe", RECIPES if LONG else SHORT)
def test_a_recipe_that_we_ship_is_sound(recipe, tmp_path):
    try:
        examination = examine_recipe(sound_config(recipe, tmp_path / "data"), subject=recipe, folder=tmp_path)
    except EnvError as error:
        if "pip install 'turnwise[" not in str(error):
            raise
        pytest.skip(str(error))
    assert [(name, diagnosis.sentence) for name, diagnosis in examination.found] == []
    skipped = [check.name for check in examination.checks if examination.status(check) == "skipped"]
    assert skipped == [], "every check has run"
    assert list(tmp_path.glob("*")) in ([], [tmp_path / "data"]), "nothing is written"


def test_the_short_form_is_part_of_the_long():
    assert set(SHORT) <= set(RECIPES)
