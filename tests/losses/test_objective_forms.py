"""The whole objective per token, from inputs written by hand: which form, which ratio, which weight."""

import pytest
import torch

from turnwise.compute.score import Scores
from turnwise.learner.loss_inputs import LossInputs
from turnwise.learner.objective import policy_objective
from turnwise.losses.settings import LossSettings

RATIO = [4.0, 1.0, 1.0]


def _gradient(settings, **inputs):
    """The loss of three tokens with advantage 1 and entropy ½, its gradient by their logprobs, and the measures."""
    logprob = torch.tensor(RATIO, dtype=torch.double).log().requires_grad_()
    scores = Scores(logprob=logprob, entropy=torch.full((3,), 0.5, dtype=torch.double))
    zeros = torch.zeros(3, dtype=torch.double)
    given = LossInputs(
        sampled=torch.ones(3, dtype=torch.bool),
        old_logprob=zeros,
        advantage=torch.ones(3, dtype=torch.double),
        **{name: torch.tensor(values) for name, values in inputs.items()},
    )
    loss, measures = policy_objective(scores, given, settings)
    (gradient,) = torch.autograd.grad(loss.sum(), logprob)
    return loss.tolist(), gradient.tolist(), {name: measure.tolist() for name, measure in measures.items()}


def test_clip_takes_each_tokens_own_ratio():
    loss, gradient, measures = _gradient(LossSettings())
    assert loss == pytest.approx([-1.2, -1.0, -1.0])
    assert gradient == pytest.approx([0.0, -1.0, -1.0])
    assert measures["policy/clip_fraction"] == [1.0, 0.0, 0.0]


def test_gspo_takes_the_ratio_of_the_segment():
    """√(4·1) = 2 for the first two, beyond the bound; the third stands alone."""
    loss, gradient, measures = _gradient(LossSettings(form="gspo", ratio="turn"), segment=[5, 5, 6])
    assert loss == pytest.approx([-1.2, -1.2, -1.0])
    assert gradient == pytest.approx([0.0, 0.0, -1.0])
    assert measures["policy/clip_fraction"] == [1.0, 1.0, 0.0]


def test_cispo_keeps_every_gradient():
    _, gradient, measures = _gradient(LossSettings(form="cispo"))
    assert gradient == pytest.approx([-1.2, -1.0, -1.0])
    assert measures["policy/clip_fraction"] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("form", [{}, {"form": "gspo", "ratio": "turn"}, {"form": "cispo"}])
def test_the_samplers_weight_multiplies_the_policys_term_alone(form):
    """The entropy bonus .1 · ½ stays whole beside a surrogate that counts twice, half and not at all."""
    segment = {"segment": [0, 1, 2]} if form.get("form") == "gspo" else {}
    plain, plain_gradient, _ = _gradient(LossSettings(**form), **segment)
    loss, gradient, measures = _gradient(
        LossSettings(**form, entropy_coef=0.1), sampler_weight=[2.0, 0.5, 0.0], **segment
    )
    weighed = [weight * value for weight, value in zip([2.0, 0.5, 0.0], plain, strict=True)]
    assert loss == pytest.approx([value - 0.05 for value in weighed])
    assert gradient == pytest.approx([w * g for w, g in zip([2.0, 0.5, 0.0], plain_gradient, strict=True)])
    assert measures["policy/surrogate_loss"] == pytest.approx(weighed)
