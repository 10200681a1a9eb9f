"""Environments: the contract, tools with tasks and rewards as a world, and the check that holds them to it."""

from typing import TYPE_CHECKING

from turnwise.lazy import lazy_names

if TYPE_CHECKING:
    from turnwise.envs.base import Env
    from turnwise.envs.check import check_env
    from turnwise.envs.mixture import Entry, Mixture
    from turnwise.envs.registry import EnvSettings, make_env
    from turnwise.envs.task_files import read_tasks
    from turnwise.envs.tool_env import ToolEnv
    from turnwise.envs.workers.env import in_workers

__all__ = ["Entry", "Env", "EnvSettings", "Mixture", "ToolEnv", "check_env", "in_workers", "make_env", "read_tasks"]
__getattr__ = lazy_names(
    __name__,
    {
        "base": ["Env"],
        "check": ["check_env"],
        "mixture": ["Entry", "Mixture"],
        "registry": ["EnvSettings", "make_env"],
        "task_files": ["read_tasks"],
        "tool_env": ["ToolEnv"],
        "workers.env": ["in_workers"],
    },
)
