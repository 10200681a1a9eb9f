"""The engine of a driver whose episodes are played elsewhere: it samples nothing, and counts the workers' work.

Invariant: what its `stats` say is the sum over all engines that rollout workers had, as far as they have reported.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Protocol

import torch

from turnwise.engines.base import Completion, EngineStats, Sampling


class Counted(Protocol):
    """A worker that reports its engine's work."""

    @property
    def stats(self) -> EngineStats: ...


class ClusterEngine:
    """Stands where a run has its engine; rollout workers have the engines."""

    def __init__(self, context_limit: int) -> None:
        self._context_limit = context_limit
        self.workers: Sequence[Counted] = ()

    @property
    def context_limit(self) -> int:
        return self._context_limit

    @property
    def stats(self) -> EngineStats:
        return reduce(EngineStats.plus, (worker.stats for worker in self.workers), EngineStats())

    async def generate(self, session: str, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        raise AssertionError("episodes are played by rollout workers")

    async def end(self, session: str) -> None:
        raise AssertionError("episodes are played by rollout workers")

    async def load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """The fleet loads weights into its workers."""
