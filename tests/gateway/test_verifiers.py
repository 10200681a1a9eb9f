"""`VerifiersEnv` with a stand-in for the process that runs verifiers; tests/interop has the real one."""

import asyncio
import gc
import sys

import psutil
import pytest

from byte_render import ByteRender
from turnwise.agents import PolicyAgent
from turnwise.engines.scripted import ScriptedEngine
from turnwise.errors import EnvError
from turnwise.gateway.verifiers import VerifiersEnv
from turnwise.rollout import run_episode
from turnwise.types import StopReason

STAND_IN = """
import json, os, subprocess, sys, urllib.request
config = json.loads(sys.argv[-1])
if config["taskset"]["id"] == "absent":
    sys.exit("ModuleNotFoundError: no taskset 'absent'")
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    reply = {"id": request["id"]}
    if request["method"] == "tasks":
        places = range(request["start"], min(request["stop"], 300))
        reply["tasks"] = [{"name": f"task-{place}", "wanted": str(place)} for place in places]
    elif request["task"]["name"] == "task-1":
        reply["error"] = "TaskError: broken"
    elif request["task"]["name"] == "task-2":
        os._exit(3)
    elif request["task"]["name"] == "task-4":
        subprocess.Popen(["sleep", "60"])
        reply["error"] = "TaskError: has a child"
    else:
        body = {"model": "m", "messages": [{"role": "user", "content": "Which?"}]}
        asked = urllib.request.Request(
            request["base_url"] + "/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": "Bearer x"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        said = json.load(opener.open(asked))["choices"][0]["message"]["content"]
        right = float(said == request["task"]["wanted"])
        reply |= {"rewards": {"right": right, "brief": 0.25}, "metrics": {"length": float(len(said))}}
    print(json.dumps(reply), flush=True)
"""


@pytest.fixture
def stand_in(tmp_path):
    file = tmp_path / "stand_in.py"
    file.write_text(STAND_IN)
    return [sys.executable, str(file)]


def play(env, task, said):
    render = ByteRender()
    engine = ScriptedEngine(lambda session, prompt: said, render.encode_action)
    return asyncio.run(run_episode(PolicyAgent(engine=engine, render=render), env.spawn(), task, episode_seed=0))


def children():
    return [child for child in psutil.Process().children() if "stand_in.py" in " ".join(child.cmdline())]


def test_tasks_turns_and_rewards_are_those_of_the_process(stand_in):
    env = VerifiersEnv(taskset="there", command=stand_in, tasks=280, test_tasks=20)
    task = env.tasks("train")[279]
    assert (task.id, env.tasks("test")[0].id) == ("task-279", "task-280")
    episode = play(env, task, "279")
    assert (episode.failure, episode.rewards) == ("", {"right": 1.0, "brief": 0.25})
    assert (episode.metrics["success"], episode.metrics["length"]) == (1.0, 3.0)
    assert len(episode.turns[0].action_ids) > 0
    wrong = play(env, task, "x")
    assert (wrong.reward, wrong.metrics["success"]) == (0.25, 0.0)
    assert len(children()) == 1, "one process for all episodes"
    with pytest.raises(EnvError, match="has 300 tasks: lower"):
        VerifiersEnv(taskset="there", command=stand_in, tasks=300).tasks("test")[0]
    del env
    gc.collect()
    assert children() == []


def test_what_fails_there_is_a_failure_and_a_dead_process_is_started_anew(stand_in):
    env = VerifiersEnv(taskset="there", command=stand_in, tasks=10, test_tasks=1)
    broken = play(env, env.tasks("train")[1], "1")
    assert (broken.stop, broken.reward) == (StopReason.ENV_FAILED, 0.0)
    assert "verifiers: TaskError: broken" in broken.failure
    dead = play(env, env.tasks("train")[2], "2")
    assert (dead.stop, "the process of verifiers has ended" in dead.failure) == (StopReason.ENV_FAILED, True)
    assert play(env, env.tasks("train")[3], "3").rewards["right"] == 1.0


def test_a_dead_process_is_started_anew_though_its_output_is_still_open(stand_in):
    gc.collect()  # ends the processes of other tests
    env = VerifiersEnv(taskset="there", command=stand_in, tasks=10, test_tasks=1)
    assert "has a child" in play(env, env.tasks("train")[4], "4").failure
    (process,) = children()
    (holds_its_output,) = process.children()
    process.kill()
    process.wait()
    assert play(env, env.tasks("train")[3], "3").rewards["right"] == 1.0
    holds_its_output.kill()


def test_what_cannot_be_loaded_is_one_line(stand_in):
    with pytest.raises(EnvError, match="no taskset 'absent': run it by hand"):
        VerifiersEnv(taskset="absent", command=stand_in)
    with pytest.raises(EnvError, match="cannot run '/no/such/python'"):
        VerifiersEnv(taskset="there", command=["/no/such/python"])
    with pytest.raises(EnvError, match="a list of words"):
        VerifiersEnv(taskset="there", command="python")
