"""`turnwise bench masks`: what is planned, its report by hand, the exact reach, and a small one end to end."""

import json
import math
import re
from pathlib import Path

import pytest

from benchmarks.harness.benchmark import Scope
from benchmarks.harness.jobs import JobFolders
from benchmarks.harness.report import fill
from benchmarks.masks import benchmark as masks
from benchmarks.masks.reach import ACTION_TOKENS, LENGTHS, measure_reach
from benchmarks.masks.report import LABELS, report, summarise
from benchmarks.masks.table import WAYS, TablePolicy, exact_success, learn
from turnwise.cli.main import main

PROJECT = Path(__file__).resolve().parents[3]
PAGE = PROJECT / "docs/masks.md"


def run(*success):
    return {"success": list(success)}


def test_rows_differ_by_their_masks_alone():
    jobs = masks.plan(Scope(quick=False, seeds=2))
    assert [job.name for job in jobs] == [f"{row}/seed-{seed}" for seed in (0, 1) for row in masks.ROWS]
    assert set(masks.ROWS) == set(LABELS)
    seen = {(job.settings["advantage_mask"], job.settings["action_mask"]) for job in jobs}
    assert seen == {(True, True), (False, True), (False, False)}
    others = {tuple(value for name, value in job.settings.items() if not name.endswith("_mask")) for job in jobs}
    assert others == {(0, masks.STEPS), (1, masks.STEPS)}


@pytest.mark.parametrize("tokens", LENGTHS)
def test_reach_by_hand(tokens):
    """With the mask, a choice is two tokens before its turn's end and four before the next one's; without, further."""
    apart = (ACTION_TOKENS - 2) + ACTION_TOKENS
    assert measure_reach(0.9, tokens, advantage_mask=True) == pytest.approx(0.9**apart)
    assert measure_reach(0.9, tokens, advantage_mask=False) == pytest.approx(0.9 ** (apart + tokens + 1))
    assert measure_reach(1.0, tokens, advantage_mask=False) == pytest.approx(1.0), "at λ = 1 it does not matter"


def test_the_start_knows_the_words_and_guesses_the_way():
    found = exact_success(TablePolicy(), list(WAYS))
    way = math.exp(4) / (4 * math.exp(4) + 22)
    knock = math.exp(4) / (math.exp(4) + 25)
    assert found == pytest.approx(way * knock, abs=1e-6)


def test_the_masks_decide_what_is_learnt():
    """After a third of the benchmark's updates."""
    after = [
        learn({**row, "seed": 3, "steps": 20}, JobFolders(own=Path(), before=None))["success"][-1]
        for row in masks.ROWS.values()
    ]
    assert after[0] > 0.7
    assert max(after[1:]) < 0.5


def test_differences_are_within_a_seed():
    whole = [run(0.2, 0.5, 0.9), run(0.4, 0.5, 0.7)]
    ours = [run(0.2, 0.3, 0.5), run(0.4, 0.3, 0.3)]
    found = summarise(ours, whole)
    assert found["before"].mean == pytest.approx(0.3)
    assert found["success"].mean == pytest.approx(0.4)
    assert found["success_less_both"].show(signed=True) == "-0.400 [-0.400, -0.400]"
    assert found["over_training"].mean == pytest.approx(0.35)
    assert found["over_training_less_both"].mean == pytest.approx(-0.3)


def test_the_report_fits_the_page():
    made = report({row: [run(0.2, 0.9), run(0.4, 0.7)] for row in masks.ROWS}, lam=0.9)
    assert "| both masks | 0.300 [-0.971, 1.571] | 0.800 [-0.471, 2.071] |  |" in made.parts["table"]
    assert "| advantage mask | 0.53 | 0.53 |" in made.parts["reach"]
    assert made.results["reach/40/no-mask"] == pytest.approx(0.9**47)
    (picture,) = made.pictures
    assert f"](img/masks-{picture.name}.png)" in PAGE.read_text()
    fill(PAGE.read_text(), {**made.parts, "origin": ""}, made.results, source="docs/masks.md")


def test_every_result_in_a_sentence_is_the_one_that_was_committed():
    results = json.loads((PROJECT / "benchmarks/results/masks.json").read_text())
    shown = re.findall(r"<!-- result: (\S+) (\S+) -->(.*?)<!-- end -->", PAGE.read_text())
    assert len(shown) == 3
    assert [(name, text) for name, form, text in shown if text != format(results[name], form)] == []
    assert results["no-advantage-mask/success_less_both/high"] < -0.2, "what the page is about"


def test_from_end_to_end(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    Path("docs/masks.md").write_text(PAGE.read_text())
    monkeypatch.setattr(masks, "QUICK_STEPS", 1)
    assert main(["bench", "masks", "--quick", "--seeds", "1", "--jobs", "1"]) == 0
    assert "neither/seed-0  done in " in capsys.readouterr().out
    page = Path("runs/bench/masks-quick/docs/masks.md").read_text()
    assert "| no advantage mask | " in page
    assert "From `turnwise bench masks --quick --seeds 1`: 3 jobs on " in page
