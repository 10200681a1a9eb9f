"""A run of several environments: sampled, learnt, evaluated and watched one by one, and resumed exactly."""

import json

import pytest

import turnwise
from tiny_runs import SFT, SIGNALS, Died, Signals, Silent, records, same_weights, weights
from turnwise import Entry, Mixture, Task
from turnwise.cli.main import main
from turnwise.config import load_config, load_run_config, parse_config, resolve_recipe
from turnwise.envs.mixture import MixedTasks
from turnwise.errors import ConfigError, EnvError
from turnwise.reference.origins import explain_recipe
from turnwise.runs.store import read_trajectories
from turnwise.settings import Layer, Recipe
from turnwise.training.sft import draw_demonstrated

ENV = {
    "mixture": {
        "signals": {"name": SIGNALS, "weight": 2, "max_turns": 2, "group_size": 3},
        "arms": {"name": "bandit", "args": {"think": False, "expert_noise": 1.0}, "max_turns": 1, "reward_scale": 2.0},
    },
    "sampling": "hard",
}
RUN = {
    "env": ENV,
    "model": {"small": {"layers": 1, "width": 32, "heads": 2, "positions": 128, "vocabulary": 400, "induction": False}},
    "rollout": {"groups_per_step": 6, "group_size": 4, "turn_tokens": 6},
    "sft": {**SFT, "demonstrations": 96},
    "evaluate": {"tasks": 4, "every": 2},
    "checkpoint": {"every": 2},
    "steps": 4,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The base's environment has no place beside a mixture, so the sections are given whole."""
    return train(tmp_path_factory.mktemp("mixture") / "run")


def config(**changes):
    data = {**RUN, "learner": {"optimizer": {"lr": 3e-3}}, **changes}
    return parse_config(resolve_recipe(Recipe([Layer("the test", data)])), "the test")


def train(folder, *, die=None, resume=False, **changes):
    from turnwise.training.trainer import run_training

    return run_training(config(**changes), folder, resume=resume, display=Silent(die))


def test_groups_are_played_by_share_size_and_limits(run):
    groups = read_trajectories(run.trajectory_file("train", 1))
    assert [group.task.env for group in groups] == ["signals"] * 4 + ["arms"] * 2
    assert {group.task.env: len(group.trajectories) for group in groups} == {"signals": 3, "arms": 4}
    assert max(len(t.turns) for group in groups for t in group.trajectories if t.task.env == "arms") == 1
    assert all(group.task.id.startswith(f"{group.task.env}/") for group in groups)
    sampled = [t for group in groups[4:] for t in group.trajectories]
    assert all(value in (0.0, 2.0) or 0.2 <= value <= 0.3 or value < 0 for t in sampled for value in t.rewards.values())


def test_metrics_are_told_by_environment_and_for_all(run):
    for record in records(run, "train"):
        parts = [record[f"rollout/env={name}/episodes"] for name in ("signals", "arms")]
        assert sum(parts) == record["rollout/episodes"]
        means = [record[f"rollout/env={name}/reward"] for name in ("signals", "arms")]
        assert record["rollout/reward"] == pytest.approx(
            sum(m * n for m, n in zip(means, parts, strict=True)) / sum(parts)
        )
        flat = [record[f"filter/env={name}/zero_variance"] for name in ("signals", "arms")]
        assert sum(flat) == record["filter/zero_variance"]
        assert record["rollout/env=signals/share"] + record["rollout/env=arms/share"] == pytest.approx(1.0)
        assert record["health/reward_std"] == pytest.approx(
            (record["health/env=signals/reward_std"] + record["health/env=arms/reward_std"]) / 2
        )
    first, last = records(run, "train")[0], records(run, "train")[-1]
    assert first["rollout/env=signals/share"] == pytest.approx(2 / 3)
    assert "rollout/env=arms/success_average" not in first
    assert "rollout/env=arms/success_average" in last, "and from it the next shares"


def test_every_environment_is_evaluated_on_its_own_tasks(run):
    for record in records(run, "evaluate"):
        assert record["evaluate/env=signals/tasks"] == record["evaluate/env=arms/tasks"] == 4
        assert record["evaluate/tasks"] == 8
        for name in ("signals", "arms"):
            low, high = (record[f"evaluate/env={name}/success_{side}"] for side in ("low", "high"))
            assert low <= record[f"evaluate/env={name}/success"] <= high
        both = (record["evaluate/env=signals/success"] + record["evaluate/env=arms/success"]) / 2
        assert record["evaluate/success"] == pytest.approx(both)


def test_a_killed_run_equals_the_one_that_was_not(run, tmp_path):
    with pytest.raises((Died, ExceptionGroup)):
        train(tmp_path / "run", die=lambda event, number: event == "training" and number == 3)
    again = train(tmp_path / "run", resume=True)
    assert same_weights(weights(run, 4), weights(again, 4))
    assert records(run) == records(again)


def test_a_run_can_be_evaluated_shown_and_reported(run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["eval", str(run.path)]) == 0
    shown = capsys.readouterr().out
    assert "env=signals: success" in shown
    assert "env=arms: success" in shown
    assert main(["eval", str(run.path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["env"] == "signals + arms"
    assert told["metrics"]["evaluate/env=arms/tasks"] == 4
    assert main(["show", str(run.path), "--env", "arms", "--step", "1", "--stage", "train"]) == 0
    listed = capsys.readouterr().out
    assert "arms/train" in listed
    assert "signals/" not in listed
    assert "8 of 8 that match, 20 in all" in listed
    page = (run.path / "report.html").read_text()
    assert "environment signals" in page
    assert "environment arms" in page
    assert "Success: arms" in page


def test_the_config_of_a_run_makes_the_mixture_again(run):
    made = load_run_config(run.path)
    assert made.env.mixture["arms"].reward_scale == 2.0
    assert made.env.sampling == "hard"


def test_python_gives_the_same_mixture(run, tmp_path):
    from turnwise.envs.games.bandit import Bandit

    env = Mixture(
        {
            "signals": Entry(env=Signals(), weight=2, max_turns=2, group_size=3),
            "arms": Entry(env=Bandit(think=False, expert_noise=1.0), max_turns=1, reward_scale=2.0),
        },
        sampling="hard",
    )
    sections = {name: RUN[name] for name in ("model", "rollout", "sft", "evaluate", "checkpoint", "steps")}
    made = turnwise.train(
        env=env, run=tmp_path / "run", display=Silent(), learner={"optimizer": {"lr": 3e-3}}, **sections
    )
    assert same_weights(weights(run, 4), weights(made, 4))
    with pytest.raises(EnvError, match="a mixture plays the tasks of its environments"):
        turnwise.train(env=env, run=tmp_path / "other", tasks=[Task(id="x")], display=Silent(), **sections)
    result = turnwise.evaluate(run=made.path, display=Silent())
    assert set(result.by_env) == {"signals", "arms"}
    assert "(signals " in str(result)


def test_a_group_of_one_is_refused_by_the_name_of_its_setting():
    env = {"mixture": {**ENV["mixture"], "arms": {"name": "bandit", "group_size": 1}}}
    with pytest.raises(ConfigError, match=r"env\.mixture\.arms\.group_size: grpo compares"):
        config(env=env)
    each = {name: {**entry, "group_size": 2} for name, entry in ENV["mixture"].items()}
    config(env={"mixture": each}, rollout={"group_size": 1})  # which no environment reads then


def test_explain_tells_the_line_of_an_entry(tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("env:\n  mixture:\n    arms:\n      name: bandit\n      weight: 2\n    lake: frozen_lake\n")
    told = {one.key: one for one in explain_recipe(recipe, ["env.mixture.lake.max_turns=4"])}
    assert told["env.mixture.arms.weight"].origin == f"{recipe}:5"
    assert (told["env.mixture.lake.name"].value, told["env.mixture.lake.max_turns"].origin) == (
        '"frozen_lake"',
        "override",
    )
    assert told["env.sampling"].origin == "default"


def test_an_override_of_the_environment_takes_the_mixtures_place():
    assert load_config("mixture", ["env=bandit"]).env.name == "bandit"
    assert load_config("mixture", ["env.mixture.lake.weight=3"]).env.mixture["lake"].weight == 3


def test_check_checks_each_environment(tmp_path, capsys):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"env: {{mixture: {{arms: bandit, words: {{name: '{SIGNALS}'}}}}}}\n")
    assert main(["check", str(recipe), "arms.args.think=false", "--episodes", "1"]) == 0
    shown = capsys.readouterr().out
    assert "arms: Bandit keeps the contract" in shown
    assert "words: Signals keeps the contract" in shown


def test_settings_lists_what_an_entry_has_of_its_own(capsys):
    assert main(["settings", "env.mixture"]) == 0
    shown = capsys.readouterr().out
    assert "env.mixture.NAME.opens_after" in shown
    assert "env.mixture.NAME.weight" in shown


class _Tasks:
    def __init__(self, **options):

        self.env = Mixture({name: Entry(env=Signals(), **given) for name, given in options.items()})
        self.tasks = self.env.tasks("train")


def test_demonstrations_are_shared_by_weight_or_given_by_number():
    some = _Tasks(a={"weight": 3}, b={}, c={"demonstrations": 2}, d={"demonstrations": 0})
    assert isinstance(some.tasks, MixedTasks)
    drawn = draw_demonstrated(some.env, some.tasks, 10, seed=0)
    counts = {name: sum(task.env == name for task in drawn) for name in "abcd"}
    assert counts == {"a": 6, "b": 2, "c": 2, "d": 0}
    with pytest.raises(ConfigError, match=r"sft\.demonstrations: 2 leaves none for a and b"):
        draw_demonstrated(some.env, some.tasks, 2, seed=0)
