"""Every call of environment code has a deadline: what hangs is named with its line, and costs its episode alone."""

import asyncio
import logging
import re
import subprocess
import sys
import textwrap
import threading
import time
from types import SimpleNamespace

import pytest

from byte_render import Scripted, Watched, play, policy, says
from turnwise import Episode, ToolEnv, reward, tool
from turnwise.agents import ScriptedAgent
from turnwise.envs.boundary import Boundary
from turnwise.envs.host import Host
from turnwise.rollout import Limits, run_episode, run_groups
from turnwise.rollout.boundary import _Watch
from turnwise.tools import abandoned_threads
from turnwise.types import Step, StopReason, Task

TASKS = [Task(id=name, data={"question": "?"}) for name in ("a", "b", "c")]


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch):
    for module in ("rollout.boundary", "tools.running"):
        monkeypatch.setattr(f"turnwise.{module}.GRACE", 0.1)


async def sleep(episode):
    await asyncio.sleep(60)


async def sleep_on(episode):
    """Swallows every cancellation."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue


def test_a_call_that_waits_too_long_is_cancelled_and_fails_its_episode():
    env, engine = Scripted(says("x"), sleep), Watched("a", "b")
    episode = play(engine, env, env_seconds=0.1)
    assert (episode.stop, len(episode.turns)) == (StopReason.ENV_FAILED, 2)
    assert re.fullmatch(
        r"task 't': step: no answer within 0\.1 seconds \(.*test_deadlines\.py:\d+ in sleep\)", episode.failure
    )
    assert (env.closed, engine.ended) == (["t"], ["s"])


def test_a_reset_that_hangs_and_a_close_that_hangs():
    episode = play(Watched("a"), Scripted(Step(done=True), opening=sleep), env_seconds=0.1)
    assert (episode.stop, episode.turns) == (StopReason.ENV_FAILED, ())
    assert episode.failure.startswith("task 't': reset: no answer within 0.1 seconds (")
    scored = play(Watched("a"), Scripted(Step(done=True, rewards={"r": 1.0}), closing=sleep), env_seconds=0.1)
    assert (scored.stop, scored.reward) == (StopReason.DONE, 1.0), "a clean-up that hangs costs no score"
    assert scored.failure.startswith("task 't': close: no answer within 0.1 seconds (")


def test_the_time_of_a_call_begins_anew_while_another_episode_holds_its_process():
    looks = []

    class Crowded(Host):
        def is_held_up(self):
            looks.append("look")
            return len(looks) < 3

    class Placed(Scripted):
        host = Crowded()

    episode = play(Watched("a"), Placed(sleep), env_seconds=0.1)
    assert episode.failure.startswith("task 't': step: no answer within 0.1 seconds (")
    assert len(looks) == 3
    assert episode.seconds > 0.29, "three times as long as it may take"


@pytest.mark.parametrize("place", ["step", "opening", "closing"])
def test_code_that_ignores_cancellation_is_left_behind(place):
    begun = time.monotonic()
    env = Scripted(sleep_on) if place == "step" else Scripted(Step(done=True), **{place: sleep_on})
    engine = Watched("a")
    episode = play(engine, env, env_seconds=0.1)
    assert time.monotonic() - begun < 20, "the event loop itself closes, too"
    assert episode.stop is StopReason.ENV_FAILED
    assert "no answer within 0.1 seconds" in episode.failure
    assert episode.failure.endswith("and ignores its cancellation")
    assert engine.ended == ["s"]


def test_others_play_on_in_the_place_of_an_episode_that_was_left_behind():
    async def answer(episode):
        return await sleep_on(episode) if episode.task.id == "a" else Step(done=True)

    rollout = run_groups(
        policy(Watched("x")),
        Scripted(answer),
        TASKS,
        group_size=2,
        seed=0,
        limits=Limits(env_seconds=0.1),
        concurrency=1,
    )
    groups = asyncio.run(asyncio.wait_for(rollout, 30))
    stops = [[one.stop for one in group.trajectories] for group in groups]
    assert stops == [[StopReason.ENV_FAILED] * 2, [StopReason.DONE] * 2, [StopReason.DONE] * 2]


def test_the_time_of_an_episode_still_ends_it_without_a_failure():
    episode = play(Watched("a"), Scripted(says("x"), sleep), env_seconds=30, seconds=0.1)
    assert (episode.stop, episode.failure) == (StopReason.TIMEOUT, "")


def test_a_call_that_takes_long_is_named_before_its_deadline(monkeypatch, caplog):
    monkeypatch.setattr("turnwise.rollout.boundary._WORD_AFTER", 0.1)

    async def nap(episode):
        await asyncio.sleep(0.3)
        return Step(done=True)

    with caplog.at_level(logging.WARNING):
        assert play(Watched("a"), Scripted(nap), env_seconds=20).stop is StopReason.DONE
    words = (
        r"task 't': step has not answered for \d seconds \(.*test_deadlines\.py:\d+ in nap\); its episode fails after"
    )
    assert re.match(words, caplog.messages[0])


@pytest.mark.parametrize(
    ("elapsed", "seconds", "left"),
    [(0, 25, 25), (10, 25, 15), (10, 100, 20), (40, 100, 60), (40, None, 30), (110, 100, 30)],
)
def test_a_call_is_looked_at_when_it_has_taken_long_and_when_too_long(monkeypatch, elapsed, seconds, left):
    """It has taken long after 30 seconds."""
    monkeypatch.setattr("turnwise.rollout.boundary._WORD_AFTER", 30)
    monkeypatch.setattr("turnwise.rollout.boundary.time", SimpleNamespace(monotonic=lambda: 500))
    boundary = Boundary()
    boundary.since = 500 - elapsed
    assert _Watch(Scripted(), TASKS[0], boundary, seconds, print)._until_next_look() == left


class Stuck(ToolEnv):
    """Its plain tool hangs in a thread, which holds the episode's state."""

    release = threading.Event()

    @tool(timeout=0.1)
    def look(self) -> str:
        """Looks."""
        self.release.wait(30)
        return "late"

    @reward
    def paid(self, episode: Episode) -> float:
        return 1.0


def test_a_plain_tool_that_hangs_costs_its_thread_and_its_episode():
    before = abandoned_threads()
    agent = ScriptedAgent(replies=['<tool_call>{"name": "look", "arguments": {}}</tool_call>', "Done."])
    env = Stuck(tasks=TASKS)
    episode = asyncio.run(run_episode(agent, env.spawn(), TASKS[0], episode_seed=0))
    assert episode.stop is StopReason.ENV_FAILED
    words = r"task 'a': step: tool 'look' gave no answer within 0\.1 seconds \(.*test_deadlines\.py:\d+ in look\)"
    assert re.fullmatch(words, episode.failure)
    assert abandoned_threads() == before + 1
    Stuck.release.set()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_reward_that_hangs_costs_its_episode(kind):
    release = threading.Event()

    @reward(timeout=0.1)
    def slow(episode: Episode) -> float:
        release.wait(30)
        return 1.0

    @reward(timeout=0.1, name="slow")
    async def slow_async(episode: Episode) -> float:
        await asyncio.sleep(30)
        return 1.0

    env = ToolEnv(tasks=TASKS, rewards=[slow if kind == "sync" else slow_async])
    episode = asyncio.run(run_episode(ScriptedAgent(replies=["Hi."]), env.spawn(), TASKS[0], episode_seed=0))
    assert episode.stop is StopReason.ENV_FAILED
    assert "reward 'slow' gave no answer within 0.1 seconds" in episode.failure
    release.set()


def test_a_process_ends_though_code_ignores_cancellation():
    program = textwrap.dedent("""
        import asyncio, time
        from turnwise import Env, Message, Step, Task
        from turnwise.agents import ScriptedAgent
        from turnwise.rollout import Limits, run_episode

        class Stubborn(Env):
            async def reset(self, task, episode_seed):
                return [Message(role="user", content="hi")]

            async def step(self, message):
                while True:
                    try:
                        await asyncio.sleep(60)
                    except asyncio.CancelledError:
                        pass

        played = run_episode(ScriptedAgent(replies=["x"]), Stubborn(), Task(id="t"), episode_seed=0,
                             limits=Limits(env_seconds=.2))
        assert asyncio.run(played).stop == "env_failed"
    """)
    ended = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
