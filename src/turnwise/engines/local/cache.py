"""Keys and values of every slot, in static tensors, and where the tokens of a forward go in them.

Invariant: a forward writes only where it was aimed, and whatever is not a live token's goes to a spare row
that nothing reads. Shapes: S slots, N tokens of a forward, F feeds, C capacity, H key/value heads, D head size.
"""

from dataclasses import dataclass, field

import torch


class KeyValues:
    """One row of keys and values per slot and layer, [S + 1, H, C, D]; the layers come as they are first written."""

    def __init__(self, *, slots: int, dtype: torch.dtype | None) -> None:
        self.spare = slots
        """The row that takes what must not be kept: padding, and lanes at rest."""
        self.capacity = 0
        self._dtype = dtype
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def layer(self, index: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer's keys and values; a new one holds states of the shape [..., H, D] that `like` has."""
        if index not in self._layers:
            shape = (self.spare + 1, like.shape[-2], self.capacity, like.shape[-1])
            dtype = self._dtype or like.dtype
            self._layers[index] = tuple(torch.zeros(shape, dtype=dtype, device=like.device) for _ in range(2))  # type: ignore[assignment]  # two of them
        return self._layers[index]

    def reserve(self, capacity: int) -> None:
        """Makes room for `capacity` tokens per slot, keeping what is held."""
        self._layers = {
            index: (_lengthen(keys, capacity), _lengthen(values, capacity))
            for index, (keys, values) in self._layers.items()
        }
        self.capacity = capacity

    def copy(self, source: torch.Tensor, target: torch.Tensor, length: int) -> None:
        """Rows `target` take the first `length` tokens of rows `source`, all read before any is written."""
        for held in self._layers.values():
            for tensor in held:
                tensor[target, :, :length] = tensor[source, :, :length]

    def clear(self) -> None:
        """Zeroes everything: a masked key still enters sums as 0 × itself, so a NaN must not outlive its weights."""
        for keys, values in self._layers.values():
            keys.zero_()
            values.zero_()


def _lengthen(tensor: torch.Tensor, capacity: int) -> torch.Tensor:
    slots, heads, held, size = tensor.shape
    longer = tensor.new_zeros(slots, heads, capacity, size)
    longer[:, :, :held] = tensor
    return longer


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Decode:
    """One token for each of the first N lanes, which read their own rows."""

    ids: torch.Tensor
    """[N] long."""
    positions: torch.Tensor
    """[N] long: where each token goes in its row; it sees what is there and before."""
    rows: torch.Tensor
    """[N] long: the lane itself, or the spare row for a lane at rest."""
    length: int
    """At least the keys that any lane sees, rounded up to few different numbers."""
    masks: dict[int | None, torch.Tensor] = field(default_factory=dict)
    """Which keys are seen, by window: for those who need it, made once a forward."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Prefill:
    """Tokens of F feeds, end to end: each feed goes on where its lane stands."""

    ids: torch.Tensor
    """[N] long, as the next four are."""
    positions: torch.Tensor
    rows: torch.Tensor
    feed: torch.Tensor
    """Which feed a token is of."""
    column: torch.Tensor
    """Its place in the feed."""
    starts: torch.Tensor
    """[F + 1] long: where each feed begins among the tokens, and where the last one ends."""
    lanes: torch.Tensor
    """[F] long: whose rows they read."""
    width: int
    """Tokens of the longest feed."""
    length: int
    """At least the keys that any token sees."""
    masks: dict[int | None, torch.Tensor] = field(default_factory=dict)
