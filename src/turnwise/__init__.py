"""turnwise: train LLM agents with end-to-end reinforcement learning over many turns of tools and environments.

Invariant: importing the package imports no torch; `train` and `evaluate`, which need it, are imported on first use.
"""

from typing import TYPE_CHECKING

from turnwise.envs import Env, ToolEnv, check_env
from turnwise.rewards import Episode, Reward, reward
from turnwise.tools import tool
from turnwise.types import Message, Step, Task, ToolResult, Trajectory

if TYPE_CHECKING:
    from turnwise.api import evaluate, train
    from turnwise.config import Config

__version__ = "0.1.0"
__all__ = [
    "Config",
    "Env",
    "Episode",
    "Message",
    "Reward",
    "Step",
    "Task",
    "ToolEnv",
    "ToolResult",
    "Trajectory",
    "check_env",
    "evaluate",
    "reward",
    "tool",
    "train",
]


def __getattr__(name: str) -> object:
    """`Config` brings every room's settings, `train` and `evaluate` torch: each is imported when it is asked for."""
    if name == "Config":
        from turnwise.config import Config

        return Config
    if name in ("evaluate", "train"):
        from turnwise.compute.process import configure_process

        configure_process()  # before torch loads OpenMP
        from turnwise import api

        return getattr(api, name)
    raise AttributeError(f"module 'turnwise' has no attribute '{name}'")
