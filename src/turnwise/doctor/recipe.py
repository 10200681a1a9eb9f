"""A recipe by its name: what reading it shows, then its preflight. No torch before the recipe is right."""

from collections.abc import Callable, Sequence
from pathlib import Path

from turnwise.checks.settings import unread_setting
from turnwise.config import load_config
from turnwise.doctor.examination import Examination
from turnwise.errors import ConfigError


def examine_named(
    recipe: str, overrides: Sequence[str], *, folder: Path, say: Callable[[str], None] = lambda line: None
) -> Examination:
    """The preflight of a recipe; a setting that nothing reads is a finding, and ends it, as it would end training."""
    try:
        config = load_config(recipe, overrides)
    except ConfigError as error:
        if ": never read while " not in str(error):
            raise
        examination = Examination(subject=recipe, place="recipe")
        examination.add("settings", [unread_setting(str(error))])
        for check in examination.checks:
            if check.name != "settings":
                examination.skip(check.name, "the recipe cannot be trained as it is")
        return examination
    from turnwise.doctor.preflight import examine_recipe

    return examine_recipe(config, subject=recipe, folder=folder, say=say)
