"""Settings: the base of every section of a recipe, and the way from plain data to settings.

Each room keeps its settings beside the code that reads them; `config.py` only puts them together.
"""

from turnwise.settings.base import Settings, by_kind
from turnwise.settings.data import RESOLVED, KeyPath, dump_settings, leaves, load_yaml, plain_data
from turnwise.settings.explain import explain_value, show_value
from turnwise.settings.layers import Layer, Recipe
from turnwise.settings.parse import OVERRIDE, add_overrides, parse_settings

__all__ = [
    "OVERRIDE",
    "RESOLVED",
    "KeyPath",
    "Layer",
    "Recipe",
    "Settings",
    "add_overrides",
    "by_kind",
    "dump_settings",
    "explain_value",
    "leaves",
    "load_yaml",
    "parse_settings",
    "plain_data",
    "show_value",
]
