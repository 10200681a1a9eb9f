"""check_env finds each broken promise, and nothing where all are kept."""

import asyncio
import copy
import random
import re
import time

import pytest

import turnwise.envs.check
from turnwise.envs import Env, ToolEnv, check_env
from turnwise.envs.probes import sample_call
from turnwise.errors import EnvError
from turnwise.rewards import reward
from turnwise.tools import tool
from turnwise.types import Message, Step, Task, ToolCall, ToolSpec


class Walk(Env):
    """Say `right` until position 3; a slip, by episode seed, leaves you where you are."""

    def tasks(self, split):
        return [Task(id=f"{split}-{i}", seed=i) for i in range(4)]

    async def reset(self, task, episode_seed):
        self.position, self.turns, self.done = task.seed % 2, 0, False
        self.noise = random.Random(episode_seed)
        return [Message(role="user", content=f"You are at {self.position}.")]

    async def step(self, message):
        if self.done:
            raise EnvError("the episode is over")
        self.turns += 1
        if "right" in message.content and self.noise.random() < 0.7:
            self.position += 1
        self.done = self.position >= 3 or self.turns >= 20
        return Step(
            messages=(Message(role="user", content=f"You are at {self.position}."),),
            rewards={"goal": float(self.position >= 3)},
            done=self.done,
        )

    def fork(self):
        return copy.deepcopy(self)

    def state_key(self):
        return str(self.position)

    def expert(self):
        return Message(role="assistant", content="right", thinking="Onward.")


def findings(env, **options) -> str:
    return "\n".join(asyncio.run(check_env(env, **options)))


def test_an_environment_that_keeps_its_promises_passes():
    assert asyncio.run(check_env(Walk())) == []
    assert asyncio.run(check_env(Walk(), tasks=[Task(id="own", seed=1)], episodes=1)) == []


class NoTasks(Walk):
    def tasks(self, split):
        return []


class BrokenTasks(Walk):
    tasks = Env.tasks


class RandomStart(Walk):
    async def reset(self, task, episode_seed):
        return [*await super().reset(task, episode_seed), Message(role="user", content=str(random.random()))]


class LuckyStart(Walk):
    async def reset(self, task, episode_seed):
        return [*await super().reset(task, episode_seed), Message(role="user", content=f"episode seed {episode_seed}")]


class Mute(Walk):
    async def reset(self, task, episode_seed):
        await super().reset(task, episode_seed)
        return []


class ChokesOnEmptyText(Walk):
    async def step(self, message):
        if not message.tool_calls:
            message.content[0]
        return await super().step(message)


class ChokesOnUnknownTool(Walk):
    async def step(self, message):
        {"walk": 1}[message.tool_calls[0].name] if message.tool_calls else None
        return await super().step(message)


class ChokesOnUnicode(Walk):
    async def step(self, message):
        message.content.encode("ascii")
        return await super().step(message)


class Nameless(Walk):
    async def step(self, message):
        return Step(rewards={"": 1.0}, done=(await super().step(message)).done)


class InfiniteMetric(Walk):
    async def step(self, message):
        return Step(metrics={"speed": float("inf")}, done=(await super().step(message)).done)


class NotAStep(Walk):
    async def step(self, message):
        return [], 0.0, False


class Unrepeatable(Walk):
    async def step(self, message):
        step = await super().step(message)
        return Step(messages=step.messages, rewards={"goal": random.random()}, done=step.done)


class Shared(Walk):
    """Keeps the position in a list that every spawned copy shares."""

    def __init__(self):
        self.shared = [0]

    async def reset(self, task, episode_seed):
        self.shared[0] = 0
        return await super().reset(task, episode_seed)

    async def step(self, message):
        self.shared[0] += 1
        step = await super().step(message)
        return Step(messages=(Message(role="user", content=str(self.shared[0])),), done=step.done)


class PaysTwice(Walk):
    async def step(self, message):
        if self.done:
            return Step(rewards={"goal": 1.0}, done=True)
        return await super().step(message)


class DriftingKey(Walk):
    def state_key(self):
        return str(random.random())


class EmptyKey(Walk):
    def state_key(self):
        return ""


class HistoryKey(Walk):
    """Stable within an instance, yet not equal for equal states of two."""

    def state_key(self):
        return str(id(self))


class ShallowFork(Walk):
    def fork(self):
        return copy.copy(self)


class FreshFork(Walk):
    def fork(self):
        fork = copy.deepcopy(self)
        fork.position = 0
        return fork


def calling(name, arguments):
    return Message(role="assistant", content="", tool_calls=(ToolCall(id="1", name=name, arguments=arguments),))


class LazyExpert(Walk):
    async def step(self, message):
        self.turns = 0
        return await super().step(message)

    def expert(self):
        return Message(role="assistant", content="stay")


class TextExpert(Walk):
    def expert(self):
        return "right"


class BabblingExpert(Walk):
    tools = (ToolSpec(name="walk", description="Walks.", parameters={"type": "object", "properties": {}}),)

    def expert(self):
        return calling("walk", '{"steps": ')


class InventiveExpert(Walk):
    def expert(self):
        return calling("fly", "{}")


class FailingClose(Walk):
    async def close(self):
        raise OSError("the socket is gone")


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (NoTasks, "tasks('train') is empty\ntasks('test') is empty\nthere is no task to play"),
        (BrokenTasks, "tasks('train') raised EnvError: BrokenTasks brings no tasks"),
        (RandomStart, "reset gives different messages for the same task and episode seed"),
        (LuckyStart, "reset's messages depend on episode_seed"),
        (Mute, "reset gave no message to read"),
        (ChokesOnEmptyText, "step on empty text raised IndexError"),
        (ChokesOnUnknownTool, "raised KeyError"),
        (ChokesOnUnicode, "step on unicode text raised UnicodeEncodeError"),
        (Nameless, "it needs a name and a finite value"),
        (InfiniteMetric, "reward or metric 'speed' is inf"),
        (NotAStep, "step returned tuple, not a Step"),
        (
            Unrepeatable,
            "played twice with the same episode seed and messages, the episode differs (first seen in turn 0)",
        ),
        (Shared, "episodes disturb each other"),
        (PaysTwice, "a step after done is answered; raise EnvError"),
        (DriftingKey, "state_key() changes while the state does not"),
        (EmptyKey, "state_key() is ''"),
        (HistoryKey, "(first seen in state_key)"),
        (ShallowFork, "a fork and its original do not go on alike, or disturb each other"),
        (FreshFork, "a fork and its original do not go on alike, or disturb each other"),
        (LazyExpert, "the expert did not finish within 200 turns"),
        (TextExpert, "the expert gave 'right'; return Message(role='assistant', ...)"),
        (BabblingExpert, "the expert called walk with '{\"steps\": ', which is not a JSON object"),
        (InventiveExpert, "the expert called 'fly', which is not among the tools"),
        (FailingClose, "close raised OSError: the socket is gone"),
    ],
)
def test_each_broken_promise_is_found(env, words):
    assert words in findings(env(), episodes=1)


def test_a_call_is_sampled_from_its_schema():
    spec = ToolSpec(
        name="f",
        description="",
        parameters={
            "type": "object",
            "properties": {
                "s": {"type": "string"},
                "n": {"type": "integer", "minimum": 5},
                "e": {"enum": ["x", "y"]},
                "u": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
                "o": {"type": "object", "properties": {"l": {"type": "array"}}, "required": ["l"]},
                "left_out": {"type": "string"},
            },
            "required": ["s", "n", "e", "u", "o"],
        },
    )
    arguments = '{"s": "one", "n": 5, "e": "x", "u": true, "o": {"l": []}}'
    assert sample_call(spec, "7") == ToolCall(id="7", name="f", arguments=arguments)


class Stuck(ToolEnv):
    """A quick tool that hangs, beside a plain reward: both run in the episode's thread, where nothing else waits."""

    @tool(quick=True, timeout=1.0)
    def lookup(self, item: str) -> str:
        """Looks an item up.

        Args:
            item: What to look up.
        """
        time.sleep(1.5)
        return item

    @reward
    def right(self, episode) -> float:
        """Nothing is."""
        return 0.0


def test_a_tool_that_hangs_is_named_before_its_time_is_up(monkeypatch, caplog):
    monkeypatch.setattr(turnwise.envs.check, "_WORD_AFTER", 0.4)
    env = Stuck(tasks=[{"question": "What is it?"}])
    assert "tool 'lookup' gave no answer within 1 seconds" in findings(env, episodes=1)
    assert "tool 'lookup' has not answered for 0.4 seconds (" in caplog.text
    assert "test_check_env.py:" in caplog.text
    assert " in lookup)" in caplog.text


class Counter(ToolEnv):
    """Counts, by one tool that each test writes anew."""

    def __init__(self):
        super().__init__(tasks=[{"question": "How many?"}], process={"found": 1.0})

    def begin(self, task, episode_seed):
        self.stock = {"tea": 2}


class CountsByMistake(Counter):
    @tool
    def count(self, item: str) -> str:
        """Counts."""
        return stocks[item]  # noqa: F821 - the mistake


class CountsUnreadably(Counter):
    @tool
    def count(self, item: str) -> object:
        """Counts."""
        return object()


class CountsWhatThereIs(Counter):
    @tool
    def count(self, item: str) -> int:
        """Counts."""
        return self.stock[item]


class ExpertCounts(CountsWhatThereIs):
    item = "tea"

    def expert(self):
        if self.turns_taken:
            return Message(role="assistant", content="2")
        call = ToolCall(id="call-0", name="count", arguments=f'{{"item": "{self.item}"}}')
        return Message(role="assistant", content="", tool_calls=(call,))


class ExpertCountsInVain(ExpertCounts):
    item = "ink"


@pytest.mark.parametrize(
    ("env", "error"),
    [
        (CountsByMistake, r"NameError: name 'stocks' is not defined \(\S*test_check_env.py:\d+ in count\)"),
        (CountsUnreadably, "PydanticSerializationError: .*"),
        (ExpertCountsInVain, r"KeyError: 'ink' \(\S*test_check_env.py:\d+ in count\)"),
    ],
)
def test_a_tool_that_raises_in_every_call_is_named_with_its_line(env, error):
    assert re.fullmatch(f"tool 'count' raised {error} in every call", findings(env()))


@pytest.mark.parametrize("env", [CountsWhatThereIs, ExpertCounts])
def test_a_tool_that_raises_on_arguments_that_mean_nothing_is_sound(env):
    assert asyncio.run(check_env(env())) == []
