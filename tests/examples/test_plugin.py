"""The package in examples/plugin trains by its recipe and from Python, and knows nothing of ours but what is public."""

import ast
import csv
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import torch

import turnwise
from tiny_runs import Silent, records
from turnwise.cli.main import main
from turnwise.config import load_config
from turnwise.credit.base import TokenBatch
from turnwise.envs.registry import BUILT_IN
from turnwise.runs import RunDirectory

PLUGIN = Path(__file__).parents[2] / "examples" / "plugin"
QUICK = ["sft.demonstrations=32", "steps=2", "evaluate.tasks=4"]


@pytest.fixture
def crossing(monkeypatch):
    """The package, as a user has it on the path."""
    monkeypatch.syspath_prepend(str(PLUGIN))
    return import_module("crossing")


def curve(run: RunDirectory) -> list[list[str]]:
    with (run.path / "curve.csv").open(newline="") as file:
        return list(csv.reader(file))


def test_the_recipe_trains_with_everything_of_ones_own(crossing, tmp_path):
    recipe = str(PLUGIN / "recipe.yaml")
    assert main(["train", recipe, *QUICK, "--run", str(tmp_path / "run")]) == 0
    run = RunDirectory.open(tmp_path / "run")
    steps = records(run, "train")
    assert [record["step"] for record in steps] == [1, 2]
    assert curve(run) == [
        ["step", "reward/safe", "reward/brief"],
        *([str(record["step"]), str(record["reward/safe"]), str(record["reward/brief"])] for record in steps),
    ]
    assert load_config(run.config).credit.args == {"power": 0.5}


def test_the_objects_themselves_make_the_same_run(crossing, tmp_path):
    from crossing.env import Crossing
    from crossing.estimator import ranked
    from crossing.rewards import brief, safe
    from crossing.tracker import CsvTracker

    config = load_config(PLUGIN / "recipe.yaml", [*QUICK, "callbacks=[]"])
    by_name = turnwise.train(config=config, run=tmp_path / "name", display=Silent())
    sections = {name: getattr(config, name).model_dump(mode="json", exclude_unset=True) for name in ("sft", "rollout")}
    by_object = turnwise.train(
        env=Crossing(rewards=[safe, brief(most=1).weighted(0.1)]),
        model=config.model.model_dump(mode="json", exclude_unset=True),
        steps=2,
        credit={"estimator": ranked, "args": {"power": 0.5}},
        learner={"optimizer": {"lr": 3e-3}},
        evaluate={"tasks": 4},
        callbacks=[CsvTracker(metrics=["reward/safe"])],
        run=tmp_path / "object",
        display=Silent(),
        **sections,
    )
    assert records(by_object) == records(by_name)
    assert curve(by_object)[0] == ["step", "reward/safe"]
    assert len(curve(by_object)) == 3


def test_ranks_count_and_distances_do_not(crossing):
    from crossing.estimator import ranked

    tokens = TokenBatch(
        reward=torch.tensor([9.0, 0.0, 1.0, 0.0, 5.0]),
        trajectory=torch.tensor([0, 0, 1, 2, 3]),
        turn=torch.zeros(5, dtype=torch.long),
        group=torch.tensor([0, 0, 0, 1]),
        truncated=torch.zeros(4, dtype=torch.bool),
    )
    assert ranked(tokens).advantage.tolist() == [1.0, 1.0, 0.0, -1.0, 0.0]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("env.args.street=3", "env.args: crossing.env:Crossing has no argument 'street' (did you mean 'streets'?)"),
        ("env.args.streets=many", 'env.args.streets: expected an integer, got "many"'),
        (
            "credit.args.powr=2.0",
            "crossing.estimator:ranked has no argument 'powr' (did you mean 'power'?)",
        ),
        ("credit.gamma=0.9", "credit.gamma: never read while credit.estimator is crossing.estimator:ranked"),
        ("credit.estimator=crossing.estimator:rank", "has no 'rank' (did you mean 'ranked'?)"),
        ("env.args.rewards=[crossing.rewards:save]", "has no 'save' (did you mean 'safe'?)"),
        ("callbacks=[{name: crossing.tracker:CsvTraker}]", "has no 'CsvTraker' (did you mean 'CsvTracker'?)"),
        ("callbacks=[{name: crossing.env:Crossing}]", "'Crossing' of crossing.env is not a callback; derive it from"),
        (
            "callbacks=[{name: crossing.tracker:CsvTracker, args: {metric: a}}]",
            "has no argument 'metric' (did you mean 'metrics'?)",
        ),
    ],
)
def test_its_settings_are_checked_like_ours(crossing, tmp_path, capsys, override, words):
    run = tmp_path / "run"
    assert main(["train", str(PLUGIN / "recipe.yaml"), *QUICK, override, "--run", str(run)]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert words in told
    assert "Traceback" not in told
    assert not run.exists()


def test_its_entry_points_name_what_is_there(crossing):
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    for points in project["entry-points"].values():
        for name, place in points.items():
            module, attribute = place.split(":")
            assert hasattr(import_module(module), attribute)
            assert name not in BUILT_IN


def test_it_imports_nothing_private():
    for file in PLUGIN.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("turnwise"):
                assert not any(alias.name.startswith("_") for alias in node.names), file
