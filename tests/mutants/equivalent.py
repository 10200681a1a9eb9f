"""Survivors that no test can notice, each with its reason: the mutated code computes the same, or only more slowly."""

from collections.abc import Mapping

_FLEET = "src/turnwise/rollout/fleet.py"
_STREAM = "src/turnwise/rollout/stream.py"
_COLLECTOR = "src/turnwise/rollout/collector.py"
_DATA_PARALLEL = "src/turnwise/learner/parallel/data_parallel.py"
_CROSS_SCORE = "src/turnwise/learner/cross_score.py"
_LOSS_INPUTS = "src/turnwise/learner/loss_inputs.py"
_MIXTURE = "src/turnwise/rollout/mixture_sampler.py"
_LEARNER = "src/turnwise/learner/learner.py"
_SFT = "src/turnwise/learner/sft.py"
_FORWARD_RUNNER = "src/turnwise/learner/forward_runner.py"
_BATCH = "src/turnwise/learner/batch.py"
_COLD_START = "src/turnwise/training/cold_start.py"
_UNTYPED = "# type: ignore[no-untyped-call]  # torch leaves it untyped"

REASONS: Mapping[tuple[str, str, str], str] = {
    (_FLEET, "self.life = 0", "self.life = 1"): "lives are only compared with one another",
    (_FLEET, "member.life += 1", "member.life += 2"): "lives are only compared with one another",
    (
        _FLEET,
        "if len(self._offers) > _OFFERS_KEPT * len(self._members):  # most are outdated",
        "if (len(self._offers) >= _OFFERS_KEPT * len(self._members)):  # most are outdated",
    ): "when outdated offers are thrown away changes no choice",
    (
        _FLEET,
        "if len(self._offers) > _OFFERS_KEPT * len(self._members):  # most are outdated",
        "if len(self._offers) > (_OFFERS_KEPT / len(self._members)):  # most are outdated",
    ): "when outdated offers are thrown away changes no choice; more often only takes longer",
    (
        _STREAM,
        "if left is not None and left <= 0:",
        "if left is not None and (left < 0):",
    ): "a wait of no time at all is followed by another look at the clock",
    (
        _COLLECTOR,
        "self.begin(0, lambda done, total: None)",
        "self.begin(1, lambda done, total: None)",
    ): "the number of episodes is shown to nobody before the first round",
    (
        _DATA_PARALLEL,
        "loads = [0] * world",
        "loads = [1] * world",
    ): "all ranks begin with the same load, whatever it is",
    (
        _CROSS_SCORE,
        "for stop in range(len(end), len(ids) + 1) if end else ():",
        "for stop in range(len(end), len(ids) + 2) if end else ():",
    ): "past the last id, what is compared with the end is shorter than it",
    (
        _LOSS_INPUTS,
        "return batch.trajectory * len(batch.ids) + batch.turn",
        "return (batch.trajectory * len(batch.ids) - batch.turn)",
    ): "turns have numbers of their own either way, and numbers are only compared with one another",
    (
        _MIXTURE,
        "self._owed = dict.fromkeys(self._samplers, 0.0)",
        "self._owed = dict.fromkeys(self._samplers, 1.0)",
    ): "what environments are owed is only compared with one another",
    (
        _LEARNER,
        f"(0 * idle.sum()).backward()  {_UNTYPED}",
        f"((0 / idle.sum())).backward()  {_UNTYPED}",
    ): "a sum of logprobs is below 0, and the gradient of 0 over it is 0 as well",
    (
        _SFT,
        f"(0 * loss).backward()  {_UNTYPED}",
        f"((0 / loss)).backward()  {_UNTYPED}",
    ): "the loss of tokens is above 0, and the gradient of 0 over it is 0 as well",
    (
        _FORWARD_RUNNER,
        "spare = batch.micro_batches(1, rows=[batch.shortest_row()])",
        "spare = batch.micro_batches(2, rows=[batch.shortest_row()])",
    ): "one row is one micro-batch, however small the budget",
    (
        _BATCH,
        "oldest_version=min((turn.version for _, _, t in kept for turn in t.turns), default=0),",
        "oldest_version=min((turn.version for _, _, t in kept for turn in t.turns), default=1),",
    ): "an update of a batch without turns ends before it asks for their age",
    (
        _COLD_START,
        "draw_demonstrated(parts.env, tasks, settings.demonstrations, seed=0)",
        "draw_demonstrated(parts.env, tasks, settings.demonstrations, seed=1)",
    ): "only whether tasks can be drawn is asked, not which",
}
"""By file, the line as it is and the line as mutated."""
