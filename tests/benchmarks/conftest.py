"""What several tests of the benchmarks start from."""

import pytest

from benchmarks.harness import benchmark
from benchmarks.harness.jobs import JobOutcome, order_jobs, read_outcome
from benchmarks.harness.worker import run_job
from benchmarks.speed import models as speed_models
from benchmarks.speed.models import make_stand_in_tokenizer, smollm2_config, tiny_config


@pytest.fixture
def small_models(monkeypatch):
    """The same shapes with fewer words, for speed."""

    def shrink(make):
        def shrunk():
            config = make()
            config.vocab_size, config.hidden_size, config.intermediate_size, config.num_hidden_layers = 96, 16, 16, 1
            config.num_attention_heads, config.num_key_value_heads, config.head_dim = 2, 1, 8
            config.layer_types = ["full_attention"]
            return config

        return shrunk

    monkeypatch.setattr(speed_models, "tiny_config", shrink(tiny_config))
    monkeypatch.setattr(speed_models, "smollm2_config", shrink(smollm2_config))


@pytest.fixture
def jobs_in_this_process(monkeypatch):
    """A benchmark's jobs are done here, for speed."""

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


@pytest.fixture(scope="module")
def tokenizer():
    return make_stand_in_tokenizer()
