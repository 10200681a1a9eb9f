"""The report of `turnwise bench starpo` from made results of jobs, with figures worked out by hand."""

import math

import pytest

from benchmarks.harness.benchmark import Scope
from benchmarks.harness.report import fill, flat_json
from benchmarks.starpo import report as starpo_report
from benchmarks.starpo.changes import Change
from benchmarks.starpo.comparison import choose_comparison
from benchmarks.starpo.rows import TRAINED
from turnwise.evaluation import clustered_interval, wilson_interval

CHANGES = (
    Change(key="8x8", label="8 × 8", args={"size": 8}),
    Change(key="two-boxes", label="two boxes", args={"boxes": 2}),
)
STEPS = dict.fromkeys([row.key for row in TRAINED], 40)


def asked(greedy, *, sampled, large, boxes):
    """What an evaluation returns, as far as it is read."""
    sections = {"greedy": greedy, "sampled": sampled, "8x8": large, "two-boxes": boxes}
    return {name: {"answers": list(right)} for name, right in sections.items()}


def demonstrated(*tokens):
    return {
        "sft": {"step": [*range(1, len(tokens) + 1)], "sft/tokens": list(tokens), "ledger/wall_seconds": [1.0] * 2},
        "train": {},
        "evaluate": {},
    }


def trained(*success, alarm_at=None, rollbacks=0.0, deviation=None, norms=None):
    """What a run has measured so far; the gradient's norm is None where a critic learns alone."""
    count = len(success)
    columns = {
        "step": list(range(1, count + 1)),
        "rollout/success": list(success),
        "rollout/reward_std_in_group": list(deviation or [0.5] * count),
        "health/token_entropy": [1.0] * count,
        "stability/alarm": [float(step == alarm_at) for step in range(1, count + 1)],
        "stability/rollbacks": [rollbacks if step == count else 0.0 for step in range(1, count + 1)],
        "rollout/episodes": [8.0] * count,
        "policy/steps_taken": [2.0] * count,
        "ledger/sampled_tokens": [100.0] * count,
        "batch/tokens": [1000.0] * count,
        "ledger/wall_seconds": [3.0] * count,
    }
    if norms is not None:
        columns["policy/grad_norm"] = list(norms)
    return {"sft": {}, "train": columns, "evaluate": {}}


def some_results():
    """Two seeds: StarPO has one of them, `auto` both in training and none evaluated, StarPO-S nothing."""
    few = (1.0, 0.0, 0.0, 0.0)
    return {
        "sft/cold-start/seed-60": demonstrated(500.0, 700.0),
        "evaluation/untrained/seed-60": asked((0.0,) * 4, sampled=(0.0,) * 4, large=(0.0,) * 4, boxes=(0.0,) * 4),
        "evaluation/cold-start/seed-60": asked(few, sampled=(1.0, 1.0, 0.0, 0.0), large=few, boxes=few),
        "evaluation/cold-start/seed-61": asked((1.0,) * 4, sampled=(1.0,) * 4, large=few, boxes=few),
        "evaluation/starpo/seed-60": asked((0.0, 1.0, 1.0, 1.0), sampled=few, large=(1.0, 1.0, 0.0, None), boxes=few),
        "training/starpo/seed-60": trained(
            *([0.2] * 5 + [0.6] * 5),
            alarm_at=7,
            deviation=[0.4, 0.6, *[0.3] * 6, 0.1, 0.2],
            norms=[1.0, 2.0, 9.5, *[1.0] * 7],
        ),
        "training/auto/seed-60": trained(*[0.5] * 12, rollbacks=2.0, norms=[None, *[3.0] * 11]),
        "training/auto/seed-61": trained(0.1, 0.3, alarm_at=2),
    }


@pytest.fixture(scope="module")
def made():
    return starpo_report.report([60, 61], some_results(), STEPS, changes=CHANGES, page="starpo-any")


def test_success_and_its_difference_to_the_cold_start(made):
    table = made.parts["table"].splitlines()
    assert len(table) == 2 + 5
    assert table[2] == (
        "| as the model comes (`untrained`) | 0.000 [0.000, 0.490] | 0.000 [0.000, 0.490] | -0.250 [-1.046, +0.546] "
        "| 0, 1 | 1 of 2 |"
    )
    low, high = clustered_interval([2, 1, 1, 1], [2, 2, 2, 2])
    sampled_low, sampled_high = clustered_interval([2, 2, 1, 1], [2, 2, 2, 2])
    assert table[3] == (
        f"| cold start only (`cold-start`) | 0.625 [{low:.3f}, {high:.3f}] | 0.750 [{sampled_low:.3f}, "
        f"{sampled_high:.3f}] |  |  | 2 |"
    )
    # Of seed 60 alone: -1, 1, 1, 1.
    half = 3.182446 * 1.0 / math.sqrt(4)
    low, high = wilson_interval(3, 4)
    assert table[4] == (
        f"| StarPO (`starpo`) | 0.750 [{low:.3f}, {high:.3f}] | 0.250 [0.046, 0.699] | "
        f"+0.500 [{0.5 - half:+.3f}, {0.5 + half:+.3f}] | 3, 1 | 1 of 2 |"
    )
    assert table[5] == "| StarPO-S throughout (`starpo-s`) | not run |  |  |  |  |"
    assert table[6] == "| StarPO-S on an alarm (`auto`) | 12 of 40 steps |  |  |  |  |"
    assert dict(made.about) == {"state/starpo-s": "not run", "state/auto": "12 of 40 steps"}
    assert (made.results["starpo/success/less_cold_start/won"], made.results["starpo/success/less_cold_start"]) == (
        3.0,
        0.5,
    )


def test_generalisation_is_compared_in_the_same_changed_game(made):
    absolute, paired = made.parts["generalisation"].split("\n\n")
    assert absolute.splitlines()[0] == "| success, greedy | 8 × 8 | two boxes |"
    low, high = wilson_interval(2, 3)
    assert f"| StarPO (`starpo`) | 0.667 [{low:.3f}, {high:.3f}] | 0.250 [0.046, 0.699] |" in absolute
    assert "| StarPO-S throughout (`starpo-s`) | not run |  |" in absolute
    # 0, 1, 0 over the three tasks that both have: in the first both succeeded.
    half = 4.302653 / 3
    lines = paired.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| as the model comes (`untrained`)",
        "| StarPO (`starpo`)",
    ]
    difference = f"+0.333 [{1 / 3 - half:+.3f}, {1 / 3 + half:+.3f}]"
    others = wilson_interval(0, 4)[1]
    assert lines[3] == f"| StarPO (`starpo`) | {difference} | +0.000 [{-others:+.3f}, {others:+.3f}] |"
    assert made.results["starpo/8x8/less_cold_start/won"] == 1.0
    assert made.results["starpo/two-boxes/less_cold_start"] == 0.0
    assert not [name for name in made.results if name.startswith("cold-start/") and "less_" in name]


def test_stability_by_windows_of_steps(made):
    windows, alarms = made.parts["stability"].split("\n\n")
    assert windows.splitlines()[0] == "| success of sampled episodes, steps | 1–2 | 3–4 | 5–6 | 7–8 | 9–10 | 11–12 |"
    assert "| StarPO | 0.200 | 0.200 | 0.400 | 0.600 | 0.600 |  |" in windows
    # Seed 61 came to step 2: (.5 + .1) / 2 and (.5 + .3) / 2.
    assert "| StarPO-S on an alarm | 0.350 | 0.500 | 0.500 | 0.500 | 0.500 | 0.500 |" in windows
    assert "throughout" not in windows
    assert "| StarPO | 7.0 | 1 of 1 | 0.0 | 0.500 | 0.150 | 9.50 |" in alarms
    assert "| StarPO-S on an alarm | 2.0 | 1 of 2 | 1.0 | 0.500 | 0.500 | 3.00 |" in alarms
    assert made.results["auto/alarm_at"] == 2.0
    assert (made.results["auto/alarmed"], made.results["auto/alarmed_of"]) == (1.0, 2.0)
    assert made.results["starpo/reward_std_last"] == pytest.approx(0.15)
    assert made.results["starpo/grad_norm_highest"] == 9.5
    assert "auto/grad_norm_at/1" not in made.results, "neither seed had made an update of the policy"
    assert made.results["auto/grad_norm_at/2"] == 3.0, "of the seed that has it"


def test_training_and_its_picture(made):
    training = made.parts["training"].splitlines()[2:]
    assert training == [
        "| cold start only | 2 (SFT) |  |  |  | 1,200 | 2 |",
        "| StarPO | 10 of 40 | 80 | 20 | 1,000 | 10,000 | 30 |",
        "| StarPO-S on an alarm | 12 of 40 | 96 | 24 | 1,200 | 12,000 | 36 |",
    ]
    (picture,) = made.pictures
    assert [panel.title for panel in picture.panels] == [
        "success",
        "in-group reward std (1 = 0.6)",
        "token entropy",
        "gradient norm (1 = 9.5)",
    ]
    lines = picture.panels[3].series
    assert [line.name for line in lines] == ["StarPO", "StarPO-S on an alarm"]
    assert (lines[0].x[2], lines[0].y[2], lines[0].band) == (3.0, 1.0, None)
    assert lines[1].x[0] == 2.0
    success = picture.panels[0].series[1]
    assert success.y[0] == pytest.approx(0.3)
    assert success.band is not None, "of both seeds, at the steps that both have"
    assert f"](img/starpo-any-{picture.name}.png)" in made.parts["curves"]


def test_a_run_whose_critic_has_learnt_alone_so_far():
    results = {"training/starpo-s/seed-60": trained(0.1, 0.2)}
    found = starpo_report.report([60], results, STEPS, changes=CHANGES, page="starpo-any")
    assert "| StarPO-S throughout | – | 0 of 1 | 0.0 | 0.500 | 0.500 | – |" in found.parts["stability"]
    assert "starpo-s/grad_norm_highest" not in found.results
    assert "starpo-s/alarm_at" not in found.results


def test_a_row_that_is_evaluated_before_the_cold_start_is(made):
    results = {"evaluation/untrained/seed-60": some_results()["evaluation/untrained/seed-60"]}
    found = starpo_report.report([60], results, STEPS, changes=CHANGES, page="starpo-any")
    assert (
        "| as the model comes (`untrained`) | 0.000 [0.000, 0.490] | 0.000 [0.000, 0.490] |  |  | 1 |"
        in (found.parts["table"])
    )
    assert "less the cold start" not in found.parts["generalisation"]
    assert not [name for name in found.results if "less_cold_start" in name]
    assert (found.parts["stability"], found.parts["curves"], list(found.pictures)) == (
        "Nothing was trained yet.",
        "",
        [],
    )


def test_the_page_has_a_place_for_every_part_and_the_file_holds_every_result(made, recipe):
    template = choose_comparison(Scope(quick=False, seeds=1, recipe=recipe)).template
    page = fill(template, {**made.parts, "origin": "From here."}, made.results, source="docs/starpo-any.md")
    assert "| StarPO-S on an alarm (`auto`) | 12 of 40 steps |" in page
    assert '"auto/alarm_at": 2.0' in flat_json(made.results, made.about)
