"""`turnwise bench ablation`: what a row starts from and sets, refusals, and the command itself."""

import json
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from rich.console import Console

from benchmarks.ablation.benchmark import FIRST_SEED, plan
from benchmarks.ablation.changes import read_changes
from benchmarks.ablation.comparison import choose_comparison
from benchmarks.harness.benchmark import Scope, find_benchmark, run_benchmark, show_command
from benchmarks.harness.table import LEAN
from turnwise.cli.main import main
from turnwise.config import load_config
from turnwise.settings import leaves

FOLDER = Path("runs/bench/ablation-tiny-bandit")


def run(**options):
    """The exit code of the command, and what it said."""
    console = Console(record=True, width=400)
    code = run_benchmark(find_benchmark("ablation"), console, **options)
    return code, console.export_text()


def scope(recipe, *changes, cold=(), **options):
    return Scope(quick=False, seeds=1, recipe=recipe, changes=changes, cold_changes=tuple(cold), **options)


def keys(*words, cold=()):
    return [change.key for change in read_changes(words, cold, taken=("recipe",))]


def differences(config, other):
    plain, others = (dict(leaves(one)) for one in (config, other))
    return {".".join(path): plain[path] for path in plain if plain[path] != others.get(path)}


def tasks(file):
    return {json.loads(row["task"])["seed"] for row in pq.read_table(file).to_pylist()}


def test_a_row_differs_from_the_recipe_by_its_change_alone():
    name = "gpu-multihop-lazy-smollm2"
    words = ("learner.optimizer.lr=1e-5", "rollout.temperature=1.0 rollout.group_size=4", "env.args.rewards=f1")
    comparison = choose_comparison(scope(name, *words, cold=["sft.epochs=5"], model="any/Any-1B"))
    base = load_config(name, ["model.name=any/Any-1B", "evaluate.hold_out=300", *LEAN])
    plain = base.model_dump(mode="json")
    found = {
        row.key: differences(comparison.trained_config(row, 0).model_dump(mode="json"), plain)
        for row in comparison.rows
        if row.trained
    }
    assert found == {
        "recipe": {},
        "learner.optimizer.lr-1e-5": {"learner.optimizer.lr": 1e-5},
        "rollout.temperature-1.0+rollout.group_size-4": {"rollout.temperature": 1.0, "rollout.group_size": 4},
        "env.args.rewards-f1": {"env.args.rewards": "f1"},
        "sft.epochs-5": {"sft.epochs": 5},
    }
    cold = {
        row.key: differences(comparison.cold_config(row, 0).model_dump(mode="json"), plain)
        for row in comparison.rows
        if not row.trained
    }
    unlike = {"steps": 0, "evaluate.every": 0}
    assert cold == {"cold-start": unlike, "sft.epochs-5-cold-start": {**unlike, "sft.epochs": 5}}
    assert comparison.name == "ablation-gpu-multihop-lazy-smollm2"
    assert (
        "the same 300 tasks, split off training (`evaluate.hold_out=300`; the recipe sets none" in comparison.evaluation
    )
    otherwise = [row.key for row in comparison.rows if comparison.plays_otherwise(row)]
    assert otherwise == ["env.args.rewards-f1"], "as far as the settings tell"


def test_what_rows_start_from_and_are_asked(recipe):
    changes = ("learner.optimizer.lr=1e-2", "rollout.max_turns=2")
    both = Scope(quick=False, seeds=2, recipe=recipe, changes=changes, cold_changes=("sft.epochs=2",))
    jobs = {job.name: job for job in plan(both)}
    first, second = FIRST_SEED, FIRST_SEED + 1
    cold, other, own = (
        jobs[f"sft/{key}/seed-{seed}"]
        for key, seed in (("cold-start", first), ("cold-start", second), ("sft.epochs-2-cold-start", first))
    )
    assert len(jobs) == 2 * (2 + 4 + 6)
    after = {name: job.after for name, job in jobs.items()}
    for key in ("recipe", "learner.optimizer.lr-1e-2", "rollout.max_turns-2"):
        assert after[f"training/{key}/seed-{first}"] is cold
        assert after[f"training/{key}/seed-{second}"] is other
    assert after[f"training/sft.epochs-2/seed-{first}"] is own
    assert jobs[f"training/sft.epochs-2/seed-{first}"].settings["config"]["sft"] is None
    assert own.settings["config"]["sft"]["epochs"] == 2
    assert after[f"evaluation/sft.epochs-2-cold-start/seed-{first}"] is own
    assert after[f"evaluation/cold-start/seed-{first}"] is cold
    assert cold.after is own.after is None

    asked = {
        name.split("/")[1]: job.settings
        for name, job in jobs.items()
        if name.startswith("evaluation/") and name.endswith(f"-{first}")
    }
    assert list(asked) == [
        *("cold-start", "recipe", "learner.optimizer.lr-1e-2", "rollout.max_turns-2", "sft.epochs-2"),
        "sft.epochs-2-cold-start",
    ]
    assert all(settings["config"] == asked["recipe"]["config"] for settings in asked.values())
    own_settings = {key: settings["own"] for key, settings in asked.items() if settings["own"] is not None}
    assert {key: differences(one, asked[key]["config"]) for key, one in own_settings.items()} == {
        "rollout.max_turns-2": {"rollout.max_turns": 2}
    }


def test_keys_are_made_from_changes_and_no_two_are_alike(tmp_path):
    assert keys("learner.optimizer.lr=1e-5", "a.b=1  c.d=x y") == ["learner.optimizer.lr-1e-5", "a.b-1+c.d-x-y"]
    assert keys("env.args.bm25={title_weight: 3, k1: 0.9}") == ["env.args.bm25-title_weight-3-k1-0.9"]
    assert keys(f"env.args.corpus={tmp_path / 'other.jsonl'}") == ["env.args.corpus-other.jsonl"], "no folder"
    one, two = keys("env.args.lazy=0", cold=["env.args.lazy=0"])
    assert one == "env.args.lazy-0"
    assert two.startswith("env.args.lazy-0-")
    assert keys(cold=["env.args.lazy=0"]) == ["env.args.lazy-0"]
    long = [f"env.args.words={'a' * 80}{end}" for end in "xy"]
    assert len(set(keys(*long))) == 2
    assert max(map(len, keys(*long))) == 60
    assert keys(*long) == keys(*reversed(long))[::-1], "whatever their order"


def test_the_published_command_shows_changes_and_no_folder(recipe, tmp_path):
    changes = (f"steps=3 env.args.tasks={tmp_path}",)
    shown = show_command(find_benchmark("ablation"), scope(recipe, *changes, cold=["sft.epochs=1"]))
    assert shown == (
        "turnwise bench ablation --recipe tiny-bandit --change 'steps=3 env.args.tasks=FOLDER' --cold-change "
        "sft.epochs=1 --seeds 1"
    )


def test_the_published_command_can_be_typed():
    given = ("env.args.bm25={title_weight: 3, b: 0.4}", "steps=3")
    shown = show_command(find_benchmark("ablation"), scope("any", "steps=2", overrides=given))
    assert shlex.split(shown)[-2:] == list(given)
    assert shown.endswith(" steps=3")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ([], "bench ablation: give at least one --change a.b=c or --cold-change a.b=c"),
        (
            ["--change", "steps=3", "--quick"],
            "bench ablation: has no quick run: leave --quick, and give fewer --seeds or settings such as steps=10",
        ),
        (["--change", "steps=3", "seed=4"], "seed: is different for each run of a row: give --seeds"),
        (
            ["--change", "sft.epochs=2"],
            "--change sft.epochs=2: acts on the cold start, which all rows of --change share: give it as --cold-change",
        ),
        (
            ["--change", "steps=3 model.dtype=float32"],
            "--change model.dtype=float32: acts on the cold start, which all rows of --change share: give it as "
            "--cold-change",
        ),
        (
            ["--cold-change", "evaluate.temperature=1"],
            "--cold-change evaluate.temperature=1: what is evaluated and the seeds are the same for all rows: give "
            "evaluate.* as a setting of the command, and --seeds",
        ),
        (
            ["--change", "seed=3"],
            "--change seed=3: what is evaluated and the seeds are the same for all rows: give evaluate.* as a setting "
            "of the command, and --seeds",
        ),
        (
            ["--change", "learner.optimizer.lr=0.001"],
            "--change learner.optimizer.lr=0.001: changes nothing: the recipe, with the command's settings, has it so",
        ),
        (
            ["--change", "steps=3", "steps=3"],
            "--change steps=3: changes nothing: the recipe, with the command's settings, has it so",
        ),
        (
            ["--change", "learner.optimizer.lr=1e-2", "--change", "learner.optimizer.lr=0.01"],
            "--change learner.optimizer.lr=0.01: is the same as --change learner.optimizer.lr=1e-2",
        ),
        (["--change", "stpes=3"], "--change stpes=3: stpes: unknown key in override; did you mean 'steps'?"),
        (
            ["--change", "lr"],
            "--change lr: override 'lr': write it as section.key=value, such as rollout.group_size=8",
        ),
        (
            ["--change", "env.args.train_tasks=50"],
            "--change env.args.train_tasks=50: has other training tasks, so that those to evaluate on would not be the "
            "same for all rows",
        ),
        (
            ["--change", "steps=3", "evaluate.hold_out=40"],
            "evaluate.hold_out: 40 of 40 training tasks leaves none to train on",
        ),
        (["--change", "steps=3", "--data", "any"], "bench ablation: takes no --data, since it brings its own"),
        (
            ["--change", "steps=3", "--rows", "steps=3"],
            "--rows: there is no 'steps=3' (did you mean 'steps-3'?); the rows are cold-start, recipe, steps-3",
        ),
    ],
)
def test_what_cannot_be_meant_is_one_line(recipe, capsys, command, said):
    assert main(["bench", "ablation", "--recipe", recipe, *command]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"error: {said}\n")
    assert not Path("runs").exists()


def test_a_recipe_without_a_cold_start_and_none_at_all(recipe, capsys):
    data = yaml.safe_load(Path("tiny-bandit.yaml").read_text())
    Path("cold.yaml").write_text(yaml.safe_dump({key: value for key, value in data.items() if key != "sft"}))
    assert main(["bench", "ablation", "--recipe", "cold", "--change", "steps=3"]) == 2
    assert main(["bench", "ablation", "--change", "steps=3"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: --recipe: cold has no section sft, the cold start that all rows begin from",
        "error: bench ablation: say --recipe NAME, one with a section sft: gpu-multihop-lazy-smollm2",
    ]


def test_the_same_settings_may_act_on_the_cold_start_or_not(recipe):
    jobs = {job.name for job in plan(scope(recipe, "env.args.reverse=true", cold=["env.args.reverse=true"]))}
    assert len([name for name in jobs if name.startswith("training/")]) == 3


def test_other_benchmarks_take_no_changes(recipe, capsys):
    assert main(["bench", "starpo", "--recipe", recipe, "--change", "steps=3", "--cold-change", "steps=3"]) == 2
    assert capsys.readouterr().err == (
        "error: bench starpo: takes no --change and no --cold-change, since it brings its own\n"
    )


def test_tasks_are_held_out_of_a_mixture_too(tmp_path, monkeypatch, recipe):
    data = yaml.safe_load(Path("tiny-bandit.yaml").read_text())
    arms = {"name": "bandit", "args": data["env"]["args"]}
    data["env"] = {"mixture": {"one": arms, "two": {**arms, "weight": 2.0}}}
    Path("both.yaml").write_text(yaml.safe_dump(data))
    comparison = choose_comparison(scope("both", "steps=3"))
    comparison.check()
    assert "the same 6 tasks of each environment, split off training" in comparison.evaluation


def test_demonstrations_from_a_file_are_not_said_to_be_without_the_tasks(recipe):
    plain = "No demonstration and no step of training of any row had one of them"
    assert plain in choose_comparison(scope(recipe, "steps=3", cold=["sft.epochs=2"])).evaluation
    words = choose_comparison(scope(recipe, "steps=3", cold=["sft.chats=chats.jsonl"])).evaluation
    assert plain not in words
    assert words.endswith(
        "The demonstrations of `sft.chats-chats.jsonl-cold-start` are those of `sft.chats`, which was not searched for "
        "these tasks."
    )


def test_the_command_from_end_to_end(recipe):
    options = {"recipe": recipe, "seeds": 1, "changes": ["env.args.reverse=true"], "cold_changes": ["sft.epochs=2"]}
    code, said = run(**options, rows=["env.args.reverse-true", "recipe"])
    assert code == 0, said
    name = "ablation-tiny-bandit"
    assert f"The page is docs/{name}.md, the results are in benchmarks/results/{name}.json." in said
    page, file = Path(f"docs/{name}.md").read_text(), Path(f"benchmarks/results/{name}.json")
    assert page.startswith("# What single settings are worth, tiny-bandit\n")
    assert "| cold start only | not run, but 4 steps of SFT |  |" in page
    assert "| `sft.epochs=2` | not run |  |" in page
    assert "--change env.args.reverse=true --cold-change sft.epochs=2 --seeds 1`: 5 of 10 jobs on " in page
    results = json.loads(file.read_text())
    assert {"recipe/success", "env.args.reverse-true/own_success/less_recipe"} <= results.keys()
    assert results["about/settings/sft.epochs-2"] == "sft.epochs=2"
    assert results["about/command/recipe"].endswith("--seeds 1 --rows recipe")
    own, shared = (
        pq.read_table(FOLDER / "evaluation/env.args.reverse-true" / f"seed-{FIRST_SEED}" / one).to_pylist()
        for one in ("own/greedy.parquet", "greedy.parquet")
    )
    assert [row["turns"][0]["context_text"] for row in own] != [row["turns"][0]["context_text"] for row in shared]

    # The rows that were left, and nothing else.
    kept = {one: one.stat().st_mtime_ns for one in FOLDER.rglob("result.json")}
    assert len(kept) == 5
    assert run(**options)[0] == 0
    assert {one: one.stat().st_mtime_ns for one in kept} == kept
    assert len(list(FOLDER.rglob("result.json"))) == 10
    later = json.loads(file.read_text())
    assert {"sft.epochs-2/success/less_cold_start", "sft.epochs-2-cold-start/success/less_recipe"} <= later.keys()
    assert "not run" not in Path(f"docs/{name}.md").read_text()

    # What rows are evaluated on is the same, and in nothing that was demonstrated or trained on.
    evaluated = [tasks(one) for one in FOLDER.glob("evaluation/**/greedy.parquet")]
    assert len(evaluated) == 6, "one of them also in its own settings"
    assert all(one == evaluated[0] for one in evaluated)
    assert len(evaluated[0]) == 6
    learnt = [tasks(one) for kind in ("sft", "train") for one in FOLDER.glob(f"**/run/trajectories/{kind}-*.parquet")]
    assert len(learnt) == 2 + 3 * 2
    assert set.union(*learnt).isdisjoint(evaluated[0])
