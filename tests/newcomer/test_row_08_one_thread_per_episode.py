"""Row 8: sqlite opened in `begin` works in plain tools, rewards, the expert and close: all run in one thread."""

import asyncio
import re
import sqlite3
import threading
import time
from contextlib import closing

import pytest

from turnwise import Episode, Message, Task, ToolEnv, reward, tool
from turnwise.agents import ExpertAgent
from turnwise.envs import check_env
from turnwise.rollout import run_groups
from turnwise.types import StopReason, ToolCall

TASKS = [Task(id=f"t{i}", seed=i, data={"question": f"Refund order {i}."}) for i in range(8)]


class Shop(ToolEnv):
    """Nothing here knows of threads: the connection refuses every thread but the one it was opened in."""

    def __init__(self):
        super().__init__(tasks=TASKS, max_turns=6)
        self.closed = []
        """Shared by all episodes."""

    def begin(self, task, episode_seed):
        self.order = task.seed
        self.db = sqlite3.connect(":memory:")
        self.db.execute("create table refunds (id integer)")

    @tool
    def refund(self, id: int) -> str:
        """Refunds an order."""
        self.db.execute("insert into refunds values (?)", (id,))
        return "refunded"

    @tool(quick=True)
    def count(self) -> int:
        """Counts refunds."""
        with closing(self.db.execute("select count(*) from refunds")) as found:
            return found.fetchone()[0]

    @reward
    def solved(self, episode: Episode) -> float:
        return float(self.db.execute("select id from refunds").fetchall() == [(self.order,)])

    def state_key(self) -> str:
        return str(self.db.execute("select count(*) from refunds").fetchone()[0])

    def expert(self) -> Message:
        if self.db.execute("select 1 from refunds").fetchone():
            return Message(role="assistant", content="Refunded.")
        call = ToolCall(id="", name="refund", arguments=f'{{"id": {self.order}}}')
        return Message(role="assistant", content="", tool_calls=(call,))

    def close(self):
        self.db.close()
        self.closed.append(threading.get_ident())


def test_sqlite_works_with_plain_tools_rewards_expert_state_key_and_close():
    env = Shop()
    groups = asyncio.run(run_groups(ExpertAgent(), env, TASKS, group_size=2, seed=0))
    played = [trajectory for group in groups for trajectory in group.trajectories]
    assert [(t.stop, t.rewards, t.failure) for t in played] == [(StopReason.DONE, {"solved": 1.0}, "")] * 16
    assert [[turn.state_key for turn in t.turns] for t in played] == [["0", "1"]] * 16
    assert len(env.closed) == 16
    assert threading.get_ident() not in env.closed
    assert asyncio.run(check_env(env)) == []


def call(*calls):
    made = tuple(ToolCall(id=str(i), name=name, arguments=text) for i, (name, text) in enumerate(calls))
    return Message(role="assistant", content="", tool_calls=made)


def test_calls_of_one_turn_to_an_environments_own_tools_run_in_order():
    class Slow(ToolEnv):
        def begin(self, task, episode_seed):
            self.heard = []

        @tool
        def note(self, n: int) -> str:
            """Notes a number."""
            time.sleep(0.01 * (4 - n))
            self.heard.append(n)
            return str(self.heard)

        @reward
        def paid(self, episode: Episode) -> float:
            return 1.0

    async def play():
        env = Slow(tasks=TASKS).spawn()
        await env.reset(TASKS[0], 0)
        step = await env.step(call(*(("note", f'{{"n": {n}}}') for n in (1, 2, 3))))
        return [message.content for message in step.messages]

    assert asyncio.run(play()) == ["[1]", "[1, 2]", "[1, 2, 3]"]


def test_tools_passed_in_still_run_side_by_side():
    together = threading.Barrier(3, timeout=20)

    @tool
    def meet() -> str:
        """Waits for two others."""
        together.wait()
        return "met"

    @reward
    def paid(episode: Episode) -> float:
        return 1.0

    async def play():
        env = ToolEnv(tools=[meet], tasks=TASKS, rewards=[paid]).spawn()
        await env.reset(TASKS[0], 0)
        step = await env.step(call(*[("meet", "{}")] * 3))
        return [message.content for message in step.messages]

    assert asyncio.run(play()) == ["met"] * 3


def test_an_environment_that_is_quick_throughout_has_no_thread():
    threads = set()

    class Quick(ToolEnv):
        def begin(self, task, episode_seed):
            threads.add(threading.get_ident())

        @tool(quick=True)
        def look(self) -> str:
            """Looks."""
            threads.add(threading.get_ident())
            return "seen"

        @reward(quick=True)
        def paid(self, episode: Episode) -> float:
            threads.add(threading.get_ident())
            return 1.0

    async def play():
        env = Quick(tasks=TASKS).spawn()
        await env.reset(TASKS[0], 0)
        await env.step(call(("look", "{}")))
        await env.step(Message(role="assistant", content="done"))

    asyncio.run(play())
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("episodes", [256])
def test_threads_end_with_their_episodes(episodes):
    before = threading.active_count()
    env = Shop()
    asyncio.run(run_groups(ExpertAgent(), env, TASKS, group_size=episodes // len(TASKS), seed=0))
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before
    assert len(env.closed) == episodes


def test_check_prints_both_texts_where_two_plays_differ():
    count = iter(range(10**6))

    class Moody(ToolEnv):
        @tool
        def look(self) -> str:
            """Looks."""
            return f"seen {next(count)} times"

        @reward
        def paid(self, episode: Episode) -> float:
            return 1.0

    findings = asyncio.run(check_env(Moody(tasks=TASKS[:1]), episodes=1))
    words = (
        r"the episode differs \(first seen in turn 0\): 'seen \d+ times' the first time, 'seen \d+ times' the second"
    )
    assert any(re.search(words, finding) for finding in findings)


def test_check_stops_at_a_call_that_hangs_and_names_it():
    release = threading.Event()

    class Stuck(ToolEnv):
        @tool(timeout=0.1)
        def look(self) -> str:
            """Looks."""
            release.wait(30)
            return "late"

        @reward
        def paid(self, episode: Episode) -> float:
            return 1.0

    begun = time.monotonic()
    findings = asyncio.run(check_env(Stuck(tasks=TASKS), episodes=3))
    release.set()
    assert time.monotonic() - begun < 10
    words = r"task 't0': step on a scripted episode: tool 'look' gave no answer within 0\.1 seconds \(.*:\d+ in look\)"
    assert re.search(words, "\n".join(findings))
    assert findings[-1] == "nothing more was checked after a call that hangs"
