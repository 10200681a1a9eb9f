"""Many workers, simulated: the fleet and the stream of a real run, with workers and a learner that only sleep.

    an episode  lasts decode · tokens (log-normal) and tool waits (exponential) of its turns
    a worker    plays as many groups at once as its slots hold, and computes environments, rendering and prefill of one
                group after another
    a learner   sleeps for its update, then sends weights: size / bandwidth, to all workers at once
    a death     strikes a worker after exponential times; its groups are lost, and it is back after a restart

Invariant: what schedules is `Fleet`, `RolloutCollector` and `RolloutStream`, as they are; their processor time counts.
Ideal is a step as long as the longer of its sampling with every place always taken, and its learning.
"""

import asyncio
import math
import pickle
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from turnwise.agents import ScriptedAgent
from turnwise.config import Config
from turnwise.envs.base import Env
from turnwise.planning.recipe import Plan
from turnwise.planning.virtual_time import VirtualLoop, run_virtually
from turnwise.rollout.collector import RolloutCollector
from turnwise.rollout.fleet import Fleet, GroupJob, WorkerLost
from turnwise.rollout.limits import RolloutSettings
from turnwise.rollout.stream import RolloutStream
from turnwise.seeds import derive_seed
from turnwise.types import Group, Message, Step, StopReason, Task, Trajectory, Turn

if TYPE_CHECKING:
    import torch

Mode = Literal["synchronous", "asynchronous"]
_MOST_PLACES = 4
"""Groups that a worker of a recipe plays at once here: its slots may hold more, which only takes longer to simulate."""
_POOL = 64
"""Groups that are made beforehand: workers deliver them over and over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a simulated run does; seconds are virtual."""

    group_size: int = 8
    places: int = 2
    """Groups a worker plays at once."""
    rounds: float = 2.0
    """Groups of a step, for each place of each worker."""
    turns: float = 4.0
    tokens: float = 400.0
    """Sampled in an episode, on average."""
    sigma: float = 0.75
    """Of the logarithm of an episode's tokens: what FrozenLake's stored episodes have; multi-hop ones have .33."""
    token_seconds: float = 0.01
    """Of one iteration of a worker's engine."""
    tool_seconds: float = 0.2
    """Mean of a tool's wait, once a turn."""
    serial_seconds: float = 0.05
    """A worker's own work for a group, one group after another: environments, rendering, prefill."""
    context_tokens: int = 1000
    """Read in an episode beside the sampled ones: they travel with it."""
    learner_share: float = 0.9
    """How long an update takes, as a share of the sampling of a step with every place always taken."""
    weight_seconds: float = 0.5
    """To send new weights to all workers."""
    hours_between_deaths: float = 24.0
    """Of one worker."""
    restart_seconds: float = 60.0
    steps: int = 16
    staleness: int = 2
    """Of asynchronous runs: `rollout.staleness`."""
    seed: int = 0

    @property
    def warm_up(self) -> int:
        """First steps that do not count: all workers begin at once, and the stream fills."""
        return self.staleness + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """How a simulated run fared beside the ideal."""

    workers: int
    mode: Mode
    step_seconds: float
    ideal_seconds: float
    scheduler_seconds: float
    """Processor time of scheduling, per step."""
    lost: int
    """Workers that died."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """What keeps a step from the ideal: the share of ideal that is gained without each."""

    @property
    def share(self) -> float:
        return self.ideal_seconds / self.step_seconds


class _Empty(Env):
    """Tasks and nothing else: no episode is played."""

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(id=str(place)) for place in range(4096)]

    async def reset(self, task: Task, episode_seed: int) -> Sequence[Message]:
        raise AssertionError("a simulated worker plays no episode")

    async def step(self, message: Message) -> Step:
        raise AssertionError("a simulated worker plays no episode")


class SleepingWorker:
    """Delivers groups that were made beforehand, when they would have been played."""

    def __init__(self, number: int, load: Load, pool: Sequence[Group], receive_seconds: float) -> None:
        self.places = load.places
        self._load, self._pool, self._receive = load, pool, receive_seconds
        self._luck = random.Random(derive_seed(load.seed, "worker", number))
        self.played: list[float] = []
        """How long its groups lasted."""
        self._busy_until = 0.0
        self._dies_at = self._next_death(0.0)

    async def play(self, job: GroupJob) -> Group:
        loop = asyncio.get_running_loop()
        luck = random.Random(derive_seed(job.seed, "length", job.index))
        group = self._pool[luck.randrange(len(self._pool))]
        self._busy_until = max(self._busy_until, loop.time()) + self._load.serial_seconds
        lasting = _longest_episode(group, self._load, luck)
        ends = max(self._busy_until, loop.time() + lasting)
        if self._dies_at < ends:
            await asyncio.sleep(max(self._dies_at - loop.time(), 0.0))
            raise WorkerLost("simulated")
        await asyncio.sleep(ends - loop.time())
        assert isinstance(loop, VirtualLoop)
        loop.charge(self._receive)
        self.played.append(lasting)
        return group

    async def load(self, weights: "Mapping[str, torch.Tensor]", version: int) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() >= self._dies_at:  # back after its restart
            await asyncio.sleep(max(self._dies_at + self._load.restart_seconds - loop.time(), 0.0))
            self._busy_until = loop.time()
            self._dies_at = self._next_death(loop.time())
        await asyncio.sleep(self._load.weight_seconds)

    def _next_death(self, now: float) -> float:
        hours = self._load.hours_between_deaths
        return now + self._luck.expovariate(1 / (3600 * hours)) if math.isfinite(hours) else math.inf


def _longest_episode(group: Group, load: Load, luck: random.Random) -> float:
    """Seconds until the last episode of a group has ended."""
    return max(_episode_seconds(one, load, luck) for one in group.trajectories)


def _episode_seconds(trajectory: Trajectory, load: Load, luck: random.Random) -> float:
    waits = sum(luck.expovariate(1 / load.tool_seconds) for _ in trajectory.turns) if load.tool_seconds else 0.0
    return trajectory.action_tokens * load.token_seconds + waits


def make_pool(load: Load) -> list[Group]:
    """Groups with log-normal episodes, as large as real ones: receiving and looking at them costs what it costs."""
    luck = random.Random(derive_seed(load.seed, "pool"))
    centre = math.log(load.tokens) - load.sigma**2 / 2
    turns = max(1, round(load.turns))

    def episode() -> Trajectory:
        tokens = max(turns, round(luck.lognormvariate(centre, load.sigma)))
        share, context = tokens // turns, load.context_tokens // turns
        moves = [
            Turn(
                context_ids=tuple(range(context)),
                action_ids=tuple(range(share)),
                logprobs=(-0.5,) * share,
                opens_row=place == 0,
            )
            for place in range(turns)
        ]
        return Trajectory(task=Task(id="simulated"), turns=tuple(moves), stop=StopReason.DONE)

    return [
        Group(task=Task(id="simulated"), trajectories=tuple(episode() for _ in range(load.group_size)))
        for _ in range(_POOL)
    ]


def measure_receiving(pool: Sequence[Group]) -> float:
    """Seconds of processor time in which the scheduler's process unpickles a group that a worker has sent."""
    sent = [pickle.dumps(group) for group in pool[:16]]
    best = math.inf
    for _ in range(3):
        began = time.thread_time()
        for one in sent:
            pickle.loads(one)
        best = min(best, (time.thread_time() - began) / len(sent))
    return best


def expected_lengths(load: Load, pool: Sequence[Group]) -> list[float]:
    """Seconds that groups of the pool last."""
    luck = random.Random(derive_seed(load.seed, "ideal"))
    return [_longest_episode(group, load, luck) for group in pool for _ in range(8)]


def ideal_sampling(load: Load, lengths: Sequence[float]) -> float:
    """Seconds in which a worker plays its groups of a step, every place always taken."""
    return load.rounds * max(statistics.fmean(lengths), load.places * load.serial_seconds)


def simulate(load: Load, workers: int, mode: Mode, *, counts_computing: bool = True) -> Simulated:
    """Runs the scheduler of a training run over so many workers."""
    pool = make_pool(load)
    receive = measure_receiving(pool) if counts_computing else 0.0
    learning = load.learner_share * ideal_sampling(load, expected_lengths(load, pool))
    members = [SleepingWorker(number, load, pool, receive) for number in range(workers)]
    run = _train(load, members, mode, learning)
    (began, ended, computed, lost), _ = run_virtually(run, counts_computing=counts_computing)
    sampling = ideal_sampling(load, [seconds for member in members for seconds in member.played])
    steps = load.steps - load.warm_up
    return Simulated(
        workers=workers,
        mode=mode,
        step_seconds=(ended - began) / steps,
        ideal_seconds=max(sampling, learning) if mode == "asynchronous" else sampling + learning,
        scheduler_seconds=computed / steps,
        lost=lost,
    )


async def _train(
    load: Load, workers: Sequence[SleepingWorker], mode: Mode, learning: float
) -> tuple[float, float, float, int]:
    """Steps as the trainer makes them; the clock and the processor time after the warm-up and at the end."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    fleet = Fleet(workers, clock=loop.time)
    settings = RolloutSettings(
        groups_per_step=max(1, round(load.places * load.rounds * len(workers))),
        group_size=load.group_size,
        staleness=load.staleness if mode == "asynchronous" else 0,
    )
    env = _Empty()
    source: RolloutStream | RolloutCollector
    if mode == "asynchronous":
        # As if the run went on: in its last steps, a stream samples nothing more and lives on what it has.
        steps = load.steps + load.staleness + 1
        source = RolloutStream(
            ScriptedAgent(), env, env.tasks("train"), settings, steps=steps, seed=load.seed, fleet=fleet
        )
    else:
        source = RolloutCollector(ScriptedAgent(), env, env.tasks("train"), settings, seed=load.seed, fleet=fleet)
    began, computed = 0.0, 0.0
    for step in range(load.steps):
        if step == load.warm_up:
            began, computed = loop.time(), loop.computed
        await (source.load({}, step) if isinstance(source, RolloutStream) else fleet.load({}, step))
        await source.collect(step, _keep_all, refill=0, progress=lambda done, total: None)
        await asyncio.sleep(learning)
    lost = fleet.lost
    ended, used = loop.time(), loop.computed - computed
    await (source.close() if isinstance(source, RolloutStream) else fleet.close())
    return began, ended, used, lost


@dataclass(frozen=True, slots=True, kw_only=True)
class _All:
    kept: tuple[int, ...]

    def metrics(self, refills: int) -> dict[str, float]:
        return {}


def _keep_all(groups: Sequence[Group], *, most: int | None = None) -> _All:
    return _All(kept=tuple(range(len(groups)))[:most])


WITHOUT: Mapping[str, Callable[[Load], Load]] = {
    "weights": lambda load: replace(load, weight_seconds=0.0),
    "deaths": lambda load: replace(load, hours_between_deaths=math.inf),
    "stragglers": lambda load: replace(load, sigma=0.0, tool_seconds=0.0),
}
"""The same load without one of the things that cost time."""


def simulate_with_limits(load: Load, workers: int, mode: Mode) -> Simulated:
    """A simulation, and what limits it: each cause is taken away in turn, and the share of ideal compared."""
    found = simulate(load, workers, mode)
    limits = {"scheduler": simulate(load, workers, mode, counts_computing=False).share - found.share}
    for name, without in WITHOUT.items():
        limits[name] = simulate(without(load), workers, mode).share - found.share
    return replace(found, limits={name: max(gain, 0.0) for name, gain in limits.items()})


def load_of(config: Config, plan: Plan) -> Load:
    """The load of a recipe: lengths and times by the plan."""
    work, rollout = plan.workload, config.rollout
    per_worker = max(1, min(config.engine.slots // rollout.group_size, _MOST_PLACES))
    host = plan.parts["environment"] + plan.parts["render"] + plan.parts["prefill"]
    tokens = work.action_tokens / work.episodes
    return Load(
        group_size=rollout.group_size,
        places=per_worker,
        turns=work.turns / work.episodes,
        tokens=tokens,
        token_seconds=plan.parts["decode"] / tokens,
        serial_seconds=host / work.episodes * rollout.group_size,
        context_tokens=int(work.prompt_tokens / work.episodes),
        weight_seconds=2 * plan.shape.parameters / 25e9,
        tool_seconds=0.0,
    )


def simulate_plan(config: Config, plan: Plan, workers: Sequence[int]) -> list[Simulated]:
    """Both modes for each number of workers."""
    load = load_of(config, plan)
    modes: tuple[Mode, ...] = ("synchronous", "asynchronous")
    return [simulate_with_limits(load, count, mode) for count in workers for mode in modes]
