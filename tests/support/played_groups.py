"""Groups that are played as a test says, and streams of them: by time, or each until it is let go."""

import asyncio
from functools import partial

from turnwise.agents import ScriptedAgent
from turnwise.envs.base import Env
from turnwise.rollout import Fleet, RolloutSettings
from turnwise.rollout.stream import RolloutStream
from turnwise.stability import FilterSettings, select
from turnwise.types import Group, Message, Step, StopReason, Task, Trajectory, Turn

TASKS = [Task(id=str(place), seed=place) for place in range(7)]
WANTED = 3


class Nothing(Env):
    async def reset(self, task, episode_seed):
        return [Message(role="user", content="go")]

    async def step(self, message):
        return Step(done=True)


def played(job, version, *, tokens=1, reward=0.0, stop=StopReason.DONE):
    """A group whose turns have the version that sampled them; the job's index is in the ids."""
    turn = Turn(
        context_ids=(1,),
        action_ids=(job.index,) * tokens,
        logprobs=(0.0,) * tokens,
        version=version,
        opens_row=True,
        rewards={"paid": reward},
    )
    return Group(
        task=job.task,
        trajectories=tuple(
            Trajectory(task=job.task, turns=(turn,), stop=stop, metrics={"success": reward})
            for _ in range(job.group_size)
        ),
    )


class Player:
    """Plays a group for as long as `seconds(number)` says; a group's tokens are of the weights it began with."""

    places = 1000

    def __init__(self, seconds=lambda number: 0.0, tokens=lambda number: 1, reward=lambda number: number % 2):
        self.seconds, self.tokens, self.reward, self.version, self.begun = seconds, tokens, reward, None, []

    async def play(self, job):
        self.begun.append((job.index, self.version, job.task.id))
        version = self.version
        await asyncio.sleep(self.seconds(job.index))
        return played(job, version, tokens=self.tokens(job.index), reward=float(self.reward(job.index)))

    async def load(self, weights, version):
        self.version = version


class Gated:
    """Plays a group until it is let go."""

    places = 1000

    def __init__(self):
        self.version, self.open, self.begun, self.cancelled = 0, {}, [], []

    async def play(self, job):
        self.begun.append(job.index)
        version = self.version
        self.open[job.index] = asyncio.get_running_loop().create_future()
        try:
            result = await self.open[job.index]
        except asyncio.CancelledError:
            self.cancelled.append(job.index)
            raise
        return result or played(job, version)

    async def load(self, weights, version):
        self.version = version

    async def finish(self, *numbers, with_result=None):
        for number in numbers:
            self.open[number].set_result(with_result)
        for _ in range(5):
            await asyncio.sleep(0)


def stream_of(worker, *, staleness=1, steps=100, task_sampler="uniform", ledger=None, **settings):
    rollout = RolloutSettings(
        groups_per_step=WANTED, group_size=2, staleness=staleness, task_sampler=task_sampler, **settings
    )
    fleet = Fleet([worker])
    return RolloutStream(ScriptedAgent(), Nothing(), TASKS, rollout, steps=steps, seed=0, ledger=ledger, fleet=fleet)


def collect(stream, step, *, progress=lambda done, total: None, **filter):
    settings = FilterSettings(**filter)
    return stream.collect(step, partial(select, settings=settings), refill=settings.refill, progress=progress)


def numbers(groups):
    return [group.trajectories[0].turns[0].action_ids[0] for group in groups]


async def train(stream, steps, *, update_seconds=0.0, first=0, **filter):
    """Steps of a learner that only sleeps; the batches."""
    batches = []
    for step in range(first, first + steps):
        await stream.load({}, step)
        batches.append(await collect(stream, step, **filter))
        await asyncio.sleep(update_seconds)
    return batches
