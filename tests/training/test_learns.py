"""Every algorithm learns: a game whose answers no demonstration shows is won by reinforcement learning alone."""

import pytest

from tiny_runs import SFT, model_folder, records, run_tiny
from turnwise.algorithms import ALGORITHMS

pytestmark = pytest.mark.slow
TASKS, RESPONSES, STEPS = 8, 8, 10
EPISODES = TASKS * RESPONSES
LATE = 4
"""Success is counted over the episodes of the last so many steps, 256 in all."""
BAR = 0.25
"""A player who guesses wins 64 of 256 or more with a probability of 1e-21; those who learn win two thirds or more."""
SEED = 4


@pytest.fixture(scope="module")
def cold(tmp_path_factory):
    """The model that knows the words and guesses which: the same for every algorithm."""
    return run_tiny(
        tmp_path_factory.mktemp("learns") / "cold",
        seed=SEED,
        steps=0,
        sft=SFT,
        evaluate={"tasks": 8, "samples_per_task": 16, "temperature": 1.0},
    )


def test_the_cold_start_leaves_it_to_chance(cold):
    (before,) = records(cold, "evaluate")
    assert before["evaluate/episodes"] == 128
    assert before["evaluate/success"] < 0.16, "21 or more of 128 have a probability of 5e-5 by guessing"
    assert before["evaluate/reward"] > 0.1, "it says words, and some of them are right"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_learns_beyond_chance(cold, algorithm, tmp_path):
    run = run_tiny(
        tmp_path / "run",
        seed=SEED,
        steps=STEPS,
        model={"name": str(model_folder(cold, 0))},
        rollout={"groups_per_step": TASKS, "group_size": RESPONSES},
        learner={"epochs": 4, "minibatches": 2},
        **ALGORITHMS[algorithm],
    )
    train = records(run, "train")
    rounds = [1 + record.get("filter/refills", 0) for record in train]  # dapo samples until groups vary
    assert [record["rollout/episodes"] for record in train] == [EPISODES * count for count in rounds]
    assert len(train) == STEPS
    assert train[0]["rollout/success"] < 0.25
    late = sum(record["rollout/success"] for record in train[-LATE:]) / LATE
    assert late >= BAR, f"sampled success by step: {[round(r['rollout/success'], 2) for r in train]}"
