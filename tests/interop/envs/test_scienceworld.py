"""ScienceWorld with its Java simulator: its own splits, its gold path, its score; without Java, one clear line."""

import asyncio
import shutil

import psutil
import pytest

from turnwise.envs import EnvSettings, check_env, make_env
from turnwise.envs.adapters.scienceworld import ScienceWorld
from turnwise.errors import EnvError
from turnwise.types import Message

pytest.importorskip("scienceworld")

NEEDS_JAVA = pytest.mark.skipif(shutil.which("java") is None, reason="ScienceWorld needs Java, and there is none")


@pytest.fixture(scope="module")
def env():
    return make_env(EnvSettings(name="scienceworld", args={"names": ["find-animal"], "think": False}))


@NEEDS_JAVA
def test_it_keeps_the_contract_of_an_environment(env):
    assert asyncio.run(check_env(env, episodes=1)) == []


@NEEDS_JAVA
def test_the_gold_path_passes_the_task(env, play):
    for place in range(3):
        opening, steps = play(env, env.tasks("train")[place])
        assert opening[0].content.startswith("Your task is to find a(n) animal.")
        assert steps[-1].done
        assert steps[-1].metrics["success"] == steps[-1].metrics["score"] == 1.0


@NEEDS_JAVA
def test_the_splits_are_those_of_the_package(env):
    train, test = ({task.data["variation"] for task in env.tasks(split)} for split in ("train", "test"))
    assert len(train) == 150
    assert len(test) == 75
    assert train & test == set()


@NEEDS_JAVA
def test_a_wrong_focus_ends_the_task_below_zero(env, play):
    _, steps = play(env, env.tasks("train")[0], ["look around", "focus on agent"])
    assert steps[-1].done
    assert steps[-1].metrics["success"] == 0.0
    assert steps[-1].metrics["score"] == -1.0


@NEEDS_JAVA
def test_a_mistake_may_cost_no_more_than_what_was_scored(play):
    env = ScienceWorld(names=["find-animal"], mistake_score=0.0, think=False)
    _, steps = play(env, env.tasks("train")[0], ["look around", "focus on agent"])
    assert steps[-1].done
    assert (steps[-1].metrics["success"], steps[-1].metrics["score"]) == (0.0, 0.0)
    paid = [sum(step.rewards.values()) for step in steps]
    before = steps[0].metrics["score"] - paid[0]  # a task may begin with some
    assert sum(paid) == pytest.approx(-before)


@NEEDS_JAVA
def test_an_episode_outlives_its_java_machine():
    async def play():
        env = ScienceWorld(names=["find-animal"], think=False)
        episode = env.spawn()
        await episode.reset(env.tasks("train")[0], 0)
        before = await episode.step(Message(role="assistant", content="<answer>look around</answer>"))
        machines = [one for one in psutil.Process().children(recursive=True) if one.name() == "java"]
        newest = max(machines, key=lambda one: one.create_time())
        newest.kill()
        newest.wait()
        after = await episode.step(Message(role="assistant", content="<answer>look around</answer>"))
        await episode.close()
        return before.messages, after.messages

    before, after = asyncio.run(play())
    assert before == after


@NEEDS_JAVA
def test_the_possible_commands_are_listed_on_demand(play):
    env = ScienceWorld(names=["find-plant"], show_commands=True, think=False)
    opening, steps = play(env, env.tasks("test")[0], ["look around", "dance"])
    assert "\nCommands: " in opening[1].content
    assert "look around" in opening[1].content
    assert steps[1].messages[0].content.startswith("Unknown command: dance")


@NEEDS_JAVA
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"names": ["find-animl"]}, "did you mean 'find-animal'"),
        ({"simplifications": "esy"}, "no simplification 'esy'"),
    ],
)
def test_a_wrong_setting_is_one_line(args, message):
    with pytest.raises(EnvError, match=message):
        ScienceWorld(**args)


def test_without_java_there_is_one_clear_line(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(EnvError, match=r"^ScienceWorld needs Java, and there is none; install a Java runtime"):
        ScienceWorld()
