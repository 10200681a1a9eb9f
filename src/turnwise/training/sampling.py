"""What a step learns from: the rollouts of the next update, and the weights that they are sampled with.

Invariant: the trainer asks a source for a batch and gives it the update to run, and knows nothing of how the two
interleave. Synchronous rollouts end before the update begins, so that a batch follows from the seed and the weights;
asynchronous ones go on in the event loop while the update runs in a thread, and sample from weights of their own.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

from turnwise.compute.device import run_beside
from turnwise.config import Config
from turnwise.learner.update import Update
from turnwise.rollout import Fleet, RolloutBatch, RolloutCollector
from turnwise.rollout.stream import RolloutStream
from turnwise.stability import FilterSettings, select
from turnwise.tools.watchdog import watching
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

    async def roll_back(self) -> None:
        """The learner goes on from other weights than those that what is under way was sampled with."""
        ...

    async def close(self) -> None:
        """Ends what is under way."""
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

    async def roll_back(self) -> None:
        """Nothing is under way between two steps."""

    async def close(self) -> None:
        await self._collector.fleet.close()

    def state_dict(self) -> dict[str, object]:
        return self._collector.task_sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        self._collector.task_sampler.load_state_dict(state)


class AsynchronousRollouts:
    """Samples while it updates."""

    waiting = 0
    """A checkpoint keeps what is under way, as jobs."""

    def __init__(self, stream: RolloutStream, parts: Components) -> None:
        self._stream, self._parts = stream, parts
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="turnwise-update")
        self._loaded: int | None = None

    async def next(self, step: int, keep: FilterSettings, progress: Callable[[int, int], None]) -> RolloutBatch:
        await self.load(step)
        return await self._stream.collect(step, partial(select, settings=keep), refill=keep.refill, progress=progress)

    async def update(self, learn: Callable[[], Update]) -> Update:
        """Episodes go on meanwhile, with the weights of before."""
        device = self._parts.loaded.device
        with self._parts.ledger.wait_for("update"), watching():
            return await asyncio.get_running_loop().run_in_executor(self._thread, run_beside, learn, device)

    async def load(self, version: int) -> None:
        """Between two updates, so that no tensor is read while it changes.

        Where the engine has this version already, the caches of conversations under way are worth keeping.
        """
        if version != self._loaded or not self._stream.active:
            await self._stream.load(self._parts.loaded.model.state_dict(), version)
            self._loaded = version

    async def roll_back(self) -> None:
        await self._stream.restart()

    async def close(self) -> None:
        await self._stream.close()
        self._thread.shutdown(wait=False)

    def state_dict(self) -> dict[str, object]:
        return self._stream.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        self._stream.load_state_dict(state)


def make_rollouts(config: Config, parts: Components, fleet: Fleet | None = None) -> RolloutSource:
    """The source of a run's rollouts that its settings ask for; without a `fleet`, episodes play in this process."""
    agent, settings = parts.policy(config.rollout), config.rollout
    played = (agent, parts.env, parts.train_tasks, settings)
    if not settings.staleness:
        collector = RolloutCollector(*played, seed=config.seed, ledger=parts.ledger, fleet=fleet)
        return SynchronousRollouts(collector, config, parts)
    stream = RolloutStream(*played, steps=config.steps, seed=config.seed, ledger=parts.ledger, fleet=fleet)
    return AsynchronousRollouts(stream, parts)
