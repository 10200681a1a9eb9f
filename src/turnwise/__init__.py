"""turnwise: train LLM agents with end-to-end reinforcement learning over many turns of tools and environments."""

from typing import TYPE_CHECKING

from turnwise.envs import Env, ToolEnv
from turnwise.rewards import reward
from turnwise.tools import tool
from turnwise.types import Message, Step, Task, ToolResult

if TYPE_CHECKING:
    from turnwise.api import train

__version__ = "0.1.0"
__all__ = ["Env", "Message", "Step", "Task", "ToolEnv", "ToolResult", "reward", "tool", "train"]


def __getattr__(name: str) -> object:
    """`train` brings torch and transformers, so it is imported when it is first asked for."""
    if name == "train":
        from turnwise.compute.process import configure_process

        configure_process()  # before torch loads OpenMP
        from turnwise.api import train

        return train
    raise AttributeError(f"module 'turnwise' has no attribute '{name}'")
