"""A recipe as layers, each written in one place: the files that extend each other, an algorithm's preset, a call.

Invariant: sections merge key by key, the later layer over the earlier; every value knows the layer it came from.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from turnwise.settings.data import KeyPath, leaves


@dataclass(frozen=True, slots=True)
class Layer:
    """`Layer("recipes/mine.yaml", {"steps": 20})`."""

    origin: str
    """Where the values were written, for error messages."""
    data: Mapping[str, object]
    chosen: bool = True
    """Off for a config that a run wrote: its values were not chosen one by one."""


class Whole(dict[str, object]):
    """A section that replaces the one beneath it in place of joining it."""


class Recipe(dict[str, object]):
    """The merged data of layers, with the layer that each value came from."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        """Merges the layers: lists and plain values replace; an empty mapping `{}` clears what is beneath it."""
        self.layers = tuple(layers)
        self.origins: dict[KeyPath, str] = {}
        self.ranks: dict[KeyPath, int] = {}
        """The values that were chosen by name, each with the index of its layer."""
        data: dict[str, object] = {}
        for rank, layer in enumerate(self.layers):
            data = _merge(data, layer.data)
            for path in _replaced(layer.data):
                self._forget(path)
            for path, _ in leaves(layer.data):
                self.origins[path] = layer.origin
                if layer.chosen:
                    self.ranks[path] = rank
        super().__init__(data)

    def _forget(self, path: KeyPath) -> None:
        """Forgets the values that are above or beneath a new one."""
        for known in [known for known in self.origins if _overlap(known, path)]:
            del self.origins[known]
            self.ranks.pop(known, None)


def _replaced(data: Mapping[str, object], prefix: KeyPath = ()) -> Iterator[KeyPath]:
    """The paths at which a layer replaces what is beneath it: its values, and its whole sections."""
    for key, value in data.items():
        path = (*prefix, str(key))
        if isinstance(value, Mapping) and value and not isinstance(value, Whole):
            yield from _replaced(value, path)
        else:
            yield path


def _overlap(one: KeyPath, other: KeyPath) -> bool:
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]


def _merge(base: Mapping[str, object], top: Mapping[str, object]) -> dict[str, object]:
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        joins = isinstance(value, Mapping) and value and not isinstance(value, Whole) and isinstance(below, Mapping)
        merged[key] = _merge(below, value) if joins else value  # type: ignore[arg-type]  # both are, when joins
    return merged
