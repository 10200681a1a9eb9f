"""Metrics of steps by hand: over ranks, over what was read, and over rows that were left out or shared."""

import math
from types import SimpleNamespace

import pytest
import torch

from turnwise.compute.device import Arriving
from turnwise.learner.optimizer import Optimizer, OptimizerSettings
from turnwise.learner.parallel import SINGLE, SingleProcess
from turnwise.learner.sft import LaunchedStep
from turnwise.learner.step_metrics import PendingStep, measure_reading, measure_step


class Two(SingleProcess):
    """Two ranks, of which the other has three times as much, or a third; it adds what this one has to sums."""

    def __init__(self, times):
        self.times = times

    def gather(self, value):
        return [value, {name: self.times * number for name, number in value.items()}]

    def sum_(self, tensor):
        return tensor * (1 + self.times)


def optimizer():
    return Optimizer(torch.nn.Linear(1, 1), OptimizerSettings(lr=0.5), total_steps=1)


def numbers(**values):
    return {f"policy/{name}": torch.tensor(value) for name, value in values.items()}


def test_sums_of_ranks_become_means_over_the_tokens_that_each_is_about():
    pending = PendingStep(
        sums=numbers(loss=0.5, surrogate_loss=0.25, entropy=1.0, clip_fraction=0.5, sampler_gap=0.125),
        maxima={},
        norm=torch.tensor(2.0),
        weight=torch.tensor(8.0),
        read_weight=torch.tensor(4.0),
        sampled_weight=torch.tensor(2.0),
    )
    metrics, step = measure_step(pending, optimizer(), 0, Two(3))
    assert metrics == {
        "policy/loss": 2.0,
        "policy/surrogate_loss": 1.0,
        "policy/entropy": 1.0,
        "policy/clip_fraction": 0.25,
        "policy/sampler_gap": 0.25,
    }
    assert (step.grad_norm, step.outcome) == (2.0, "taken")


@pytest.mark.parametrize(("times", "largest"), [(3, 1.5), (0.5, 0.5)])
def test_the_largest_of_all_ranks_is_kept(times, largest):
    one = torch.tensor(1.0)
    pending = PendingStep(
        sums={}, maxima=numbers(sampler_gap_max=0.5), norm=one, weight=one, read_weight=one, sampled_weight=one
    )
    assert measure_step(pending, optimizer(), 0, Two(times))[0] == {"policy/sampler_gap_max": largest}


def micro(tokens, places, shared):
    return SimpleNamespace(tokens=tokens, ids=torch.zeros(1, places), shared=shared)


def test_what_was_read_by_hand():
    """Of 20 tokens 3 were in prompts that others share, and 5 in rows that were left out; 12 lay in 16 places."""
    micros = [micro(8, 10, 2), micro(4, 6, 1)]
    assert measure_reading(micros, SINGLE, given=20) == pytest.approx(
        {"batch/padding_share": 0.25, "batch/shared_share": 0.2, "batch/skipped_share": 0.25}
    )
    assert "batch/skipped_share" not in measure_reading(micros, SINGLE, given=None)
    both = measure_reading([micro(2, 4, 0)], Two(3), given=16)
    assert both == {"batch/padding_share": 0.5, "batch/shared_share": 0.0, "batch/skipped_share": 0.5}


def test_a_step_of_sft_that_was_skipped_is_counted_and_no_other():
    def settle(norm):
        launched = LaunchedStep(step=0, loss=Arriving(torch.tensor(2.0)), grad_norm=Arriving(torch.tensor(norm)))
        return launched.settle(optimizer())

    assert settle(3.0) == {"sft/loss": 2.0, "sft/grad_norm": 3.0, "sft/lr": 0.5}
    assert settle(math.inf) == {"sft/loss": 2.0, "sft/grad_norm": math.inf, "sft/lr": 0.5, "sft/steps_skipped": 1.0}
