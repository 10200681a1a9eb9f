"""Before an update has moved anything, nothing is clipped: neither rounding nor dropout counts as a moved policy."""

from dataclasses import replace

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from episodes_by_hand import VOCABULARY, episode, group, tiny_llama, turn, with_exact_logprobs
from turnwise.credit.estimate import CreditSettings
from turnwise.learner import forward_runner as forward_runner_module
from turnwise.learner.forward_runner import ForwardRunner
from turnwise.learner.learner import Learner
from turnwise.learner.loss_inputs import choose_old_policy
from turnwise.learner.settings import CriticSettings, LearnerSettings, OptimizerSettings
from turnwise.losses.settings import LossSettings
from turnwise.stability.monitor import ON_POLICY_CLIP

GSPO = {"form": "gspo", "ratio": "trajectory", "clip_low": 3e-4, "clip_high": 4e-4}
GROUPS = [
    group(*(episode(turn([1, 2], [3 + n, 4, 5, 6], opens=True), turn([5, n], [7, 8], reward=n % 3)) for n in range(8)))
]


def _learner(model, *, loss=None, autocast=None, estimator="grpo", **settings):
    return Learner(
        model,
        settings=LearnerSettings(
            optimizer=OptimizerSettings(lr=1e-3),
            critic=CriticSettings(optimizer=OptimizerSettings(lr=1e-3)),
            **settings,
        ),
        credit=CreditSettings(estimator=estimator),
        loss=LossSettings(**(loss or {})),
        temperature=1.0,
        total_steps=10,
        device=torch.device("cpu"),
        autocast=autocast,
    )


def _update(loss, *, autocast=torch.bfloat16, **settings):
    """In bfloat16, of samples whose logprobs were computed in float32."""
    model = tiny_llama(dtype=torch.float32)
    groups = with_exact_logprobs(model, GROUPS)
    return _learner(model, loss=loss, autocast=autocast, **settings).update(groups, seed=0), model


@pytest.mark.parametrize("several", [{}, {"minibatches": 2}, {"epochs": 2}], ids=str)
def test_rounding_is_not_clipped_in_half_precision(several):
    update, _ = _update(GSPO, **several)
    assert update.first_clip_fraction == 0.0
    assert update.metrics["policy/sampler_gap"] > 1e-4, "the sampler is still measured"
    clipped = _update({**GSPO, "old_logprobs": "sampler"}, **several)[0].first_clip_fraction
    assert clipped > 3 * ON_POLICY_CLIP, "the ratio of rounding alone is outside the bounds"


def test_in_float32_ratios_are_against_the_sampler():
    """Samples with logprobs of −1 throughout, from some other policy."""
    for autocast, against_itself in ((None, False), (torch.bfloat16, True)):
        model = tiny_llama(dtype=torch.float32)
        metrics = _learner(model, autocast=autocast).update(GROUPS, seed=0).metrics
        assert (metrics["policy/approx_kl"] == 0.0) is against_itself


def test_the_only_step_needs_no_pass_before_it(monkeypatch):
    """The policy's logprobs before the update are those of its only step: the gradient is the same without a pass."""
    passes, real = [], ForwardRunner.logprobs
    monkeypatch.setattr(ForwardRunner, "logprobs", lambda self, *given: passes.append(1) or real(self, *given))
    _, free = _update(GSPO)
    assert passes == []
    monkeypatch.setattr("turnwise.learner.learner.choose_old_policy", lambda *_, **__: "learner")
    _, paid = _update(GSPO)
    assert passes == [1]
    assert all(torch.equal(a, b) for a, b in zip(free.parameters(), paid.parameters(), strict=True))


@pytest.mark.parametrize(
    ("loss", "dtype", "single_step", "expected"),
    [
        ({}, torch.float32, True, "sampler"),
        ({}, torch.bfloat16, True, "current"),
        ({}, torch.float16, False, "learner"),
        ({"old_logprobs": "sampler"}, torch.bfloat16, True, "sampler"),
        ({"old_logprobs": "learner"}, torch.float32, False, "learner"),
        ({"old_logprobs": "learner"}, torch.float32, True, "current"),
        ({"tis_cap": 2.0}, torch.float32, True, "learner"),
        ({"kl_coef": 0.1, "kl_in": "reward"}, torch.bfloat16, True, "learner"),
        ({"kl_coef": 0.1, "kl_in": "loss"}, torch.bfloat16, True, "current"),
        ({"kl_coef": 0.0, "kl_in": "reward"}, torch.bfloat16, True, "current"),
    ],
)
def test_whose_logprobs_ratios_are_against(loss, dtype, single_step, expected):
    assert choose_old_policy(LossSettings(**loss), dtype=dtype, stale=False, single_step=single_step) == expected


@pytest.mark.parametrize(
    ("loss", "expected"),
    [({}, "sampler"), ({"old_logprobs": "learner"}, "learner"), ({"tis_cap": 2.0}, "learner")],
    ids=str,
)
def test_samples_of_older_weights_keep_the_samplers_unless_they_are_corrected_for(loss, expected):
    assert choose_old_policy(LossSettings(**loss), dtype=torch.bfloat16, stale=True, single_step=False) == expected


def test_the_learner_knows_the_age_of_its_samples():
    """Samples of version 0, in two updates: the second update's are stale, and its ratios are not 1."""
    model = tiny_llama(dtype=torch.float32)
    groups = with_exact_logprobs(model, GROUPS)
    learner = _learner(model, autocast=torch.bfloat16)
    first, second = (learner.update(groups, seed=seed).metrics["policy/approx_kl"] for seed in (0, 1))
    assert first == 0.0
    assert second > 0.0


def test_half_precision_is_seen_in_the_weights_too():
    runner = _learner(tiny_llama(dtype=torch.float32)).runner
    assert runner.coarsest_dtype(tiny_llama(dtype=torch.float32)) == torch.float32
    assert runner.coarsest_dtype(tiny_llama()) == torch.float32, "what is stored of a double's logprobs"
    assert runner.coarsest_dtype(tiny_llama(dtype=torch.bfloat16)) == torch.bfloat16
    casting = replace(runner, autocast=torch.float16)
    assert casting.coarsest_dtype(tiny_llama(dtype=torch.float32)) == torch.float16
    assert casting.coarsest_dtype(tiny_llama(dtype=torch.bfloat16)) == torch.bfloat16, "the coarser of two"


def test_correction_against_the_sampler_contradicts_itself():
    with pytest.raises(ValueError, match="old_logprobs to learner"):
        LossSettings(tis_cap=2.0, old_logprobs="sampler")


def _gpt2():
    """With its own rates of dropout, .1 everywhere."""
    torch.manual_seed(0)
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "initializer_range": 0.3}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **shape)).eval()
    assert model.config.resid_pdrop == model.config.attn_pdrop == model.config.embd_pdrop == 0.1
    return model


@pytest.mark.parametrize("checkpointing", [False, True])
def test_dropout_is_off_unless_it_is_asked_for(checkpointing):
    model = _gpt2()
    groups = with_exact_logprobs(model, GROUPS)
    update = _learner(model, checkpointing=checkpointing).update(groups, seed=0)
    assert update.first_clip_fraction == 0.0
    assert update.metrics["policy/approx_kl"] < 1e-9
    model = _gpt2()
    update = _learner(model, checkpointing=checkpointing, dropout=True).update(groups, seed=0)
    assert update.first_clip_fraction > ON_POLICY_CLIP
    assert update.metrics["policy/approx_kl"] > 1e-3


@pytest.mark.parametrize("dropout", [False, True])
def test_the_critic_learns_without_dropout_too(dropout):
    """With one mini-batch, the seed of an update reaches nothing but dropout."""
    groups = with_exact_logprobs(_gpt2(), GROUPS)
    weights = []
    for seed in (0, 1):
        learner = _learner(_gpt2(), estimator="gae", dropout=dropout)
        for _ in range(2):  # the head begins at zero, so the first update reaches the head alone
            learner.update(groups, seed=seed)
        weights.append(torch.cat([p.detach().flatten() for p in learner.critic.parameters()]))
    assert torch.equal(*weights) is not dropout


def test_checkpointing_without_dropout_gives_the_same_gradient():
    groups = with_exact_logprobs(_gpt2(), GROUPS)
    stepped = []
    for checkpointing in (False, True):
        model = _gpt2()
        _learner(model, checkpointing=checkpointing).update(groups, seed=0)
        stepped.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        assert not model.training
        assert not any(inner.training for inner in model.modules())
    assert torch.equal(*stepped)


def test_passes_before_an_update_compute_no_entropy(monkeypatch):
    """It would take as long as the logprobs, and nothing reads it."""
    asked, real = [], forward_runner_module.score
    monkeypatch.setattr(
        forward_runner_module, "score", lambda *given, entropy: asked.append(entropy) or real(*given, entropy=entropy)
    )
    _update({"old_logprobs": "learner"}, minibatches=2)
    assert asked == [False]
