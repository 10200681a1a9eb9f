"""The health metrics of a step: pure measurements of its rollouts and its update.

Invariant: everything is measured over all rollouts, before any filter, so that enabling a filter does not look like
health; what a step cannot tell is None, never zero.

Sources: RAGEN (arXiv 2504.20073) for the Echo Trap's signs, RAGEN-2 (arXiv 2604.06268) for mutual information.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from turnwise.rollout.summary import by_env, reward_std
from turnwise.stability.signal import RewardSignal, measure_signal
from turnwise.types import Group, StopReason, Trajectory, Turn

_NGRAM = 4
_EQUAL = 1e-9
"""Log-likelihoods closer than this differ by rounding alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Information:
    """How much reasoning depends on its prompt: `Information(nats=1.9, retrieval=.81)`."""

    nats: float
    """An estimate of the mutual information I(prompt; reasoning); at most the log of how many were compared."""
    retrieval: float
    """How often the reasoning is likelier under its own prompt than under any other; ties are shared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthMetrics:
    """One step's measurements: `HealthMetrics(success=.4, reward=.4, reward_std=.31, zero_variance=.2, ...)`."""

    success: float | None
    """Share of episodes that succeed; None if the environment does not report success."""
    reward: float
    reward_std: float
    """Mean over groups of the standard deviation of their trajectories' rewards."""
    zero_variance: float
    """Share of groups whose trajectories all have the same reward."""
    token_entropy: float
    """Nats per sampled token: the mean negative logprob, an unbiased estimate of the sampled distribution's entropy."""
    action_entropy: float
    """Entropy of whole turns over the batch, as a share of its maximum; 0 if all turns are the same."""
    gradient: float | None
    """Norm of the policy's gradient before clipping; None if the policy took no step."""
    repeated_turns: float
    """Share of turns, after the first, that equal the turn before."""
    repeated_ngrams: float
    """Share of 4-grams of sampled tokens that the same episode had sampled before."""
    response_length: float
    """Sampled tokens per turn."""
    invalid_actions: float | None
    """Share of actions that the environment could not parse; None if it does not report them."""
    early_stops: float
    """Share of episodes that were done after a single turn, without success."""
    information: float | None = None
    """`Information.nats`, at the steps that measure it."""
    retrieval: float | None = None
    on_policy_clip: float | None = None
    """Share of tokens that the loss clipped before any update had moved the policy; None if the samples were older."""
    context_full: float = 0.0
    """Share of episodes that were cut off because the context was full."""
    signal: RewardSignal | None = None
    """Whether rewards differ, and which are paid."""

    def metrics(self) -> dict[str, float]:
        """By `health/name`; what was not measured is left out, and so is what other metrics hold already."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        left_out = ("on_policy_clip", "context_full", "signal")
        return {f"health/{name}": value for name, value in named.items() if value is not None and name not in left_out}


def measure_health(
    groups: Sequence[Group],
    update: Mapping[str, float],
    information: Information | None = None,
    on_policy_clip: float | None = None,
) -> HealthMetrics | None:
    """The health of a step, from all its groups and the metrics of its update; None if no episode was played."""
    played = [t for group in groups for t in group.trajectories if t.stop is not StopReason.ENV_FAILED and t.turns]
    turns = [turn for trajectory in played for turn in trajectory.turns]
    if not turns:
        return None
    stds = [std for group in groups if (std := reward_std(group)) is not None]
    return HealthMetrics(
        success=_mean(float(t.success) for t in played) if any("success" in t.metrics for t in played) else None,
        reward=_mean(t.reward for t in played),
        reward_std=_mean(stds),
        zero_variance=_mean(float(std == 0) for std in stds),
        token_entropy=-math.fsum(p for turn in turns for p in turn.logprobs) / sum(len(t.logprobs) for t in turns),
        action_entropy=action_entropy(turns),
        gradient=_finite(update.get("policy/grad_norm")) if update.get("policy/steps_taken") else None,
        repeated_turns=repeated_turns(played),
        repeated_ngrams=repeated_ngrams(played),
        response_length=_mean(float(len(turn.action_ids)) for turn in turns),
        invalid_actions=_mean_where_reported(played, "invalid_actions"),
        early_stops=_mean(float(_gave_up(trajectory)) for trajectory in played),
        information=None if information is None else information.nats,
        retrieval=None if information is None else information.retrieval,
        on_policy_clip=on_policy_clip,
        context_full=_mean(float(t.stop is StopReason.CONTEXT_FULL) for t in played),
        signal=measure_signal(groups),
    )


def measure_envs(groups: Sequence[Group]) -> dict[str, HealthMetrics]:
    """The health of each environment of a mixture, from its own groups; empty outside a mixture."""
    measured = {name: measure_health(own, {}) for name, own in by_env(groups).items()}
    return {name: health for name, health in measured.items() if health is not None}


def action_entropy(turns: Sequence[Turn]) -> float:
    """Entropy of whole turns over the log of their number: four turns "a a b b" have log 2 / log 4 = .5."""
    if len(turns) < 2:
        return 0.0
    counts = Counter(turn.action_ids for turn in turns)
    shares = [count / len(turns) for count in counts.values()]
    return max(0.0, -math.fsum(share * math.log(share) for share in shares)) / math.log(len(turns))


def repeated_turns(trajectories: Sequence[Trajectory]) -> float:
    """Of the turns after an episode's first, the share that equals the turn before; 0 if no episode has two turns."""
    pairs = [
        (before.action_ids, after.action_ids)
        for trajectory in trajectories
        for before, after in zip(trajectory.turns, trajectory.turns[1:], strict=False)
    ]
    return _mean(float(before == after) for before, after in pairs) if pairs else 0.0


def repeated_ngrams(trajectories: Sequence[Trajectory], length: int = _NGRAM) -> float:
    """Of the n-grams within an episode's turns, the share that occurred before; mean over episodes that have any."""
    shares = []
    for trajectory in trajectories:
        grams = [
            turn.action_ids[start : start + length]
            for turn in trajectory.turns
            for start in range(len(turn.action_ids) - length + 1)
        ]
        if grams:
            shares.append(1 - len(set(grams)) / len(grams))
    return _mean(shares) if shares else 0.0


def mutual_information(logprobs: npt.NDArray[np.float64]) -> Information:
    """From [N, N] log p(reasoning i | prompt j): how much likelier reasoning is under its own prompt.

    I = mean_i( log p(z_i|x_i) − log( 1/N Σ_j p(z_i|x_j) ) )
    """
    count = len(logprobs)
    assert logprobs.shape == (count, count), "every reasoning under every prompt"
    own = np.diagonal(logprobs)  # [N]
    top = logprobs.max(1)  # [N]
    marginal = top + np.log(np.exp(logprobs - top[:, None]).mean(1))  # [N]
    best = logprobs >= top[:, None] - _EQUAL  # [N, N]
    retrieval = (np.diagonal(best) / best.sum(1)).mean()
    return Information(nats=float((own - marginal).mean()), retrieval=float(retrieval))


def _gave_up(trajectory: Trajectory) -> bool:
    return trajectory.stop is StopReason.DONE and len(trajectory.turns) == 1 and not trajectory.success


def _mean_where_reported(played: Sequence[Trajectory], name: str) -> float | None:
    reported = [t.metrics[name] for t in played if name in t.metrics]
    return _mean(reported) if reported else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)
