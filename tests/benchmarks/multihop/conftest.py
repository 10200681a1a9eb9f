"""What the tests of this benchmark start from."""

import dataclasses

import pytest

from benchmarks.harness import benchmark
from benchmarks.harness.jobs import JobOutcome, order_jobs, read_outcome
from benchmarks.harness.worker import run_job
from benchmarks.multihop import variant as multihop_variant
from benchmarks.multihop.variant import QUICK
from tiny_multihop import write_project


@pytest.fixture
def small_project(tmp_path, monkeypatch):
    """A folder with the page and recipes of a second; jobs are done in this process, for speed."""
    monkeypatch.chdir(tmp_path)
    write_project(tmp_path)
    monkeypatch.setattr(multihop_variant, "QUICK", dataclasses.replace(QUICK, questions=3))

    def run_jobs(jobs, root, **options):
        """As the pool does, one at a time: after a job that was stopped, none is begun."""
        outcomes = []
        for job in order_jobs(jobs):
            over = any(outcome.stopped for outcome in outcomes)
            outcomes.append(
                JobOutcome(job=job, stopped=True) if over else read_outcome(job, root) or run_job(job, root)
            )
        return outcomes

    monkeypatch.setattr(benchmark, "run_jobs", run_jobs)
    return tmp_path
