"""turnwise: train LLM agents with end-to-end reinforcement learning over many turns of tools and environments.

Invariant: a name is imported when it is first used, so that `import turnwise` costs nothing, and none but `train` and
`evaluate` brings torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnwise.api import evaluate, train
    from turnwise.config import Config
    from turnwise.envs import Entry, Env, Mixture, ToolEnv, check_env, read_tasks
    from turnwise.gateway.program import AgentProgram
    from turnwise.rewards import Episode, Reward, reward
    from turnwise.tools import MCPTools, tool
    from turnwise.types import Message, Step, Task, ToolCall, ToolResult, Trajectory

__version__ = "0.1.0"
__all__ = [
    "AgentProgram",
    "Config",
    "Entry",
    "Env",
    "Episode",
    "MCPTools",
    "Message",
    "Mixture",
    "Reward",
    "Step",
    "Task",
    "ToolCall",
    "ToolEnv",
    "ToolResult",
    "Trajectory",
    "check_env",
    "evaluate",
    "read_tasks",
    "reward",
    "tool",
    "train",
]
_MODULES = {
    "turnwise.api": ("evaluate", "train"),
    "turnwise.config": ("Config",),
    "turnwise.envs": ("Entry", "Env", "Mixture", "ToolEnv", "check_env", "read_tasks"),
    "turnwise.gateway.program": ("AgentProgram",),
    "turnwise.rewards": ("Episode", "Reward", "reward"),
    "turnwise.tools": ("MCPTools", "tool"),
    "turnwise.types": ("Message", "Step", "Task", "ToolCall", "ToolResult", "Trajectory"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """Imports a public name from the room it lives in, once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'turnwise' has no attribute '{name}'")
    if _HOMES[name] == "turnwise.api":
        from turnwise.compute.process import configure_process

        configure_process()  # before torch loads OpenMP
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
