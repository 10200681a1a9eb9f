"""Environments behind OpenEnv servers, over WebSocket or HTTP; the package `openenv` is not needed."""

from turnwise.envs.adapters.openenv.env import OpenEnv

__all__ = ["OpenEnv"]
