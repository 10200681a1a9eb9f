"""Row 6: a quick tool that hangs is named with its task and line, in rollouts and in `turnwise check`."""

import asyncio
import logging
import re
import time

import pytest

from turnwise import Env, Episode, Message, Step, Task, ToolEnv, reward, tool
from turnwise.agents import ScriptedAgent
from turnwise.envs import check_env
from turnwise.rollout import run_groups
from turnwise.tools import watchdog
from turnwise.tools.repeats import forget_repeats

TASKS = [Task(id=f"t{i}", data={"question": "?"}) for i in range(2)]
LOOKS = ('<tool_call>{"name": "look", "arguments": {}}</tool_call>', "Done.")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    while watchdog._thread is not None and watchdog._thread.is_alive():
        time.sleep(0.02)  # one that an earlier test began is in its longer sleep, and ends after it
    monkeypatch.setattr("turnwise.tools.watchdog._INTERVAL", 0.02)
    monkeypatch.setattr("turnwise.tools.watchdog._BLOCKED_AFTER", 0.4)
    forget_repeats()


class Slow(ToolEnv):
    @tool(quick=True)
    def look(self) -> str:
        """Looks for too long."""
        time.sleep(1.2)
        return "seen"

    @reward(quick=True)
    def paid(self, episode: Episode) -> float:
        return 1.0


WORDS = r"tool 'look' of task 't0' has blocked all other episodes for \d seconds \(.*test_row_06.*:\d+ in look\): l"


def play(env, *replies):
    return asyncio.run(run_groups(ScriptedAgent(replies=replies), env, TASKS, group_size=1, seed=0))


def test_a_quick_tool_that_blocks_the_loop_is_named_once(caplog):
    with caplog.at_level(logging.WARNING):
        groups = play(Slow(tasks=TASKS), *LOOKS)
    assert [group.trajectories[0].reward for group in groups] == [1.0, 1.0]
    assert len(caplog.messages) == 1, "the second task's equal warning is counted, not logged"
    assert re.match(WORDS, caplog.messages[0])


def test_a_reward_and_calls_of_an_environment_that_never_yield_are_named_too(caplog):
    class Sleeper(Env):
        async def reset(self, task, episode_seed):
            time.sleep(1.2 if task.id == "t0" else 0)
            return [Message(role="user", content="hi")]

        async def step(self, message):
            time.sleep(1.2)
            return Step(done=True)

    @reward(quick=True)
    def dawdle(episode: Episode) -> float:
        time.sleep(1.2)
        return 1.0

    with caplog.at_level(logging.WARNING):
        play(Sleeper(), "x")
        play(ToolEnv(tasks=TASKS, rewards=[dawdle]), "x")
    opening, first, second = caplog.messages
    assert re.match(r"reset of task 't0' has blocked all .*test_row_06.*:\d+ in reset\)", opening)
    assert re.match(r"step of task 't0' has blocked all .*test_row_06.*:\d+ in step\)", first)
    assert re.match(r"reward 'dawdle' in step of task 't0' has blocked all .*test_row_06.*:\d+ in dawdle\)", second)


def test_check_names_it(caplog):
    with caplog.at_level(logging.WARNING):
        asyncio.run(check_env(Slow(tasks=TASKS[:1]), episodes=1))
    assert re.match(r"tool 'look' of task 't0' has blocked", caplog.messages[0])


def test_code_that_is_awaited_or_runs_in_a_thread_blocks_nothing(caplog):
    class Patient(ToolEnv):
        @tool
        def look(self) -> str:
            """Looks in the episode's thread."""
            time.sleep(0.8)
            return "seen"

        @tool
        async def wait(self) -> str:
            """Waits."""
            await asyncio.sleep(0.8)
            return "seen"

        @reward(quick=True)
        def paid(self, episode: Episode) -> float:
            return 1.0

    with caplog.at_level(logging.WARNING):
        play(Patient(tasks=TASKS), *LOOKS)
        play(Patient(tasks=TASKS), LOOKS[0].replace("look", "wait"), "Done.")
    assert caplog.messages == []


def test_work_of_ours_is_not_named(caplog):
    class Busy(ScriptedAgent):
        def open(self, env, *, session, context_tokens):
            time.sleep(1.2)
            return super().open(env, session=session, context_tokens=context_tokens)

    with caplog.at_level(logging.WARNING):
        asyncio.run(run_groups(Busy(replies=("x",)), Slow(tasks=TASKS), TASKS[:1], group_size=1, seed=0))
    assert caplog.messages == []
