"""Environments of verifiers here, and ours there, in the environment that the package needs for itself."""

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from test_mcp_tools import free_port, wait_for

from byte_render import ByteRender
from tiny_runs import records
from turnwise import Task
from turnwise.agents import PolicyAgent, ScriptedAgent
from turnwise.cli.main import main
from turnwise.engines.scripted import ScriptedEngine
from turnwise.envs.encyclopedia.env import Encyclopedia
from turnwise.errors import EnvError
from turnwise.gateway.verifiers import VerifiersEnv
from turnwise.rollout import Limits, run_episode
from turnwise.runs import RunDirectory
from turnwise.types import StopReason

PYTHON = os.environ.get("TURNWISE_VERIFIERS_PYTHON")
"""An interpreter with the package verifiers, whose pins are not ours."""
LIMITS = Limits(max_turns=100)
ROOT = Path(__file__).parents[2]
EXAMPLES = str(ROOT / "examples" / "verifiers")

pytestmark = pytest.mark.skipif(PYTHON is None, reason="TURNWISE_VERIFIERS_PYTHON names no interpreter")


@pytest.fixture(scope="module")
def guess():
    return VerifiersEnv(taskset="guess_taskset", command=[PYTHON], path=[EXAMPLES], tasks=300, test_tasks=20)


@pytest.fixture(scope="module")
def keys():
    return VerifiersEnv(taskset="keys_taskset", command=[PYTHON], path=[EXAMPLES], tasks=20, test_tasks=1)


def play(env, replies, task):
    """An episode of a policy that writes these replies."""
    render = ByteRender()
    said = iter(replies)
    engine = ScriptedEngine(lambda session, prompt: next(said), render.encode_action)
    agent = PolicyAgent(engine=engine, render=render)
    return asyncio.run(run_episode(agent, env.spawn(), task, episode_seed=0, limits=LIMITS))


def test_their_dataset_turns_and_rewards_run_here(guess):
    task = guess.tasks("train")[299]
    assert (task.id, len(guess.tasks("test"))) == ("door-299", 20)
    assert guess.tasks("test")[0].id == "door-300"
    colour = task.data["colour"]
    episode = play(guess, ["<move> look </move>", f"<move> {colour} </move>"], task)
    assert (episode.failure, episode.stop, episode.rewards) == ("", StopReason.DONE, {"opened": 1.0})
    assert (episode.metrics["success"], episode.metrics["breaks"]) == (1.0, 0.0)
    assert len(episode.turns) == 2
    assert not episode.turns[1].opens_row, "the second turn extends the row of the first, by its own ids"
    assert play(guess, ["<move> violet </move>"], task).rewards == {"opened": 0.0}


def test_many_episodes_share_the_process(guess):
    tasks = list(guess.tasks("train")[:8])
    render = ByteRender()

    async def episode(task):
        said = iter(["<move> look </move>", f"<move> {task.data['colour']} </move>"])
        engine = ScriptedEngine(lambda session, prompt: next(said), render.encode_action)
        return await run_episode(PolicyAgent(engine=engine, render=render), guess.spawn(), task, episode_seed=0)

    async def many():
        return await asyncio.gather(*map(episode, tasks))

    assert [one.reward for one in asyncio.run(many())] == [1.0] * 8
    assert len(workers()) == 1


def test_an_episode_leaves_nothing_open_there(guess):
    """A client for each would be kept to the end, with a connection and the certificates: 1 MB an episode."""
    task = guess.tasks("train")[0]
    replies = ["<move> look </move>", f"<move> {task.data['colour']} </move>"]
    play(guess, replies, task)
    before = workers()[0].num_fds()
    for _ in range(4):
        assert play(guess, replies, task).reward == 1.0
    assert workers()[0].num_fds() == before


def test_an_episode_that_fails_there_is_never_scored(guess):
    broken = Task(id="broken", data={"name": "no colour"})
    episode = play(guess, ["<move> look </move>"], broken)
    assert (episode.stop, episode.reward) == (StopReason.ENV_FAILED, 0.0)
    assert "colour" in episode.failure
    worker = workers()[0]
    worker.kill()
    worker.wait()
    task = guess.tasks("train")[0]
    assert play(guess, [f"<move> {task.data['colour']} </move>"], task).reward == 1.0, "another process was started"


def test_ours_runs_there_and_back():
    port = free_port()
    serve = [sys.executable, "-m", "turnwise", "serve-openenv", "encyclopedia", "--port", str(port)]
    server = subprocess.Popen(serve, stdout=subprocess.DEVNULL)
    wait_for(port)
    try:
        config = {"taskset": {"url": f"http://127.0.0.1:{port}"}}
        there = VerifiersEnv(
            taskset="turnwise_env", command=[PYTHON], path=[EXAMPLES], config=config, tasks=4, test_tasks=1
        )
        env = Encyclopedia()
        for place in range(2):
            task = env.tasks("train")[place]
            replies = [f"<answer>{task.data['answers'][0] if place else 'nobody'}</answer>"]
            script = ScriptedAgent(replies=replies)
            native = asyncio.run(run_episode(script, env.spawn(), task, episode_seed=0, limits=LIMITS))
            remote = play(there, replies, there.tasks("train")[place])
            assert (remote.failure, remote.stop) == ("", StopReason.DONE)
            assert remote.rewards == pytest.approx(native.rewards)
            assert len(remote.turns) == len(native.turns)
    finally:
        server.terminate()
        server.wait()


def workers():
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "worker.py" in " ".join(child.cmdline())]


def test_what_cannot_be_loaded_is_one_line_and_no_process_is_left():
    gc.collect()
    before = len(workers())
    with pytest.raises(EnvError, match="no_such_taskset"):
        VerifiersEnv(taskset="no_such_taskset", command=[PYTHON])
    with pytest.raises(EnvError, match="cannot run '/no/such/python'"):
        VerifiersEnv(taskset="guess_taskset", command=["/no/such/python"])
    gc.collect()
    assert len(workers()) == before


@pytest.mark.parametrize(
    ("moves", "paid", "questions"),
    [
        (["ask {0}", "ask {1}", "take {key}"], 1.0, 2.0),
        (["ask nobody", "take {key}"], 1.0, 1.0),
        (["ask {0}", "take violet"], 0.0, 1.0),
        (["ask {0}"] * 4, 0.0, 4.0),
    ],
)
def test_a_task_there_pays_and_measures_by_functions_of_its_own(keys, moves, paid, questions):
    task = next(task for task in keys.tasks("train") if len(task.data["people"]) == 2)
    said = [move.format(*task.data["people"], key=task.data["key"]) for move in moves]
    episode = play(keys, [f"<move> {move} </move>" for move in said], task)
    assert (episode.failure, episode.stop, len(episode.turns)) == ("", StopReason.DONE, len(moves))
    assert episode.rewards == {"opened": paid}
    assert (episode.metrics["questions"], episode.metrics["success"]) == (questions, paid)


def train(folder, *overrides):
    """The evaluations and the steps of a run by the recipe of the examples."""
    recipe = ["examples/verifiers/recipe.yaml", f"env.args.command=[{PYTHON}]"]
    assert main(["train", *recipe, *overrides, "--run", str(folder)]) == 0
    run = RunDirectory.open(folder)
    return records(run, "evaluate"), records(run, "train")


def test_the_recipe_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    small = ["sft.demonstrations=32", "sft.epochs=1", "steps=2", "evaluate.tasks=4"]
    shape = ["rollout.groups_per_step=2", "rollout.group_size=4", "rollout.turn_tokens=8"]
    evaluations, steps = train(tmp_path / "run", *small, *shape)
    assert [record["step"] for record in evaluations] == [0, 2]
    assert [record["step"] for record in steps] == [1, 2]
    assert all(step["env/breaks"] == 0 and step["rollout/failed"] == 0 for step in steps)


@pytest.mark.slow
def test_an_agent_learns_to_ask(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    evaluations, steps = train(tmp_path / "run", "steps=8")
    assert evaluations[0]["evaluate/success"] < 0.3
    assert evaluations[-1]["evaluate/success"] >= 0.9
    assert all(step["env/breaks"] == 0 and step["rollout/failed"] == 0 for step in steps)
