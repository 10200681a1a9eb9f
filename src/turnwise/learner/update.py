"""What an update returns: its metrics, and what it computed of every token that it was given."""

from dataclasses import dataclass

from turnwise.learner.batch import PerTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The result of an update."""

    metrics: dict[str, float]
    """By `area/name`: `{"policy/loss": .02, "policy/entropy": 1.1, ...}`."""
    advantages: PerTurn
    """For every trajectory given, in order, turn by turn; one that was left out has no turns."""
    logprobs: PerTurn = ()
    """The learner's own, as the update began; NaN for tokens that were not read, or only after a step."""
    entropies: PerTurn = ()
    """Of the distribution that each token is sampled from; NaN likewise. Both are empty where no step was taken."""
    first_clip_fraction: float | None = None
    """Share of the first mini-batch that was clipped, before any step had moved the policy; None without a sound one.
    For samples of the weights at hand it is the disagreement of sampler and learner, and should be 0."""
