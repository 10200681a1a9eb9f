"""Turns the ledger into metrics, one entry per record: seconds by account, tokens by outcome.

Invariant: an entry covers everything since the previous one, so the entries of a run sum to its wall-clock. In training
every sampled token is in exactly one of trained, zero_advantage, filtered and failed. Token counts depend on the
rollouts and the update alone, so a resumed run has those of an uninterrupted one.
"""

from collections.abc import Iterable, Sequence
from itertools import islice

from turnwise.engines.base import Engine
from turnwise.learner.update import Update
from turnwise.ledger import Ledger
from turnwise.types import Group, StopReason, Trajectory


class LedgerRecorder:
    """Closes ledger entries, splitting off padding and idle time by the engine's statistics."""

    def __init__(self, ledger: Ledger, engine: Engine) -> None:
        self._ledger, self._engine = ledger, engine
        self._seen = engine.stats

    def close(self) -> dict[str, float]:
        """Time since the last record, as metrics: `{"ledger/prefill_seconds": .8, ...}`."""
        return self._close(padding=0.0)

    def close_evaluation(self, groups: Sequence[Group]) -> dict[str, float]:
        """The same for an evaluation, with its tokens."""
        self._ledger.count(**count_played(groups))
        return self._close(padding=0.0)

    def close_training(self, groups: Sequence[Group], kept: Sequence[int], update: Update) -> dict[str, float]:
        """The same for a training step; `kept` are the indices of the groups that the update trained on."""
        self._ledger.count(**count_played(groups), **count_outcomes(groups, kept, update), **count_batch(update))
        return self._close(padding=update.metrics.get("batch/padding_share", 0.0))

    def _close(self, *, padding: float) -> dict[str, float]:
        stats = self._engine.stats
        work, self._seen = stats.since(self._seen), stats
        read, padded = work.prefill_tokens, work.prefill_padding
        if read or work.slot_steps:
            self._ledger.count(prompt_computed=read, prompt_reused=work.reused_tokens, prompt_padding=padded)
        idle = _share(work.idle_slot_steps, work.slot_steps)
        entry = self._ledger.close_step().move_share(idle, of="decode", into="tail_idle")
        for account, share in (("prefill", _share(padded, read + padded)), ("logprobs", padding), ("update", padding)):
            entry = entry.move_share(share, of=account, into="padding")
        return entry.metrics()


def count_played(groups: Iterable[Group]) -> dict[str, int]:
    """Tokens sampled and read: `{"sampled": 4096, "observation": 9000, "truncated": 80, "failed": 0}`."""
    everyone = [trajectory for group in groups for trajectory in group.trajectories]
    return {
        "sampled": _sampled(everyone),
        "observation": sum(len(turn.context_ids) for trajectory in everyone for turn in trajectory.turns[1:]),
        "truncated": _sampled(trajectory for trajectory in everyone if trajectory.stop.truncated),
        "failed": _sampled(trajectory for trajectory in everyone if not _played(trajectory)),
    }


def count_outcomes(groups: Sequence[Group], kept: Sequence[int], update: Update) -> dict[str, int]:
    """Outcome of the sampled tokens that did not fail: `{"trained": 3500, "zero_advantage": 400, "filtered": 96}`.

    `update.advantages` are in the order of the kept groups' trajectories.
    """
    counts = {"trained": 0, "zero_advantage": 0}
    advantages = iter(update.advantages)
    for place in kept:
        members = groups[place].trajectories
        given = list(islice(advantages, len(members)))
        taught = any(one for turns in given for turn in turns for one in turn)
        counts["trained" if taught else "zero_advantage"] += _sampled(filter(_played, members))
    left = [group for place, group in enumerate(groups) if place not in set(kept)]
    return counts | {"filtered": _sampled(t for group in left for t in group.trajectories if _played(t))}


def count_batch(update: Update) -> dict[str, int]:
    """Padding of one pass over the training rows that were read, and the tokens it computed once for several rows."""
    padded = update.metrics.get("batch/padding_share", 0.0)
    tokens = update.metrics["batch/tokens"] * (1 - update.metrics.get("batch/skipped_share", 0.0))
    shared = tokens * update.metrics.get("batch/shared_share", 0.0)
    return {"batch_padding": round((tokens - shared) * padded / (1 - padded)), "batch_shared": round(shared)}


def _sampled(trajectories: Iterable[Trajectory]) -> int:
    return sum(trajectory.action_tokens for trajectory in trajectories)


def _played(trajectory: Trajectory) -> bool:
    return trajectory.stop is not StopReason.ENV_FAILED


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
