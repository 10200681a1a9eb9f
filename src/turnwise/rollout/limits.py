"""How many episodes are sampled, how, and where they end: the only place that decides limits.

There are six limits, each with its own `StopReason` or `Finish`, and no two of them overlap. An agent without tokens
(a model behind an API) can only be held to turns, to the tokens of a turn and to seconds.
"""

from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from turnwise.agents.decoding import Decoding
from turnwise.envs.base import Env
from turnwise.envs.memory import CompactionSettings
from turnwise.rollout.task_sampler import TaskRule
from turnwise.settings import Settings
from turnwise.types import Task

CONCURRENCY = 1024
"""Episodes under way at once, where nothing else is asked for."""


class Limits(Settings):
    """When an episode is cut off, and with which stop reason."""

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
    env_seconds: float | None = Field(default=300.0, gt=0)
    """Seconds per call of environment code (reset; step, with its tools and rewards; close); a call cut here fails its
    episode. None: no limit."""
    compaction: CompactionSettings | None = None
    """What keeps a conversation within its context, in place of ending the episode; null: nothing does."""

    @model_validator(mode="after")
    def _summaries_fit(self) -> Self:
        summary = self.compaction.summary_tokens if self.compaction is not None else None
        if summary is not None and summary > self.turn_tokens:
            raise ValueError(f"compaction.summary_tokens: {summary} is more than turn_tokens={self.turn_tokens} allows")
        return self


def limits_for(env: Env, task: Task, limits: Limits) -> Limits:
    """The limits of a task's episodes: the rollout's, but for those that its environment has of its own."""
    own = env.episode_limits(task)
    if not own:
        return limits
    shared = {name: getattr(limits, name) for name in Limits.model_fields}
    return Limits.model_validate(shared | dict(own))


class RolloutSettings(Limits, Decoding):
    """What one training step samples."""

    groups_per_step: int = Field(default=8, ge=1)
    """Tasks per step: each makes one group."""
    group_size: int = Field(default=8, ge=1)
    """Episodes per task: the size of a group."""
    task_sampler: TaskRule = "uniform"
    """`uniform`: every task in turn; `curriculum`: also replays tasks that are solved sometimes; `hard`: also replays
    tasks that are seldom solved."""
    replay: float = Field(default=0.5, ge=0, lt=1)
    """The share of a step's tasks that are replayed; read by `curriculum` and `hard`."""
    updates_per_rollout: int = Field(default=1, ge=1)
    """Updates per set of sampling weights (Online-k): as many samples and updates as with 1, but staler samples; ratios
    to the logprobs of the weights that sampled correct for it."""
    staleness: int = Field(default=0, ge=0)
    """0: a step samples, then updates. 1, 2, ...: episodes go on while the learner updates, with its new weights as
    they come; a group that was begun with the weights of step v is learnt from at step v + this at the latest."""
    straggler_seconds: float | None = Field(default=None, gt=0)
    """How long a step waits for groups whose last step it is; those still playing are then dropped, and counted by
    their length. Null: until they end."""
    max_failures: float = Field(default=0.5, ge=0, le=1)
    """The share of a step's episodes that may fail; a step with more ends the run, naming the commonest failure."""
    concurrency: int = Field(default=CONCURRENCY, ge=1)
    """Episodes under way at once; the engine's slots bound those that sample at once."""

    def unread(self) -> Mapping[str, str]:
        unread = {"replay": "task_sampler"} if self.task_sampler == "uniform" else {}
        return unread if self.staleness else {**unread, "straggler_seconds": "staleness"}
