"""The rows of agents that compact, branch, resume, sample twice or run out of context, drawn letter by letter."""

import asyncio
import threading

import pytest

from byte_render import ByteRender, rows
from turnwise.agents import PolicyAgent
from turnwise.engines.scripted import ScriptedEngine
from turnwise.gateway.chat import ErrorKind, GatewayError
from turnwise.gateway.program import AgentProgram
from turnwise.rollout import Limits, run_episode
from turnwise.types import Finish, Message, StopReason, Task

RENDER = ByteRender()
REPLIES = "abcdefgh"
U, A = "user", "assistant"


def play(function, *, context_limit=1000, replies=REPLIES, limits=None, **arguments):
    """An episode in which the model's turns say a, b, c, ..."""
    turns = iter(replies)
    engine = ScriptedEngine(lambda session, prompt: next(turns), RENDER.encode_action, context_limit=context_limit)
    program = AgentProgram(function=function, score=lambda outcome: 1.0, **arguments)
    agent = PolicyAgent(engine=engine, render=RENDER)
    limits = limits or Limits(max_turns=20, turn_tokens=50)
    return asyncio.run(run_episode(agent, program.spawn(), Task(id="t"), episode_seed=0, limits=limits))


def chat(*texts):
    """Messages of user and assistant in turn."""
    return [{"role": (U, A)[place % 2], "content": text} for place, text in enumerate(texts)]


async def ask(client, *texts, **fields):
    reply = await client.chat(messages=chat(*texts), **fields)
    said = [choice["message"]["content"] for choice in reply["choices"]]
    return said[0] if len(said) == 1 else said


def breaks(episode):
    return {name.removeprefix("breaks_"): n for name, n in episode.metrics.items() if name.startswith("breaks_")}


def test_an_agent_that_appends_has_one_row():
    async def agent(task, client):
        assert await ask(client, "x") == "a"
        assert await ask(client, "x", "a", "y") == "b"

    episode = play(agent)
    assert rows(episode) == ["/x>[a.]/y>[b.]"]
    assert [turn.opens_row for turn in episode.turns] == [True, False]
    assert (breaks(episode), episode.reward, episode.stop) == ({}, 1.0, StopReason.DONE)


def test_an_agent_that_compacts_opens_a_row_with_its_summary():
    async def agent(task, client):
        await ask(client, "x")
        await ask(client, "x", "a", "y")
        summary = await ask(client, "x", "a", "y", "b", "sum")  # the model's own summary: its tokens train
        await ask(client, f"x:{summary}")
        await ask(client, f"x:{summary}", "d", "z")

    episode = play(agent)
    assert rows(episode) == ["/x>[a.]/y>[b.]/sum>[c.]", "/x:c>[d.]/z>[e.]"]
    assert breaks(episode) == {"branched": 1}


def test_an_agent_that_drops_old_messages_behind_its_system_prompt_compacts():
    async def agent(task, client):
        system = {"role": "system", "content": "s"}
        await client.chat(messages=[system, *chat("x")])
        await client.chat(messages=[system, *chat("x", "a", "y")])
        await client.chat(messages=[system, *chat("y", "b", "z")])

    episode = play(agent)
    assert rows(episode) == ["/s/x>[a.]/y>[b.]", "/s/y/b/z>[c.]"]
    assert breaks(episode) == {"compacted": 1}


def test_a_sub_agent_has_a_row_and_its_caller_goes_on_from_the_ids_it_had():
    async def agent(task, client):
        await ask(client, "x")
        await ask(client, "sub")
        await ask(client, "sub", "b", "more")
        await ask(client, "x", "a", "y")

    episode = play(agent)
    assert rows(episode) == ["/x>[a.]", "/sub>[b.]/more>[c.]", "/x>a./y>[d.]"]
    assert breaks(episode) == {"branched": 1, "resumed": 1}


def test_sub_agents_that_run_at_once_are_rows_one_after_the_other():
    async def agent(task, client):
        await ask(client, "x")
        said = await asyncio.gather(*(ask(client, f"s{number}") for number in range(3)))
        assert sorted(said) == ["b", "c", "d"]
        await ask(client, "x", "a", "y")

    episode = play(agent)
    assert [row[:4] for row in rows(episode)[1:4]] == ["/s0>", "/s1>", "/s2>"]
    assert rows(episode)[4] == "/x>a./y>[e.]"


def test_choices_are_turns_from_the_same_prompt_and_any_of_them_can_be_continued():
    async def agent(task, client):
        assert await ask(client, "x", n=3) == ["a", "b", "c"]
        await ask(client, "x", "c", "y")
        await ask(client, "x", "a", "z")

    episode = play(agent)
    assert rows(episode) == ["/x>[a.]", "/x>[b.]", "/x>[c.]/y>[d.]", "/x>a./z>[e.]"]
    assert breaks(episode) == {"resampled": 2, "resumed": 1}


def test_a_stop_string_ends_the_turn_at_the_token_that_completes_it():
    async def agent(task, client):
        reply = await client.chat(messages=chat("x"), stop=["Ob:", "zz"])
        assert reply["choices"][0]["message"]["content"] == "act "
        assert reply["choices"][0]["finish_reason"] == "stop"
        assert reply["usage"]["completion_tokens"] == 7
        await ask(client, "x", "act ", "y")

    episode = play(agent, replies=["act Ob: I made this up", "b"])
    # The end of the first turn was not sampled, so it is context.
    assert rows(episode) == ["/x>[act Ob:]./y>[b.]"]
    assert [turn.finish for turn in episode.turns] == [Finish.STOP_STRING, Finish.STOP]


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_a_request_may_ask_for_fewer_tokens_than_the_rollout_allows(field):
    async def agent(task, client):
        reply = await client.chat(messages=chat("x"), **{field: 3})
        assert reply["choices"][0]["message"]["content"] == "lon"
        assert reply["choices"][0]["finish_reason"] == "length"
        await client.chat(messages=chat("x", "lon", "y"), **{field: 1000})

    episode = play(agent, replies=["longer", "n" * 80])
    assert rows(episode) == ["/x>[lon]./y>[" + "n" * 50 + "]"]
    assert [turn.finish for turn in episode.turns] == [Finish.LENGTH] * 2


def test_a_full_context_is_refused_as_apis_do_and_the_agent_may_compact():
    async def agent(task, client):
        await ask(client, "x" * 10)
        with pytest.raises(GatewayError) as refused:
            await ask(client, "x" * 10, "a", "y" * 10)
        assert refused.value.kind is ErrorKind.CONTEXT_FULL
        await ask(client, "x" * 10, "a", "z")

    episode = play(agent, context_limit=20)
    assert rows(episode) == ["/xxxxxxxxxx>[a.]", "/xxxxxxxxxx>a./z>[b.]"]
    assert (episode.stop, episode.metrics["context_full"], breaks(episode)) == (StopReason.DONE, 1, {"resumed": 1})


def test_an_agent_that_cannot_shorten_is_cut_off_and_did_not_fail():
    async def agent(task, client):
        await ask(client, "x" * 10)
        await ask(client, "x" * 10, "a", "y" * 10)

    episode = play(agent, context_limit=20)
    assert (episode.stop, episode.failure, episode.reward) == (StopReason.CONTEXT_FULL, "", 0.0)
    assert rows(episode) == ["/xxxxxxxxxx>[a.]"]
    episode = play(lambda task, client: ask(client, "x" * 30), context_limit=20)
    assert (episode.stop, episode.turns, episode.failure) == (StopReason.CONTEXT_FULL, (), "")


def test_the_rollouts_limit_on_turns_ends_the_program():
    left = threading.Event()

    async def agent(task, client):
        texts = ["x"]
        try:
            while True:
                texts += [await ask(client, *texts), "y"]
        finally:
            left.set()

    episode = play(agent, limits=Limits(max_turns=3))
    assert rows(episode) == ["/x>[a.]/y>[b.]/y>[c.]"]
    assert (episode.stop, episode.failure, episode.reward) == (StopReason.MAX_TURNS, "", 0.0)
    assert episode.tail_ids == RENDER.start([Message(role="user", content="y")], ()), "what it would have read next"
    assert left.wait(5)


def test_other_tools_are_rendered_into_a_new_row():
    class ToolRender(ByteRender):
        def start(self, messages, tools):
            return (*"".join(tool.name for tool in tools).encode(), *super().start(messages, ()))

    def tools(name):
        return [{"type": "function", "function": {"name": name}}]

    async def agent(task, client):
        await client.chat(messages=chat("x"), tools=tools("T"))
        await client.chat(messages=chat("x", "a", "y"), tools=tools("V"))

    turns = iter(REPLIES)
    engine = ScriptedEngine(lambda session, prompt: next(turns), RENDER.encode_action)
    policy = PolicyAgent(engine=engine, render=ToolRender())
    episode = asyncio.run(run_episode(policy, AgentProgram(function=agent).spawn(), Task(id="t"), episode_seed=0))
    assert rows(episode) == ["T/x>[a.]", "V/x/a/y>[b.]"]
    assert breaks(episode) == {"tools_changed": 1}
