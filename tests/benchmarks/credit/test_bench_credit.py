"""`turnwise bench credit`: what is planned, what is said of it by hand, and a whole small one from end to end."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
import yaml

from benchmarks.credit import benchmark as credit
from benchmarks.credit import report as credit_report
from benchmarks.credit.candidates import CANDIDATES, Candidate
from benchmarks.credit.report import average_curve, count_effort, summarise_learning
from benchmarks.harness.benchmark import Scope
from benchmarks.harness.jobs import JobFolders
from benchmarks.harness.report import fill
from tiny_bench import tiny_data
from turnwise.cli.main import main
from turnwise.credit.settings import ESTIMATORS
from turnwise.oracle import WORLDS, measure

PROJECT = Path(__file__).resolve().parents[3]
PAGE = PROJECT / "docs/credit.md"


def run(success, episodes=(8, 8), taken=(2, 1)):
    """The results of a training job, as far as they are read."""
    return {
        "evaluate": {"step": [0, 2, 4], "evaluate/success": list(success)},
        "train": {"step": [1, 2], "rollout/episodes": list(episodes), "policy/steps_taken": list(taken)},
    }


def moments(bias=0.25, cosine=0.5):
    return {"bias": bias, "variance": 12.0, "snr": 0.75, "cosine": cosine, "scale": 1.0}


@pytest.fixture
def in_project(monkeypatch):
    """Where the recipe is."""
    monkeypatch.chdir(PROJECT)


def test_every_estimator_takes_part_in_both_halves():
    offered = set(ESTIMATORS)
    assert set(credit.LEARNERS) == offered
    assert {candidate.credit.estimator for candidate in CANDIDATES} == offered


def test_the_plan_is_equal_but_for_the_credit(in_project):
    jobs = credit.plan(Scope(quick=False, seeds=2))
    learning = [job for job in jobs if job.name.startswith("learning/")]
    assert len(learning) == 2 * len(ESTIMATORS)
    for job in learning:
        estimator, seed = re.fullmatch(r"learning/(.+)/seed-(\d)", job.name).groups()
        config = job.settings["config"]
        assert (config["credit"]["estimator"], config["seed"]) == (estimator, int(seed))
        assert job.after.name == f"cold-start/seed-{seed}"
        assert job.after.settings["config"]["steps"] == 0
        assert config["learner"]["critic"]["warmup"] == 0, "a step that only warms the critic up is an update less"
        common = learning[0].settings["config"]
        for section in ("env", "model", "steps", "rollout", "learner", "evaluate"):
            assert config[section] == common[section]
    fixed = next(job for job in learning if "dr-grpo" in job.name).settings["config"]
    assert fixed["loss"]["fixed_length"] == fixed["rollout"]["max_turns"] * fixed["rollout"]["turn_tokens"]
    assert {job.name for job in jobs if job.name.startswith("moments/")} == {
        f"moments/{world}/seed-{seed}" for world in WORLDS for seed in (0, 1)
    }


def test_quick_asks_for_less(in_project):
    def size(quick):
        jobs = {job.name: job.settings for job in credit.plan(Scope(quick=quick, seeds=1))}
        learning = jobs["learning/grpo/seed-0"]["config"]
        return jobs["moments/rooms/seed-0"]["samples"], learning["steps"], learning["evaluate"]["tasks"]

    assert all(less < more for less, more in zip(size(True), size(False), strict=True))


def test_moments_are_the_oracles(tmp_path):
    candidates = [candidate for candidate in CANDIDATES if candidate.name in ("rloo", "gae/lam-0.5/wrong")]
    sizes = {"groups": 2, "group_size": 2, "samples": 20}
    settings = {"world": "rooms", "seed": 3, **sizes, "candidates": {one.name: one.plain() for one in candidates}}
    results = credit.measure_moments(settings, JobFolders(own=tmp_path, before=None))
    for candidate in candidates:
        expected = measure(WORLDS["rooms"], candidate.credit, critic=candidate.critic, seed=3, **sizes)
        assert results[candidate.name]["variance"] == expected.variance
        assert results[candidate.name]["snr"] == expected.snr


def test_a_variant_survives_being_told_to_a_job():
    for candidate in CANDIDATES:
        told = Candidate.read(candidate.name, json.loads(json.dumps(candidate.plain())))
        assert (told.credit, told.critic) == (candidate.credit, candidate.critic)


def test_learning_by_hand():
    """Two seeds, so a half-width is 12.706 · |difference| / 2 of the two values."""
    ours = [run([0.2, 0.4, 0.6]), run([0.4, 0.4, 1.0])]
    base = [run([0.2, 0.3, 0.4]), run([0.4, 0.4, 0.7])]
    found = summarise_learning(ours, base)
    assert found["before"].mean == pytest.approx(0.3)
    assert found["success"].mean == pytest.approx(0.8)
    assert found["success"].high == pytest.approx(0.8 + 12.7062 * 0.2, abs=1e-4)
    assert found["gain"].mean == pytest.approx(0.5)
    assert found["minus_grpo"].mean == pytest.approx(0.25)
    assert found["minus_grpo"].low == pytest.approx(0.25 - 12.7062 * 0.05, abs=1e-4)
    assert found["over_training"].mean == pytest.approx((0.5 + 0.7) / 2)
    assert {step: point.mean for step, point in average_curve(ours).items()} == pytest.approx(
        {"0": 0.3, "2": 0.4, "4": 0.8}
    )
    assert count_effort(ours) == {"episodes": 16.0, "updates": 3.0}


def test_the_report_by_hand(monkeypatch):
    few = tuple(candidate for candidate in CANDIDATES if candidate.name in ("rloo", "gae/lam-1/wrong"))
    monkeypatch.setattr(credit_report, "CANDIDATES", few)
    results = {
        "moments/rooms/seed-0": {"rloo": moments(), "gae/lam-1/wrong": moments(cosine=None)},
        "moments/rooms/seed-1": {"rloo": moments(bias=0.35), "gae/lam-1/wrong": moments()},
        **{f"learning/grpo/seed-{seed}": run([0.2, 0.3, 0.5]) for seed in (0, 1)},
        **{f"learning/rloo/seed-{seed}": run([0.2, 0.4, 0.75]) for seed in (0, 1)},
    }
    made = credit_report.report(Scope(quick=False, seeds=2), results)
    assert made.parts["bias"].splitlines() == [
        "| estimator | rooms |",
        "| --- | ---: |",
        "| gae, λ = 1, wrong critic | 0.25 (–) |",
        "| rloo | 0.30 (0.500) |",
    ]
    assert "| rloo | 12.0 |" in made.parts["variance"]
    assert "| rloo | 0.75 |" in made.parts["snr"]
    assert made.parts["learning"].splitlines()[2:] == [
        "| grpo | 0.200 [0.200, 0.200] | 0.500 [0.500, 0.500] | +0.300 [+0.300, +0.300] |  "
        "| 0.400 [0.400, 0.400] | 16 | 3 |",
        "| rloo | 0.200 [0.200, 0.200] | 0.750 [0.750, 0.750] | +0.550 [+0.550, +0.550] | +0.250 [+0.250, +0.250] "
        "| 0.575 [0.575, 0.575] | 16 | 3 |",
    ]
    assert made.results["frozen_lake/rloo/success"] == 0.75
    assert made.results["frozen_lake/rloo/success_at/2"] == pytest.approx(0.4)
    assert made.results["frozen_lake/rloo/updates"] == 3.0
    assert made.results["oracle/rooms/rloo/bias"] == pytest.approx(0.3)
    assert "oracle/rooms/gae/lam-1/wrong/cosine" not in made.results
    (picture,) = made.pictures
    assert [panel.title for panel in picture.panels] == ["grpo", "rloo"]
    assert [line.name for line in picture.panels[0].behind] == ["rloo"]
    assert f"](img/credit-{picture.name}.png)" in PAGE.read_text()
    fill(tables_alone(), {**made.parts, "origin": ""}, made.results, source="docs/credit.md")


def tables_alone() -> str:
    """The page without the single results in its sentences, which are those of a whole benchmark."""
    return re.sub(r"<!-- result: .*?-->(.*?)<!-- end -->", r"\1", PAGE.read_text(), flags=re.DOTALL)


def test_every_result_in_a_sentence_is_the_one_that_was_committed():
    results = json.loads((PROJECT / "benchmarks/results/credit.json").read_text())
    shown = re.findall(r"<!-- result: (\S+) (\S+) -->(.*?)<!-- end -->", PAGE.read_text())
    assert len(shown) > 10
    assert [(name, text) for name, form, text in shown if text != format(results[name], form)] == []


def test_the_page_leads_to_files_that_exist():
    targets = re.findall(r"\]\(((?:\.\./(?:src|tests)|walk)[^)#]*)\)", PAGE.read_text())
    assert len(targets) > 20
    assert [target for target in targets if not (PAGE.parent / target).exists()] == []
    for estimator in ESTIMATORS:
        assert f"| `{estimator}` |" in PAGE.read_text(), "every estimator has a line in the table"


@pytest.fixture
def small_project(tmp_path, monkeypatch):
    """A folder with a recipe of a second and the page; one world is left, two estimators, and two of the candidates."""
    monkeypatch.chdir(tmp_path)
    Path(f"{credit.RECIPE}.yaml").write_text(yaml.safe_dump(tiny_data()))
    Path("docs").mkdir()
    Path("docs/credit.md").write_text(tables_alone())
    few = tuple(candidate for candidate in CANDIDATES if candidate.name in ("rloo", "gae/lam-0.5/wrong"))
    for module in (credit, credit_report):
        monkeypatch.setattr(module, "CANDIDATES", few)
    monkeypatch.setattr(credit, "LEARNERS", {name: credit.LEARNERS[name] for name in ("gae", "grpo")})
    monkeypatch.setattr(credit, "WORLDS", {"rooms": WORLDS["rooms"]})
    monkeypatch.setattr(credit, "QUICK", ())
    return tmp_path


def test_from_end_to_end(small_project, capsys):
    before = Path("docs/credit.md").read_text()
    assert main(["bench", "credit", "--quick", "--seeds", "1", "--jobs", "2"]) == 0
    said = capsys.readouterr().out
    assert "4/4  " in said
    assert "learning/gae/seed-0  done in " in said
    assert Path("docs/credit.md").read_text() == before, "a quick look leaves the project's own page alone"
    assert not Path("benchmarks").exists()
    quick = Path("runs/bench/credit-quick")
    page = (quick / "docs/credit.md").read_text()
    assert "| gae, λ = 0.5, wrong critic | " in page
    assert "From `turnwise bench credit --quick --seeds 1`: 4 jobs on " in page
    results = json.loads((quick / "benchmarks/results/credit.json").read_text())
    assert results["frozen_lake/gae/episodes"] == results["frozen_lake/grpo/episodes"] == 8.0
    assert results["about/seeds"] == "0"
    assert all(isinstance(value, str if name.startswith("about/") else float) for name, value in results.items())
    drawn = (quick / "docs/img/credit-learning.png").is_file()
    assert drawn == (importlib.util.find_spec("matplotlib") is not None)

    # What was done is kept, wherever it came from; and all of it together may be published.
    assert main(["bench", "credit", "--quick", "--seeds", "1"]) == 0
    assert "4 of 4 jobs were done before and are kept" in capsys.readouterr().out
    assert json.loads((quick / "benchmarks/results/credit.json").read_text()) == results
