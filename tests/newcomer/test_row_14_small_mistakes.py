"""Row 14, the environment's half: equal warnings are counted, an empty split stays one, text is no reward."""

import asyncio
import logging
import threading

import pytest

from tiny_runs import tiny_config
from turnwise import Episode, Step, Task, ToolEnv, reward, tool
from turnwise.agents import ScriptedAgent
from turnwise.errors import EnvError, RewardError, ToolError
from turnwise.rewards import exact_match_reward
from turnwise.rollout import run_episode
from turnwise.tools import run_calls
from turnwise.tools.repeats import forget_repeats
from turnwise.training.build import evaluation_tasks
from turnwise.types import StopReason, ToolCall


def test_one_hanging_tool_is_one_warning_and_its_count(caplog):
    forget_repeats()
    release = threading.Event()

    @tool(timeout=0.05)
    def hang() -> str:
        """Hangs."""
        release.wait(30)
        return "late"

    calls = [ToolCall(id=str(i), name="hang", arguments="{}") for i in range(47)]
    with caplog.at_level(logging.WARNING):
        asyncio.run(run_calls([hang], calls))
    release.set()
    first, tenth = caplog.messages
    assert first.startswith("tool 'hang' was abandoned in its thread, which goes on; abandoned threads still running: ")
    assert tenth.endswith("(10 times so far)")


def test_a_split_that_is_named_and_empty_is_refused_by_its_name():
    env = ToolEnv(tasks={"train": [{"question": "a"}], "test": []}, rewards=[exact_match_reward])
    assert len(env.tasks("test")) == 0
    with pytest.raises(EnvError, match="the split 'test' has no tasks"):
        evaluation_tasks(env, tiny_config(), None)


@pytest.mark.parametrize("value", ["1.0", b"1", "high", None])
def test_text_is_no_reward(value):
    @reward
    def textual(episode: Episode) -> float:
        return value

    task = Task(id="t", data={"question": "?"})
    env = ToolEnv(tasks=[task], rewards=[textual])
    episode = asyncio.run(run_episode(ScriptedAgent(replies=["x"]), env.spawn(), task, episode_seed=0))
    assert episode.stop is StopReason.ENV_FAILED
    assert f"RewardError: reward 'textual' is {value!r}; return a finite number from it" in episode.failure
    if isinstance(value, str):
        with pytest.raises(RewardError, match="reward 'x' is"):
            Step(rewards={"x": value})


def make(hint):
    def look(x) -> str:
        """Looks."""
        return ""

    look.__annotations__["x"] = hint
    return look


@pytest.mark.parametrize(
    "hint", [lambda: 1, len, list[lambda: 1], "not a type", "no_such_name", "1 +", print, dict[str, abs]]
)
def test_what_is_no_type_is_refused_as_a_hint(hint):
    with pytest.raises(ToolError, match=r"tool 'look': .*type"):
        tool(make(hint))
