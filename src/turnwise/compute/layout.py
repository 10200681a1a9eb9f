"""The layout of rows in a model's input: padded, or packed end to end with equal prompts stored once.

Invariant: in either layout a selected token is at `position` and is predicted from `before`, and a model's output there
depends on the tokens of its own row alone. Positions separate rows: a row begins where they restart at 0; where they
restart at p > 0, a row continues the first p tokens of the last row that began at 0.
Shapes: m tokens selected in a micro-batch, which is B rows padded to W, or W tokens of packed rows (B = 1).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from turnwise.compute.device import send


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Rows of one forward, each padded on the right to the longest, or all packed."""

    ids: torch.Tensor
    """[B, W] long: padded with 0 on the right, which causal attention never reaches."""
    positions: torch.Tensor | None
    """[1, W] long: each token's position in its own row, if rows are packed; None if they are padded. It stays on the
    host, which finds the bounds of rows in it."""
    position: torch.Tensor
    """[m] long: where each selected token sits in `ids.flatten()`."""
    before: torch.Tensor
    """[m] long: where the token before it sits, from which it is predicted; undefined for a row's first token."""
    token: torch.Tensor
    """[m] long: the same tokens as indices into the batch's flat tensors."""
    target: torch.Tensor
    """[m] long: their ids."""
    tokens: int
    """The number of `ids` that are not padding."""
    shared: int
    """The number of its rows' tokens that are not in `ids`, since another row holds the same prompt."""

    def to(self, device: torch.device) -> "MicroBatch":
        """Copies to a device without waiting: it may still be busy with the micro-batch before."""
        return replace(
            self,
            ids=send(self.ids, device),
            position=send(self.position, device),
            before=send(self.before, device),
            token=send(self.token, device),
            target=send(self.target, device),
        )


class MicroBatches:
    """Micro-batches in order, each built when first reached, so that a device can run one while the next is built."""

    def __init__(self, builders: Iterable[Callable[[], MicroBatch]]) -> None:
        self._builders = list(builders)
        self._built: list[MicroBatch] = []

    def __len__(self) -> int:
        return len(self._builders)

    def __iter__(self) -> Iterator[MicroBatch]:
        for index, build in enumerate(self._builders):
            if index == len(self._built):
                self._built.append(build())
            yield self._built[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Some rows among the batch's flat tokens; each field is [R] long."""

    start: torch.Tensor
    length: torch.Tensor
    prompt: torch.Tensor
    """The tokens of each before its first action."""

    def token_places(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The place of every token in the flat tensors, row after row, and the row of each."""
        row = torch.arange(len(self.start)).repeat_interleave(self.length)
        return concatenate_ranges(self.start, self.length), row


def pad(ids: torch.Tensor, rows: Rows, select: torch.Tensor) -> MicroBatch:
    """Pads rows of the batch's ids [L]; `select` [L] marks the selected tokens."""
    width = int(rows.length.max())
    place, row = rows.token_places()
    padded = torch.zeros(len(rows.start), width, dtype=ids.dtype)  # [B, W]
    padded[row, place - rows.start[row]] = ids[place]
    selected = select[place].nonzero().flatten()  # [m]
    token, of = place[selected], row[selected]  # [m]
    position = of * width + token - rows.start[of]  # [m]
    return MicroBatch(
        ids=padded,
        positions=None,
        position=position,
        before=position - 1,
        token=token,
        target=ids[token],
        tokens=len(place),
        shared=0,
    )


def pack(ids: torch.Tensor, rows: Rows, select: torch.Tensor, owner: torch.Tensor) -> MicroBatch:
    """Packs rows of the batch's ids [L]; `select` [L] marks the selected tokens.

    `owner` [R] is the row that holds each row's prompt: itself, or an earlier one with the same prompt. Rows that share
    a prompt are adjacent.
    """
    skipped = torch.where(owner == torch.arange(len(owner)), 0, rows.prompt)  # [R]
    kept = rows.length - skipped  # [R]
    begin = kept.cumsum(0) - kept  # [R]: the start of the kept tokens of each row
    place, row = rows.token_places()
    selected = select[place].nonzero().flatten()  # [m]
    token, of = place[selected], row[selected]  # [m]
    offset = token - rows.start[of]  # [m]

    def find(offset: torch.Tensor) -> torch.Tensor:
        return torch.where(offset < skipped[of], begin[owner[of]], begin[of] - skipped[of]) + offset

    packed = ids[concatenate_ranges(rows.start + skipped, kept)]  # [W]
    return MicroBatch(
        ids=packed[None],
        positions=concatenate_ranges(skipped, kept)[None],
        position=find(offset),
        before=find(offset - 1),
        token=token,
        target=ids[token],
        tokens=len(packed),
        shared=len(place) - len(packed),
    )


def concatenate_ranges(first: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """Consecutive ranges, concatenated: from 5 for 3 and from 0 for 2 is 5 6 7 0 1."""
    begin = length.cumsum(0) - length
    return (first - begin).repeat_interleave(length) + torch.arange(int(length.sum()))
