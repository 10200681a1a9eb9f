"""How a benchmark is run: what is published, where, and what is not when a job has failed."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.harness import BENCHMARKS, benchmark
from benchmarks.harness.benchmark import Benchmark, find_benchmark, run_benchmark
from benchmarks.harness.jobs import JobOutcome, order_jobs
from benchmarks.harness.report import Report
from benchmarks.harness.worker import run_job
from small_jobs import job
from turnwise.errors import ConfigError

PAGE = """# Toy
<!-- results: sums -->
old
<!-- end -->
<!-- results: origin -->
<!-- end -->
"""


def plan(scope):
    cold = job("cold", a=1.0)
    return [job(f"warm/seed-{seed}", after=cold, b=float(seed), quick=scope.quick) for seed in range(scope.seeds)]


def report(scope, results):
    sums = {f"sum/{seed}": results[f"warm/seed-{seed}"]["sum"] for seed in range(scope.seeds)}
    return Report(results=sums, parts={"sums": ", ".join(map(str, sums.values()))}, about={"toy": "yes"})


TOY = Benchmark(name="toy", seeds=3, quick_seeds=2, plan=plan, report=report)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a page; jobs run in this process, for speed."""
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    Path("docs/toy.md").write_text(PAGE)
    monkeypatch.setattr(benchmark, "run_jobs", lambda jobs, root, **_: [run_job(one, root) for one in order_jobs(jobs)])


def run(**options):
    console = Console(record=True, width=200)
    return run_benchmark(TOY, console, **options), console.export_text()


def test_the_page_and_the_results_are_published(project):
    code, said = run()
    assert code == 0
    assert said == "The page is docs/toy.md, the results are in benchmarks/results/toy.json.\n"
    page = Path("docs/toy.md").read_text().splitlines()
    assert page[:5] == ["# Toy", "<!-- results: sums -->", "1.0, 2.0, 3.0", "<!-- end -->", "<!-- results: origin -->"]
    assert page[5].startswith("From `turnwise bench toy --seeds 3`: 4 jobs on ")
    results = json.loads(Path("benchmarks/results/toy.json").read_text())
    assert {name: value for name, value in results.items() if not name.startswith("about/")} == {
        "sum/0": 1.0,
        "sum/1": 2.0,
        "sum/2": 3.0,
    }
    assert {name for name in results if name.startswith("about/")} == {
        f"about/{name}" for name in ("command", "jobs", "process_minutes", "machine", "versions", "toy")
    }
    assert Path("runs/bench/toy/warm/seed-2/result.json").is_file()


def test_quick_has_its_own_seeds_and_its_own_place(project):
    code, _ = run(quick=True)
    assert code == 0
    assert Path("docs/toy.md").read_text() == PAGE
    assert "2.0, 3.0" in Path("runs/bench/toy-quick/docs/toy.md").read_text(), "1 + 0 + 1 and 1 + 1 + 1: quick counts"
    assert not Path("benchmarks").exists()


def test_out_and_seeds(project):
    assert run(out="elsewhere", seeds=1)[0] == 0
    assert Path("elsewhere/warm/seed-0/result.json").is_file()
    assert "\n1.0\n" in Path("docs/toy.md").read_text()


def test_a_job_that_fails_leaves_what_was_published(project, monkeypatch):
    # The cold start is missing, so no job finds what it begins from.
    monkeypatch.setattr(
        benchmark, "run_jobs", lambda jobs, root, **_: [run_job(one, root) for one in jobs if one.after]
    )
    code, said = run(seeds=2)
    assert code == 1
    assert "2 of 2 jobs failed, so nothing was published: warm/seed-0, warm/seed-1" in said
    assert "the same command tries them again" in said
    assert Path("docs/toy.md").read_text() == PAGE
    assert not Path("benchmarks").exists()


def test_a_benchmark_that_time_ended_is_published_when_the_rest_is_done(project, monkeypatch):
    whole = benchmark.run_jobs

    def stop(jobs, root, **options):
        assert options["minutes"] == 0.5
        return [*whole(jobs[:2], root), JobOutcome(job=jobs[2], stopped=True)]

    monkeypatch.setattr(benchmark, "run_jobs", stop)
    code, said = run(seeds=2, minutes=0.5)
    assert (code, said) == (75, "1 of 3 jobs are left; the same command goes on with them.\n")
    assert Path("docs/toy.md").read_text() == PAGE
    monkeypatch.setattr(benchmark, "run_jobs", whole)
    assert run(seeds=2)[0] == 0
    assert "\n1.0, 2.0\n" in Path("docs/toy.md").read_text()


def test_pieces_that_are_too_short_for_any_job_are_told(project, monkeypatch):
    monkeypatch.setattr(
        benchmark, "run_jobs", lambda jobs, root, **_: [JobOutcome(job=one, stopped=True) for one in jobs]
    )
    with pytest.raises(
        ConfigError, match="--minutes: no job was begun, since those like it took more than 3: give more"
    ):
        run(seeds=2, minutes=3)


def test_a_page_that_says_what_is_missing_is_published_whatever_is_missing(project, monkeypatch):
    class Patient(Benchmark):
        def publishes_unfinished(self, scope):
            return True

        def read_unfinished(self, job, root):
            return {"sum": -1.0} if job.name == "warm/seed-1" else None

    patient = Patient(name="toy", seeds=2, quick_seeds=2, plan=plan, report=report)
    failed = JobOutcome(job=job("warm/seed-1"), failure="no room")
    whole = benchmark.run_jobs
    monkeypatch.setattr(benchmark, "run_jobs", lambda jobs, root, **_: [*whole(jobs[:2], root), failed])
    console = Console(record=True, width=200)
    assert run_benchmark(patient, console) == 1
    assert "1 of 3 jobs failed: warm/seed-1" in console.export_text()
    page = Path("docs/toy.md").read_text()
    assert "\n1.0, -1.0\n" in page
    assert "From `turnwise bench toy --seeds 2`: 2 of 3 jobs on " in page


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_is_found_by_its_name(name):
    assert find_benchmark(name).name == name
