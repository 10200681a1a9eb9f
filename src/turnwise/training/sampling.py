"""What a step learns from: the rollouts of the next update, and the weights that they are sampled with.

Invariant: the trainer asks a source for a batch and gives it the update to run, and knows nothing of how the two
interleave. Synchronous rollouts end before the update begins, so that a batch follows from the seed and the weights.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from turnwise.config import Config
from turnwise.learner.update import Update
from turnwise.rollout import Fleet, RolloutBatch, RolloutCollector
from turnwise.stability import FilterSettings, select
from turnwise.training.build import Components


class RolloutSource(Protocol):
    """Rollouts for the learner."""

    @property
    def waiting(self) -> int:
        """Batches of the same weights that are sampled and not learnt from yet, which a checkpoint would lose."""
        ...

    async def next(self, step: int, keep: FilterSettings, progress: Callable[[int, int], None]) -> RolloutBatch:
        """What step 0, 1, ... learns from."""
        ...

    async def update(self, learn: Callable[[], Update]) -> Update:
        """Runs an update on the last batch."""
        ...

    async def load(self, version: int) -> None:
        """Makes sure that whatever is sampled from now on comes from the model's weights as they are."""
        ...

    def state_dict(self) -> dict[str, object]:
        """All that the next batch depends on besides the weights."""
        ...

    def load_state_dict(self, state: Mapping[str, object]) -> None: ...


class SynchronousRollouts:
    """Samples, then updates."""

    def __init__(self, collector: RolloutCollector, config: Config, parts: Components) -> None:
        self._collector, self._parts = collector, parts
        self._updates = config.rollout.updates_per_rollout
        self._batches: list[RolloutBatch] = []

    @property
    def waiting(self) -> int:
        return len(self._batches)

    async def next(self, step: int, keep: FilterSettings, progress: Callable[[int, int], None]) -> RolloutBatch:
        """The rollouts of all updates that share one set of weights are sampled together."""
        if not self._batches:
            for ahead in range(self._updates):
                await self.load(step)
                batch = await self._collector.collect(
                    step + ahead, partial(select, settings=keep), refill=keep.refill, progress=progress
                )
                self._batches.append(batch)
        return self._batches.pop(0)

    async def update(self, learn: Callable[[], Update]) -> Update:
        return learn()

    async def load(self, version: int) -> None:
        """Always just before the engine plays, so that no cache of earlier episodes is left, which a resumed run would
        not have; sums would round differently."""
        await self._collector.fleet.load(self._parts.loaded.model.state_dict(), version)

    def state_dict(self) -> dict[str, object]:
        return self._collector.task_sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        self._collector.task_sampler.load_state_dict(state)


def make_rollouts(config: Config, parts: Components, fleet: Fleet | None = None) -> RolloutSource:
    """The source of a run's rollouts that its settings ask for; without a `fleet`, episodes play in this process."""
    collector = RolloutCollector(
        parts.policy(config.rollout),
        parts.env,
        parts.train_tasks,
        config.rollout,
        seed=config.seed,
        ledger=parts.ledger,
        fleet=fleet,
    )
    return SynchronousRollouts(collector, config, parts)
