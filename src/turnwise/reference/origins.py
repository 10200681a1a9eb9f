"""Where each value of an experiment comes from: a line of a recipe, an override, the algorithm, or a default."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from turnwise.config import parse_config, resolve_recipe
from turnwise.recipes import packaged_recipes, read_recipe
from turnwise.settings import KeyPath, Recipe, leaves, show_value
from turnwise.settings.data import find_lines

DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """`Explained(key="rollout.group_size", value="16", origin="mine.yaml:7")`."""

    key: str
    value: str
    origin: str


def explain_recipe(path: str | Path, overrides: list[str]) -> list[Explained]:
    """Every value of the experiment that `turnwise train PATH OVERRIDES` would run, checked as it would be."""
    recipe = resolve_recipe(read_recipe(path), overrides)
    config = parse_config(recipe, str(path))
    lines = {layer.origin: _lines(layer.origin) for layer in recipe.layers}
    return [
        Explained(key=".".join(key), value=show_value(value), origin=_origin(key, recipe, lines))
        for key, value in leaves(config.model_dump(mode="json"))
    ]


def show_explained(values: list[Explained]) -> Iterator[str]:
    """One line each, origins beneath each other: `steps: 20    # mine.yaml:3`."""
    texts = [f"{one.key}: {one.value}" for one in values]
    width = min(max(map(len, texts)), 60)
    for text, one in zip(texts, values, strict=True):
        yield f"{text:<{width}}  # {one.origin}"


def _lines(origin: str) -> dict[KeyPath, int]:
    path = Path(origin)
    return find_lines(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _origin(key: KeyPath, recipe: Recipe, lines: dict[str, dict[KeyPath, int]]) -> str:
    """The layer that gave the value, or the section or list that it is part of."""
    for depth in range(len(key), 0, -1):
        if key[:depth] in recipe.origins:
            origin = recipe.origins[key[:depth]]
            known = [lines[origin][key[:end]] for end in range(depth, 0, -1) if key[:end] in lines[origin]]
            shown = Path(origin).name if Path(origin) in packaged_recipes().values() else origin
            return f"{shown}:{known[0]}" if known else shown
    return DEFAULT
