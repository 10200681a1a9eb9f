"""The Triton kernels against torch: on a GPU, or through Triton's interpreter (see conftest.py)."""

import sys
from collections.abc import Sequence

import pytest
import torch

from tiny_models import ALL_KINDS, VOCABULARY, make_model
from turnwise.engines.local.architecture import read_architecture
from turnwise.engines.local.cache import DecodeInputs, KVCache, PrefillInputs
from turnwise.engines.local.forward import read_windows
from turnwise.engines.local.fused import FusedForward
from turnwise.engines.local.sampling import sample
from turnwise.engines.local.torch_ops import TorchOps

if sys.platform != "linux":
    pytest.skip("Triton is for Linux", allow_module_level=True)

from turnwise.engines.local.kernels import ops as triton_ops  # needs Triton
from turnwise.engines.local.kernels.sampler import sample_rows

pytestmark = pytest.mark.slow  # where they run through the interpreter
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SLOTS, CAPACITY = 4, 128


class Session:
    """A forward over a cache of four slots, fed with the same random tokens whatever ops it runs on."""

    def __init__(self, make_ops, kind: str) -> None:
        model = make_model(kind)
        architecture = read_architecture(model, read_windows(model))
        self.cache = KVCache(rows=SLOTS, dtype=None)
        self.cache.reserve(CAPACITY, SLOTS)
        ops = make_ops(architecture, positions=160, dtype=torch.float32, device=DEVICE)
        self.forward = FusedForward(architecture, self.cache, ops, dtype=None)
        self.source = torch.Generator().manual_seed(1)

    def prefill(self, slots: list[int], starts: list[int], widths: list[int]) -> torch.Tensor:
        """Logits [M, V] after uneven chunks, each from its own start."""
        chunk = torch.tensor([index for index, width in enumerate(widths) for _ in range(width)], device=DEVICE)
        column = torch.tensor([place for width in widths for place in range(width)], device=DEVICE)
        slot, start = torch.tensor(slots, device=DEVICE), torch.tensor(starts, device=DEVICE)
        inputs = PrefillInputs(
            ids=self._draw(sum(widths)),
            positions=start[chunk] + column,
            rows=slot[chunk],
            chunk=chunk,
            column=column,
            starts=torch.tensor([0, *widths], device=DEVICE).cumsum(0),
            slots=slot,
            width=max(widths),
            length=CAPACITY,
        )
        with torch.inference_mode():
            return self.forward.prefill(inputs).cpu()

    def decode(self, positions: list[int], rows: Sequence[int] = (0, 1, 2)) -> torch.Tensor:
        """Logits [3, V] after a token in each slot but the last, which is idle."""
        inputs = DecodeInputs(
            ids=self._draw(SLOTS),
            positions=torch.tensor([*positions, 0], device=DEVICE),
            rows=torch.tensor([*rows, self.cache.spare], device=DEVICE),
            length=CAPACITY,
        )
        with torch.inference_mode():
            return self.forward.decode(inputs)[:3].cpu()

    def _draw(self, count: int) -> torch.Tensor:
        return torch.randint(0, VOCABULARY, (count,), generator=self.source).to(DEVICE)


def assert_agree(kind: str, play) -> None:
    found, expected = (play(Session(make_ops, kind)) for make_ops in (triton_ops.TritonOps, TorchOps))
    assert torch.cat(found) == pytest.approx(torch.cat(expected), rel=1e-3, abs=1e-3)


def play_short(session: Session) -> list[torch.Tensor]:
    """Uneven chunks, then decode steps within a sliding window of nine keys and past it."""
    prefill = session.prefill(slots=[2, 0, 1], starts=[0, 0, 0], widths=[5, 2, 9])
    return [prefill, *(session.decode([2 + step, 9 + step, 5 + step]) for step in (0, 7))]


def play_long(session: Session) -> list[torch.Tensor]:
    """Several blocks of queries and of keys. Positions skip some: keys never written are zeros for all ops."""
    prefill = session.prefill(slots=[1, 0], starts=[19, 10], widths=[34, 2])
    return [prefill, session.decode([12, 53, 3]), session.decode([72, 113, 63])]


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_kernels_agree_with_torch(kind):
    assert_agree(kind, play_short)


@pytest.mark.parametrize("kind", ["llama", "gemma2, capped, half sliding"])
def test_blocks_of_keys_and_queries_add_up(kind):
    assert_agree(kind, play_long)


@pytest.mark.parametrize("kind", ["llama", "mistral, sliding"])
def test_keys_that_several_programs_share_add_up(kind, monkeypatch):
    monkeypatch.setattr(triton_ops, "_SPLIT_KEYS", 32)
    assert triton_ops._count_splits(SLOTS * 2, CAPACITY) == 4
    assert_agree(kind, lambda session: [*play_short(session), session.decode([40, 70, 127])])


@pytest.mark.parametrize("kind", ["llama", "mistral, sliding"])
def test_keys_are_read_in_the_rows_of_their_slots(kind):
    """Three conversations, prefilled in one order of rows and in another, decode alike."""
    play = ((2, 0, 1), (0, 1, 2))
    found = []
    for rows in play:
        session = Session(triton_ops.TritonOps, kind)
        session.prefill(slots=list(rows), starts=[0, 0, 0], widths=[5, 2, 9])
        found.append(torch.cat([session.decode([5 + step, 2 + step, 9 + step], rows) for step in (0, 1)]))
    assert found[0].equal(found[1])


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
