"""Environments: the contract, tools with tasks and rewards as a world, and the check that holds them to it."""

from turnwise.envs.base import Env
from turnwise.envs.check import check_env
from turnwise.envs.registry import EnvSettings, make_env
from turnwise.envs.tool_env import ToolEnv

__all__ = ["Env", "EnvSettings", "ToolEnv", "check_env", "make_env"]
