"""How a step looks to somebody who watches for collapse: pure measurements of what was sampled and learnt.

Invariant: everything is measured over all that was sampled, before any filter, so that switching a filter on does not
look like health; what a step cannot tell is None, never zero.

Sources: RAGEN (arXiv 2504.20073) for the Echo Trap's signs, RAGEN-2 (arXiv 2604.06268) for mutual information.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from turnwise.rollout.summary import reward_spread
from turnwise.types import Group, StopReason, Trajectory, Turn

_NGRAM = 4
_EQUAL = 1e-9
"""Two likelihoods nearer than this are told apart by rounding alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Information:
    """What reasoning says of the prompt it answers: `Information(nats=1.9, retrieval=.81)`."""

    nats: float
    """An estimate of the mutual information I(prompt; reasoning); at most the log of how many were compared."""
    retrieval: float
    """How often the reasoning is likelier under its own prompt than under any other; ties are shared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """One step's measurements: `Vitals(success=.4, reward=.4, reward_std=.31, zero_variance=.2, ...)`."""

    success: float | None
    """Share of episodes that succeed; None when the environment does not say."""
    reward: float
    reward_std: float
    """Mean over groups of the standard deviation of what their trajectories were paid."""
    zero_variance: float
    """Share of groups whose trajectories were all paid the same."""
    token_entropy: float
    """Nats per sampled token: the sampler's mean surprise at its own choices, an unbiased estimate of its entropy."""
    action_entropy: float
    """Entropy of whole turns over the batch, as a share of the most it could be: 0, all said the same."""
    gradient: float | None
    """Norm of the policy's gradient before clipping; None when the policy took no step."""
    repeated_turns: float
    """Share of turns, after the first, that say exactly what the turn before said."""
    repeated_ngrams: float
    """Share of 4-grams of sampled tokens that the same episode had sampled before."""
    response_length: float
    """Sampled tokens per turn."""
    invalid_actions: float | None
    """Share of actions that the environment could not read; None when it does not say."""
    early_stops: float
    """Share of episodes that ended themselves after a single turn, without success."""
    information: float | None = None
    """`Information.nats`, at the steps that measure it."""
    retrieval: float | None = None

    def metrics(self) -> dict[str, float]:
        """By `vitals/name`; what was not measured is left out."""
        return {f"vitals/{name}": value for name, value in asdict(self).items() if value is not None}


def measure(
    groups: Sequence[Group], learnt: Mapping[str, float], information: Information | None = None
) -> Vitals | None:
    """The vitals of a step, from all groups it sampled and the metrics of its update; None when none was played."""
    played = [t for group in groups for t in group.trajectories if t.stop is not StopReason.ENV_FAILED and t.turns]
    turns = [turn for trajectory in played for turn in trajectory.turns]
    if not turns:
        return None
    spreads = [spread for group in groups if (spread := reward_spread(group)) is not None]
    return Vitals(
        success=_mean(float(t.success) for t in played) if any("success" in t.metrics for t in played) else None,
        reward=_mean(t.reward for t in played),
        reward_std=_mean(spreads),
        zero_variance=_mean(float(spread == 0) for spread in spreads),
        token_entropy=-math.fsum(p for turn in turns for p in turn.logprobs) / sum(len(t.logprobs) for t in turns),
        action_entropy=action_entropy(turns),
        gradient=_finite(learnt.get("policy/grad_norm")) if learnt.get("policy/steps_taken") else None,
        repeated_turns=repeated_turns(played),
        repeated_ngrams=repeated_ngrams(played),
        response_length=_mean(float(len(turn.action_ids)) for turn in turns),
        invalid_actions=_mean_where_told(played, "invalid_actions"),
        early_stops=_mean(float(_gave_up(trajectory)) for trajectory in played),
        information=None if information is None else information.nats,
        retrieval=None if information is None else information.retrieval,
    )


def action_entropy(turns: Sequence[Turn]) -> float:
    """Entropy of what whole turns say, over the log of their number: four turns "a a b b" have log 2 / log 4 = .5."""
    if len(turns) < 2:
        return 0.0
    counts = Counter(turn.action_ids for turn in turns)
    shares = [count / len(turns) for count in counts.values()]
    return max(0.0, -math.fsum(share * math.log(share) for share in shares)) / math.log(len(turns))


def repeated_turns(trajectories: Sequence[Trajectory]) -> float:
    """Of the turns that have one before them, the share that says the same again; 0 when no episode has two."""
    pairs = [
        (before.action_ids, after.action_ids)
        for trajectory in trajectories
        for before, after in zip(trajectory.turns, trajectory.turns[1:], strict=False)
    ]
    return _mean(float(before == after) for before, after in pairs) if pairs else 0.0


def repeated_ngrams(trajectories: Sequence[Trajectory], length: int = _NGRAM) -> float:
    """Of the n-grams within an episode's turns, the share that it had before; the mean over episodes that have any."""
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
    """From [N, N] log p(reasoning i | prompt j): how much more likely reasoning is under the prompt it answers.

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


def _mean_where_told(played: Sequence[Trajectory], name: str) -> float | None:
    told = [t.metrics[name] for t in played if name in t.metrics]
    return _mean(told) if told else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)
