"""How good is it? Episodes on held-out tasks, with an interval that says how sure we are."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import Field

from turnwise.envs.base import Env
from turnwise.rollout import Decoding, Player, run_groups, summarise
from turnwise.settings import Settings
from turnwise.types import Group, StopReason, Task


class EvaluateSettings(Decoding, Settings):
    """What is evaluated, when, and how it is decoded."""

    temperature: float = Field(default=0.0, ge=0)
    """0 is greedy."""
    tasks: int = Field(default=200, ge=1)
    """How many tasks of the split, from its beginning."""
    responses: int = Field(default=1, ge=1)
    """Episodes per task."""
    split: str = "test"
    every: int = Field(default=0, ge=0)
    """Evaluate after every so many training steps; 0: only before and after training."""
    untrained: bool = False
    """Also evaluate the model as it came, before the cold start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """`Evaluation(success=.93, interval=(.89, .96), reward=.93, episodes=200, groups=...)`."""

    success: float
    interval: tuple[float, float]
    """95% of such intervals hold the true success rate (Wilson's)."""
    reward: float
    episodes: int
    """How many were scored: those that failed for reasons of infrastructure are not."""
    groups: list[Group]

    def metrics(self) -> dict[str, float]:
        """By `area/name`, as they are written into a run."""
        return {
            "evaluate/success": self.success,
            "evaluate/success_low": self.interval[0],
            "evaluate/success_high": self.interval[1],
            "evaluate/reward": self.reward,
            "evaluate/episodes": float(self.episodes),
        }

    def __str__(self) -> str:
        low, high = self.interval
        return f"success {self.success:.3f} [{low:.3f}, {high:.3f}], reward {self.reward:.3f}, {self.episodes} episodes"


async def evaluate(
    player: Player,
    env: Env,
    tasks: Sequence[Task],
    *,
    responses: int = 1,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Plays every task and says how many succeed."""
    groups = await run_groups(player, env, tasks, responses=responses, seed=seed, progress=progress)
    summary = summarise(groups)
    scored = [t for group in groups for t in group.trajectories if t.stop is not StopReason.ENV_FAILED]
    return Evaluation(
        success=summary["rollout/success"],
        interval=wilson_interval(sum(t.success for t in scored), len(scored)),
        reward=summary["rollout/reward"],
        episodes=len(scored),
        groups=groups,
    )


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """The 95% score interval of a share: `wilson_interval(8, 10)` is (.490, .943)."""
    if trials == 0:
        return 0.0, 1.0
    z = 1.959964
    share = successes / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials**2)) / (1 + z * z / trials)
    return max(0.0, centre - half), min(1.0, centre + half)
