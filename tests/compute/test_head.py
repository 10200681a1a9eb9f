"""The head in tiles against plain autograd over all logits, in double: scores and gradients, to the tenth digit."""

import functools

import pytest
import torch
from torch import nn

from turnwise.compute import head as head_module
from turnwise.compute.head import LogitTransform, compiled_tiles, is_unmodified_linear, score_states

TOKENS, WIDTH, VOCABULARY = 11, 6, 23


def _plain(states, head, target, transform):
    logits = head(states)
    if transform.softcap is not None:
        logits = transform.softcap * torch.tanh(logits / transform.softcap)
    said = (logits.to(torch.promote_types(logits.dtype, torch.float32)) / transform.temperature).log_softmax(-1)
    return said.gather(-1, target[:, None]).squeeze(-1), -(said.exp() * said).sum(-1)


def _case(*, bias=False, scale=1.0, dtype=torch.double, seed=0):
    torch.manual_seed(seed)
    head = nn.Linear(WIDTH, VOCABULARY, bias=bias).to(dtype)
    states = (torch.randn(TOKENS, WIDTH, dtype=torch.double) * scale).to(dtype).requires_grad_()
    return states, head, torch.randint(VOCABULARY, (TOKENS,))


def _gradients(scores, states, head, weights):
    """Of a sum over scores that weighs each of them by a number of its own."""
    sum(((weight * score).sum() for weight, score in zip(weights, scores, strict=True))).backward()
    found = {name: p.grad.clone() for name, p in [("states", states), *head.named_parameters()] if p.grad is not None}
    states.grad = None
    head.zero_grad()
    return found


def _assert_same(found, expected, tolerance=1e-10):
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert float(gradient.abs().max()) > 1e-3, "there is something to compare"
        torch.testing.assert_close(found[name], gradient, atol=tolerance, rtol=0)


def _use_tiles(monkeypatch, tokens, logits):
    monkeypatch.setitem(head_module._TILE, "cpu", (tokens, logits))
    monkeypatch.setattr(head_module, "_ALIGNED", 1)


@pytest.mark.parametrize(
    ("words", "most", "width"),
    [
        (49_152, 6_808, 6_144),
        (49_152, 100_000, 49_152),
        (50_257, 6_808, 6_336),
        (11, 4, 11),
        (300, 200, 192),
        (300, 1, 64),
    ],
)
def test_tiles_are_even_and_aligned(words, most, width):
    assert head_module._tile_width(words, most) == width


@pytest.mark.parametrize("tile", [(100, 10_000), (4, 20), (3, 9), (1, 1)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("transform", [(1.0, None), (0.7, None), (1.3, 2.0)])
def test_scores_and_gradients_are_those_of_all_logits(monkeypatch, tile, bias, transform):
    _use_tiles(monkeypatch, *tile)
    states, head, target = _case(bias=bias, scale=3.0)
    settings = LogitTransform(temperature=transform[0], softcap=transform[1])
    weights = torch.randn(2, TOKENS, dtype=torch.double)
    expected = _plain(states, head, target, settings)
    found = score_states(states, head, target, settings, entropy=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)
    _assert_same(_gradients(found, states, head, weights), _gradients(expected, states, head, weights))


@pytest.mark.parametrize("asked", [0, 1])
def test_a_gradient_of_one_score_alone(monkeypatch, asked):
    """Entropy is measured in every update, and is part of few losses."""
    _use_tiles(monkeypatch, 4, 20)
    states, head, target = _case()
    settings = LogitTransform(temperature=0.8, softcap=None)
    weights = torch.randn(1, TOKENS, dtype=torch.double)
    expected = _plain(states, head, target, settings)[asked : asked + 1]
    found = score_states(states, head, target, settings, entropy=True)[asked : asked + 1]
    _assert_same(_gradients(found, states, head, weights), _gradients(expected, states, head, weights))


def test_logits_far_from_zero_lose_nothing(monkeypatch):
    """The largest logit of a token comes in the last tile, hundreds above the first."""
    _use_tiles(monkeypatch, 4, 12)
    states, head, target = _case(scale=1.0)
    with torch.no_grad():
        head.weight.copy_(torch.linspace(-100, 100, VOCABULARY)[:, None].expand(-1, WIDTH))
    settings = LogitTransform(temperature=1.0, softcap=None)
    with torch.no_grad():
        found = score_states(states, head, target, settings, entropy=True)
        expected = _plain(states, head, target, settings)
    assert float(expected[0].min()) < -300
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-12)


def test_a_frozen_head_and_frozen_states_are_not_asked_for_gradients():
    settings = LogitTransform(temperature=1.0, softcap=None)
    states, head, target = _case()
    _plain(states, head, target, settings)[0].sum().backward()
    bent, frozen, _ = _case()
    frozen.requires_grad_(False)
    score_states(bent, frozen, target, settings, entropy=True)[0].sum().backward()
    assert frozen.weight.grad is None
    torch.testing.assert_close(bent.grad, states.grad, atol=1e-12, rtol=0)
    given, learning, _ = _case()
    score_states(given.detach(), learning, target, settings, entropy=True)[0].sum().backward()
    assert given.grad is None
    torch.testing.assert_close(learning.weight.grad, head.weight.grad, atol=1e-12, rtol=0)


def test_no_token_is_no_error():
    states, head, target = _case()
    settings = LogitTransform(temperature=1.0, softcap=None)
    logprob, entropy = score_states(states[:0], head, target[:0], settings, entropy=True)
    (logprob.sum() + entropy.sum()).backward()
    assert len(logprob) == 0
    assert float(head.weight.grad.abs().max()) == 0


@pytest.mark.filterwarnings("ignore:TF32")
@pytest.mark.parametrize("autocast", [True, False])
def test_half_precision_multiplies_in_it_and_sums_in_float32(monkeypatch, autocast):
    """Weights in bfloat16, or float32 ones under autocast: no farther from the truth than plain autograd is."""
    _use_tiles(monkeypatch, 4, 40)
    settings = LogitTransform(temperature=0.9, softcap=None)
    weights = torch.randn(2, TOKENS)

    def gradients(scorer, dtype, lowered):
        states, head, target = _case(scale=3.0, dtype=dtype)
        with torch.backends.mkldnn.flags(enabled=False):  # its half-precision kernels do not run on every CPU
            with torch.autocast("cpu", torch.bfloat16, enabled=lowered):
                scores = scorer(states, head, target, settings)
            assert all(score.dtype in (torch.float32, torch.double) for score in scores)
            return _gradients(scores, states, head, weights.to(scores[0].dtype))

    dtype = torch.float32 if autocast else torch.bfloat16
    exact = gradients(_plain, torch.double, False)
    plain = gradients(_plain, dtype, autocast)
    found = gradients(functools.partial(score_states, entropy=True), dtype, autocast)
    for name, truth in exact.items():
        assert found[name].dtype == dtype
        rounding = float((plain[name].double() - truth).norm())
        assert 0 < float((found[name].double() - truth).norm()) < 1.5 * rounding, name


def test_in_one_kernel_the_gradients_are_the_same(monkeypatch):
    """As a GPU runs it, but for the code that is generated."""
    _use_tiles(monkeypatch, 4, 40)
    compiled = functools.partial(torch.compile, backend="aot_eager", dynamic=True)
    monkeypatch.setattr(head_module, "_compiled", functools.cache(compiled))
    real = head_module._Head.of.__func__
    used = []

    def fused(cls, *arguments):
        used.append(head_module._fused.get())
        return real(cls, *arguments[:-1], True)

    monkeypatch.setattr(head_module._Head, "of", classmethod(fused))
    states, head, target = _case(bias=True, scale=3.0)
    for settings in (LogitTransform(temperature=0.7, softcap=None), LogitTransform(temperature=1.0, softcap=2.0)):
        weights = torch.randn(2, TOKENS, dtype=torch.double)
        with compiled_tiles():
            found = _gradients(score_states(states, head, target, settings, entropy=True), states, head, weights)
        _assert_same(found, _gradients(_plain(states, head, target, settings), states, head, weights))
    assert used[0], "which the forward pass asks about"
    assert not head_module._fused.get()


def test_only_a_bare_matrix_is_read_past():
    head = nn.Linear(2, 3)
    assert is_unmodified_linear(head)
    head.register_forward_hook(lambda *_: None)
    assert not is_unmodified_linear(head), "somebody listens"
    assert not is_unmodified_linear(nn.Identity())
    assert not is_unmodified_linear(type("Wrapped", (nn.Linear,), {})(2, 3))
