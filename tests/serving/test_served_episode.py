"""An episode played from outside: what it pays, what it refuses, and what breaks."""

import asyncio

import pytest

from turnwise import Task, ToolEnv, tool
from turnwise.agents import ExpertAgent
from turnwise.envs.boundary import EpisodeFailure
from turnwise.envs.encyclopedia.env import Encyclopedia
from turnwise.envs.games.frozen_lake import FrozenLake
from turnwise.errors import EnvError
from turnwise.rewards import exact_match_reward
from turnwise.rollout import run_episode
from turnwise.serving.episode import NotPlaying, ServedEpisode, find_task
from turnwise.types import ToolResult


class Counting(ToolEnv):
    closed = 0

    @tool(quick=True)
    def add(self, number: int) -> ToolResult:
        """Adds."""
        if number < 0:
            raise SystemExit("out")
        return ToolResult(content=str(number), rewards={"added": float(number)})

    def begin(self, task, episode_seed):
        if task.id == "task-1":
            raise KeyError("broken")

    def close(self):
        Counting.closed += 1


def counting():
    tasks = [{"question": "Add.", "answers": ["3"]}, {"question": "Breaks.", "answers": ["3"]}]
    return Counting(tasks=tasks, rewards=[exact_match_reward], process={"added": 0.1})


def test_an_episode_is_played_move_by_move_and_paid_once():
    async def play():
        episode = ServedEpisode(counting())
        with pytest.raises(NotPlaying, match="reset first"):
            await episode.call("add", {"number": 1})
        (opening,) = await episode.reset()
        await episode.call("add", {"number": 1})
        step = await episode.call("add", {"number": 2})
        last = await episode.respond("<answer>3</answer>")
        with pytest.raises(NotPlaying, match=r"over, with reward 1.3: reset"):
            await episode.respond("<answer>3</answer>")
        described = episode.progress.describe()
        await episode.close()
        return opening.content, step.messages[0].content, last.done, described

    opening, second, done, described = asyncio.run(play())
    assert (opening, second, done) == ("Add.", "2", True)
    assert (described["turns"], described["done"], described["metrics"]["success"]) == (3, True, 1.0)
    assert described["rewards"] == pytest.approx({"added": 0.3, "exact_match": 1.0})


def test_what_the_environments_code_raises_ends_the_episode_and_is_no_answer():
    async def play():
        episode = ServedEpisode(counting())
        with pytest.raises(EpisodeFailure, match="reset: KeyError: 'broken'"):
            await episode.reset(index=1)
        with pytest.raises(NotPlaying):
            await episode.respond("x")
        await episode.reset(index=0)
        await episode.close()

    Counting.closed = 0
    asyncio.run(play())
    assert Counting.closed == 2, "the broken one too"


def test_requests_at_once_are_moves_in_turn():
    async def play():
        episode = ServedEpisode(counting())
        await episode.reset()
        steps = await asyncio.gather(*(episode.call("add", {"number": number}) for number in range(5)))
        await episode.close()
        return [step.messages[0].content for step in steps]

    assert asyncio.run(play()) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("env", [Encyclopedia(), FrozenLake()], ids=["tools", "text"])
def test_an_episode_from_outside_is_the_one_from_inside(env):
    task = env.tasks("train")[3]
    native = asyncio.run(run_episode(ExpertAgent(), env.spawn(), task, episode_seed=7))

    async def play():
        episode = ServedEpisode(env)
        read = list(await episode.reset(index=3, episode_seed=7))
        while not episode.progress.done:
            message = episode.env.expert()
            read += [message, *(await episode.act(message)).messages]
        progress = episode.progress
        await episode.close()
        return read, progress

    read, progress = asyncio.run(play())
    assert tuple(read) == native.messages
    assert (progress.rewards, progress.metrics, progress.turns) == (native.rewards, native.metrics, len(native.turns))


def test_a_task_that_is_not_there_is_named():
    env = counting()
    with pytest.raises(EnvError, match="no task 2 in the split 'train', which has 2"):
        find_task(env, "train", 2, None)
    with pytest.raises(EnvError, match="no task 'x' in the split 'train'; its first is 'task-0'"):
        find_task(env, "train", None, "x")
    assert find_task(env, "test", None, "task-1") == Task(id="task-1", seed=1, data=env.tasks("test")[1].data)
