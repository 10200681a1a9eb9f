"""Small promises of a rollout, each by itself: clocks, deadlines, progress, counts and what is told of failures."""

import asyncio
import dataclasses
import logging
import time

import pytest

from byte_render import Scripted, Watched, play, policy, says
from turnwise.agents import ScriptedAgent
from turnwise.agents.base import Move
from turnwise.envs.base import Env
from turnwise.errors import EnvError
from turnwise.rollout import Limits, RolloutCollector, RolloutSettings, TaskSampler, run_episode, run_groups
from turnwise.rollout.failures import report_failures
from turnwise.rollout.groups import _in_place
from turnwise.rollout.limits import limits_for
from turnwise.tools.watchdog import playing
from turnwise.types import Group, Message, Step, StopReason, Task, Trajectory

TASKS = [Task(id=name) for name in ("a", "b", "c")]


class SlowAgent(Watched):
    """An engine that takes its time; the environment has nothing to do with it."""

    async def generate(self, session, prompt_ids, sampling):
        await asyncio.sleep(0.25)
        return await super().generate(session, prompt_ids, sampling)


def test_the_deadline_of_environment_code_is_no_limit_on_the_agent():
    episode = play(SlowAgent("a"), Scripted(Step(done=True)), env_seconds=0.1)
    assert (episode.stop, episode.failure) == (StopReason.DONE, "")


def test_an_environment_with_a_deadline_of_its_own_is_held_to_no_other():
    class Patient(Scripted):
        has_deadline = True

    async def nap(episode):
        await asyncio.sleep(0.3)
        return Step(done=True)

    assert play(Watched("a"), Patient(nap), env_seconds=0.1).stop is StopReason.DONE


def test_without_a_deadline_a_call_may_take_as_long_as_it_likes(monkeypatch, caplog):
    monkeypatch.setattr("turnwise.rollout.boundary._WORD_AFTER", 0.1)

    async def nap(episode):
        await asyncio.sleep(0.35)
        return Step(done=True)

    with caplog.at_level(logging.WARNING):
        assert play(Watched("a"), Scripted(nap), env_seconds=None).stop is StopReason.DONE
    assert "step has not answered for" in caplog.text
    assert "its episode fails" not in caplog.text


def test_limits_that_an_environment_has_of_its_own_take_the_place_of_the_rollouts():
    class Short(Scripted):
        def episode_limits(self, task):
            return {"max_turns": 2} if task.id == "a" else {}

    given = RolloutSettings(max_turns=5, turn_tokens=7)
    own, shared = (limits_for(Short(), task, given) for task in TASKS[:2])
    assert (own.max_turns, own.turn_tokens) == (2, 7)
    assert shared is given


def test_an_episode_that_was_left_behind_frees_its_place_once():
    left, places = [], asyncio.Semaphore(1)

    async def start(leave):
        leave("in time")
        return "later"

    async def run():
        assert await _in_place(places, start, left.append) == "later"
        await places.acquire()

    asyncio.run(run())
    assert left == ["in time"]
    assert places.locked(), "there is one place"


@pytest.mark.parametrize("step", [Step(done=True), OSError("broken")])
def test_an_episode_took_the_time_that_it_took(step):
    began = time.monotonic()
    episode = play(Watched("a"), Scripted(says("x"), step))
    assert 0 <= episode.seconds <= time.monotonic() - began


def test_an_episode_that_was_left_behind_took_until_then(monkeypatch):
    async def never(episode):
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    for module in ("rollout.boundary", "tools.running"):
        monkeypatch.setattr(f"turnwise.{module}.GRACE", 0.1)
    assert 0.2 <= play(Watched("a"), Scripted(never), env_seconds=0.1).seconds < 20


def test_an_episode_that_is_over_leaves_no_timer():
    class Loop(asyncio.SelectorEventLoop):
        def call_later(self, delay, callback, *args, context=None):
            timers.append(super().call_later(delay, callback, *args, context=context))
            return timers[-1]

    timers = []
    with asyncio.Runner(loop_factory=Loop) as runner:
        episode = run_episode(policy(Watched("a")), Scripted(Step(done=True)), TASKS[0], episode_seed=0)
        assert runner.run(episode).stop is StopReason.DONE
        assert timers
        assert all(timer.cancelled() for timer in timers)


def test_the_first_failure_is_kept_though_closing_fails_too():
    episode = play(Watched("a"), Scripted(KeyError("gold"), closing=OSError("again")))
    assert "KeyError: 'gold'" in episode.failure
    assert "again" not in episode.failure
    assert play(Watched("a"), Scripted(Step(done=True))).failure == ""


def test_tools_know_which_task_is_played():
    seen = []

    async def look(episode):
        seen.append(playing.get())
        return Step(done=True)

    asyncio.run(run_groups(policy(Watched("x")), Scripted(look), TASKS, group_size=1, seed=0, concurrency=1))
    assert seen == ["a", "b", "c"]


@pytest.mark.parametrize(("budget", "asked"), [(2, [2]), (3, [3, 1]), (7, [3, 3, 3])])
def test_a_budget_is_spent_to_its_last_token(budget, asked):
    """Moves of two tokens, of at most three a turn."""
    engine = Watched("x")
    episode = play(engine, Scripted(says("y")), episode_tokens=budget, turn_tokens=3, max_turns=3)
    assert [sampling.max_tokens for _, _, sampling in engine.asked] == asked
    assert episode.stop is (StopReason.MAX_TURNS if budget == 7 else StopReason.TOKEN_BUDGET)


def test_a_context_is_full_when_not_a_token_fits():
    """The opening and the question take 4; a fifth token can be sampled, and then nothing more."""
    assert play(Watched("a"), Scripted(says("x")), context_tokens=4).turns == ()
    (only,) = play(Watched("a"), Scripted(says("x")), context_tokens=5).turns
    assert len(only.action_ids) == 1


class Rewriting(Scripted):
    """Forgets all that was said when there is no room, and pays for it."""

    def __init__(self, *steps, then):
        super().__init__(*steps)
        self.then = then

    async def overflow(self):
        return self.then


def test_a_full_conversation_that_is_rewritten_goes_on_is_paid_and_remembered():
    forget = Step(rewrites=(Message(role="user", content="b"),), rewards={"r": 2.0}, metrics={"m": 1.0})
    episode = play(
        Watched("a"), Rewriting(says("xxxx", rewards={"r": 1.0}), Step(done=True), then=forget), context_tokens=10
    )
    assert (episode.stop, len(episode.turns)) == (StopReason.DONE, 2)
    assert (episode.turns[0].rewards, episode.metrics) == ({"r": 3.0}, {"m": 1.0})
    assert episode.turns[0].env_seconds < episode.seconds, "a rewrite took no time of its own"
    assert [turn.opens_row for turn in episode.turns] == [True, True]


@pytest.mark.parametrize(
    ("then", "stop"),
    [
        (None, StopReason.CONTEXT_FULL),
        (Step(rewrites=(Message(role="user", content="x" * 20),)), StopReason.CONTEXT_FULL),
        (Step(done=True), StopReason.DONE),
        (Step(done=True, truncated=True), StopReason.TIME_UP),
    ],
)
def test_a_full_conversation_ends_unless_there_is_room_again(then, stop):
    episode = play(Watched("a"), Rewriting(says("xxxx"), then=then), context_tokens=10)
    assert (episode.stop, len(episode.turns), episode.failure) == (stop, 1, "")


def test_an_agent_without_tokens_is_remembered_by_what_was_said():
    async def say(replies):
        agent = ScriptedAgent(replies=replies)
        return await run_episode(agent, Scripted(says("x"), Step(done=True)), TASKS[0], episode_seed=0)

    episode = asyncio.run(say(["one", "two"]))
    assert [message.content for message in episode.messages] == ["hi", "one", "x", "two"]
    assert play(Watched("a"), Scripted(Step(done=True))).messages == ()


class Retrying:
    """An agent whose endpoint fails for a while, and says so to the episode's clock."""

    concurrency = None

    def __init__(self, given_back):
        self.given_back = given_back

    def open(self, env, *, session, context_tokens):
        return RetryingSession(self.given_back)


class RetryingSession:
    has_tokens, room = False, None

    def __init__(self, given_back):
        self._given_back = given_back

    def begin(self, messages, tools, give_back):
        self._give_back = give_back

    async def act(self, *, max_tokens, seed):
        self._give_back(self._given_back)
        await asyncio.sleep(0.3)
        return Move(message=Message(role="assistant", content="x"))

    async def observe(self, step):
        return ()

    async def end(self):
        pass


@pytest.mark.parametrize(
    ("seconds", "given_back", "stop"),
    [(0.2, 30.0, StopReason.DONE), (0.2, 0.0, StopReason.TIMEOUT), (None, 30.0, StopReason.DONE)],
)
def test_time_that_is_given_back_is_no_time_of_the_episode(seconds, given_back, stop):
    episode = run_episode(
        Retrying(given_back), Scripted(Step(done=True)), TASKS[0], episode_seed=0, limits=Limits(seconds=seconds)
    )
    assert asyncio.run(episode).stop is stop


@pytest.mark.parametrize(("asked", "agents", "most"), [(3, 1, 1), (1, 3, 1), (2, None, 2)])
def test_no_more_episodes_are_under_way_than_the_caller_and_the_agent_allow(asked, agents, most):
    under_way, seen = 0, []

    async def answer(episode):
        nonlocal under_way
        under_way += 1
        seen.append(under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        return Step(done=True)

    agent = dataclasses.replace(policy(Watched("x"))) if agents is None else Bounded(Watched("x"), agents)
    asyncio.run(run_groups(agent, Scripted(answer), TASKS, group_size=1, seed=0, concurrency=asked))
    assert max(seen) == most


class Bounded:
    """A policy of which only so many may play at once."""

    def __init__(self, engine, concurrency):
        self._policy, self.concurrency = policy(engine), concurrency

    def open(self, env, **given):
        return self._policy.open(env, **given)


def test_a_share_to_replay_is_read_by_the_rules_that_replay_and_patience_by_asynchronous_runs():
    assert RolloutSettings().unread() == {"replay": "task_sampler", "straggler_seconds": "staleness"}
    assert RolloutSettings(task_sampler="hard", staleness=1).unread() == {}


def test_progress_counts_every_episode_of_all():
    shown = []
    rollout = run_groups(
        policy(Watched("x")),
        Scripted(Step(done=True)),
        TASKS,
        group_size=2,
        seed=0,
        progress=lambda done, total: shown.append((done, total)),
    )
    asyncio.run(rollout)
    assert shown == [(number, 6) for number in range(1, 7)]


def failed(*words):
    return [Trajectory(task=TASKS[0], turns=(), stop=StopReason.ENV_FAILED, failure=word) for word in words]


WELL = Trajectory(task=TASKS[0], turns=(), stop=StopReason.DONE)


def test_as_many_failures_as_are_allowed_end_nothing():
    report_failures([*failed("x"), WELL], most=0.5)
    with pytest.raises(EnvError, match=r"2 of 3 episodes failed.*above 0\.5"):
        report_failures([*failed("x", "y"), WELL], most=0.5)


def test_failures_are_alike_by_call_error_and_line_whatever_their_values(caplog):
    alike = [f"task 'a': step: KeyError: 'gold {number}' (env.py:4 in solve)" for number in range(2)]
    other = "task 'a': step: KeyError: 'gold' (env.py:9 in solve)"
    report_failures([*failed(other, *alike), WELL])
    assert "3 of 4 episodes failed, 2 times alike: task 'a': step: KeyError: 'gold 0'" in caplog.text
    caplog.clear()
    report_failures([*failed("task 'a': step: OSError: x", "task 'a': close: OSError: x"), WELL])
    assert "the first: task 'a': step: OSError: x" in caplog.text


class Coin(Env):
    async def reset(self, task, episode_seed):
        return [Message(role="user", content="go")]

    async def step(self, message):
        return Step(done=True, metrics={"success": 1.0})


def test_a_collector_learns_how_tasks_went_and_how_long_they_took():
    class All:
        def __init__(self, groups):
            self.kept = tuple(range(len(groups)))

        def metrics(self, refills):
            return {}

    settings = RolloutSettings(groups_per_step=2, group_size=2, task_sampler="hard")
    collector = RolloutCollector(policy(Watched("x")), Coin(), TASKS, settings, seed=0)
    began = time.monotonic()
    batch = asyncio.run(
        collector.collect(0, lambda groups, most=None: All(groups), refill=1, progress=lambda done, total: None)
    )
    assert (batch.refills, len(batch.groups)) == (0, 2)
    assert 0 <= batch.seconds <= time.monotonic() - began
    assert list(collector.task_sampler.state_dict()["rates"].values()) == [1.0, 1.0]


def test_no_task_is_replayed_twice_in_one_step():
    sampler = TaskSampler([Task(id=str(n)) for n in range(8)], rule="hard", replay=0.5, seed=0)
    places = list(range(8))
    lost = Trajectory(task=TASKS[0], turns=(), stop=StopReason.DONE, metrics={"success": 0.0})
    sampler.learn(places, [Group(task=TASKS[0], trajectories=(lost,)) for _ in places])
    for _ in range(20):
        replayed = sampler.draw(8)[4:]
        assert len(set(replayed)) == 4
    assert sampler.state_dict()["draws"] == 20


def test_limits_are_the_ones_given():
    episode = run_episode(
        policy(Watched("x")), Scripted(says("y")), TASKS[0], episode_seed=0, limits=Limits(max_turns=2)
    )
    assert len(asyncio.run(episode).turns) == 2
