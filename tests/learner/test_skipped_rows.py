"""Rows without a gradient are left out of an update, and nothing that is learnt or said of it changes."""

import pytest
import torch

from layout_cases import ALIKE, MIXED, assert_same_gradients, learner_of, update_of
from turnwise.credit.settings import CreditSettings
from turnwise.learner.settings import LearnerSettings
from turnwise.learner.skipping import skips_rows
from turnwise.losses.forms import surrogate_loss
from turnwise.losses.settings import FORMS, LossSettings

CASES = {
    "clip": {"credit": {"estimator": "grpo"}, "loss": {"clip_high": 0.05, "clip_low": 0.05}},
    "by trajectory": {"credit": {"estimator": "rloo"}, "loss": {"aggregation": "trajectory"}},
    "fixed": {"credit": {"estimator": "dr-grpo"}, "loss": {"aggregation": "fixed", "fixed_length": 9}},
    "gspo by turn": {"credit": {"estimator": "grpo"}, "loss": {"form": "gspo", "ratio": "turn"}},
    "gspo by trajectory": {"credit": {"estimator": "grpo"}, "loss": {"form": "gspo", "ratio": "trajectory"}},
    "tis": {"credit": {"estimator": "grpo"}, "loss": {"tis_cap": 2.0}},
}
LAYOUTS = ({}, {"packing": True}, {"packing": True, "budget": 12, "minibatches": 2, "epochs": 2})
SAME = ("policy/loss", "policy/surrogate_loss", "policy/clip_fraction", "policy/grad_norm")


def tokens(groups):
    turns = [turn for one in groups for trajectory in one.trajectories for turn in trajectory.turns]
    return sum(len(turn.context_ids) + len(turn.action_ids) for turn in turns)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "layout", [{}, {"packing": True}, {"packing": True, "budget": 12, "minibatches": 2, "epochs": 2}]
)
def test_no_gradient_changes_when_rows_without_one_are_left_out(name, layout):
    expected, whole = update_of(learner_of(CASES[name], skip_zero_rows=False, **layout), MIXED)
    found, update = update_of(learner_of(CASES[name], skip_zero_rows=True, **layout), MIXED)
    assert_same_gradients(found, expected, tolerance=1e-12)
    assert update.advantages == whole.advantages
    assert {one: update.metrics[one] for one in SAME} == pytest.approx({one: whole.metrics[one] for one in SAME})
    assert update.first_clip_fraction == pytest.approx(whole.first_clip_fraction)


def test_only_rows_with_a_gradient_are_read():
    learner = learner_of(CASES["clip"], skip_zero_rows=True, packing=True)
    update = learner.update(MIXED, seed=0)
    assert update.metrics["batch/skipped_share"] == pytest.approx(tokens(ALIKE) / tokens(MIXED))
    assert update.metrics["batch/tokens"] == tokens(MIXED)


@pytest.mark.parametrize("epochs", [1, 3])
def test_the_share_left_out_is_of_all_passes_over_the_batch(epochs):
    update = learner_of(CASES["clip"], skip_zero_rows=True, packing=True, epochs=epochs).update(MIXED, seed=0)
    assert update.metrics["batch/skipped_share"] == pytest.approx(tokens(ALIKE) / tokens(MIXED))


def test_means_are_over_what_was_read_and_entropy_is_the_surprisal_of_all():
    _, update = update_of(learner_of(CASES["clip"], skip_zero_rows=True), MIXED)
    _, alone = update_of(learner_of(CASES["clip"], skip_zero_rows=False), [MIXED[1], MIXED[3]])
    for name in ("policy/approx_kl", "policy/sampler_gap", "policy/sampler_gap_max"):
        assert update.metrics[name] == pytest.approx(alone.metrics[name]), name
    assert update.metrics["policy/entropy"] == pytest.approx(1.0), "every sampled logprob is -1"


def test_a_minibatch_without_any_gradient_is_read_whole_so_that_it_is_measured():
    _, whole = update_of(learner_of(CASES["clip"], skip_zero_rows=False), ALIKE)
    _, update = update_of(learner_of(CASES["clip"], skip_zero_rows=True), ALIKE)
    assert update.metrics.pop("batch/skipped_share") == 0
    assert update.metrics == whole.metrics
    assert update.metrics["policy/steps_idle"] == 1


def test_a_row_without_advantages_stays_with_the_rest_of_its_trajectory():
    """Credit by turn: the first row of one trajectory has none, and shares its ratio with the second."""
    case = {"credit": {"estimator": "gigpo", "step_weight": 0.0}, "loss": {"form": "gspo", "ratio": "trajectory"}}
    expected, _ = update_of(learner_of(case, skip_zero_rows=False), MIXED)
    found, _ = update_of(learner_of(case, skip_zero_rows=True), MIXED)
    assert_same_gradients(found, expected, tolerance=1e-12)


def decide(asked, device="cuda", credit=(), loss=()):
    return skips_rows(
        LearnerSettings(skip_zero_rows=asked),
        credit=CreditSettings(**dict(credit)),
        loss=LossSettings(**dict(loss)),
        device=torch.device(device),
    )


def test_rows_are_left_out_on_a_gpu_or_where_asked_for_and_never_where_another_term_trains_on_them():
    assert decide(None)
    assert not decide(None, device="cpu")
    assert decide(True, device="cpu")
    assert not decide(False)
    assert not decide(True, loss={"entropy_coef": 0.01})
    assert not decide(True, loss={"kl_coef": 0.01})
    assert decide(True, loss={"kl_coef": 0.01, "kl_in": "reward"})
    assert not decide(True, loss={"action_mask": False})
    assert not decide(True, loss={"form": "cispo"}), "it counts tokens as clipped whatever their advantage"
    assert not decide(True, credit={"estimator": "gae"})


@pytest.mark.parametrize("form", [name for name, info in FORMS.items() if info.ignores_zero_advantage])
def test_a_form_that_says_so_has_neither_loss_nor_gradient_nor_clipping_without_an_advantage(form):
    logprob = torch.linspace(-30.0, 30.0, 24, dtype=torch.double, requires_grad=True)
    settings = LossSettings(form=form, ratio="turn" if FORMS[form].takes_segment else "token")
    segment = torch.arange(24) // 3
    zeros = torch.zeros(24, dtype=torch.double)
    result = surrogate_loss(logprob, zeros, zeros, segment if FORMS[form].takes_segment else None, settings)
    result.loss.sum().backward()
    assert not result.loss.any()
    assert not result.clipped.any()
    assert not logprob.grad.any()
