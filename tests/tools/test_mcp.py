"""`MCPTools` and `MCPEnv` against servers of our own making; tests/interop has those of the official package."""

import asyncio
import gc
import json
from contextlib import asynccontextmanager
from types import SimpleNamespace as Block

import pytest

from fake_mcp import DONE, ECHO, EMPTY, FakeServer, play, wants
from turnwise import Task, ToolCall, ToolEnv
from turnwise.envs import check_env
from turnwise.errors import ToolError
from turnwise.rewards import Reward
from turnwise.tools import MCPTools, run_calls
from turnwise.tools.mcp import ServerLostError
from turnwise.tools.mcp.content import read_answer
from turnwise.tools.mcp.server import CallAnswer, ListedTool, read_server
from turnwise.types import StopReason


def call(name="echo", **arguments):
    return ToolCall(id="c", name=name, arguments=json.dumps(arguments))


def ask(toolset, *calls, task=None):
    """Opens an episode, makes its calls one after the other, and closes it."""

    async def play():
        opened = await toolset.open(task or Task(id="t"), 0)
        results = [(await run_calls(opened.tools, [one]))[0] for one in calls]
        await opened.close()
        return results, opened

    return asyncio.run(play())


def env_of(toolset, **options):
    paid = Reward(name="said", function=lambda episode: float(episode.answer == "done"), quick=True)
    return ToolEnv(tools=[toolset], tasks=[{"question": "Say it."}], rewards=[paid], **options)


def test_the_model_sees_the_servers_own_schema_and_many_episodes_share_a_connection():
    server = FakeServer()
    toolset = MCPTools("serve it", connect=server.connect)
    (tool,) = toolset.tools
    assert (tool.spec.name, tool.spec.description, tool.spec.parameters) == ("echo", "Says it again.", ECHO.schema)
    assert [result.content for result in ask(toolset, call(text="a"))[0]] == ["a (1)"]
    assert [result.content for result in ask(toolset, call(text="b"))[0]] == ["b (2)"], "the same connection"
    assert (len(server.opened), server.closed) == (1, 0)
    toolset.close()
    assert server.closed == 1


def test_each_episode_has_a_server_of_its_own_that_ends_with_it_and_is_told_its_task():
    server = FakeServer()
    toolset = MCPTools("serve it", per_episode=True, connect=server.connect)
    assert server.closed == 1, "the one that was asked for its tools"
    for text in "ab":
        assert [result.content for result in ask(toolset, call(text=text))[0]] == [f"{text} (1)"]
    assert (len(server.opened), server.closed) == (3, 3)
    assert json.loads(server.opened[1].variables["TURNWISE_TASK"]) == {"id": "t", "seed": 0, "data": {}}


def test_at_most_so_many_servers_run_at_once():
    server = FakeServer()
    toolset = MCPTools("serve it", per_episode=True, concurrency=2, connect=server.connect)

    async def episode():
        opened = await toolset.open(Task(id="t"), 0)
        await asyncio.sleep(0.01)
        await opened.close()

    async def many():
        await asyncio.gather(*(episode() for _ in range(6)))

    asyncio.run(many())
    assert (len(server.opened), server.closed, server.most) == (7, 7, 2)


def test_a_server_ends_even_if_its_episode_is_never_closed():
    server = FakeServer()
    toolset = MCPTools("serve it", per_episode=True, connect=server.connect)
    asyncio.run(toolset.open(Task(id="t"), 0))
    gc.collect()
    assert server.closed == 2
    shared = MCPTools("serve it", connect=server.connect)
    assert len(shared.tools) == 1
    del shared
    gc.collect()
    assert server.closed == 3


def test_an_episode_that_is_cancelled_while_its_server_starts_leaves_none_behind():
    server = FakeServer()
    toolset = MCPTools("serve it", per_episode=True, concurrency=1, connect=server.connect)

    async def cancel():
        opening = asyncio.ensure_future(toolset.open(Task(id="t"), 0))
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        del opening
        gc.collect()
        return await asyncio.wait_for(toolset.open(Task(id="t"), 0), 5)

    opened = asyncio.run(cancel())
    asyncio.run(opened.close())
    assert server.closed == len(server.opened)


def test_an_error_that_a_tool_reports_is_read_by_the_model():
    async def fail(client, name, arguments):
        return CallAnswer(text="no such page", ok=False)

    toolset = MCPTools("serve it", connect=FakeServer(answer=fail).connect)
    episode = play(env_of(toolset), wants("x"), DONE)
    assert (episode.stop, episode.reward, episode.metrics["tool_errors"]) == (StopReason.DONE, 1.0, 1.0)


@pytest.mark.parametrize("per_episode", [False, True])
def test_a_lost_server_fails_the_episode_and_the_next_one_has_another(per_episode):
    async def die(client, name, arguments):
        if arguments["text"] == "die":
            raise ServerLostError("MCP server is lost: Connection closed")
        return CallAnswer(text="fine")

    server = FakeServer(answer=die)
    env = env_of(MCPTools("serve it", per_episode=per_episode, connect=server.connect))
    episode = play(env, wants("die"), DONE)
    assert (episode.stop, episode.reward) == (StopReason.ENV_FAILED, 0.0)
    assert episode.failure == "task 't': step: MCP server is lost: Connection closed"
    assert play(env, wants("x"), DONE).stop is StopReason.DONE
    assert len(server.opened) == server.closed + (not per_episode)


def test_a_server_that_does_not_start_fails_the_episode_and_is_named_before_the_first():
    server = FakeServer()
    toolset = MCPTools("serve it", per_episode=True, connect=server.connect)

    @asynccontextmanager
    async def refuse(_):
        raise ServerLostError("MCP server serve it is lost: no such file")
        yield

    toolset._connect = refuse
    episode = play(env_of(toolset), DONE)
    assert (episode.stop, episode.failure.split(": ", 1)[1]) == (
        StopReason.ENV_FAILED,
        "reset: MCP server serve it is lost: no such file",
    )
    with pytest.raises(ToolError, match="no such file: start it by hand"):
        MCPTools("serve it", connect=refuse)


def test_a_slow_tool_is_read_by_the_model_and_a_frozen_server_is_lost(monkeypatch):
    monkeypatch.setattr("turnwise.tools.mcp.connection._PROBE_SECONDS", 0.05)

    async def hang(client, name, arguments):
        client.dead = arguments["text"] == "freeze"
        await asyncio.sleep(60)

    toolset = MCPTools("serve it", timeout=0.05, connect=FakeServer(answer=hang).connect)
    (result,), _ = ask(toolset, call(text="slow"))
    assert (result.ok, result.content.startswith("echo gave no answer within 0.05 seconds")) == (False, True)
    with pytest.raises(ServerLostError, match="left a call of echo unanswered"):
        ask(toolset, call(text="freeze"))


def test_calls_of_many_episodes_run_side_by_side():
    together = 0
    most = 0

    async def count(client, name, arguments):
        nonlocal together, most
        together += 1
        most = max(most, together)
        await asyncio.sleep(0.02)
        together -= 1
        return CallAnswer(text=str(arguments["text"]))

    toolset = MCPTools("serve it", connect=FakeServer(answer=count).connect)

    async def episode(number):
        opened = await toolset.open(Task(id=str(number)), 0)
        results = await run_calls(opened.tools, [call(text=f"{number}-{place}") for place in range(3)])
        await opened.close()
        return [result.content for result in results]

    async def many():
        return await asyncio.gather(*(episode(number) for number in range(8)))

    assert asyncio.run(many()) == [[f"{number}-{place}" for place in range(3)] for number in range(8)]
    assert most == 24


def test_a_list_that_changes_is_the_next_episodes():
    server = FakeServer(changes=True)
    env = env_of(MCPTools("serve it", connect=server.connect))
    first, second = env.spawn(), env.spawn()

    async def names():
        await first.reset(Task(id="t", data={"question": "?"}), 0)
        server.tools.append(ListedTool(name="new", description="New.", schema=EMPTY))
        await second.reset(Task(id="t", data={"question": "?"}), 0)
        return [[spec.name for spec in env.tools] for env in (first, second)]

    assert asyncio.run(names()) == [["echo"], ["echo", "new"]]


def test_names_that_chat_apis_refuse_are_spelled_and_those_of_two_servers_kept_apart():
    odd = FakeServer("a.b/c")
    toolset = MCPTools("serve it", prefix="x.", connect=odd.connect)
    assert [tool.spec.name for tool in toolset.tools] == ["x_echo", "x_a_b_c"]
    assert ask(toolset, call("x_a_b_c"))[0][0].content == "a.b/c (1)", "the server hears its own name"
    twice = [MCPTools("serve it", connect=FakeServer().connect) for _ in range(2)]
    with pytest.raises(ToolError, match="two tools are named 'echo'"):
        ToolEnv(tools=twice, process={"x": 1.0})
    with pytest.raises(ToolError, match="2 tools of serve it are spelled 'a_b'"):
        MCPTools("serve it", connect=FakeServer("a.b", "a/b").connect)
    with pytest.raises(ToolError, match="has no tool 'ecko'; its tools are: echo"):
        MCPTools("serve it", only=["ecko"], connect=FakeServer().connect)


def test_every_kind_of_content_is_shown_or_named_and_counted():
    blocks = [
        Block(type="text", text="hello"),
        Block(type="image", data="aGVsbG8=", mime_type="image/png"),
        Block(type="audio", data="aGk=", mime_type="audio/wav"),
        Block(type="resource", resource=Block(uri="file:///a", text="inside")),
        Block(type="resource", resource=Block(uri="file:///b", blob="aGk=", mime_type="x/y", text=None)),
        Block(type="resource_link", uri="file:///c", name="c", description=None),
        Block(type="hologram"),
    ]
    answer = read_answer(Block(content=blocks, structured_content={"a": 1}, is_error=False, meta=None))
    assert answer.text.split("\n") == [
        "hello",
        "[image image/png, 5 bytes: not shown]",
        "[audio audio/wav, 2 bytes: not shown]",
        "[resource file:///a]",
        "inside",
        "[blob file:///b x/y, 2 bytes: not shown]",
        "[link file:///c: c]",
        "[hologram: not shown]",
    ]
    assert answer.unshown == {"images": 1, "audio": 1, "blobs": 1, "other": 1}
    structured = read_answer(Block(content=[], structured_content={"a": 1}, is_error=True, meta=None))
    assert (structured.text, structured.ok) == ('{"a": 1}', False)


def test_what_is_not_shown_is_a_metric_and_process_rewards_are_paid():
    async def draw(client, name, arguments):
        return CallAnswer(text="[image]", unshown={"images": 1}, rewards={"found": 1.0})

    env = env_of(MCPTools("serve it", connect=FakeServer(answer=draw).connect), process={"found": 0.25})
    episode = play(env, wants("x", "y"), DONE)
    assert (episode.metrics["mcp_images"], episode.rewards) == (2.0, {"found": 0.5, "said": 1.0})


def test_a_setup_tool_is_hidden_and_gets_what_it_names_of_the_task():
    server = FakeServer()
    names = {"task": {}, "seed": {}, "episode_seed": {}, "level": {}, "absent": {}}
    server.tools.append(ListedTool(name="begin", description="b", schema={"type": "object", "properties": names}))
    toolset = MCPTools("serve it", per_episode=True, setup="begin", connect=server.connect)
    assert [tool.spec.name for tool in toolset.tools] == ["echo"]
    _, opened = ask(toolset, task=Task(id="t", seed=3, data={"level": 2, "secret": 1}))
    assert server.seen == [("begin", {"task": "t", "seed": 3, "episode_seed": 0, "level": 2})]
    assert opened.opening == "begin (1)"
    with pytest.raises(ToolError, match="add per_episode=True"):
        MCPTools("serve it", setup="begin", connect=server.connect)


def test_a_setup_that_fails_fails_the_episode_once_and_gives_its_place_back():
    async def fail(client, name, arguments):
        return CallAnswer(text="full", ok=False)

    server = FakeServer("begin", answer=fail)
    options = {"per_episode": True, "setup": "begin", "concurrency": 1, "connect": server.connect}
    toolset = MCPTools("serve it", **options)
    for _ in range(3):
        with pytest.raises(ServerLostError, match="begin failed for 't': full"):
            ask(toolset)
    gc.collect()
    assert server.closed == len(server.opened) == 4
    assert next(iter(toolset._places.values()))._value == 1


def test_a_subclass_that_replaces_close_still_ends_its_server():
    class Own(ToolEnv):
        def close(self):
            self.ended = True

    server = FakeServer()
    toolset = MCPTools("serve it", per_episode=True, connect=server.connect)
    paid = Reward(name="said", function=lambda episode: 1.0, quick=True)
    env = Own(tools=[toolset], tasks=[{"question": "?"}], rewards=[paid])
    assert play(env, DONE).reward == 1.0
    assert server.closed == 2


def test_an_environment_with_a_server_keeps_the_contract():
    async def repeat(client, name, arguments):
        return CallAnswer(text=str(arguments.get("text")), ok="text" in arguments)

    env = env_of(MCPTools("serve it", connect=FakeServer(answer=repeat).connect))
    assert asyncio.run(check_env(env)) == []


def test_a_shared_server_with_a_state_is_found_by_the_check():
    findings = asyncio.run(check_env(env_of(MCPTools("serve it", connect=FakeServer().connect))))
    assert any("differs" in finding for finding in findings)


def test_secrets_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("TOKEN", "s3cret")
    server = read_server("http://localhost/mcp", headers={"Authorization": "Bearer $TOKEN"})
    assert server.headers == {"Authorization": "Bearer s3cret"}
    with pytest.raises(ToolError, match="which the environment does not have"):
        read_server("serve", variables={"KEY": "$NO_SUCH_VARIABLE"})
    with pytest.raises(ToolError, match="headers are those of a URL"):
        read_server("serve", headers={"a": "b"})


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr("turnwise.tools.mcp.client.find_spec", lambda name: None)
    with pytest.raises(ToolError, match=r"pip install 'turnwise\[mcp\]'"):
        MCPTools("serve it")
