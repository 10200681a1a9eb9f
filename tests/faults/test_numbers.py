"""Numbers that are not finite, and a device that is full: the run goes on where it can, and resumes exactly."""

import logging

import pytest
import torch

from tiny_runs import SFT as COLD
from tiny_runs import records, run_tiny, same_weights, weights
from turnwise.errors import ModelError, TurnwiseError
from turnwise.learner import learner as learner_module
from turnwise.learner import sft as sft_module
from turnwise.runs import load_state

STEPS = 3
SFT = {**COLD, "demonstrations": 32, "batch": 16}


@pytest.fixture
def settings(cold):
    return {"model": {"name": str(cold)}, "steps": STEPS, "checkpoint": {"every": 1, "keep": 9}}


@pytest.fixture
def nan_at(monkeypatch):
    """Makes the loss of some updates, by number from 1, not a number; a mini-batch has one micro-batch here."""

    def plant(*updates: int) -> None:
        calls = []
        objective = learner_module.policy_objective

        def poisoned(*args):
            calls.append(args)
            loss, measures = objective(*args)
            return (loss * float("nan") if len(calls) in updates else loss), measures

        monkeypatch.setattr(learner_module, "policy_objective", poisoned)

    return plant


def optimizer_state(run, step):
    return load_state(run.checkpoints / f"step-{step:06d}" / "state.pt")["learner"]["optimizer"]["adam"]["state"]


def test_a_loss_that_is_not_finite_is_skipped_counted_and_shown(settings, nan_at, tmp_path, caplog):
    nan_at(2)
    with caplog.at_level(logging.WARNING):
        run = run_tiny(tmp_path / "run", **settings)
    assert [record["policy/steps_skipped"] for record in records(run, "train")] == [0, 1, 0]
    assert "step 1 skipped: the norm of its gradient is nan; weights and moments stay" in caplog.text
    assert same_weights(weights(run, 2), weights(run, 1))
    before, after = optimizer_state(run, 1), optimizer_state(run, 2)
    assert all(torch.equal(before[place][name], after[place][name]) for place in before for name in before[place])
    assert not same_weights(weights(run, 3), weights(run, 2)), "the run goes on learning"
    assert all(torch.isfinite(one).all() for one in weights(run, STEPS).values())


def test_a_run_that_skipped_a_step_is_resumed_exactly(settings, nan_at, tmp_path, monkeypatch):
    nan_at(2)
    unbroken = run_tiny(tmp_path / "unbroken", **settings)
    monkeypatch.undo()
    nan_at(2)
    run_tiny(tmp_path / "run", **{**settings, "steps": 2})
    monkeypatch.undo()
    run = run_tiny(tmp_path / "run", resume=True, **settings)
    assert same_weights(weights(run, STEPS), weights(unbroken, STEPS))
    assert records(run, "train") == records(unbroken, "train")


@pytest.mark.parametrize("most", [0, 2])
def test_losses_that_stay_so_end_the_run_with_a_diagnosis(most, settings, nan_at, tmp_path):
    nan_at(*range(1, 99))
    sections = {**settings, "learner": {"optimizer": {"lr": 3e-3, "max_skipped": most}}}
    with pytest.raises(TurnwiseError, match=rf"^training has diverged: {most + 1} gradients in a row are not finite"):
        run_tiny(tmp_path / "run", **sections)
    assert (tmp_path / "run" / "checkpoints" / f"step-{most:06d}").exists(), "to be resumed from"


@pytest.fixture
def small_device(monkeypatch):
    """A device on which a forward pass of more tokens than this fails."""

    def limit(tokens: int) -> None:
        for module in (learner_module, sft_module):
            score = module.score

            def scarce(model, micro, *args, score=score, **options):
                if micro.ids.numel() > tokens:
                    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 72.00 MiB.")
                return score(model, micro, *args, **options)

            monkeypatch.setattr(module, "score", scarce)

    return limit


def test_a_full_device_shrinks_the_micro_batch_and_the_run_goes_on(settings, small_device, tmp_path, caplog):
    """As if that size had been asked for from the start, to the last bit."""
    small_device(200)
    sections = {**settings, "learner": {"optimizer": {"lr": 3e-3}, "tokens_per_microbatch": 1024}}
    with caplog.at_level(logging.WARNING):
        run = run_tiny(tmp_path / "run", **sections)
    assert "the device is out of memory: learner.tokens_per_microbatch is 512 from here on, it was 1024" in caplog.text
    sizes = {record["learner/tokens_per_microbatch"] for record in records(run, "train")}
    assert len(sizes) == 1, "once, and for the rest of the run"
    (size,) = sizes
    assert size < 512
    asked = {**settings, "learner": {"optimizer": {"lr": 3e-3}, "tokens_per_microbatch": int(size)}}
    assert same_weights(weights(run, STEPS), weights(run_tiny(tmp_path / "asked", **asked), STEPS))


def test_a_run_on_a_full_device_is_resumed_exactly(settings, small_device, tmp_path):
    small_device(200)
    sections = {**settings, "learner": {"optimizer": {"lr": 3e-3}, "tokens_per_microbatch": 1024}}
    unbroken = run_tiny(tmp_path / "unbroken", **sections)
    run_tiny(tmp_path / "run", **{**sections, "steps": 2})
    run = run_tiny(tmp_path / "run", resume=True, **sections)
    assert same_weights(weights(run, STEPS), weights(unbroken, STEPS))
    assert records(run, "train") == records(unbroken, "train")


def test_the_cold_start_shrinks_too_and_is_resumed_exactly(small_device, tmp_path):
    small_device(300)
    sections = {"steps": 0, "sft": {**SFT, "tokens_per_microbatch": 4096}, "checkpoint": {"sft_every": 1}}
    unbroken = run_tiny(tmp_path / "unbroken", **sections)
    asked = {**sections, "sft": {**SFT, "tokens_per_microbatch": 256}}
    assert same_weights(weights(unbroken, 0), weights(run_tiny(tmp_path / "asked", **asked), 0))


def test_a_row_that_does_not_fit_is_one_line(settings, small_device, tmp_path):
    small_device(8)
    with pytest.raises(ModelError, match=r"^the device is out of memory: lower learner\.[^\n]*--resume$"):
        run_tiny(tmp_path / "run", **settings)
