"""Row 2: an outcome reward looks at the episode's own environment, as a method, by `episode.env`, sync or async."""

import asyncio

import pytest

from turnwise import Episode, Message, Reward, Task, ToolEnv, reward, tool
from turnwise.agents import ScriptedAgent
from turnwise.envs import check_env
from turnwise.errors import RewardError
from turnwise.rollout import run_groups
from turnwise.types import ToolCall

TASKS = [Task(id=name, data={"question": f"Close the ticket of {name}."}) for name in ("ada", "bo", "cy")]


class Tickets(ToolEnv):
    def __init__(self, **options):
        super().__init__(**{"tasks": TASKS} | options)

    def begin(self, task, episode_seed):
        self.closed = []

    @tool
    def close_ticket(self, name: str) -> str:
        """Closes a ticket."""
        self.closed.append(name)
        return "closed"

    @reward
    def solved(self, episode: Episode) -> float:
        return float(self.closed == [episode.task.id])


def play(env, *replies):
    groups = asyncio.run(run_groups(ScriptedAgent(replies=replies), env, TASKS, group_size=2, seed=0))
    return [trajectory for group in groups for trajectory in group.trajectories]


CLOSES_ADAS = ('<tool_call>{"name": "close_ticket", "arguments": {"name": "ada"}}</tool_call>', "Done.")


def test_a_method_is_paid_for_what_its_own_episode_did():
    played = play(Tickets(), *CLOSES_ADAS)
    assert [t.rewards for t in played] == [{"solved": 1.0}] * 2 + [{"solved": 0.0}] * 4
    assert [t.success for t in played] == [True, True, False, False, False, False]
    assert asyncio.run(check_env(Tickets())) == []


def test_a_function_outside_the_class_finds_the_state_in_episode_env():
    @reward(name="untouched", weight=0.5)
    def untouched(episode: Episode) -> float:
        return float(not episode.env.closed)

    played = play(Tickets(rewards=[untouched]), *CLOSES_ADAS)
    assert played[0].rewards == {"untouched": 0.0, "solved": 1.0}
    assert not played[0].success, "the rewards passed in come first, and the first of all defines success"
    [idle, *_] = play(Tickets(rewards=[untouched]), "Done.")
    assert idle.rewards == {"untouched": 0.5, "solved": 0.0}


def test_methods_may_be_async_weighted_and_named_and_are_paid_in_order():
    order = []

    class Judged(Tickets):
        @reward(weight=0.1, name="tidy")
        async def neat(self, episode: Episode) -> float:
            await asyncio.sleep(0)
            order.append("tidy")
            return float(len(self.closed) <= 1)

        @reward
        def polite(self, episode: Episode) -> float:
            order.append("polite")
            return float("Done" in (episode.answer or ""))

    [first, *_] = play(Judged(), *CLOSES_ADAS)
    assert list(first.rewards.items()) == [("solved", 1.0), ("tidy", 0.1), ("polite", 1.0)]
    assert sorted(order) == ["polite"] * 6 + ["tidy"] * 6, "each once an episode"


def test_an_async_function_is_a_reward_like_any_other():
    @reward
    async def asked(episode: Episode) -> float:
        await asyncio.sleep(0)
        return 0.25

    assert play(Tickets(rewards=[asked]), "Done.")[0].rewards == {"asked": 0.25, "solved": 0.0}


@pytest.mark.parametrize("how", ["bound", "decorated"])
def test_a_method_of_the_prototype_is_refused_with_what_to_write_instead(how):
    class Old(ToolEnv):
        def __init__(self):
            given = Reward(name="state_ok", function=self.state_ok) if how == "bound" else self.fine
            super().__init__(tasks=TASKS, rewards=[given])

        def state_ok(self, episode: Episode) -> float:
            return 1.0

        @reward
        def fine(self, episode: Episode) -> float:
            return 1.0

    with pytest.raises(RewardError, match=r"write it as an @reward method, or take the environment from episode\.env"):
        Old()


def test_a_method_passed_from_its_class_is_refused():
    with pytest.raises(RewardError, match="'solved' is a method, which its class pays by itself; leave it out"):
        Tickets(rewards=[Tickets.solved])


def test_a_subclass_may_replace_or_withdraw_a_reward():
    class Kinder(Tickets):
        @reward
        def solved(self, episode: Episode) -> float:
            return 0.5

    class Unpaid(Tickets):
        solved = None

    assert play(Kinder(), "Done.")[0].rewards == {"solved": 0.5}
    with pytest.raises(RewardError, match="pays nothing"):
        Unpaid()


def test_the_state_is_the_one_after_the_last_allowed_turn():
    class Short(Tickets):
        def __init__(self):
            super().__init__(max_turns=1)

    async def last_turn():
        env = Short().spawn()
        await env.reset(TASKS[0], 0)
        calls = (ToolCall(id="1", name="close_ticket", arguments='{"name": "ada"}'),)
        return await env.step(Message(role="assistant", content="", tool_calls=calls))

    step = asyncio.run(last_turn())
    assert (step.done, step.rewards) == (True, {"solved": 1.0})
