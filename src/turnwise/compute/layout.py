"""How rows lie in the tensor that goes through a model: padded, or end to end with equal prompts read once.

Invariant: whatever the layout, a selected token is found at `position` and is predicted from `before`, and what a model
says there depends on the tokens of its own row alone. Positions tell rows apart: where they begin again at 0 a row
opens; where they fall back to p > 0, a row goes on from the first p tokens of the last one that opened.
Shapes: m tokens selected in a micro-batch, which is B rows padded to W, or W tokens of rows end to end (B = 1).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from turnwise.compute.device import send


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Rows that go through a model together, each padded on the right to the longest, or all end to end."""

    ids: torch.Tensor
    """[B, W] long: padded with 0, which no real token can see, since attention looks back only."""
    positions: torch.Tensor | None
    """[1, W] long: how far each token is into its own row, where rows lie end to end; None where they are padded. It
    stays on the host, which reads off it where rows begin."""
    position: torch.Tensor
    """[m] long: where each selected token sits in `ids.flatten()`."""
    before: torch.Tensor
    """[m] long: where the token before it sits, from which it is predicted; of a row's first token it means nothing."""
    token: torch.Tensor
    """[m] long: the same tokens as indices into the batch's flat tensors."""
    target: torch.Tensor
    """[m] long: their ids."""
    tokens: int
    """How many of `ids` are not padding."""
    shared: int
    """How many tokens of its rows are not in `ids`, because they are in another row's prompt."""

    def to(self, device: torch.device) -> "MicroBatch":
        """On a device, which is not waited for: it may still be busy with the micro-batch before."""
        return replace(
            self,
            ids=send(self.ids, device),
            position=send(self.position, device),
            before=send(self.before, device),
            token=send(self.token, device),
            target=send(self.target, device),
        )


class MicroBatches:
    """Micro-batches in order, each laid out when it is first come to: a device can be at one while the next is made."""

    def __init__(self, recipes: Iterable[Callable[[], MicroBatch]]) -> None:
        self._recipes = list(recipes)
        self._made: list[MicroBatch] = []

    def __len__(self) -> int:
        return len(self._recipes)

    def __iter__(self) -> Iterator[MicroBatch]:
        for place, make in enumerate(self._recipes):
            if place == len(self._made):
                self._made.append(make())
            yield self._made[place]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Some rows among the batch's flat tokens; each field is [R] long."""

    start: torch.Tensor
    length: torch.Tensor
    prompt: torch.Tensor
    """How many tokens each opens with before its first action."""

    def spell_out(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Every token of the rows, row after row: its place in the flat tensors, and which row it is of."""
        row = torch.arange(len(self.start)).repeat_interleave(self.length)
        return count_on(self.start, self.length), row


def pad(ids: torch.Tensor, rows: Rows, select: torch.Tensor) -> MicroBatch:
    """Rows of the batch's ids [L], side by side; `select` [L] says which tokens are asked about."""
    width = int(rows.length.max())
    place, row = rows.spell_out()
    padded = torch.zeros(len(rows.start), width, dtype=ids.dtype)  # [B, W]
    padded[row, place - rows.start[row]] = ids[place]
    asked = select[place].nonzero().flatten()  # [m]
    token, of = place[asked], row[asked]  # [m]
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
    """Rows of the batch's ids [L], end to end; `select` [L] says which tokens are asked about.

    `owner` [R] says of each row in which row its prompt is to be read: in itself, or in one before it with the same
    prompt. Rows that share one follow each other.
    """
    skipped = torch.where(owner == torch.arange(len(owner)), 0, rows.prompt)  # [R]
    kept = rows.length - skipped  # [R]
    begin = kept.cumsum(0) - kept  # [R]: where what is kept of a row begins
    place, row = rows.spell_out()
    asked = select[place].nonzero().flatten()  # [m]
    token, of = place[asked], row[asked]  # [m]
    offset = token - rows.start[of]  # [m]

    def find(offset: torch.Tensor) -> torch.Tensor:
        return torch.where(offset < skipped[of], begin[owner[of]], begin[of] - skipped[of]) + offset

    laid_out = ids[count_on(rows.start + skipped, kept)]  # [W]
    return MicroBatch(
        ids=laid_out[None],
        positions=count_on(skipped, kept)[None],
        position=find(offset),
        before=find(offset - 1),
        token=token,
        target=ids[token],
        tokens=len(laid_out),
        shared=len(place) - len(laid_out),
    )


def count_on(first: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """Stretches of numbers that go up by one, end to end: from 5 for 3 and from 0 for 2 is 5 6 7 0 1."""
    begin = length.cumsum(0) - length
    return (first - begin).repeat_interleave(length) + torch.arange(int(length.sum()))
