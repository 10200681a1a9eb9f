"""The Triton kernels against plain torch: on a GPU, or anywhere with Triton and TRITON_INTERPRET=1 set."""

import os

import pytest
import torch

from tiny_models import ALL_KINDS, VOCABULARY, make_model
from turnwise.engines.local.architecture import read_architecture
from turnwise.engines.local.cache import DecodeInputs, KVCache, PrefillInputs
from turnwise.engines.local.forward import read_windows
from turnwise.engines.local.fused import FusedForward
from turnwise.engines.local.sampling import sample
from turnwise.engines.local.torch_ops import TorchOps

pytest.importorskip("triton", reason="no Triton here")
if not torch.cuda.is_available() and not os.environ.get("TRITON_INTERPRET"):
    pytest.skip("kernels need a GPU, or TRITON_INTERPRET=1", allow_module_level=True)

from turnwise.engines.local.kernels import ops as triton_ops  # needs Triton
from turnwise.engines.local.kernels.sampler import sample_rows

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def logits_by(make_ops, kind: str) -> torch.Tensor:
    """Three uneven chunks into four slots, then fourteen tokens in each but the last, which rests."""
    model = make_model(kind)
    architecture = read_architecture(model, read_windows(model))
    cache = KVCache(slots=4, dtype=None)
    cache.reserve(64)
    forward = FusedForward(
        architecture, cache, make_ops(architecture, positions=160, dtype=torch.float32, device=DEVICE), dtype=None
    )
    source = torch.Generator().manual_seed(1)
    widths, slots = [7, 3, 12], torch.tensor([2, 0, 1], device=DEVICE)
    chunk = torch.tensor([index for index, width in enumerate(widths) for _ in range(width)], device=DEVICE)
    column = torch.tensor([place for width in widths for place in range(width)], device=DEVICE)
    ids = torch.randint(0, VOCABULARY, (sum(widths),), generator=source).to(DEVICE)
    starts = torch.tensor([0, 7, 10, 22], device=DEVICE)
    position = torch.tensor([3, 12, 7, 0], device=DEVICE)
    rows = torch.tensor([0, 1, 2, cache.spare], device=DEVICE)
    with torch.inference_mode():
        found = [
            forward.prefill(
                PrefillInputs(
                    ids=ids,
                    positions=column,
                    rows=slots[chunk],
                    chunk=chunk,
                    column=column,
                    starts=starts,
                    slots=slots,
                    width=12,
                    length=32,
                )
            )
        ]
        for step in range(14):
            token = torch.randint(0, VOCABULARY, (4,), generator=source).to(DEVICE)
            grown = position + step * (rows < cache.spare)
            found.append(forward.decode(DecodeInputs(ids=token, positions=grown, rows=rows, length=64))[:3])
    return torch.cat(found)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_steps_agree_with_plain_torch(kind):
    assert logits_by(triton_ops.TritonOps, kind).cpu() == pytest.approx(
        logits_by(TorchOps, kind).cpu(), rel=1e-3, abs=1e-3
    )


@pytest.mark.parametrize("kind", ["llama", "mistral, sliding"])
def test_keys_that_several_programs_share_add_up(kind, monkeypatch):
    expected = logits_by(triton_ops.TritonOps, kind)
    monkeypatch.setattr(triton_ops, "_SPLIT_KEYS", 8)
    assert logits_by(triton_ops.TritonOps, kind).cpu() == pytest.approx(expected.cpu(), rel=1e-3, abs=1e-3)


def test_tokens_are_drawn_as_plain_torch_draws_them():
    source = torch.Generator().manual_seed(2)
    logits = (torch.randn(64, 9001, generator=source) * 3).to(DEVICE)
    uniform = torch.rand(64, dtype=torch.float64, generator=source).to(DEVICE)
    temperature = torch.tensor([1.0, 0.5, 0.0, 2.0] * 16, device=DEVICE)
    settings = (temperature, torch.zeros(64, dtype=torch.long, device=DEVICE), torch.ones(64, device=DEVICE))
    token, logprob = sample_rows(logits, uniform, *settings, greedy=True, truncate=False)
    expected_token, expected_logprob = sample(logits, uniform, *settings, greedy=True, truncate=False)
    # Where exp rounds otherwise, a draw at the very edge of two tokens may fall to the other one.
    same = token == expected_token
    assert same.sum() >= 62
    assert logprob[same].cpu() == pytest.approx(expected_logprob[same].cpu(), abs=1e-4)


def test_logits_that_are_not_finite_show():
    logits = torch.full((2, 100), float("nan"), device=DEVICE)
    half = torch.full((2,), 0.5, dtype=torch.float64, device=DEVICE)
    settings = (
        torch.ones(2, device=DEVICE),
        torch.zeros(2, dtype=torch.long, device=DEVICE),
        torch.ones(2, device=DEVICE),
    )
    token, logprob = sample_rows(logits, half, *settings, greedy=False, truncate=False)
    assert not logprob.isfinite().any()
    assert (token < 100).all()
