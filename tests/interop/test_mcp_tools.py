"""`MCPTools` against servers of the official `mcp` package, each a process of its own, over stdio and HTTP."""

import asyncio
import gc
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from turnwise import Task, ToolCall, ToolEnv
from turnwise.envs import check_env
from turnwise.errors import ToolError
from turnwise.rewards import Reward
from turnwise.tools import MCPTools, run_calls
from turnwise.tools.mcp import ServerLostError

pytest.importorskip("mcp")

KITCHEN = Path(__file__).parent / "servers" / "kitchen.py"
STDIO = ["python", str(KITCHEN), "stdio"]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def wait_for(port):
    for _ in range(1200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail("the server did not start")


@pytest.fixture(scope="module")
def url():
    port = free_port()
    process = subprocess.Popen([sys.executable, str(KITCHEN), "http", str(port)], stderr=subprocess.DEVNULL)
    wait_for(port)
    yield f"http://127.0.0.1:{port}/mcp"
    process.kill()
    process.wait()


def kitchens():
    children = psutil.Process().children(recursive=True)
    return [child for child in children if str(KITCHEN) in " ".join(child.cmdline()) and "stdio" in child.cmdline()]


def call(name, **arguments):
    return ToolCall(id="c", name=name, arguments=json.dumps(arguments))


async def use(toolset, *calls):
    opened = await toolset.open(Task(id="t", seed=3, data={"level": 1}), 0)
    try:
        return [(await run_calls(opened.tools, [one]))[0] for one in calls], opened.metrics
    finally:
        await opened.close()


@pytest.fixture(params=["stdio", "http", "stdio-each", "http-each"])
def toolset(request, url):
    kind, _, each = request.param.partition("-")
    return MCPTools(STDIO if kind == "stdio" else url, per_episode=bool(each), timeout=5.0)


def test_every_kind_of_answer(toolset):
    calls = [
        call("add", a=2, b=3),
        call("add", a="x"),
        call("fail", reason="no flour"),
        call("picture"),
        call("papers"),
        call("facts"),
        call("odd_name_here", text="hi"),
        call("no_such_tool"),
    ]
    results, metrics = asyncio.run(use(toolset, *calls))
    assert [(result.ok, result.content) for result in results[:4]] == [
        (True, "5"),
        (
            False,
            "add was not called: argument 'a' is wrong: 'x' is not of type 'integer'. "
            "Usage: add(a: integer, b: integer (optional))",
        ),
        (False, "Error executing tool fail: no flour"),
        (True, "[image image/png, 40 bytes: not shown]"),
    ]
    assert results[4].content == "see below\n[resource file:///recipe.txt]\nflour, eggs\n[link file:///shop.txt: shop]"
    assert results[4].rewards == {"found": 0.5}
    assert json.loads(results[5].content) == {"eggs": 12}
    assert (results[6].content, results[7].ok) == ("hi", False)
    assert metrics == {"mcp_images": 1.0}


def test_the_schema_is_the_servers():
    (add,) = MCPTools(STDIO, only=["add"]).tools
    assert add.spec.description == "Adds two numbers."
    assert add.spec.parameters["properties"]["b"]["default"] == 1
    assert add.spec.parameters["required"] == ["a"]


def test_calls_of_many_episodes_run_at_once(toolset):
    async def many():
        began = time.monotonic()
        rounds = await asyncio.gather(*(use(toolset, call("wait", seconds=1.0)) for _ in range(4)))
        return [results[0].content for results, _ in rounds], time.monotonic() - began

    asyncio.run(use(toolset, call("wait", seconds=0.0)))
    contents, seconds = asyncio.run(many())
    assert contents == ["waited 1.0"] * 4
    if not toolset._per_episode:
        assert seconds < 3.0, "four seconds if one waited for the other"


def test_a_slow_tool_is_told_and_the_server_goes_on(url):
    for server in (STDIO, url):
        toolset = MCPTools(server, timeout=1.0)
        (slow, after), _ = asyncio.run(use(toolset, call("wait", seconds=30), call("add", a=1)))
        assert (slow.ok, after.content) == (False, "2")
        assert slow.content.startswith("wait gave no answer within 1 seconds")


def test_a_server_that_dies_is_lost_with_its_last_words_and_the_next_episode_has_another():
    for each in (False, True):
        toolset = MCPTools(STDIO, per_episode=each)
        with pytest.raises(ServerLostError, match="Connection closed; it wrote: the oven is on fire"):
            asyncio.run(use(toolset, call("die")))
        assert asyncio.run(use(toolset, call("count")))[0][0].content == "0"
        toolset.close()
        assert kitchens() == []


def test_a_frozen_server_is_lost_and_its_process_ends():
    toolset = MCPTools(STDIO, timeout=1.0)
    with pytest.raises(ServerLostError, match="left a call of freeze unanswered for 1 seconds"):
        asyncio.run(use(toolset, call("freeze", seconds=60)))
    assert asyncio.run(use(toolset, call("count")))[0][0].ok
    toolset.close()
    assert kitchens() == []


def test_a_server_over_http_that_dies_is_lost():
    port = free_port()
    process = subprocess.Popen([sys.executable, str(KITCHEN), "http", str(port)], stderr=subprocess.DEVNULL)
    wait_for(port)
    toolset = MCPTools(f"http://127.0.0.1:{port}/mcp")
    with pytest.raises(ServerLostError, match="is lost"):
        asyncio.run(use(toolset, call("die")))
    process.wait()
    with pytest.raises(ServerLostError, match="All connection attempts failed"):
        asyncio.run(use(toolset, call("count")))


def test_one_server_each_or_one_for_all():
    for each, seen in ((False, ["0", "1"]), (True, ["0", "0"])):
        toolset = MCPTools(STDIO, per_episode=each)
        counted = []
        for _ in range(2):
            results, _ = asyncio.run(use(toolset, call("count"), call("add", a=1)))
            counted.append(results[0].content)
        assert counted == seen
        assert len(kitchens()) == (0 if each else 1)
        del toolset
        gc.collect()
        assert kitchens() == []


def test_a_server_of_an_episode_is_told_its_task():
    toolset = MCPTools(STDIO, per_episode=True, variables={"KITCHEN": "small"})
    (told,), _ = asyncio.run(use(toolset, call("told")))
    assert told.content == '{"id": "t", "seed": 3, "data": {"level": 1}} small'


def test_a_list_that_grows_is_the_next_episodes():
    toolset = MCPTools(STDIO)
    assert "grown" not in [tool.spec.name for tool in toolset.tools]
    asyncio.run(use(toolset, call("grow")))
    assert asyncio.run(use(toolset, call("grown")))[0][0].content == "grown up"
    toolset.close()


def test_a_list_on_several_pages_is_read_whole():
    toolset = MCPTools(["python", str(KITCHEN.parent / "pages.py")])
    assert [tool.spec.name for tool in toolset.tools] == [f"tool_{place}" for place in range(25)]
    toolset.close()


def test_no_server_outlives_the_process():
    code = (
        "import asyncio, os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from turnwise import Task\n"
        "from turnwise.tools import MCPTools\n"
        "shared = MCPTools(sys.argv[2:])\n"
        "each = MCPTools(sys.argv[2:], per_episode=True)\n"
        "opened = asyncio.run(each.open(Task(id='t'), 0))\n"
        "import psutil; print(*(child.pid for child in psutil.Process().children()))\n"
    )
    made = subprocess.run([sys.executable, "-c", code, ".", *STDIO], capture_output=True, text=True, check=True)
    started = [int(pid) for pid in made.stdout.split()]
    assert len(started) == 2
    assert not any(map(psutil.pid_exists, started))


def test_what_cannot_be_started_is_one_line():
    with pytest.raises(ToolError, match=r"MCP server no-such-program is lost: .*: start it by hand"):
        MCPTools("no-such-program")
    with pytest.raises(ToolError, match=r"it wrote: .*No such file"):
        MCPTools("python /no/such/file.py")


def test_an_environment_with_a_real_server_keeps_the_contract():
    only = ["add", "fail", "facts"]
    paid = Reward(name="said", function=lambda episode: float(bool(episode.answer)), quick=True)
    env = ToolEnv(tools=[MCPTools(STDIO, only=only)], tasks=[{"question": "Add."}], rewards=[paid])
    assert asyncio.run(check_env(env)) == []
