"""Episodes: the walk from tasks to trajectories."""

from turnwise.rollout.episode import Player, run_episode
from turnwise.rollout.groups import run_groups
from turnwise.rollout.limits import Decoding, Limits, RolloutSettings
from turnwise.rollout.sampler import Shuffled, TaskSampler
from turnwise.rollout.summary import reward_spread, summarise

__all__ = [
    "Decoding",
    "Limits",
    "Player",
    "RolloutSettings",
    "Shuffled",
    "TaskSampler",
    "reward_spread",
    "run_episode",
    "run_groups",
    "summarise",
]
