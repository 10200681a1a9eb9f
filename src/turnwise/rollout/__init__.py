"""Episodes: the one conversation loop, groups of episodes, and the collector that feeds the learner."""

from typing import TYPE_CHECKING

from turnwise.lazy import lazy_names

if TYPE_CHECKING:
    from turnwise.agents.decoding import Decoding
    from turnwise.rollout.collector import RolloutBatch, RolloutCollector
    from turnwise.rollout.episode import run_episode
    from turnwise.rollout.failures import report_failures
    from turnwise.rollout.fleet import Fleet, GroupJob, LocalWorker, RolloutWorker, WorkerLost
    from turnwise.rollout.groups import run_groups
    from turnwise.rollout.limits import Limits, RolloutSettings
    from turnwise.rollout.summary import reward_std, summarise
    from turnwise.rollout.task_sampler import Shuffled, TaskSampler

__all__ = [
    "Decoding",
    "Fleet",
    "GroupJob",
    "Limits",
    "LocalWorker",
    "RolloutBatch",
    "RolloutCollector",
    "RolloutSettings",
    "RolloutWorker",
    "Shuffled",
    "TaskSampler",
    "WorkerLost",
    "report_failures",
    "reward_std",
    "run_episode",
    "run_groups",
    "summarise",
]
__getattr__ = lazy_names(
    __name__,
    {
        "collector": ["RolloutBatch", "RolloutCollector"],
        "episode": ["run_episode"],
        "failures": ["report_failures"],
        "fleet": ["Fleet", "GroupJob", "LocalWorker", "RolloutWorker", "WorkerLost"],
        "groups": ["run_groups"],
        "limits": ["Decoding", "Limits", "RolloutSettings"],
        "summary": ["reward_std", "summarise"],
        "task_sampler": ["Shuffled", "TaskSampler"],
    },
)
