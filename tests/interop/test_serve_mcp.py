"""Environments of ours behind `turnwise serve-mcp`, played by the official client and by our own."""

import asyncio
import os
import subprocess
import sys

import pytest
from test_mcp_tools import free_port, wait_for

from turnwise import Task
from turnwise.agents import ExpertAgent, ScriptedAgent
from turnwise.envs.adapters.mcp import MCPEnv
from turnwise.envs.encyclopedia.env import Encyclopedia
from turnwise.rollout import run_episode
from turnwise.types import StopReason

mcp = pytest.importorskip("mcp")

SERVE = [sys.executable, "-m", "turnwise", "serve-mcp"]


@pytest.fixture(scope="module")
def url():
    port = free_port()
    process = subprocess.Popen([*SERVE, "encyclopedia", "--http", "--port", str(port)], stdout=subprocess.DEVNULL)
    wait_for(port)
    yield f"http://127.0.0.1:{port}/mcp"
    process.terminate()
    assert process.wait(20) == 0


def text_of(result):
    return result.content[0].text


def replies_of(trajectory):
    """What an expert wrote, as the text of a model."""
    from turnwise.render.formats import parse_text

    texts = []
    for message in trajectory.messages:
        if message.role == "assistant":
            calls = [f'{{"name": "{call.name}", "arguments": {call.arguments}}}' for call in message.tool_calls]
            texts.append("\n".join([message.content, *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)]))
            assert [(call.name, call.arguments) for call in parse_text(texts[-1]).tool_calls] == [
                (call.name, call.arguments) for call in message.tool_calls
            ]
    return texts


def test_the_official_client_plays_an_episode(url):
    async def play():
        async with mcp.Client(url) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            early = await client.call_tool("search", {"query": "Lumen"})
            opening = await client.call_tool("reset_episode", {"index": 3, "split": "test"})
            wrong = await client.call_tool("search", {"query": 3})
            found = await client.call_tool("search", {"query": "Lumen Group"})
            end = await client.call_tool("respond", {"text": "<answer>nobody</answer>"})
            paid = await client.call_tool("episode_reward", {})
            after = await client.call_tool("respond", {"text": "again"})
            return names, early, opening, wrong, found, end, paid, after

    names, early, opening, wrong, found, end, paid, after = asyncio.run(play())
    assert names == ["reset_episode", "search", "respond", "episode_reward"]
    assert (early.is_error, text_of(early)) == (True, "no episode has begun: reset first")
    task = Encyclopedia().tasks("test")[3]
    assert text_of(opening).endswith(task.data["question"])
    assert opening.structured_content["task"] == task.id
    assert (wrong.is_error, found.is_error) == (True, False)
    assert " Group" in text_of(found)
    assert text_of(end) == "The episode is over, with reward 0."
    assert (paid.structured_content["done"], paid.structured_content["turns"]) == (True, 3)
    assert (after.is_error, text_of(after)) == (True, "the episode is over, with reward 0: reset to begin another")


def test_sessions_share_nothing(url):
    async def session(place):
        async with mcp.Client(url) as client:
            opening = await client.call_tool("reset_episode", {"index": place})
            await asyncio.sleep(0.1)
            for _ in range(place):  # the environment allows more turns than these
                await client.call_tool("search", {"query": "x"})
            paid = await client.call_tool("episode_reward", {})
            return opening.structured_content["task"], paid.structured_content["turns"]

    async def many():
        return await asyncio.gather(*(session(place) for place in range(4)))

    assert asyncio.run(many()) == [(task.id, place) for place, task in enumerate(Encyclopedia().tasks("train")[:4])]


@pytest.mark.parametrize("kind", ["stdio", "http"])
def test_an_environment_over_mcp_and_back_gives_the_native_episodes(kind, url):
    env = Encyclopedia()
    where = {"command": [*SERVE, "encyclopedia"]} if kind == "stdio" else {"url": url}
    own = {"per_episode": True, "setup": "reset_episode", "score": "episode_reward", "only": ["search"]}
    if kind == "stdio":
        own["variables"] = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    remote = MCPEnv(servers=[{**where, **own}])
    assert remote.tools == env.tools
    for place, task in enumerate(env.tasks("train")[:3]):
        native = asyncio.run(run_episode(ExpertAgent(), env.spawn(), task, episode_seed=5))
        script = ScriptedAgent(replies=replies_of(native))
        told = Task(id=str(place), data={"index": place, "split": "train"})
        there = asyncio.run(run_episode(script, remote.spawn(), told, episode_seed=5))
        assert (there.failure, there.stop, there.reward) == ("", StopReason.DONE, native.reward)
        assert [m.content for m in there.messages if m.role == "tool"] == [
            m.content for m in native.messages if m.role == "tool"
        ]
        opening = "\n\n".join(m.content for m in native.messages if m.role in ("system", "user"))
        assert there.messages[0].content == opening


def test_tools_by_themselves_are_served(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from turnwise import tool\n\n\n@tool(quick=True)\ndef double(number: int) -> int:\n"
        "    '''Doubles a number.'''\n    return 2 * number\n\n\ntools = [double]\n"
    )
    parameters = mcp.StdioServerParameters(
        command=SERVE[0],
        args=[*SERVE[1:], f"{file}:tools", "--tools"],
        env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    )

    async def use():
        async with mcp.Client(mcp.stdio_client(parameters)) as client:
            listed = (await client.list_tools()).tools
            doubled = await client.call_tool("double", {"number": 4})
            wrong = await client.call_tool("double", {"number": "four"})
            return listed, text_of(doubled), (wrong.is_error, text_of(wrong))

    (listed,), doubled, wrong = asyncio.run(use())
    assert (listed.name, listed.description, doubled) == ("double", "Doubles a number.", "8")
    assert wrong[0]
    assert "double was not called: argument 'number' is wrong" in wrong[1]


def test_what_breaks_in_the_environment_is_no_answer(tmp_path):
    file = tmp_path / "broken.py"
    file.write_text(
        "from turnwise import ToolEnv, reward\n\n\nclass Broken(ToolEnv):\n    def __init__(self):\n"
        "        super().__init__(tasks=[{'question': '?'}])\n\n    @reward\n    def fails(self, episode):\n"
        "        raise KeyError('gold')\n"
    )
    parameters = mcp.StdioServerParameters(
        command=SERVE[0],
        args=[*SERVE[1:], f"{file}:Broken"],
        env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    )

    async def play():
        async with mcp.Client(mcp.stdio_client(parameters)) as client:
            await client.call_tool("reset_episode", {})
            with pytest.raises(mcp.MCPError, match="reward 'fails' raised KeyError"):
                await client.call_tool("respond", {"text": "x"})

    asyncio.run(play())


def test_a_name_that_is_nothing_is_one_line():
    made = subprocess.run([*SERVE, "no_such_env"], capture_output=True, text=True)
    assert (made.returncode, made.stdout) == (2, "")
    assert made.stderr.startswith("error: env.name: 'no_such_env' is not an environment")
