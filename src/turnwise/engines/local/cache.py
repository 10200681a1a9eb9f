"""The KV cache of every slot, in static tensors, and the interface of a forward over it.

Invariant: a forward writes only at its inputs' rows and positions, and padding and idle slots write to a spare row
that nothing reads. Shapes: R rows, N tokens of a forward, M chunks, C capacity, H key/value heads, D head size.
"""

import math
from dataclasses import dataclass, field
from typing import Protocol

import torch

from turnwise.compute.host_memory import require_memory


class KVCache:
    """Keys and values by layer, [R + 1, H, C, D], a row for each slot; a layer is allocated when first written."""

    def __init__(self, *, rows: int, dtype: torch.dtype | None) -> None:
        self.spare = rows
        """The row that padding and idle slots write to, behind all others."""
        self.capacity = 0
        self.dtype = dtype
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def layer(self, index: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer's keys and values; a new layer takes heads and head size from `like` [..., H, D]."""
        if index not in self._layers:
            shape = (self.spare + 1, like.shape[-2], self.capacity, like.shape[-1])
            dtype = self.dtype or like.dtype
            self._layers[index] = _zeros(shape, dtype, like.device), _zeros(shape, dtype, like.device)
        return self._layers[index]

    def reserve(self, capacity: int, rows: int) -> None:
        """Makes room for so many rows of `capacity` tokens, keeping the cached ones; layer by layer, as each is there
        twice while it is copied."""
        for index, (keys, values) in self._layers.items():
            self._layers[index] = self._enlarge(keys, capacity, rows), self._enlarge(values, capacity, rows)
        self.capacity, self.spare = capacity, rows

    def _enlarge(self, tensor: torch.Tensor, capacity: int, rows: int) -> torch.Tensor:
        _, heads, length, size = tensor.shape
        larger = _zeros((rows + 1, heads, capacity, size), tensor.dtype, tensor.device)
        larger[: self.spare, :, :length] = tensor[: self.spare]
        return larger

    def copy(self, source: torch.Tensor, target: torch.Tensor, length: int) -> None:
        """Copies the first `length` tokens of rows `source` to rows `target`; all are read before any is written."""
        for layer in self._layers.values():
            for tensor in map(_widen, layer):
                tensor[target, :, :length] = tensor[source, :, :length]

    def clear(self) -> None:
        """Zeroes everything: a masked key still enters sums as 0 × itself, so a NaN must not outlive its weights."""
        for keys, values in self._layers.values():
            keys.zero_()
            values.zero_()


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory in numbers of eight bytes, if it divides: copies by index take their time by the number."""
    return tensor.view(torch.int64) if tensor.shape[-1] * tensor.element_size() % 8 == 0 else tensor


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        require_memory(math.prod(shape) * dtype.itemsize)
    return torch.zeros(shape, dtype=dtype, device=device)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DecodeInputs:
    """One token for each of the first N slots, which attend to their own rows."""

    ids: torch.Tensor
    """[N] long."""
    positions: torch.Tensor
    """[N] long: where each token goes in its row; it attends up to there."""
    rows: torch.Tensor
    """[N] long: the slot's own row, or the spare row for an idle slot; in order, unless the forward reads any row."""
    length: int
    """At least the keys that any slot attends to, rounded up to few different numbers."""
    masks: dict[int | None, torch.Tensor] = field(default_factory=dict)
    """Attention masks by window, made once a forward by ops that need them."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PrefillInputs:
    """Tokens of M chunks, packed; each chunk continues its slot's cached tokens."""

    ids: torch.Tensor
    """[N] long, as the next four are."""
    positions: torch.Tensor
    rows: torch.Tensor
    chunk: torch.Tensor
    """The chunk of each token."""
    column: torch.Tensor
    """Its place within the chunk."""
    starts: torch.Tensor
    """[M + 1] long: where each chunk begins among the tokens, and where the last one ends."""
    slots: torch.Tensor
    """[M] long: the row that each chunk attends to."""
    width: int
    """Tokens of the longest chunk."""
    length: int
    """At least the keys that any token attends to."""
    masks: dict[int | None, torch.Tensor] = field(default_factory=dict)


class Forward(Protocol):
    """Logits from tokens, over the KV cache of their slots."""

    cache: KVCache

    @property
    def pads(self) -> bool: ...

    @property
    def replays_prefills(self) -> bool: ...

    @property
    def reads_any_row(self) -> bool:
        """Whether a decode step attends to `rows` wherever they are; else slot i must be in row i."""
        ...

    @property
    def slow_reason(self) -> str | None:
        """Why this is the model's own, slower forward; None for the fused one."""
        ...

    def refresh(self) -> bool: ...

    def decode(self, inputs: DecodeInputs) -> torch.Tensor: ...

    def prefill(self, inputs: PrefillInputs) -> torch.Tensor: ...
