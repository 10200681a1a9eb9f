"""Schedules by hand, and what happens to gradients that are too long, broken or absent."""

import math

import pytest
import torch
from torch import nn

from turnwise.errors import TurnwiseError
from turnwise.learner.optimizer import Optimizer, OptimizerSettings, learning_rate


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.8, 0.6, 0.4, 0.2, 0.2]),
        (
            "cosine",
            [
                0.5,
                1,
                1,
                0.2 + 0.4 * (1 + math.cos(math.pi / 4)),
                0.6,
                0.4 * (1 - math.cos(math.pi / 4)) + 0.2,
                0.2,
                0.2,
            ],
        ),
    ],
)
def test_schedules(schedule, expected):
    settings = OptimizerSettings(lr=1.0, schedule=schedule, warmup_steps=2, final_lr_share=0.2)
    assert [learning_rate(settings, step, 6) for step in range(8)] == pytest.approx(expected)


def test_a_rate_that_stays_has_no_last_share():
    unread = {schedule: OptimizerSettings(schedule=schedule).unread() for schedule in ("constant", "linear", "cosine")}
    assert unread == {"constant": {"final_lr_share": "schedule"}, "linear": {}, "cosine": {}}


def _weight(gradient, **settings):
    module = nn.Linear(1, 1, bias=False)
    nn.init.ones_(module.weight)
    optimizer = Optimizer(module, OptimizerSettings(lr=0.1, **settings), total_steps=10)
    module.weight.grad = torch.tensor([[gradient]])
    return module, optimizer


def test_a_step_is_adams_and_clears_the_gradient():
    """Adam's first step has the length of the learning rate; decay takes another lr · .5 of the weight first."""
    module, optimizer = _weight(5.0, weight_decay=0.5)
    step = optimizer.step(0)
    assert (step.grad_norm, step.outcome) == (5.0, "taken")
    assert float(module.weight.detach()) == pytest.approx(0.95 - 0.1, abs=1e-6)
    assert module.weight.grad is None


def test_long_gradients_are_shortened():
    """With eps 1 Adam's first step is lr · g / (|g| + 1), so that the length shows: ½ when g was cut to 1."""
    module, optimizer = _weight(5.0, eps=1.0, max_grad_norm=1.0)
    optimizer.step(0)
    assert float(module.weight.detach()) == pytest.approx(1 - 0.1 / 2, abs=1e-6)
    module, optimizer = _weight(5.0, eps=1.0, max_grad_norm=None)
    optimizer.step(0)
    assert float(module.weight.detach()) == pytest.approx(1 - 0.1 * 5 / 6, abs=1e-6)


def test_a_zero_gradient_moves_nothing_though_momentum_and_decay_would():
    module, optimizer = _weight(1.0, weight_decay=0.5)
    optimizer.step(0)
    before = float(module.weight.detach())
    module.weight.grad = torch.zeros(1, 1)
    assert optimizer.step(1).outcome == "idle"
    assert float(module.weight.detach()) == before


def test_broken_gradients_are_skipped_and_end_the_run_when_they_go_on():
    module, optimizer = _weight(float("nan"))
    assert optimizer.step(0).outcome == "skipped"
    module.weight.grad = torch.full((1, 1), float("inf"))
    assert optimizer.step(1).outcome == "skipped"
    assert float(module.weight.detach()) == 1.0
    module.weight.grad = torch.ones(1, 1)
    assert optimizer.step(2).outcome == "taken"
    assert float(module.weight.detach()) == pytest.approx(0.9, abs=1e-6), "Adam counts it as its first"
    for step in (3, 4):
        module.weight.grad = torch.full((1, 1), float("nan"))
        optimizer.step(step)
    module.weight.grad = torch.full((1, 1), float("nan"))
    with pytest.raises(TurnwiseError, match="3 gradients in a row are not finite"):
        optimizer.step(5)


def test_decay_spares_norms_and_biases():
    module = nn.Linear(1, 1)
    nn.init.ones_(module.bias)
    optimizer = Optimizer(module, OptimizerSettings(lr=0.1, weight_decay=1.0, eps=1.0), total_steps=1)
    module.weight.grad, module.bias.grad = torch.full((1, 1), 1e-9), torch.full((1,), 1e-9)
    weight = float(module.weight.detach())
    optimizer.step(0)
    assert float(module.weight.detach()) == pytest.approx(0.9 * weight)
    assert float(module.bias.detach()) == 1.0
    module.bias.grad = torch.ones(1)
    optimizer.step(0)
    assert float(module.bias.detach()) < 1.0, "they learn all the same"


def test_steps_too_small_for_half_precision_add_up_in_masters():
    """A thousandth of a step from 1 is nothing in bfloat16, whose next number below 1 is 1 − 2⁻⁸; ten of them are."""
    module = nn.Linear(1, 1, bias=False).bfloat16()
    nn.init.ones_(module.weight)
    optimizer = Optimizer(module, OptimizerSettings(lr=0.0005), total_steps=10)
    seen = []
    for step in range(10):
        module.weight.grad = torch.ones(1, 1, dtype=torch.bfloat16)
        assert optimizer.step(step).outcome == "taken"
        seen.append(float(module.weight.detach()))
    assert seen[0] == 1.0
    assert seen[-1] == pytest.approx(0.995, abs=2**-8), "and rounded"
    assert seen[-1] < 1.0


def test_masters_go_on_where_they_were():
    def train(module, optimizer, steps):
        for step in steps:
            module.weight.grad = torch.full((1, 1), 1.0 - 0.1 * step, dtype=torch.bfloat16)
            optimizer.step(step)

    def make():
        module = nn.Linear(1, 1, bias=False).bfloat16()
        nn.init.ones_(module.weight)
        return module, Optimizer(module, OptimizerSettings(lr=0.0007), total_steps=8)

    whole, optimizer = make()
    train(whole, optimizer, range(8))
    first, before = make()
    train(first, before, range(4))
    second, after = make()
    with torch.no_grad():
        second.weight.copy_(first.weight)
    after.load_state_dict(before.state_dict())
    train(second, after, range(4, 8))
    assert torch.equal(second.weight, whole.weight)
    assert torch.equal(after.state_dict()["masters"][0], optimizer.state_dict()["masters"][0])
    plain = nn.Linear(1, 1)
    assert "masters" not in Optimizer(plain, OptimizerSettings(), total_steps=1).state_dict()


@pytest.mark.parametrize("fails_at", [1, 2, 3, 4])
def test_a_first_step_that_runs_out_of_memory_can_be_tried_again(monkeypatch, fails_at):
    """Whichever of the moments it is that does not fit."""

    def step(*, fails):
        torch.manual_seed(0)
        module = nn.Linear(3, 2)
        optimizer = Optimizer(module, OptimizerSettings(lr=0.1), total_steps=1)
        made = 0

        def zeros_like(*args, **options):
            nonlocal made
            made += 1
            if made == fails:
                raise torch.OutOfMemoryError("full")
            return zeros(*args, **options)

        for expected in (True, False)[not fails :]:
            module(torch.ones(1, 3)).sum().backward()
            with monkeypatch.context() as patch:
                patch.setattr(torch, "zeros_like", zeros_like)
                if expected:
                    with pytest.raises(torch.OutOfMemoryError):
                        optimizer.step(0)
                    module.zero_grad()
                else:
                    optimizer.step(0)
        return module.state_dict()

    zeros = torch.zeros_like
    torch.testing.assert_close(step(fails=fails_at), step(fails=0), rtol=0, atol=0)
