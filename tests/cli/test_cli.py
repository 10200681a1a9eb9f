"""The commands do what they say, end to end, on runs of a second."""

import importlib.util
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tiny_runs import SFT, SIGNALS, records, same_weights, tiny_data, weights
from turnwise.cli import bench
from turnwise.cli.bench import import_benchmarks
from turnwise.cli.main import COMMANDS, main
from turnwise.errors import ConfigError
from turnwise.recipes import describe_recipe, packaged_recipes
from turnwise.runs import RunDirectory, read_trajectories
from turnwise.training.trainer import Trainer


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A recipe and the run that `turnwise train` made of it; overrides stand on both sides of the option."""
    folder = tmp_path_factory.mktemp("cli")
    recipe = folder / "game.yaml"
    recipe.write_text(yaml.safe_dump(tiny_data(sft=SFT)))
    assert main(["train", str(recipe), "steps=2", "--run", str(folder / "run"), "evaluate.tasks=8"]) == 0
    return recipe, RunDirectory.open(folder / "run")


def test_train_obeys_recipe_and_overrides(trained):
    _, run = trained
    assert [record["step"] for record in records(run, "train")] == [1, 2]
    assert [record["evaluate/episodes"] for record in records(run, "evaluate")] == [8, 8]


def test_train_tells_where_the_run_is(tmp_path, monkeypatch, capsys):
    """Without --run, it is named after the recipe."""
    monkeypatch.chdir(tmp_path)
    Path("game.yaml").write_text(yaml.safe_dump(tiny_data(steps=0)))
    assert main(["train", "game.yaml"]) == 0
    said = capsys.readouterr().out
    assert "evaluate, step 0: success" in said
    assert said.splitlines()[-1] == "The run is in runs/game; evaluate it with: turnwise eval runs/game"
    assert Path("runs/game/config.yaml").is_file()


def test_train_resumes(trained, tmp_path, capsys):
    recipe, run = trained
    command = ["train", str(recipe), "evaluate.tasks=8", "--run", str(tmp_path / "run")]
    assert main([*command, "steps=1"]) == 0
    assert main([*command, "steps=2", "--resume"]) == 0
    assert "resumed after step 1" in capsys.readouterr().out
    assert same_weights(weights(RunDirectory.open(tmp_path / "run"), 2), weights(run, 2))


def test_eval_of_a_run_repeats_what_training_measured(trained, capsys):
    """Greedy, on the same tasks, with the newest weights: the same share of successes."""
    _, run = trained
    assert main(["eval", str(run.path)]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    last = records(run, "evaluate")[-1]
    assert f"success {last['evaluate/success']:.3f}" in said
    assert f"reward {last['evaluate/reward']:.3f}, 8 episodes" in said


def test_eval_takes_overrides_and_saves_what_it_saw(trained, tmp_path, capsys):
    _, run = trained
    file = tmp_path / "seen.parquet"
    assert main(["eval", str(run.path), "evaluate.tasks=3", "evaluate.temperature=1", "--save", str(file)]) == 0
    seen = [member for group in read_trajectories(file) for member in group.trajectories]
    assert len(seen) == 3
    reward = sum(member.reward for member in seen) / 3
    assert f"reward {reward:.3f}, 3 episodes" in capsys.readouterr().out


def test_eval_of_a_recipe_takes_its_model_as_it_comes(trained, capsys):
    recipe, _ = trained
    assert main(["eval", str(recipe)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("small: success 0.000")


def test_check_says_whether_the_contract_is_kept(tmp_path, capsys):
    assert main(["check", SIGNALS]) == 0
    assert "✓ Signals keeps the contract" in capsys.readouterr().out
    forgetful = tmp_path / "forgetful.py"
    forgetful.write_text(
        "import random\n"
        "from turnwise import Env, Message, Step, Task\n"
        "class Forgetful(Env):\n"
        "    def tasks(self, split):\n"
        "        return [Task(id='only')]\n"
        "    async def reset(self, task, episode_seed):\n"
        "        return [Message(role='user', content=f'[{random.random()}]')]\n"
        "    async def step(self, message):\n"
        "        return Step(done=True)\n"
    )
    assert main(["check", f"{forgetful}:Forgetful"]) == 1
    assert "✗ task 'only': reset gives different messages" in capsys.readouterr().out


@pytest.mark.parametrize("named", ["the environment", "a recipe"])
def test_play_is_an_episode_by_hand(named, trained, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("up\nleft\n"))
    env = SIGNALS if named == "the environment" else str(trained[0])
    assert main(["play", env, "--task", "1", "--split", "test"]) == 0
    said = capsys.readouterr().out
    assert "Task test-1" in said
    assert "The episode is over. success 1" in said
    assert "Reward 1 (right 1)" in said


def test_play_takes_a_packaged_recipe_by_name(monkeypatch, capsys):
    """With the recipe's own arguments: its bandit asks for no thinking, and ours has another."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("/quit\n"))
    assert main(["play", "games-bandit", "--task", "2"]) == 0
    assert "Task train-2" in capsys.readouterr().out


def test_play_calls_tools_and_passes_arguments(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO('/call search query="the capital"\n/quit\n'))
    assert main(["play", "encyclopedia", "people=6", "passages=1"]) == 0
    assert "tool search" in capsys.readouterr().out


def test_demo_compares_the_agent_with_its_baselines(tmp_path, capsys):
    recipe, folder = tmp_path / "demo.yaml", tmp_path / "demo"
    recipe.write_text(
        yaml.safe_dump(
            tiny_data(
                seed=3,
                steps=1,
                env={"name": "encyclopedia", "args": {"people": 6, "passages": 1}},
                model={"small": {"layers": 1, "width": 32, "heads": 2, "positions": 512, "induction": False}},
                sft={"demonstrations": 8, "batch": 8},
                evaluate={"tasks": 5},
            )
        )
    )
    assert main(["demo", "--recipe", str(recipe), "--run", str(folder)]) == 0
    figures = json.loads((folder / "summary.json").read_text())
    assert figures.keys() == {"naive_rag", "untrained", "sft", "rl", "questions", "seconds", "seed"}
    assert (figures["questions"], figures["seed"]) == (5, 3)
    agent, rag = RunDirectory.open(folder), RunDirectory.open(folder / "naive_rag")
    assert figures["untrained"] == records(agent, "untrained")[0]["evaluate/success"]
    assert figures["sft"] == records(agent, "evaluate")[0]["evaluate/success"]
    assert figures["rl"] == records(agent, "evaluate")[-1]["evaluate/success"]
    assert figures["naive_rag"] == records(rag, "evaluate")[-1]["evaluate/success"]
    assert (folder / "learning_curve.png").is_file() == (importlib.util.find_spec("matplotlib") is not None)
    said = capsys.readouterr().out
    assert "Exact match on 5 held-out questions (greedy)" in said
    assert re.search(r"after reinforcement learning\s+│\s+0\.\d{3}", said)


def test_recipes_lists_every_one_with_its_first_sentence(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["recipes"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    listed = {line.partition("  ")[0]: line.partition("  ")[2].strip() for line in lines if "  " in line}
    assert listed == {name: describe_recipe(path) for name, path in packaged_recipes().items()}
    assert listed["encyclopedia-grpo"].endswith("by searching twice."), "the first sentence alone"
    assert "Others" not in lines, "every recipe belongs to a group"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["report", "run"], "one run directory"),
        (["recipes"], "no arguments"),
        (["bench", "credit"], "one benchmark"),
        (["serve-search", "corpus.jsonl"], "one corpus"),
    ],
)
def test_an_argument_too_many_is_named(command, expected, capsys):
    assert main([*command, "second"]) == 2
    assert capsys.readouterr().err == f"error: unexpected argument 'second': expected {expected}\n"


def test_benchmarks_are_found_in_a_checkout_alone(tmp_path, monkeypatch):
    """The package's own, as in these tests; or that of the working folder; and nowhere else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [])
    import_benchmarks()
    assert sys.path == [str(Path(bench.__file__).parents[3])]
    monkeypatch.setattr(bench, "_OWN_CHECKOUT", tmp_path / "site-packages")
    with pytest.raises(ConfigError, match="come with a checkout of turnwise and not with the installed package"):
        import_benchmarks()
    (tmp_path / "benchmarks/harness").mkdir(parents=True)
    import_benchmarks()
    assert sys.path[0] == str(tmp_path)


def test_interrupting_says_how_to_go_on(trained, tmp_path, monkeypatch, capsys):
    async def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "run", interrupted)
    assert main(["train", str(trained[0]), "--run", str(tmp_path / "run")]) == 130
    assert "--resume" in capsys.readouterr().err


def test_help_comes_without_torch():
    script = (
        "import sys\n"
        "from turnwise.cli.main import main\n"
        "from turnwise.cli.main import COMMANDS\n"
        "for command in ([], *([name] for name in COMMANDS)):\n"
        "    try:\n"
        "        main([*command, '--help'])\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 0\n"
        "heavy = [name for name in ('torch', 'transformers', 'pyarrow') if name in sys.modules]\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage: turnwise") == len(COMMANDS) + 1
