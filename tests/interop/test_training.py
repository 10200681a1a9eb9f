"""Agents that nobody here wrote learn, unmodified, by the recipe of the examples; also as a command per episode."""

import importlib
import sys
from pathlib import Path

import pytest

from tiny_runs import records
from turnwise.agents import PolicyAgent
from turnwise.cli.main import main
from turnwise.config import load_config
from turnwise.gateway.program import AgentProgram
from turnwise.runs import RunDirectory

EXAMPLES = Path(__file__).parents[2] / "examples" / "any_agent"
AGENTS = {"plain": None, "openai_sdk": "openai", "anthropic_sdk": "anthropic", "openai_agents": "agents.run"}


@pytest.fixture(autouse=True)
def _examples_are_importable(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "package"), AGENTS.items())
def test_an_agent_learns_to_look_before_it_answers(agent, package, tmp_path):
    if package is not None:
        pytest.importorskip(package)
    run = str(tmp_path / "run")
    assert main(["train", str(EXAMPLES / "recipe.yaml"), f"env.args.function={agent}:run", "--run", run]) == 0
    evaluations = records(RunDirectory.open(run), "evaluate")
    success = [record["evaluate/success"] for record in evaluations]
    assert success[0] < 0.3
    assert success[-1] >= 0.9
    steps = records(RunDirectory.open(run), "train")
    assert all(step["env/breaks"] == 0 and step["rollout/failed"] == 0 for step in steps)


@pytest.mark.slow
def test_an_agent_learns_to_use_a_tool_behind_an_mcp_server(tmp_path, monkeypatch):
    pytest.importorskip("mcp")
    monkeypatch.chdir(EXAMPLES.parents[1])
    run = str(tmp_path / "run")
    assert main(["train", "examples/mcp/recipe.yaml", "steps=4", "--run", run]) == 0
    success = [record["evaluate/success"] for record in records(RunDirectory.open(run), "evaluate")]
    assert success[0] < 0.3
    assert success[-1] >= 0.9
    assert all(step["rollout/failed"] == 0 for step in records(RunDirectory.open(run), "train"))


@pytest.mark.parametrize(("agent", "package"), [("openai_sdk", "openai"), ("anthropic_sdk", "anthropic")])
def test_an_sdks_program_is_played_as_a_command(agent, package):
    import asyncio

    from byte_render import ByteRender
    from turnwise.engines.scripted import ScriptedEngine
    from turnwise.rollout import run_episode

    pytest.importorskip(package)
    boxes = importlib.import_module("boxes")
    task = boxes.tasks("test")[0]
    answer = f"<answer> {task.data['answers'][0]} </answer>"
    render = ByteRender()
    program = AgentProgram(command=[sys.executable, str(EXAMPLES / f"{agent}.py")], rewards="exact_match")
    engine = ScriptedEngine(lambda session, prompt: answer, render.encode_action)
    episode = asyncio.run(run_episode(PolicyAgent(engine=engine, render=render), program.spawn(), task, episode_seed=0))
    assert (episode.failure, episode.reward) == ("", 1.0)


def test_the_recipes_are_sound():
    assert load_config(EXAMPLES / "recipe.yaml").env.name == "program"
    assert load_config(EXAMPLES.parent / "mcp" / "recipe.yaml").env.name == "mcp"
    assert load_config(EXAMPLES.parent / "verifiers" / "recipe.yaml").env.name == "verifiers"
