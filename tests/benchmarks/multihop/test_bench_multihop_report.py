"""The results and tables of `turnwise bench multihop`, by hand, and the page that they are put into."""

import json
import re

import pytest

from benchmarks.harness.report import fill
from benchmarks.multihop import report as multihop_report
from benchmarks.multihop.results import (
    Ratio,
    average_curve,
    compare_baselines,
    count_effort,
    ratio_of_means,
    subtract_masked,
    summarise_answers,
    summarise_kinds,
    summarise_training,
)
from benchmarks.multihop.rows import ABLATIONS, BASELINES, METHODS
from tiny_multihop import PAGE, PROJECT

HALF = 12.7062 / 2
"""The half-width of an interval over two seeds is so many times their difference."""


def answers(greedy, sampled=0.5, turns=2.0, **kinds):
    """What an evaluation returns, as far as it is read; 100 questions."""
    told = {"evaluate/success": greedy, "evaluate/turns": turns, "evaluate/episodes": 100.0}
    told |= {f"evaluate/{kind.replace('_', '=')}/success": value for kind, value in kinds.items()}
    return {"greedy": told, "sampled": {"evaluate/success": sampled, "evaluate/turns": 9.0}}


def run(*success):
    steps = range(1, len(success) + 1)
    columns = {"step": list(steps), "rollout/success": list(success)}
    effort = {
        "rollout/episodes": [8.0 for _ in steps],
        "policy/steps_taken": [0.0, *(2.0 for _ in steps)][: len(steps)],
    }
    return {"train": {**columns, **effort}}


def test_answers_and_training_by_hand():
    found = summarise_answers([answers(0.8, 0.6, turns=3.0), answers(1.0, 0.6, turns=2.0)])
    assert found["em"].mean == pytest.approx(0.9)
    assert found["em"].low == pytest.approx(0.9 - HALF * 0.2, abs=1e-4)
    assert found["em_sampled"].high == pytest.approx(0.6)
    assert found["turns"].mean == 2.5
    runs = [run(0.1, 0.3), run(0.3, 0.9)]
    assert summarise_training(runs)["over_training"].mean == pytest.approx((0.2 + 0.6) / 2)
    assert {step: point.mean for step, point in average_curve(runs).items()} == pytest.approx({"1": 0.2, "2": 0.6})
    assert count_effort(runs) == {"episodes": 16.0, "updates": 2.0}


def test_kinds_of_questions_are_told_apart():
    found = summarise_kinds([answers(0.5, hops_2=0.75, source_2wiki=0.5), answers(0.5, hops_2=0.25, source_2wiki=0.5)])
    assert {kind: estimate.mean for kind, estimate in found.items()} == {"hops=2": 0.5, "source=2wiki": 0.5}


def test_times_a_baseline():
    ours, some = [answers(0.9), answers(0.7)], [answers(0.1), answers(0.3)]
    assert ratio_of_means(ours, some) == Ratio(value=pytest.approx(4.0), lower_bound=False)
    none = [answers(0.0), answers(0.0)]
    assert ratio_of_means(ours, none) == Ratio(value=pytest.approx(0.8 * 200), lower_bound=True), (
        "one of 200 is counted"
    )
    assert [
        Ratio(value=value, lower_bound=lower_bound).show()
        for value, lower_bound in ((4.04, False), (160.4, True), (0, True))
    ] == [
        "4.0",
        "> 160",
        "0.0",
    ]


@pytest.mark.parametrize("better", ["naive-rag", "naive-rag-shown"])
def test_times_naive_rag_is_times_the_better_of_its_rows(better):
    asked = {"naive-rag": [answers(0.1)], "naive-rag-shown": [answers(0.1)], "tools": [answers(0.05)]}
    asked[better] = [answers(0.4)]
    found = compare_baselines([answers(0.8)], asked)
    assert found["naive_rag"].value == pytest.approx(2.0)
    assert found["untrained"].value == pytest.approx(16.0)


def test_an_ablation_is_compared_within_each_seed():
    row = next(row for row in ABLATIONS if row.key == "ppo-no-masks")
    asked = {"ppo": [answers(0.9, 0.8), answers(0.5, 0.5)], row.key: [answers(0.8, 0.4), answers(0.4, 0.3)]}
    trained = {"ppo": [run(0.2, 0.4), run(0.6, 0.8)], row.key: [run(0.2, 0.2), run(0.6, 0.6)]}
    less = subtract_masked(row, asked, trained)
    assert (less["em"].mean, less["em"].high) == (pytest.approx(-0.1), pytest.approx(-0.1)), "seeds differ, it does not"
    assert less["em_sampled"].mean == pytest.approx(-0.3)
    assert less["em_sampled"].low == pytest.approx(-0.3 - HALF * 0.2, abs=1e-4)
    assert less["over_training"].mean == pytest.approx(-0.1)


def results():
    """Baselines answer one in ten, but for untrained tool calls, which answer none; the first method answers less."""
    found = {}
    for seed in (10, 11):
        for row in BASELINES:
            share = 0.0 if row.key == "tools" else 0.1
            found[f"evaluation/{row.key}/seed-{seed}"] = answers(share)
        for row in (*METHODS, *ABLATIONS):
            share = 0.7 if row.key == "ppo" else 0.9
            found[f"evaluation/{row.key}/seed-{seed}"] = answers(share)
            found[f"training/{row.key}/seed-{seed}"] = run(0.2, 0.4)
    return found


def test_the_report_by_hand():
    made = multihop_report.report((10, 11), results())
    lines = made.parts["table"].splitlines()
    assert len(lines) == 2 + len(BASELINES) + len(METHODS)
    assert "| tool calls, untrained | 0.000 [0.000, 0.000] | 0.500 [0.500, 0.500] |  |  | 2.0 |  |  |" in lines
    assert "| GRPO | 0.900 [0.900, 0.900] | 0.500 [0.500, 0.500] | 9.0 | > 180 | 2.0 | 16 | 2 |" in lines
    assert [line.split(" | ")[0].removeprefix("| ") for line in made.parts["ablations"].splitlines()[2:]] == [
        "PPO",
        "PPO, no advantage mask",
        "PPO, neither mask",
        "GRPO",
        "GRPO, no loss mask",
    ]
    assert "| PPO, neither mask | 0.900 [0.900, 0.900] | +0.200 [+0.200, +0.200] | " in made.parts["ablations"]
    assert made.results["methods/least_em"] == pytest.approx(0.7)
    assert made.results["methods/least_times_naive_rag"] == pytest.approx(7.0)
    assert made.results["methods/least_times_untrained"] == pytest.approx(140.0)
    assert made.results["grpo/success_at/2"] == pytest.approx(0.4)
    assert made.results["grpo-no-loss-mask/less_masked/em"] == pytest.approx(0.0)
    (picture,) = made.pictures
    assert [panel.title for panel in picture.panels[-2:]] == ["PPO, masks", "GRPO, masks"]
    assert [line.name for line in picture.panels[5].series] == ["all masks", "no advantage mask", "neither mask"]
    assert f"](img/multihop-{picture.name}.png)" in PAGE.read_text()


def test_the_page_has_a_place_for_every_result_and_no_other():
    made = multihop_report.report((10, 11), results())
    filled = fill(PAGE.read_text(), {**made.parts, "origin": "From here."}, made.results, source="docs/multihop.md")
    assert "the least exact match is <!-- result: methods/least_em .3f -->0.700<!-- end -->" in filled


def test_every_result_in_a_sentence_is_the_one_that_was_committed():
    file = PROJECT / "benchmarks/results/multihop-quick.json"
    shown = re.findall(r"<!-- result: (\S+) (\S+) -->(.*?)<!-- end -->", PAGE.read_text())
    assert len(shown) > 10
    results = json.loads(file.read_text()) if file.is_file() else {}
    expected = [format(results[name], form) if results else "–" for name, form, _ in shown]
    assert [text for _, _, text in shown] == expected


def test_the_page_leads_to_files_that_exist():
    targets = re.findall(r"\]\((\.\./src/turnwise/recipes[^)#]*)\)", PAGE.read_text())
    assert targets
    assert [target for target in targets if not (PAGE.parent / target).exists()] == []
