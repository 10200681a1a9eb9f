"""The check before a forward is used: it refuses one that computes something else, not one that merely rounds."""

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import turnwise.engines.local.agreement as agreement_module
import turnwise.engines.local.forward as forward_module
from tiny_models import ALL_KINDS, make_model
from turnwise.engines import LocalEngineSettings
from turnwise.engines.local.agreement import find_disagreement
from turnwise.engines.local.architecture import Architecture, Norm, read_architecture
from turnwise.engines.local.engine import LocalEngine
from turnwise.engines.local.fused import FusedForward
from turnwise.engines.local.hf import HFForward


def forward_of(model, autocast: torch.dtype | None = None, prompt_ids=()):
    settings = LocalEngineSettings(slots=2)
    return LocalEngine(model, settings=settings, autocast=autocast, prompt_ids=prompt_ids)._runner._forward


class SlowRotary(torch.nn.Module):
    """A rotary embedding whose angles are nine tenths of what they should be."""

    def __init__(self, rotary: torch.nn.Module) -> None:
        super().__init__()
        self.rotary, self.rope_type = rotary, rotary.rope_type

    def forward(self, like: torch.Tensor, positions: torch.Tensor, *kind: str):
        return self.rotary(like, positions * 0.9, *kind)


def wrong_epsilon(architecture: Architecture) -> Architecture:
    def spoil(norm: Norm | None) -> Norm | None:
        return None if norm is None else replace(norm, eps=norm.eps + 1e-3)

    names = ("before_attention", "after_attention", "before_mlp", "after_mlp", "query_norm", "key_norm")
    layers = tuple(
        replace(layer, **{name: spoil(getattr(layer, name)) for name in names}) for layer in architecture.layers
    )
    return replace(architecture, layers=layers, last_norm=spoil(architecture.last_norm))


BUGS: dict[str, Callable[[Architecture], Architecture]] = {
    "angles x .9": lambda architecture: replace(architecture, rotary=SlowRotary(architecture.rotary)),
    "attention scale x 1.1": lambda architecture: replace(architecture, scale=1.1 * architecture.scale),
    "norm epsilon + 1e-3": wrong_epsilon,
    "a logit cap of its own": lambda architecture: replace(architecture, logit_cap=25.0),
}


@pytest.fixture
def plant(monkeypatch):
    def plant(bug: Callable[[Architecture], Architecture]) -> None:
        monkeypatch.setattr(forward_module, "read_architecture", lambda *given: bug(read_architecture(*given)))

    return plant


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_correct_code_is_accepted(kind, autocast, caplog):
    assert isinstance(forward_of(make_model(kind), autocast), FusedForward)
    assert not caplog.records


def test_weights_in_half_precision_are_accepted_and_stay_so():
    model = make_model("qwen3").bfloat16()
    assert isinstance(forward_of(model), FusedForward)
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral, sliding", "gemma2, capped, half sliding"])
def test_planted_bugs_are_refused(kind, bug, autocast, plant, caplog):
    if kind.startswith("gemma2") and "epsilon" in bug:
        pytest.skip("Gemma scales its embeddings so far up that no epsilon shows")
    plant(BUGS[bug])
    forward = forward_of(make_model(kind), autocast)
    assert isinstance(forward, HFForward)
    assert forward.slow_reason is not None
    assert forward.slow_reason.startswith(
        "the fused forward does not reproduce the model: in float32 its logits are off by"
    )
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert forward.slow_reason in warnings[0].getMessage()


def test_a_window_that_is_too_long_is_refused(plant):
    def widen(architecture: Architecture) -> Architecture:
        return replace(architecture, layers=tuple(replace(layer, window=10) for layer in architecture.layers))

    plant(widen)
    assert isinstance(forward_of(make_model("mistral, sliding")), HFForward)


def test_a_fault_of_half_precision_alone_is_refused(monkeypatch):
    """Structure is right but the sampling dtype goes wrong: the yardstick is the model's own error."""
    load = forward_module._load_ops

    def load_faulty(architecture, *, dtype, **given):
        ops = load(architecture, dtype=dtype, **given)
        if dtype == torch.bfloat16:
            own = ops.gate
            ops.gate = lambda *states: 1.5 * own(*states)
        return ops

    monkeypatch.setattr(forward_module, "_load_ops", load_faulty)
    assert isinstance(forward_of(make_model()), FusedForward)
    forward = forward_of(make_model(), torch.bfloat16)
    assert isinstance(forward, HFForward)
    assert forward.slow_reason.startswith("the fused forward does not reproduce the model: in half precision it is")


def test_an_ill_conditioned_model_keeps_the_fused_forward(monkeypatch):
    """Where the model's own half precision is far from float32, the fused forward's may be as well."""
    model = make_model()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(3)  # attention that tips over with the smallest rounding
    fused = forward_of(model, torch.bfloat16)
    assert isinstance(fused, FusedForward)


def test_a_models_own_forward_is_not_refused_for_how_it_rounds(monkeypatch):
    """In half precision a mixture of experts may route a token elsewhere with a cache than without."""
    monkeypatch.setattr(forward_module, "read_architecture", lambda *_: None)
    monkeypatch.setattr("turnwise.engines.local.agreement.ERROR_RATIO", 0.0)
    monkeypatch.setattr("turnwise.engines.local.agreement.ERROR_SLACK", 0.0)
    assert isinstance(forward_of(make_model(), torch.bfloat16), HFForward)


@pytest.mark.parametrize("length", [1, 5, 200])
def test_what_is_compared_is_text_of_the_runs_own_prompt(monkeypatch, length):
    read = []
    own_logits = agreement_module._own_logits
    monkeypatch.setattr(
        agreement_module, "_own_logits", lambda model, ids: read.append(ids.tolist()) or own_logits(model, ids)
    )
    prompt = [7 + place % 11 for place in range(length)]
    assert isinstance(forward_of(make_model(), prompt_ids=prompt), FusedForward)
    (ids,) = read
    assert ids[-min(length, 48) :] == prompt[-48:]
    assert len(set(ids[:16])) == 16, "ids strided over the vocabulary are before it"


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_shows_on_the_runs_own_prompt_too(plant, name):
    plant(BUGS[name])
    assert isinstance(forward_of(make_model(), prompt_ids=list(range(3, 60))), HFForward)


def test_an_unknown_family_is_the_reason(monkeypatch, caplog):
    monkeypatch.setattr(forward_module, "read_architecture", lambda *_: None)
    forward = forward_of(make_model())
    assert isinstance(forward, HFForward)
    assert "does not know the architecture of this llama" in forward.slow_reason
    assert forward.slow_reason in caplog.text


def test_the_check_leaves_the_engines_cache_and_the_weights_alone():
    model = make_model("qwen2")
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    fused = forward_of(model)
    assert fused.cache._layers == {}
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name]), name
    built = []

    def build(copied, cache, dtype):
        built.append(copied)
        return None

    reason = find_disagreement(fused, model, build, window=None, context_limit=64, autocast=None)
    assert reason is not None
    assert built[0] is not model
