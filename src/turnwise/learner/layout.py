"""How rows lie in the tensor that goes through a model: padded, or end to end with equal prompts read once.

Invariant: whatever the layout, a selected token is found at `position` and is predicted from `before`, and what a model
says there depends on the tokens of its own row alone. Positions tell rows apart: where they begin again at 0 a row
opens; where they fall back to p > 0, a row goes on from the first p tokens of the last one that opened.
Shapes: m tokens selected in a micro-batch, which is B rows padded to W, or W tokens of rows end to end (B = 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Rows that go through a model together, each padded on the right to the longest, or all end to end."""

    ids: torch.Tensor
    """[B, W] long: padded with 0, which no real token can see, since attention looks back only."""
    positions: torch.Tensor | None
    """[1, W] long: how far each token is into its own row, where rows lie end to end; None where they are padded."""
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
        return replace(
            self,
            ids=self.ids.to(device),
            positions=None if self.positions is None else self.positions.to(device),
            position=self.position.to(device),
            before=self.before.to(device),
            token=self.token.to(device),
            target=self.target.to(device),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A row among the batch's flat tokens."""

    start: int
    end: int
    prompt: int
    """How many tokens it opens with before its first action."""
    selected: torch.Tensor
    """Long: which of its tokens are asked about, counted from its first."""

    def __len__(self) -> int:
        return self.end - self.start


def pad(ids: torch.Tensor, spans: Sequence[Span]) -> MicroBatch:
    """Rows of the batch's ids [L], side by side."""
    rows = torch.nn.utils.rnn.pad_sequence([ids[span.start : span.end] for span in spans], batch_first=True)  # [B, W]
    position = [number * rows.shape[1] + span.selected for number, span in enumerate(spans)]
    return _micro_batch(ids, spans, rows, None, position, [one - 1 for one in position])


def pack(ids: torch.Tensor, spans: Sequence[Span], owner: Sequence[int]) -> MicroBatch:
    """Rows of the batch's ids [L], end to end.

    `owner` says of each row in which row its prompt is to be read: in itself, or in one before it with the same prompt.
    Rows that share one follow each other.
    """
    pieces: list[torch.Tensor] = []
    positions: list[torch.Tensor] = []
    position: list[torch.Tensor] = []
    before: list[torch.Tensor] = []
    starts: list[int] = []
    width = 0
    for number, span in enumerate(spans):
        starts.append(width)
        skipped = 0 if owner[number] == number else span.prompt
        pieces.append(ids[span.start + skipped : span.end])
        positions.append(torch.arange(skipped, len(span)))
        for found, offset in ((position, span.selected), (before, span.selected - 1)):
            found.append(torch.where(offset < skipped, starts[owner[number]], width - skipped) + offset)
        width += len(span) - skipped
    return _micro_batch(ids, spans, torch.cat(pieces)[None], torch.cat(positions)[None], position, before)


def _micro_batch(
    ids: torch.Tensor,
    spans: Sequence[Span],
    laid_out: torch.Tensor,
    positions: torch.Tensor | None,
    position: Sequence[torch.Tensor],
    before: Sequence[torch.Tensor],
) -> MicroBatch:
    token = torch.cat([span.start + span.selected for span in spans])  # [m]
    given = sum(map(len, spans))
    shared = 0 if positions is None else given - laid_out.numel()
    return MicroBatch(
        ids=laid_out,
        positions=positions,
        position=torch.cat(list(position)),
        before=torch.cat(list(before)),
        token=token,
        target=ids[token],
        tokens=given - shared,
        shared=shared,
    )
