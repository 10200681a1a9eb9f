"""Estimates over questions, by hand, and a report of which most rows are missing."""

import math

import pytest

from benchmarks.harness.rows import (
    RowResults,
    average_steps,
    compare,
    compare_training,
    count_steps,
    estimate_right,
    estimate_solved,
    sum_effort,
)
from benchmarks.multihop import real_report
from benchmarks.multihop.rows import ABLATIONS, METHODS
from turnwise.evaluation import clustered_interval, wilson_interval

STEPS = dict.fromkeys([row.key for row in (*METHODS, *ABLATIONS)], 80)


def asked(*right, sampled=None, turns=2.0, **more):
    """What an evaluation returns, as far as it is read."""
    greedy = {"answers": list(right), "evaluate/turns": turns, "evaluate/hops=2/success": 0.5}
    return {"greedy": greedy, "sampled": {"answers": list(sampled or right), **more}}


def trained(*success, evaluated=(), sft=()):
    """What a run has measured so far."""
    steps = range(1, len(success) + 1)
    return {
        "sft": {
            "step": list(range(1, len(sft) + 1)),
            "sft/tokens": list(sft),
            "ledger/wall_seconds": [1.0 for _ in sft],
        },
        "train": {
            "step": list(steps),
            "rollout/success": list(success),
            "rollout/episodes": [8.0 for _ in steps],
            "policy/steps_taken": [2.0 for _ in steps],
            "ledger/sampled_tokens": [100.0 for _ in steps],
            "batch/tokens": [1000.0 for _ in steps],
            "ledger/wall_seconds": [3.0 for _ in steps],
        },
        "evaluate": {
            "step": [step for step, _ in evaluated],
            "evaluate/success": [value for _, value in evaluated],
            "ledger/wall_seconds": [0.5 for _ in evaluated],
        },
    }


def row(evaluated=None, runs=None):
    return RowResults(evaluated=evaluated or {}, trained=runs or {})


def test_exact_match_over_questions():
    one = estimate_right(row({20: asked(1.0, 1.0, 0.0, None)}), "greedy")
    assert (one.mean, one.low, one.high) == (pytest.approx(2 / 3), *wilson_interval(2, 3))
    two = estimate_right(row({20: asked(1.0, 0.0, 0.0), 21: asked(1.0, 1.0, None)}), "greedy")
    assert two.mean == pytest.approx((1 + 0.5 + 0) / 3), "a question counts once, however many seeds answered it"
    assert (two.low, two.high) == clustered_interval([2, 1, 0], [2, 2, 1])


def test_a_difference_is_within_questions():
    base = row({20: asked(1.0, 0.0, 0.0, 0.0), 21: asked(1.0, 1.0, 1.0, 1.0)})
    found = compare(row({20: asked(0.0, 1.0, 1.0, None)}), base)
    assert (found.won, found.lost) == (2, 1), "of seed 20, and of the three questions that both answered"
    half = 4.302653 * math.sqrt(4 / 3) / math.sqrt(3)
    assert found.difference.mean == pytest.approx(1 / 3)
    assert found.difference.high == pytest.approx(1 / 3 + half, abs=1e-4)
    both = compare(row({20: asked(1.0, 1.0, 0.0, 0.0), 21: asked(1.0, 1.0, 1.0, 1.0)}), base)
    assert (both.won, both.lost, both.difference.mean) == (1, 0, pytest.approx(0.125))
    assert compare(row(), base) is None


def test_a_difference_that_all_questions_have_is_not_certain():
    right, wrong = row({20: asked(*[1.0] * 40)}), row({20: asked(*[0.0] * 40)})
    others = wilson_interval(0, 40)[1]
    same, lost = compare(right, right).difference, compare(wrong, right).difference
    assert (same.mean, same.low, same.high) == (0, pytest.approx(-others), pytest.approx(others))
    assert (lost.mean, lost.low, lost.high) == (-1, -1, pytest.approx(-1 + 2 * others))


def test_solved_by_any_of_the_samples():
    found = estimate_solved(row({20: asked(sampled=[0.0625, 0.0, 1.0, None])}))
    assert (found.mean, found.low) == (pytest.approx(2 / 3), wilson_interval(2, 3)[0])


def test_what_training_took_and_how_far_it_came():
    runs = {20: trained(0.2, 0.4, 0.6, evaluated=[(0, 0.1), (2, 0.3)]), 21: trained(0.4, evaluated=[(0, 0.3)])}
    found = row(runs=runs)
    assert (count_steps(found, "train"), count_steps(found, "sft")) == (3, 0)
    assert sum_effort(found) == {
        "episodes": 24.0,
        "updates": 6.0,
        "sampled_tokens": 300.0,
        "trained_tokens": 3000.0,
        "seconds": 9 + 1,
    }, "of seed 20: the table says 3 steps, and seed 21 has one"
    both = row(runs={20: trained(0.2, 0.4, evaluated=[(0, 0.1)]), 21: trained(0.4, 0.4)})
    assert sum_effort(both)["seconds"] == (6 + 0.5 + 6) / 2
    curve = average_steps(found, "train", "rollout/success")
    assert {step: point.mean for step, point in curve.items()} == pytest.approx({1: 0.3, 2: 0.4, 3: 0.6})
    asked_at = average_steps(found, "evaluate", "evaluate/success")
    assert {step: point.mean for step, point in asked_at.items()} == pytest.approx({0: 0.2, 2: 0.3})
    other = row(runs={20: trained(0.1, 0.2)})
    assert compare_training(other, found) == (pytest.approx(0.15), pytest.approx(-0.15)), "steps 1 and 2 of seed 20"
    assert compare_training(row(), found) is None
    assert compare_training(row(runs={22: trained(0.1, 0.2)}), found) is None, "another seed has another cold start"
    assert sum_effort(row(runs={20: trained(sft=[500.0, 700.0])}))["trained_tokens"] == 1200


def test_a_report_of_which_most_is_missing():
    results = {
        "evaluation/cold-start/seed-20": asked(1.0, 0.0, 0.0, 0.0),
        "evaluation/grpo/seed-20": asked(1.0, 1.0, 1.0, 0.0, turns=3.0),
        "evaluation/grpo-no-loss-mask/seed-20": asked(0.0, 1.0, 0.0, 0.0),
        "evaluation/cold-start-pass/seed-20": asked(
            sampled=[0.5, 0.0, 0.0, 0.0], **{f"evaluate/pass@{k}": k / 64 for k in (1, 2, 4, 8, 16)}
        ),
        "training/grpo/seed-20": trained(0.2, 0.4, evaluated=[(0, 0.25), (2, 0.75)]),
        "training/grpo-no-loss-mask/seed-20": trained(0.1, 0.1),
        "training/ppo/seed-20": trained(*([0.5] * 12)),
        "sft/naive-rag-shown/seed-20": trained(sft=[500.0, 700.0]),
    }
    made = real_report.report([20, 21], results, STEPS, page="multihop-any")
    table = made.parts["table"].splitlines()
    assert len(table) == 2 + 15
    assert (
        "| tool calls, cold start only (`cold-start`) | 0.250 [0.046, 0.699] | 0.250 [0.046, 0.699] |  |  |" in table[7]
    )
    grpo = next(line for line in table if line.startswith("| GRPO (`grpo`) | "))
    assert grpo.endswith("| 0.750 [0.301, 0.954] | +0.500 [-0.419, +1.419] | 2, 0 | 3.0 | 1 of 2 |")
    assert "| PPO (`ppo`) | 12 of 80 steps |  |  |  |  |  |" in table
    assert "| RLOO (`rloo`) | not run |  |  |  |  |  |" in table
    assert (
        "| naive RAG, with demonstrations (`naive-rag-shown`) | not run, but 2 steps of SFT |  |  |  |  |  |" in table
    )
    masks = "| 0.250 [0.046, 0.699] | -0.500 [-1.419, +0.419] | 0, 2 | 0.100 | -0.200 |"
    assert made.parts["ablations"].splitlines()[-1] == f"| GRPO, no loss mask (`grpo-no-loss-mask`) {masks}"
    ceilings = made.parts["ceilings"].splitlines()
    assert ceilings[2].endswith("(`given-passages-shown`), greedy | not run |")
    assert ceilings[3].endswith("pass@1 | 0.016 |")
    assert ceilings[-1].endswith("pass@16 | 0.250 [0.046, 0.699] |")
    assert made.parts["kinds"].splitlines()[2] == "| tool calls, cold start only | 0.500 |"
    assert "| PPO | 12 of 80 | 96 | 24 | 1,200 | 12,000 | 36 |" in made.parts["training"]
    assert "| naive RAG, with demonstrations | 2 (SFT) |  |  |  | 1,200 | 2 |" in made.parts["training"]
    assert "| exact match, greedy, after step | 0 | 2 |" in made.parts["curves"]
    assert "| GRPO | 0.250 | 0.750 |" in made.parts["curves"]
    assert "| success of sampled episodes, steps | 1–2 | 3–4 | 5–6 | 7–8 | 9–10 | 11–12 |" in made.parts["curves"]
    assert [panel.title for panel in made.pictures[0].panels] == ["PPO", "GRPO", "GRPO, no loss mask"]
    assert made.results["grpo/less_cold_start/won"] == 2.0
    assert made.results["grpo-no-loss-mask/less_masked/lost"] == 2.0
    assert made.results["cold-start-pass/pass_at/16"] == 0.25
    assert made.results["ppo/success_at/12"] == 0.5
    assert made.about["state/ppo"] == "12 of 80 steps"
    assert "state/grpo" not in made.about


def test_a_kind_of_questions_has_no_interval():
    results = {f"evaluation/tools/seed-{seed}": asked(1.0, 0.0) for seed in (20, 21)}
    made = real_report.report([20, 21], results, STEPS, page="multihop-any")
    assert made.results["tools/em/hops=2"] == 0.5
    assert {name for name in made.results if name.startswith("tools/em/")} == {
        *("tools/em/low", "tools/em/high", "tools/em/hops=2")
    }, "that of a kind would be over seeds, and these are over questions"


def test_a_report_of_nothing():
    made = real_report.report([20], {}, STEPS, page="multihop-any")
    assert made.parts["table"].count("not run") == 15
    assert (made.parts["training"], made.parts["kinds"]) == ("Nothing was trained yet.", "not run")
    assert (made.parts["curves"], list(made.pictures), dict(made.results)) == ("", [], {})
