"""Checks of every training step, cheap enough to run always; they speak as findings, each kind once a run.

Invariant: they only read; nothing they compute reaches the learner, the sampler or the metrics. What a step shows is
judged by that step alone, so that a resumed run finds what an uninterrupted one does; a kind that the run's findings
hold already is not reported again.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import nn

from turnwise.checks.accounting import LaidOut, check_accounting
from turnwise.checks.diagnosis import Diagnosis
from turnwise.checks.gradient import check_gradient, check_moved
from turnwise.checks.groups import check_identical
from turnwise.checks.history import check_history
from turnwise.checks.numbers import check_numbers
from turnwise.checks.parity import FLOAT32_TOLERANCE, HALF_TOLERANCE, check_parity
from turnwise.checks.sampling import check_sampling
from turnwise.checks.tokens import TokenScores, pair_scores, played_in
from turnwise.checks.versions import check_versions
from turnwise.compute.device import on_one_thread
from turnwise.config import Config
from turnwise.learner.batch import Batch
from turnwise.learner.update import Update
from turnwise.types import Group

_HALF = (torch.bfloat16, torch.float16)
TOKENS = 16384
"""Of a step's rows, those that are checked: whole groups of about this many tokens, so that no step waits."""


class StepChecks:
    """`checks.observe(step, groups, kept, update)` after every update; an empty list is a sound step."""

    def __init__(
        self,
        model: nn.Module,
        *,
        autocast: torch.dtype | None = None,
        updates_per_rollout: int = 1,
        staleness: int = 0,
        dropout: bool = False,
    ) -> None:
        """`model` is the one that is trained; with `dropout`, its learner's logprobs are noisy."""
        self._model, self._staleness, self._dropout = model, staleness, dropout
        self._oldest = max(updates_per_rollout, staleness + 1)
        """How many steps back the weights of a turn may be."""
        half = autocast in _HALF or any(p.dtype in _HALF for p in model.parameters())
        self._tolerance = HALF_TOLERANCE if half else FLOAT32_TOLERANCE
        self._sums: list[float] | None = None
        """Of the weights, after the first step that this process saw."""
        self._compared = False
        self.reported: set[str] = set()
        """Kinds that the run has on record."""

    def observe(self, step: int, groups: Sequence[Group], kept: Sequence[Group], update: Update) -> list[Diagnosis]:
        """New diagnoses of the step that was just trained: the step-th, on `kept` of the `groups` sampled."""
        some = _choose(kept or groups, start=step)
        chosen = [(kept or groups)[index] for index in some]
        played, oldest, newest = played_in(chosen), step - self._oldest, step - 1
        spoilt = [*check_numbers(played), *self._check_rows(chosen), *check_identical(groups)]
        scores = None if spoilt or not kept else self._pair(kept, some, update, newest)  # else the cause is known
        found = [
            *spoilt,
            # Asynchronous groups that came too late for the bound are among the groups, and are not learnt from.
            *([] if self._staleness and not kept else check_versions(played, oldest=oldest, newest=newest)),
            *check_history(played),
            *([] if scores is None else check_parity(scores, tolerance=self._tolerance) or check_sampling(scores)),
            *check_gradient(update.advantages, update.metrics),
            *self._check_moved(update),
        ]
        fresh = [one for one in found if one.kind not in self.reported]
        self.reported |= {one.kind for one in fresh}
        return fresh

    def _check_rows(self, chosen: Sequence[Group]) -> list[Diagnosis]:
        trained = played_in(chosen)
        if not trained:
            return []
        with on_one_thread(next(self._model.parameters()).device):
            batch = Batch.of(chosen, tails=False)
        rows = LaidOut(
            ids=batch.ids.numpy(),
            action=batch.action.numpy(),
            logprob=batch.logprob.numpy(),
            reward=batch.reward.numpy(),
        )
        return check_accounting(trained, rows)

    def _pair(self, kept: Sequence[Group], some: Sequence[int], update: Update, newest: int) -> TokenScores | None:
        """Of turns that the weights at hand sampled: older ones differ for a reason."""
        if self._dropout or not update.logprobs:
            return None
        starts = [0, *accumulate(len(group.trajectories) for group in kept)]
        places = [place for index in some for place in range(starts[index], starts[index + 1])]
        everyone = [t for group in kept for t in group.trajectories]
        return pair_scores(
            [everyone[place] for place in places],
            [update.logprobs[place] for place in places],
            [update.entropies[place] for place in places],
            version=newest,
        )

    def _check_moved(self, update: Update) -> list[Diagnosis]:
        """Whether the second update that this process saw moved a weight: a pass over all weights, and so made once."""
        if self._compared or not update.metrics.get("policy/steps_taken"):
            return []
        before, self._sums = self._sums, sum_weights(self._model)
        if before is None:
            return []
        self._compared = True
        return check_moved(before, self._sums, update.metrics)


def _choose(groups: Sequence[Group], *, start: int) -> list[int]:
    """Groups, by index, that hold about `TOKENS` tokens, others in every step; two at least."""
    chosen: list[int] = []
    tokens = 0
    for offset in range(len(groups)):
        index = (start + offset) % len(groups)
        if tokens >= TOKENS and len(chosen) >= 2:
            break
        chosen.append(index)
        members = groups[index].trajectories
        tokens += sum(len(turn.context_ids) + len(turn.action_ids) for t in members for turn in t.turns)
    return chosen


def make_step_checks(config: Config, model: nn.Module, autocast: torch.dtype | None) -> StepChecks:
    """The checks of a run by its config."""
    return StepChecks(
        model,
        autocast=autocast,
        updates_per_rollout=config.rollout.updates_per_rollout,
        staleness=config.rollout.staleness,
        dropout=config.learner.dropout,
    )


def sum_weights(model: nn.Module) -> list[float]:
    """The sum of each tensor that is trained."""
    trained = [p.detach().sum(dtype=torch.double) for p in model.parameters() if p.requires_grad]
    sums: list[float] = torch.stack([one.cpu() for one in trained]).tolist() if trained else []
    return sums
