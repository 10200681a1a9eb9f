"""OpenEnv's own servers and client against ours, in the environment that the package needs for itself."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_mcp_tools import free_port, wait_for

from tiny_runs import records
from turnwise import Message, Task
from turnwise.agents import ExpertAgent, ScriptedAgent
from turnwise.cli.main import main
from turnwise.envs import check_env
from turnwise.envs.adapters.openenv import OpenEnv
from turnwise.envs.encyclopedia.env import Encyclopedia
from turnwise.rollout import run_episode
from turnwise.runs import RunDirectory
from turnwise.types import StopReason

PYTHON = os.environ.get("TURNWISE_OPENENV_PYTHON")
"""An interpreter with the package openenv, whose pins are not ours."""
ROOT = Path(__file__).parents[2]
SERVERS = Path(__file__).parent / "servers"

pytest.importorskip("websockets")
pytestmark = pytest.mark.skipif(PYTHON is None, reason="TURNWISE_OPENENV_PYTHON names no interpreter")


def start(*command):
    port = free_port()
    process = subprocess.Popen([*map(str, command), str(port)], cwd=ROOT)
    try:
        wait_for(port)
    except BaseException:
        process.kill()
        raise
    return process, f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def doors():
    process, url = start(PYTHON, ROOT / "examples" / "openenv" / "server.py")
    yield url
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def odd():
    process, url = start(PYTHON, SERVERS / "openenv_odd.py")
    yield url
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def ours():
    process, url = start(sys.executable, "-m", "turnwise", "serve-openenv", "encyclopedia", "--port")
    yield url
    process.terminate()
    assert process.wait(20) == 0


def play(env, *replies, task=None):
    agent = ScriptedAgent(replies=replies)
    return asyncio.run(run_episode(agent, env.spawn(), task or env.tasks("train")[0], episode_seed=0))


def test_a_real_server_keeps_the_contract(doors):
    findings = asyncio.run(check_env(OpenEnv(url=doors, pattern="<move>(.*?)</move>", tasks=4)))
    assert findings == []


def test_episodes_side_by_side_are_the_servers_sessions(doors):
    env = OpenEnv(url=doors, tasks=16)

    async def openings(seeds):
        lives = [env.spawn() for _ in seeds]
        tasks = [Task(id="t", seed=seed) for seed in seeds]
        await asyncio.gather(*(live.reset(task, 0) for live, task in zip(lives, tasks, strict=True)))
        look = Message(role="assistant", content="look")
        steps = await asyncio.gather(*(live.step(look) for live in lives))
        await asyncio.gather(*(live._release_episode() for live in lives))
        return [step.messages[0].content for step in steps]

    alone = [asyncio.run(openings([seed]))[0] for seed in range(4)]
    assert asyncio.run(openings([0, 1, 2, 3] * 4)) == alone * 4
    assert len(set(alone)) > 1


def test_actions_by_field_by_tool_and_by_json(odd):
    by_field = OpenEnv(url=odd, field="number", fixed={"note": "n"}, observation="{total} ({note})")
    episode = play(by_field, "4", "six", "6", task=Task(id="t", seed=0))
    assert [message.content for message in episode.messages] == [
        "0 (begin)",
        "4",
        "4 (n)",
        "six",
        "That is no valid action: 'six' is no integer, which number is",
        "6",
    ]
    assert (episode.stop, episode.reward) == (StopReason.DONE, pytest.approx(1.0))
    call = '<tool_call>\n{"name": "act", "arguments": {"number": "x"}}\n</tool_call>'
    episode = play(OpenEnv(url=odd, action="tool", max_turns=1), call, task=Task(id="t", seed=0))
    assert "That is no valid action: number: Input should be a valid integer" in episode.messages[-1].content
    start_at = Task(id="t", seed=0, data={"reset": {"start": 9}})
    assert play(OpenEnv(url=odd, field="number"), "1", task=start_at).reward == pytest.approx(0.1)


def test_a_full_server_is_waited_for(odd):
    env = OpenEnv(url=odd, field="number", seconds=20.0)

    async def many():
        agent = ScriptedAgent(replies=["10"])
        task = Task(id="t", seed=0)
        return await asyncio.gather(*(run_episode(agent, env.spawn(), task, episode_seed=0) for _ in range(6)))

    episodes = asyncio.run(many())
    assert [(episode.stop, episode.failure) for episode in episodes] == [(StopReason.DONE, "")] * 6


def test_what_fails_in_the_server_fails_the_episode_and_is_never_scored(odd):
    """The last of its server's, which does not survive it."""
    env = OpenEnv(url=odd, fixed={"number": 1}, field="note", seconds=5.0)
    failed = play(env, "fail")
    assert (failed.stop, failed.reward) == (StopReason.ENV_FAILED, 0.0)
    assert "the odd failure" in failed.failure
    dead = play(env, "die")
    assert (dead.stop, "is lost" in dead.failure) == (StopReason.ENV_FAILED, True)
    assert play(env, "x").stop is StopReason.ENV_FAILED


def test_openenvs_own_client_plays_our_environment(ours):
    task = Encyclopedia().tasks("train")[2]
    answer = task.data["answers"][0]
    made = subprocess.run(
        [PYTHON, str(SERVERS / "openenv_client.py"), ours, "2", answer], capture_output=True, text=True, check=True
    )
    seen = json.loads(made.stdout)
    assert seen["opening"].endswith(task.data["question"])
    assert seen["found"][0]["role"] == "tool"
    assert (seen["state"]["step_count"], seen["state"]["task"]) == (1, task.id)
    assert seen["end"][1]
    assert seen["end"][0] > 0


@pytest.mark.parametrize("transport", ["websocket", "http"])
def test_an_environment_over_the_wire_and_back_gives_the_native_episodes(ours, transport):
    env = Encyclopedia()
    remote = OpenEnv(url=ours, transport=transport, field="message", observation="{text}")
    for place, task in enumerate(env.tasks("train")[:3]):
        native = asyncio.run(run_episode(ExpertAgent(), env.spawn(), task, episode_seed=0))
        answer = native.messages[-1].content
        alone = asyncio.run(run_episode(ScriptedAgent(replies=[answer]), env.spawn(), task, episode_seed=0))
        there = play(remote, answer, task=Task(id="t", data={"reset": {"index": place, "split": "train"}}))
        assert (there.stop, there.reward) == (StopReason.DONE, alone.reward)
        opening = "\n\n".join(message.content for message in alone.messages[:-1])
        assert there.messages[0].content == opening


@pytest.mark.slow
def test_an_agent_learns_in_an_environment_behind_a_server(doors, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    run = str(tmp_path / "run")
    recipe = "examples/openenv/recipe.yaml"
    assert main(["train", recipe, f"env.args.url={doors}", "steps=4", "--run", run]) == 0
    success = [record["evaluate/success"] for record in records(RunDirectory.open(run), "evaluate")]
    assert success[0] < 0.3
    assert success[-1] >= 0.9
