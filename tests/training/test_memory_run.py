"""A memory in a run: episodes that do not fit their context without it are learnt with it, and resumed exactly."""

import pytest

from tiny_memory import LONG_SIGNALS, ROUNDS
from tiny_runs import SFT, SMALLEST, Died, Silent, records, same_weights, weights
from turnwise.config import load_config, parse_config, resolve_recipe
from turnwise.errors import ConfigError, EnvError
from turnwise.runs.store import read_trajectories
from turnwise.settings import Layer, Recipe
from turnwise.training.build import assemble
from turnwise.training.trainer import run_training
from turnwise.types import StopReason

SUMMARY = {"kind": "summary", "at": 0.5, "prompt": "So far?"}
RUN = {
    "env": LONG_SIGNALS,
    "model": {"small": {**SMALLEST, "positions": 96}},
    "seed": 4,
    "sft": {**SFT, "demonstrations": 256},
    "rollout": {"groups_per_step": 8, "group_size": 8, "turn_tokens": 4, "context_tokens": 96, "max_turns": 14},
    "learner": {"optimizer": {"lr": 3e-3}, "epochs": 4, "minibatches": 2},
    "evaluate": {"tasks": 2},
    "checkpoint": {"every": 3},
    "steps": 6,
}


def config(**changes):
    data = {**RUN, **changes}
    data["rollout"] = {**RUN["rollout"], **changes.get("rollout", {"compaction": SUMMARY})}
    return parse_config(resolve_recipe(Recipe([Layer("the test", data)])), "the test")


def train(folder, *, die=None, resume=False, **changes):
    return run_training(config(**changes), folder, resume=resume, display=Silent(die))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("memory") / "run")


def test_without_a_memory_no_episode_fits(tmp_path):
    made = train(tmp_path / "run", rollout={}, steps=1, sft={**SFT, "demonstrations": 16}, checkpoint={"every": 1})
    (record,) = records(made, "train")
    assert (record["rollout/stop_context_full"], record["rollout/success"]) == (1.0, 0.0)


def test_with_it_they_fit_and_are_learnt(run):
    first, *_, last = records(run, "train")
    assert min(first["rollout/stop_done"], last["rollout/stop_done"]) >= 0.9
    assert last["env/compactions"] >= 1.0
    paid = [record["rollout/reward"] for record in records(run, "train")]
    # Of 1,024 words in two steps some 1 in 20 are right at first: the standard deviation of a mean is .007.
    assert sum(paid[-2:]) / 2 > sum(paid[:2]) / 2 + 0.03, paid


def test_summaries_are_trained_on(run):
    """Every token of every turn has an advantage, also those of the turns that the environment never saw."""
    groups = read_trajectories(run.trajectory_file("train", 1))
    whole = [t for group in groups for t in group.trajectories if t.stop is StopReason.DONE]
    summed_up = [t for t in whole if len(t.turns) > ROUNDS]
    assert len(summed_up) > 0.8 * len(whole), "the environment's turns, and one or more summaries"
    assert all(sum(turn.opens_row for turn in t.turns) > 1 for t in summed_up)
    (record, *_) = records(run, "train")
    assert record["batch/action_tokens"] == record["rollout/action_tokens"]


def test_a_killed_run_equals_the_one_that_was_not(run, tmp_path):
    with pytest.raises((Died, ExceptionGroup)):
        train(tmp_path / "run", die=lambda event, number: event == "training" and number == 5)
    again = train(tmp_path / "run", resume=True)
    assert same_weights(weights(run, 6), weights(again, 6))
    assert records(run) == records(again)


def test_settings_that_cannot_work_are_told_in_one_line():
    with pytest.raises(ConfigError, match=r"rollout: compaction\.summary_tokens: 9 is more than turn_tokens=4 allows"):
        config(rollout={"compaction": {**SUMMARY, "summary_tokens": 9}})
    with pytest.raises(ConfigError, match=r"rollout\.compaction\.to: never read while rollout\.compaction\.kind is"):
        config(rollout={"compaction": {**SUMMARY, "to": 0.3}})
    program = {"name": "program", "args": {"command": ["true"], "tasks": [{"id": "a"}]}}
    with pytest.raises(EnvError, match=r"rollout\.compaction: AgentProgram keeps its own conversation"):
        assemble(config(env=program, sft=None))


def test_an_environment_of_a_mixture_has_its_own_memory():
    given = ["env.mixture.lake.compaction.kind=oldest", "env.mixture.lake.compaction.at=0.6"]
    entry = load_config("mixture", given).env.mixture["lake"]
    assert (entry.compaction.kind, entry.compaction.at) == ("oldest", 0.6)
