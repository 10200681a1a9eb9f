"""Every kind of agent plays in the one loop, by the same limits and stop reasons; only a policy gives tokens."""

import asyncio
import dataclasses
import json

import pytest

from byte_render import TASK, ByteRender, Scripted, Watched, policy, says
from turnwise.agents import (
    AgentStopped,
    DemonstratingExpert,
    EpisodeFailure,
    ExpertAgent,
    PersonAgent,
    ScriptedAgent,
)
from turnwise.agents.base import MessageSession, Move
from turnwise.errors import EnvError, TokensError
from turnwise.evaluation import evaluate
from turnwise.evaluation.report import read_answer
from turnwise.learner.batch import Batch
from turnwise.rollout import Limits, run_episode, run_groups, summarise
from turnwise.types import Group, Message, Step, StopReason, Task

REPLIES = ("ab", "c", "d")


class Led(Scripted):
    """Its expert says the replies in turn."""

    def expert(self):
        return Message(role="assistant", content=REPLIES[self.turn % len(REPLIES)])


def world(*steps):
    return Led(*(steps or (says("no", rewards={"try": 0.5}), Step(done=True, metrics={"success": 1.0}))))


def person():
    lines = iter(REPLIES)
    return PersonAgent(ask=lambda: next(lines), show=lambda drawn: None)


AGENTS = {
    "policy": lambda: policy(Watched(*REPLIES)),
    "expert": ExpertAgent,
    "demonstrations": lambda: DemonstratingExpert(render=ByteRender(), context_limit=1000),
    "person": person,
    "script": lambda: ScriptedAgent(replies=REPLIES),
}


def run(agent, env, **limits):
    return asyncio.run(run_episode(agent, env.spawn(), TASK, episode_seed=7, limits=Limits(**limits)))


@pytest.mark.parametrize("kind", AGENTS)
def test_who_acts_changes_nothing_else(kind):
    env = world()
    episode = run(AGENTS[kind](), env)
    assert env.heard == [("t", 0, "ab"), ("t", 1, "c")]
    assert (episode.stop, episode.success, episode.reward, env.closed) == (StopReason.DONE, True, 0.5, ["t"])
    assert [turn.rewards for turn in episode.turns] == [{"try": 0.5}, {}]
    assert [turn.message.content for turn in episode.turns] == ["ab", "c"]
    assert read_answer(episode) == "c"
    tokens = kind in ("policy", "demonstrations")
    assert episode.has_tokens == tokens
    assert [message.content for message in episode.messages] == ([] if tokens else ["hi", "ab", "no", "c"])


@pytest.mark.parametrize("kind", AGENTS)
@pytest.mark.parametrize(
    ("steps", "limits", "stop", "turns"),
    [
        ((says("x"),), {"max_turns": 2}, StopReason.MAX_TURNS, 2),
        ((says("x"), Step(done=True, truncated=True)), {}, StopReason.TIME_UP, 2),
        ((says("x"), KeyError("gold")), {}, StopReason.ENV_FAILED, 2),
    ],
)
def test_every_agent_is_held_to_the_same_rules(kind, steps, limits, stop, turns):
    episode = run(AGENTS[kind](), world(*steps), **limits)
    assert (episode.stop, len(episode.turns)) == (stop, turns)


def test_a_demonstration_is_what_the_policy_would_have_sampled():
    sampled, shown = run(AGENTS["policy"](), world()), run(AGENTS["demonstrations"](), world())
    assert dataclasses.replace(sampled, seconds=0.0) == dataclasses.replace(shown, seconds=0.0)


def test_an_agent_that_runs_out_of_moves_has_quit():
    episode = run(ScriptedAgent(replies=["a"]), world(says("x", rewards={"r": 1.0})))
    assert (episode.stop, episode.stop.truncated, episode.reward) == (StopReason.AGENT_QUIT, False, 1.0)
    assert [message.content for message in episode.messages] == ["hi", "a", "x"]
    nothing = run(ScriptedAgent(), world())
    assert (nothing.stop, nothing.turns, len(nothing.messages)) == (StopReason.AGENT_QUIT, (), 1)
    summary = summarise([Group(task=TASK, trajectories=(episode,))])
    assert summary["rollout/stop_agent_quit"] == 1.0
    policys = summarise([Group(task=TASK, trajectories=(run(AGENTS["policy"](), world()),))])
    assert "rollout/stop_agent_quit" not in policys, "a policy cannot quit"


def test_an_environment_without_an_expert_says_so():
    with pytest.raises(EnvError, match="Scripted has no expert"):
        run(ExpertAgent(), Scripted(Step(done=True)))


def test_what_needs_tokens_says_so():
    episode = run(ExpertAgent(), world())
    with pytest.raises(TokensError, match=r"task 't': .* gave no tokens, so one cannot train on it"):
        Batch.of([Group(task=TASK, trajectories=(episode,))], action_mask=True)


def test_any_agent_can_be_evaluated_and_groups_are_its_trajectories():
    env, tasks = world(), [Task(id="a"), Task(id="b")]
    result = asyncio.run(evaluate(ExpertAgent(), env, tasks, samples_per_task=2, limits=Limits(max_turns=2)))
    assert (result.success, result.episodes, result.scores.turns) == (1.0, 4, 2.0)
    assert [group.task.id for group in result.groups] == ["a", "b"]


class Program:
    """An agent as another package might write one: `move(max_tokens)` makes its moves."""

    concurrency = 2

    def __init__(self, move):
        self.move = move
        self.under_way = self.most = 0

    def open(self, env, *, session, context_tokens):
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        return ProgramSession(self)


class ProgramSession(MessageSession):
    def __init__(self, program):
        self.program = program

    async def act(self, *, max_tokens, seed):
        await asyncio.sleep(0)
        return self.program.move(max_tokens)

    async def end(self):
        self.program.under_way -= 1


def test_an_agent_bounds_how_many_of_its_episodes_are_under_way():
    agent = Program(lambda most: Move(message=Message(role="assistant", content="x")))
    groups = asyncio.run(run_groups(agent, world(), [TASK] * 3, group_size=2, seed=0))
    assert (agent.most, agent.under_way, len(groups)) == (2, 0, 3), "and every session ends"


def test_an_agents_own_failure_is_one_of_infrastructure():
    def fail(most):
        raise EpisodeFailure("sandbox: it is gone")

    episode = run(Program(fail), world())
    assert (episode.stop, episode.failure) == (StopReason.ENV_FAILED, "task 't': sandbox: it is gone")


def test_an_agent_may_say_that_its_context_is_full():
    def stop(most):
        raise AgentStopped(StopReason.CONTEXT_FULL)

    assert run(Program(stop), world()).stop is StopReason.CONTEXT_FULL


def test_a_bug_of_an_agents_is_not_the_environments():
    def divide(most):
        return 1 // 0

    with pytest.raises(ZeroDivisionError):
        run(Program(divide), world())


@pytest.mark.parametrize(("limits", "most"), [({"turn_tokens": 9}, 9), ({"turn_tokens": 9, "episode_tokens": 5}, 5)])
def test_an_agent_is_asked_for_no_more_than_the_limits_allow(limits, most):
    asked = []

    def act(max_tokens):
        asked.append(max_tokens)
        return Move(message=Message(role="assistant", content=json.dumps(asked)))

    run(Program(act), world(), **limits)
    assert asked == [most, most], "what has no tokens spends none of the budget"
