"""How many episodes are sampled, how, and where they end: the only place that decides limits.

There are five limits, each with its own `StopReason` or `Finish`, and no two of them overlap.
"""

from pydantic import Field

from turnwise.engines.base import Sampling
from turnwise.errors import ConfigError
from turnwise.rollout.sampler import Sampler
from turnwise.settings import Settings


class Limits(Settings):
    """When an episode is cut off, and by whom that is then said to be."""

    max_turns: int = Field(default=8, ge=1)
    """Turns of the agent per episode; an episode cut here stops with MAX_TURNS."""
    turn_tokens: int = Field(default=256, ge=1)
    """Sampled tokens per turn; a turn cut here finishes with LENGTH, and the episode goes on."""
    episode_tokens: int | None = Field(default=None, ge=1)
    """Sampled tokens per episode; an episode cut here stops with TOKEN_BUDGET. None: no limit."""
    context_tokens: int | None = Field(default=None, ge=2)
    """Tokens a conversation may hold; an episode cut here stops with CONTEXT_FULL. None: what the model has."""
    seconds: float | None = Field(default=None, gt=0)
    """Seconds per episode; an episode cut here stops with TIMEOUT. None: no limit."""


class Decoding(Settings):
    """The distribution a turn is sampled from."""

    temperature: float = Field(default=1.0, ge=0)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    """0 keeps every token."""

    def sampling(self, *, max_tokens: int, stop_ids: tuple[int, ...], seed: int) -> Sampling:
        """One turn's request to an engine."""
        return Sampling(
            max_tokens=max_tokens,
            stop_ids=stop_ids,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=seed,
        )

    def require_trainable(self, where: str) -> None:
        """Training needs the probability of every token it may see again after an update."""
        if self.temperature == 0 or self.top_p < 1 or self.top_k > 0:
            raise ConfigError(
                f"{where}: to train, sample with temperature > 0, top_p = 1 and top_k = 0; a truncated distribution"
                " has no ratio to the updated one (set these for evaluation alone)"
            )


class RolloutSettings(Limits, Decoding):
    """What one training step samples."""

    groups_per_step: int = Field(default=8, ge=1)
    """Tasks per step: each makes one group."""
    group_size: int = Field(default=8, ge=1)
    """Episodes per task: the size of a group."""
    sampler: Sampler = "uniform"
    """`uniform`: every task in turn; `curriculum`: also again those that are solved sometimes; `hard`: also again
    those that are seldom solved."""
    replay: float = Field(default=0.5, ge=0, lt=1)
    """The share of a step's tasks that were played before; read by `curriculum` and `hard`."""
    updates_per_rollout: int = Field(default=1, ge=1)
    """How many updates one set of weights is sampled for before it is replaced (Online-k): samples and updates stay
    as many, only staler; ratios are to the logprobs of the weights that sampled, which corrects for it."""
    concurrency: int = Field(default=1024, ge=1)
    """Episodes that are under way at once; the engine's slots bound those that sample at once."""
