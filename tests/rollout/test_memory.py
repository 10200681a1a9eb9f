"""Conversations that outgrow their context, drawn letter by letter: what is dropped, what is summed up, what trains."""

import asyncio

import pytest
from pydantic import ValidationError

from byte_render import ByteRender, Scripted, Watched, play, policy, rows, says
from turnwise.agents import DemonstratingExpert, ScriptedAgent
from turnwise.envs.memory import CompactionSettings
from turnwise.gateway.program import AgentProgram
from turnwise.rollout import Limits, run_episode
from turnwise.types import Message, Step, StopReason, Task

RENDER = ByteRender()


def oldest(**given):
    return CompactionSettings(kind="oldest", **given)


def summary(**given):
    return CompactionSettings(kind="summary", **{"prompt": "sum", "summary_tokens": 4, **given})


DONE = Step(done=True, rewards={"end": 1.0}, metrics={"success": 1.0})


def test_nothing_changes_while_the_conversation_fits():
    steps = [says("y"), says("z"), DONE]
    plain = play(Watched("a", "b", "c"), Scripted(*steps), context_tokens=100)
    kept = play(Watched("a", "b", "c"), Scripted(*steps), context_tokens=100, compaction=oldest())
    assert kept.turns == plain.turns
    assert kept.metrics == {"success": 1.0, "compactions": 0.0, "compacted_turns": 0.0}


def test_without_a_memory_the_context_is_full():
    episode = play(Watched("a"), Scripted(*[says("y")] * 9, DONE), context_tokens=20, max_turns=20)
    assert episode.stop is StopReason.CONTEXT_FULL


def test_the_oldest_turns_are_dropped():
    """The row has 6, 11, 16 and 21 tokens after its turns; the opening has 4, a turn and what it saw 5."""

    def remember(**given):
        engine, env = Watched("a", "b", "c", "d"), Scripted(says("p"), says("q"), says("r"), DONE)
        return play(engine, env, context_tokens=60, compaction=oldest(**given))

    assert rows(remember(at=0.3, to=0.2)) == ["/hi>[a.]/p>[b.]/q>[c.]/r>[d.]"], "18 is reached at the end alone"
    one = remember(at=0.25, to=0.2)  # 15 is reached after c; of 16 tokens 12 may stay
    assert rows(one) == ["/hi>[a.]/p>[b.]/q>[c.]", "/hi\n\n[1 earlier turn left out]/b/q/c/r>[d.]"]
    two = remember(at=0.25, to=0.15)  # 9 may stay
    assert rows(two) == ["/hi>[a.]/p>[b.]/q>[c.]", "/hi\n\n[2 earlier turns left out]/c/r>[d.]"]
    assert two.metrics == {"success": 1.0, "compactions": 1.0, "compacted_turns": 2.0}
    assert [turn.opens_row for turn in two.turns] == [True, False, False, True]
    assert (two.turns[-1].rewards, two.stop) == ({"end": 1.0}, StopReason.DONE)


def test_turns_are_dropped_again_and_counted_together():
    steps = [*[says(letter) for letter in "pqrs"], DONE]
    episode = play(Watched(*"abcde"), Scripted(*steps), context_tokens=60, compaction=oldest(at=0.18, to=0.1))
    assert rows(episode) == [
        "/hi>[a.]/p>[b.]",
        "/hi\n\n[1 earlier turn left out]/b/q>[c.]",
        "/hi\n\n[2 earlier turns left out]/c/r>[d.]",
        "/hi\n\n[3 earlier turns left out]/d/s>[e.]",
    ]
    assert episode.metrics["compactions"] == 3


def test_a_summary_is_a_turn_of_the_agents_and_the_next_row_starts_from_it():
    steps = [says("p", rewards={"half": 0.5}), says("q"), DONE]
    env = Scripted(*steps)
    engine = Watched("a", "b", "A!", "c")
    episode = play(engine, env, context_tokens=64, max_turns=9, compaction=summary(at=0.17))
    # After b the row has 11 of 20 tokens: the observation is followed by the request, and A! is sampled.
    assert rows(episode) == ["/hi>[a.]/p>[b.]/q\n\nsum>[A!.]", "/hi\n\nSummary so far: A!>[c.]"]
    assert env.heard == [("t", 0, "a"), ("t", 1, "b"), ("t", 2, "c")], "the environment never hears of it"
    assert [turn.rewards for turn in episode.turns] == [{"half": 0.5}, {}, {}, {"end": 1.0}]
    assert [sampling.max_tokens for _, _, sampling in engine.asked] == [60, 55, 4, 40]
    assert episode.metrics == {"success": 1.0, "compactions": 1.0, "compacted_turns": 2.0}


def test_masks_rewards_and_turns_of_both_rows_by_hand():
    steps = [says("p"), says("q"), DONE]
    episode = play(Watched("a", "b", "A!", "c"), Scripted(*steps), context_tokens=64, compaction=summary(at=0.17))
    first, second = episode.rows(tail=False)
    #                        /  h  i  >  a  .  /  p  >  b  .  /  q \n \n  s  u  m  >  A  !  .
    assert first.action_mask.tolist() == [*[0] * 4, 1, 1, 0, 0, 0, 1, 1, *[0] * 8, 1, 1, 1]
    assert first.turn_index.tolist() == [*[0] * 6, *[1] * 5, *[2] * 11]
    assert first.prompt_mask.tolist() == [*[1] * 4, *[0] * 18]
    assert not first.rewards.any(), "what is paid at the end is paid in the second row"
    assert second.action_mask.tolist() == [*[0] * (len(second.ids) - 2), 1, 1]
    assert second.rewards.tolist() == [*[0.0] * (len(second.ids) - 1), 1.0]
    assert set(second.turn_index.tolist()) == {3}


def test_latest_turns_may_stay_beside_a_summary():
    memory = summary(at=0.17, keep_turns=1)
    episode = play(
        Watched("a", "b", "A!", "c"), Scripted(says("p"), says("q"), DONE), context_tokens=64, compaction=memory
    )
    assert rows(episode)[1] == "/hi\n\nSummary so far: A!/b/q>[c.]"
    assert episode.metrics["compacted_turns"] == 1


def test_a_later_summary_takes_the_place_of_an_earlier_one():
    steps = [says("p"), says("q"), says("r"), DONE]
    engine = Watched("a", "A!", "b", "B!", "c", "C!", "d")
    episode = play(engine, Scripted(*steps), context_tokens=60, max_turns=9, compaction=summary(at=0.1))
    assert rows(episode) == [
        "/hi>[a.]/p\n\nsum>[A!.]",
        "/hi\n\nSummary so far: A!>[b.]/q\n\nsum>[B!.]",
        "/hi\n\nSummary so far: B!>[c.]/r\n\nsum>[C!.]",
        "/hi\n\nSummary so far: C!>[d.]",
    ]
    assert episode.metrics["compactions"] == 3


@pytest.mark.parametrize("memory", [oldest(at=0.9, to=0.4), summary(at=0.9)], ids=["oldest", "summary"])
def test_an_observation_that_leaves_no_room_drops_the_oldest_whatever_the_kind(memory):
    long = says("x" * 44)  # after 50 tokens of 95
    episode = play(Watched("a", "b", "c"), Scripted(says("p" * 40), long, DONE), context_tokens=95, compaction=memory)
    assert rows(episode)[1] == f"/hi\n\n[1 earlier turn left out]/b/{'x' * 44}>[c.]"
    assert episode.stop is StopReason.DONE
    tight = play(Watched("a", "b"), Scripted(says("p"), says("x" * 20), DONE), context_tokens=30, compaction=memory)
    assert tight.stop is StopReason.CONTEXT_FULL, "what is left does not fit either"


def test_a_message_too_large_for_any_context_ends_the_episode():
    episode = play(Watched("a"), Scripted(says("x" * 80), DONE), context_tokens=40, compaction=oldest())
    assert episode.stop is StopReason.CONTEXT_FULL


def test_a_tool_result_is_followed_by_a_request_of_the_users():
    result = Step(messages=(Message(role="tool", content="t", tool_call_id="1", name="f"),))
    episode = play(Watched("a", "A!", "b"), Scripted(result, DONE), context_tokens=30, compaction=summary(at=0.1))
    assert rows(episode)[0] == "/hi>[a.]/t/sum>[A!.]"


def test_a_rewrite_of_the_environments_own_is_what_there_is():
    anew = Step(rewrites=(Message(role="user", content="New"),))
    engine = Watched("a", "b", "c", "d", "D!", "e")
    env = Scripted(says("p"), anew, says("q"), says("r"), DONE)
    episode = play(engine, env, context_tokens=64, compaction=summary(at=0.18))
    assert rows(episode) == [
        "/hi>[a.]/p>[b.]",
        "/New>[c.]/q>[d.]/r\n\nsum>[D!.]",
        "/New\n\nSummary so far: D!>[e.]",
    ]


def test_state_keys_tell_a_summary_from_a_move():
    env = Scripted(says("p"), says("q"), DONE, keys=["k0", "k1", "k2", "k3"])
    episode = play(Watched("a", "b", "A!", "c"), env, context_tokens=64, compaction=summary(at=0.17))
    assert [turn.state_key for turn in episode.turns] == ["k0", "k1", "k2 (summary)", "k2"]


class Shown(Scripted):
    def expert(self):
        return Message(role="assistant", content="go")

    def expert_summary(self):
        return Message(role="assistant", content="S!")


class Untold(Scripted):
    def expert(self):
        return Message(role="assistant", content="go")


def demonstrate(env):
    expert = DemonstratingExpert(render=RENDER, context_limit=64)
    limits = Limits(compaction=summary(at=0.17))
    return asyncio.run(run_episode(expert, env.spawn(), Task(id="t"), episode_seed=0, limits=limits))


def test_an_expert_demonstrates_summaries():
    episode = demonstrate(Shown(says("p"), says("q"), DONE))
    assert rows(episode) == ["/hi>[go.]/p>[go.]/q\n\nsum>[S!.]", "/hi\n\nSummary so far: S!>[go.]"]
    broken = demonstrate(Untold(says("p"), says("q"), DONE))
    assert "Untold has no expert_summary: write one, or set rollout.compaction.kind to oldest" in broken.failure


def test_an_agent_without_tokens_is_never_asked_for_a_summary():
    env = Scripted(says("p"), says("q"), DONE)
    agent = ScriptedAgent(replies=["a", "b", "c"])
    limits = Limits(context_tokens=4, compaction=summary(at=0.1))
    episode = asyncio.run(run_episode(agent, env.spawn(), Task(id="t"), episode_seed=0, limits=limits))
    assert (episode.stop, len(episode.turns), episode.metrics["compactions"]) == (StopReason.DONE, 3, 0.0)


def test_failures_and_closing_are_the_environments_own():
    env = Scripted(says("p"), ValueError("broken"))
    episode = play(Watched("a", "b"), env, context_tokens=30, compaction=oldest())
    assert episode.stop is StopReason.ENV_FAILED
    assert "ValueError: broken" in episode.failure
    assert env.closed == ["t"]
    assert play(Watched("a"), Scripted(None), compaction=oldest()).stop is StopReason.ENV_FAILED, "not a step"


def test_a_program_that_compacts_so_has_the_same_rows_and_is_counted():
    """The same memory, once here and once in a program that talks to the gateway: the same ids, row by row."""

    async def agent(task, client):
        def user(text):
            return {"role": "user", "content": text}

        async def ask(*messages):
            reply = await client.chat(messages=list(messages))
            return {"role": "assistant", "content": reply["choices"][0]["message"]["content"]}

        a = await ask(user("hi"))
        b = await ask(user("hi"), a, user("p"))
        summed = await ask(user("hi"), a, user("p"), b, user("q\n\nsum"))
        await ask(user(f"hi\n\nSummary so far: {summed['content']}"))

    program = AgentProgram(function=agent, score=lambda outcome: 1.0)
    limits = Limits(context_tokens=64, turn_tokens=4, compaction=summary(at=0.17))
    engines = [Watched("a", "b", "A!", "c") for _ in range(2)]
    theirs, ours = (
        asyncio.run(run_episode(policy(engine), env.spawn(), Task(id="t"), episode_seed=0, limits=limits))
        for engine, env in zip(engines, [program, Scripted(says("p"), says("q"), DONE)], strict=True)
    )
    assert theirs.failure == ""
    assert rows(theirs) == rows(ours) == ["/hi>[a.]/p>[b.]/q\n\nsum>[A!.]", "/hi\n\nSummary so far: A!>[c.]"]
    assert [turn.opens_row for turn in theirs.turns] == [turn.opens_row for turn in ours.turns]
    assert theirs.metrics["breaks"] == 1, "by the program; the memory of the rollout leaves it alone"
    assert "compactions" not in theirs.metrics


def test_a_summary_may_not_be_longer_than_a_turn():
    with pytest.raises(ValidationError, match="summary_tokens: 65 is more than turn_tokens=64 allows"):
        Limits(turn_tokens=64, compaction=summary(summary_tokens=65))
    assert Limits(turn_tokens=64, compaction=summary(summary_tokens=64)).turn_tokens == 64, "a whole turn fits"
    assert CompactionSettings(kind="oldest").unread().keys() == {"keep_turns", "summary_tokens", "prompt"}
    assert CompactionSettings(kind="summary").unread().keys() == {"to"}
