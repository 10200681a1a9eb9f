"""The likelihood of each reasoning under every prompt, by teacher forcing, to estimate mutual information.

Invariant: a reasoning is the same tokens under every prompt, so that only the prompt differs.
Shapes: N prompts and their N reasonings, L tokens of all N² rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from turnwise.learner.batch import Batch
from turnwise.learner.forward_runner import ForwardRunner
from turnwise.stability.health import Information, mutual_information
from turnwise.types import Group, StopReason, Task, Trajectory, Turn

_TASK = Task(id="cross")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A prompt and the reasoning sampled after it."""

    prompt: tuple[int, ...]
    reasoning: tuple[int, ...]


def first_replies(groups: Sequence[Group], *, most: int, end_of_thinking: Sequence[int] = ()) -> list[Reply]:
    """One reply from each of at most `most` tasks, to prompts that all differ: the first turn of its first member.

    Reasoning goes up to the end of thinking where a turn has one, and is the whole turn where it has none.
    """
    replies: dict[tuple[int, ...], Reply] = {}
    for group in groups:
        opening = next((t.turns[0] for t in group.trajectories if t.turns), None)
        if opening is not None and len(replies) < most:
            reply = Reply(prompt=opening.context_ids, reasoning=_up_to(opening.action_ids, tuple(end_of_thinking)))
            replies.setdefault(reply.prompt, reply)
    return list(replies.values())


def measure_information(
    model: nn.Module, replies: Sequence[Reply], runner: ForwardRunner, *, context_limit: int
) -> Information | None:
    """Mutual information between prompts and reasoning; None with fewer than two prompts."""
    if len(replies) < 2:
        return None
    return mutual_information(cross_score(model, replies, runner, context_limit=context_limit))


def cross_score(
    model: nn.Module, replies: Sequence[Reply], runner: ForwardRunner, *, context_limit: int
) -> npt.NDArray[np.float64]:
    """[N, N]: log p(reasoning i | prompt j); a reasoning is cut where the longest prompt leaves it no room."""
    room = context_limit - max(len(reply.prompt) for reply in replies)
    rows = [
        Group(task=_TASK, trajectories=(_row(other.prompt, reply.reasoning[: max(room, 1)]),))
        for reply in replies
        for other in replies
    ]
    batch = Batch.of(rows)
    logprob = runner.logprobs(model, batch, batch.action).double()  # [L]
    total = torch.zeros(len(rows), dtype=torch.double).index_add(0, batch.row, logprob)  # [N²]
    return total.reshape(len(replies), len(replies)).numpy()


def _row(prompt: tuple[int, ...], reasoning: tuple[int, ...]) -> Trajectory:
    turn = Turn(context_ids=prompt, action_ids=reasoning, logprobs=(math.nan,) * len(reasoning), opens_row=True)
    return Trajectory(task=_TASK, turns=(turn,), stop=StopReason.DONE)


def _up_to(ids: tuple[int, ...], end: tuple[int, ...]) -> tuple[int, ...]:
    """The ids up to and including the first place where `end` stands."""
    for stop in range(len(end), len(ids) + 1) if end else ():
        if ids[stop - len(end) : stop] == end:
            return ids[:stop]
    return ids
