"""`turnwise bench starpo`: what rows share and what each sets, changed games, refusals, and the command itself."""

import importlib.util
import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from rich.console import Console
from safetensors.torch import load_file

from benchmarks.harness.benchmark import Scope, find_benchmark, run_benchmark
from benchmarks.harness.evaluation import DECODINGS
from benchmarks.starpo.benchmark import FIRST_SEED, plan
from benchmarks.starpo.changes import change_env, changed_games
from benchmarks.starpo.comparison import choose_comparison
from benchmarks.starpo.rows import ROWS, TRAINED
from turnwise.cli.main import main
from turnwise.config import load_config
from turnwise.envs.registry import EnvSettings, make_env
from turnwise.settings import leaves


def run(**options):
    """The exit code of the command, and what it said."""
    console = Console(record=True, width=400)
    code = run_benchmark(find_benchmark("starpo"), console, **options)
    return code, console.export_text()


def scope(**options):
    return Scope(quick=False, seeds=1, **options)


def differences(config, other):
    plain, others = (dict(leaves(one.model_dump(mode="json"))) for one in (config, other))
    return {".".join(path): plain[path] for path in plain if plain[path] != others.get(path)}


def changes_of(name, **args):
    return {change.key: dict(change.args) for change in changed_games(EnvSettings(name=name, args=args))}


@pytest.mark.parametrize("name", ["gpu-sokoban-smollm2", "gpu-sokoban-qwen-500m", "gpu-bandit-qwen-500m"])
def test_rows_that_are_trained_differ_from_the_recipe_by_their_mode_alone(name):
    comparison = choose_comparison(scope(recipe=name, model="any/Any-1B", overrides=("steps=40",)))
    shared = ["model.name=any/Any-1B", "steps=40", "checkpoint.keep=1", "stability.mode=off"]
    base = load_config(name, shared)
    assert {row.key: differences(comparison.trained_config(row, 0), base) for row in TRAINED} == {
        "starpo": {"stability.mode": "monitor"},
        "starpo-s": {"stability.mode": "always"},
        "auto": {"stability.mode": "auto"},
    }
    cold = differences(comparison.cold_config(0), base)
    assert cold.items() >= {"steps": 0, "stability.mode": "monitor", "evaluate.tasks": 1}.items()
    assert cold.keys() <= {"steps", "stability.mode", "evaluate.tasks", "evaluate.every"}
    assert comparison.name == f"starpo-{name}"


def test_rows_of_a_seed_share_its_cold_start_and_what_they_are_asked(recipe):
    jobs = {job.name: job for job in plan(Scope(quick=False, seeds=2, recipe=recipe))}
    assert len(jobs) == 2 * (1 + 3 + len(ROWS))
    first, second = FIRST_SEED, FIRST_SEED + 1
    cold = jobs[f"sft/cold-start/seed-{first}"]
    assert cold.settings["config"]["sft"]["demonstrations"] == 64
    assert jobs[f"evaluation/untrained/seed-{first}"].after is None
    assert jobs[f"evaluation/cold-start/seed-{first}"].after is cold
    for row in TRAINED:
        trained = jobs[f"training/{row.key}/seed-{first}"]
        assert trained.after is cold
        assert trained.settings["config"]["sft"] is None
        assert jobs[f"evaluation/{row.key}/seed-{first}"].after is trained
        assert jobs[f"training/{row.key}/seed-{second}"].after is jobs[f"sft/cold-start/seed-{second}"]
    asked = [
        job.settings for name, job in jobs.items() if name.startswith("evaluation/") and name.endswith(f"-{first}")
    ]
    assert len(asked) == len(ROWS)
    assert all(settings == asked[0] for settings in asked)
    assert asked[0]["config"]["evaluate"]["tasks"] == 4
    assert list(asked[0]["changes"]) == ["other-names", "names-swapped"]


def test_changed_games_by_environment():
    assert changes_of("sokoban") == {
        "other-words": {"vocabulary": "alternative"},
        "8x8": {"size": 8},
        "two-boxes": {"boxes": 2},
    }
    assert changes_of("sokoban", size=8, boxes=2, vocabulary="alternative") == {
        "other-words": {"vocabulary": "standard"}
    }
    assert changes_of("sokoban", levels="boxoban.txt") == {"other-words": {"vocabulary": "alternative"}}
    assert changes_of("frozen_lake") == {"6x6": {"size": 6}, "not-slippery": {"slippery": False}}
    assert changes_of("frozen_lake", size=6, slippery=False) == {"slippery": {"slippery": True}}
    assert changes_of("bandit") == {
        "other-names": {"low": "Teacher", "high": "Engineer"},
        "names-swapped": {"reverse": True},
    }
    assert changes_of("bandit", low="Teacher", high="Engineer", reverse=True) == {
        "other-names": {"low": "Phoenix", "high": "Dragon"},
        "names-swapped": {"reverse": False},
    }


@pytest.mark.parametrize("name", ["sokoban", "frozen_lake", "bandit"])
def test_a_changed_game_has_the_tasks_of_the_one_it_changes(name):
    env = EnvSettings(name=name, args={"max_actions": 6})
    tasks = list(make_env(env).tasks("test")[:4])
    for change in changed_games(env):
        changed = change_env(env, change.args)
        assert changed.args["max_actions"] == 6
        assert list(make_env(changed).tasks("test")[:4]) == tasks
        assert change.key not in DECODINGS, "a section of a result has one meaning"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            ["--recipe", "tiny-bandit", "--quick"],
            "bench starpo: has no quick run: leave --quick, and give fewer --seeds or settings such as steps=10",
        ),
        (
            [],
            "bench starpo: say --recipe NAME, one of sokoban, frozen_lake, bandit with a section sft: "
            "gpu-sokoban-smollm2",
        ),
        (
            ["--recipe", "tiny-bandit", "stability.mode=auto"],
            "stability.mode: is what rows differ in: choose among them with --rows",
        ),
        (["--recipe", "tiny-bandit", "seed=4"], "seed: is different for each run of a row: give --seeds"),
        (
            ["--recipe", "tiny-bandit", "evaluate.hold_out=4"],
            "evaluate.hold_out: bench starpo evaluates its rows on the split 'test', and on no tasks that are held "
            "out; bench ablation does: leave it, or set evaluate.hold_out=0",
        ),
        (
            ["--recipe", "countdown"],
            "--recipe: countdown is no recipe of one of the games: sokoban, frozen_lake, bandit",
        ),
        (["--recipe", "both"], "--recipe: both is no recipe of one of the games: sokoban, frozen_lake, bandit"),
        (["--recipe", "cold"], "--recipe: cold has no section sft, the cold start that all rows begin from"),
        (["--recipe", "tiny-bandit", "--data", "any"], "bench starpo: takes no --data, since it brings its own"),
        (
            ["--recipe", "tiny-bandit", "--rows", "starpo_s"],
            "--rows: there is no 'starpo_s' (did you mean 'starpo-s'?); the rows are untrained, cold-start, starpo, "
            "starpo-s, auto",
        ),
    ],
)
def test_what_cannot_be_meant_is_one_line(recipe, capsys, command, said):
    data = yaml.safe_load(Path("tiny-bandit.yaml").read_text())
    games = {"lake": {"name": "frozen_lake"}, "arms": {"name": "bandit"}}
    others = {"countdown": {**data, "env": {"name": "countdown"}}, "both": {**data, "env": {"mixture": games}}}
    others["cold"] = {key: value for key, value in data.items() if key != "sft"}
    for name, other in others.items():
        Path(f"{name}.yaml").write_text(yaml.safe_dump(other))
    assert main(["bench", "starpo", *command]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"error: {said}\n")
    assert not Path("runs").exists()


def test_on_a_gpu_one_job_has_its_memory(monkeypatch):
    benchmark = find_benchmark("starpo")
    for gpu, processes in ((False, os.cpu_count()), (True, 1)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        assert benchmark.default_processes(scope(recipe="any")) == processes


def test_the_command_from_end_to_end(recipe):
    code, said = run(recipe=recipe, seeds=1, rows=["starpo-s", "untrained", "cold-start", "auto"])
    assert code == 0, said
    name = "starpo-tiny-bandit"
    assert f"The page is docs/{name}.md, the results are in benchmarks/results/{name}.json." in said
    page, file = Path(f"docs/{name}.md").read_text(), Path(f"benchmarks/results/{name}.json")
    assert page.startswith("# StarPO and StarPO-S, tiny-bandit\n")
    assert "| StarPO (`starpo`) | not run |  |  |  |  |" in page
    assert "`turnwise bench starpo --recipe tiny-bandit --seeds 1`: 7 of 9 jobs on " in page
    assert "| success, greedy | other names | names swapped |" in page
    assert f"](img/{name}-curves.png)" in page
    drawn = importlib.util.find_spec("matplotlib") is not None
    assert Path(f"docs/img/{name}-curves.png").is_file() == drawn
    results = json.loads(file.read_text())
    assert {"starpo-s/success", "untrained/success_sampled", "auto/names-swapped/less_cold_start"} <= results.keys()
    assert results["starpo-s/steps"] == results["auto/steps"] == 2
    assert results["about/command/auto"] == "turnwise bench starpo --recipe tiny-bandit --seeds 1 --rows auto"
    assert results["about/settings/starpo-s"] == "stability.mode=always"

    folder = Path("runs/bench") / name
    config = (folder / f"training/starpo-s/seed-{FIRST_SEED}/run/config.yaml").read_text()
    assert yaml.safe_load(config)["stability"]["mode"] == "always"
    asked = folder / f"evaluation/starpo-s/seed-{FIRST_SEED}"
    files = {one: pq.read_table(asked / f"{one}.parquet").to_pylist() for one in ("greedy", "other-names")}
    assert [len(found) for found in files.values()] == [4, 4]
    assert "Dragon" in files["greedy"][0]["turns"][0]["context_text"]
    assert "Engineer" in files["other-names"][0]["turns"][0]["context_text"]
    said_by = [
        [row["turns"][0]["action_text"] for row in pq.read_table(file).to_pylist()]
        for file in (
            folder / f"evaluation/{row}/seed-{FIRST_SEED}/sampled.parquet" for row in ("untrained", "cold-start")
        )
    ]
    assert said_by[0] != said_by[1], "the same draw, by the model of the job before"
    weights = [
        sum(float(tensor.double().abs().sum()) for tensor in load_file(max(found)).values())
        for stage in (f"sft/cold-start/seed-{FIRST_SEED}", f"training/auto/seed-{FIRST_SEED}")
        if (found := list((folder / stage / "run/checkpoints").glob("*/model/model.safetensors")))
    ]
    assert len(set(weights)) == 2, "training moved the weights of the cold start"

    # The row that was left, and nothing else.
    kept = {one: one.stat().st_mtime_ns for one in folder.rglob("result.json")}
    assert len(kept) == 7
    Path(f"docs/{name}.md").write_text(page.replace("## Stability", "## Stability, for once"))
    assert run(recipe=recipe, seeds=1)[0] == 0
    assert {one: one.stat().st_mtime_ns for one in kept} == kept
    assert len(list(folder.rglob("result.json"))) == 9
    later = json.loads(file.read_text())
    assert {key for key in results if results[key] != later.get(key)} <= {
        *("about/jobs", "about/process_minutes", "about/state/starpo")
    }
    assert "starpo/success" in later
    assert "## Stability, for once" in Path(f"docs/{name}.md").read_text()
