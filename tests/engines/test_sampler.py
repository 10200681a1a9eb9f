"""The sampler against distributions worked out by hand. A grid of uniforms makes frequencies exact."""

import math

import pytest
import torch

from rollout_proofs import prove_top_p_cuts_between_equals
from turnwise.engines.local.sampling import draw_uniforms, sample

GRID = 2000
LOGITS = torch.tensor([0.05, 0.5, 0.15, 0.3]).log()


def frequencies(logits: torch.Tensor, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> list[float]:
    """How often each token comes up over an even grid of uniforms: its probability, within one cell."""
    rows = logits.repeat(GRID, 1)
    tokens, _ = sample(
        rows,
        (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID,
        torch.full((GRID,), temperature),
        torch.full((GRID,), top_k),
        torch.full((GRID,), top_p),
        greedy=temperature == 0,
        truncate=top_k > 0 or top_p < 1,
    )
    return (torch.bincount(tokens, minlength=len(logits)) / GRID).tolist()


def draw(
    logits: list[list[float]],
    uniform: list[float],
    *,
    temperature: list[float],
    top_k: list[int],
    top_p: list[float],
    flags: tuple[bool, bool] = (True, True),
) -> tuple[list[int], list[float]]:
    token, logprob = sample(
        torch.tensor(logits),
        torch.tensor(uniform, dtype=torch.float64),
        torch.tensor(temperature),
        torch.tensor(top_k),
        torch.tensor(top_p),
        greedy=flags[0],
        truncate=flags[1],
    )
    return token.tolist(), logprob.tolist()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.05, 0.5, 0.15, 0.3]),
        ({"temperature": 0.5}, [0.0025 / 0.365, 0.25 / 0.365, 0.0225 / 0.365, 0.09 / 0.365]),
        ({"top_k": 2}, [0, 0.625, 0, 0.375]),
        ({"top_k": 1}, [0, 1, 0, 0]),
        ({"top_p": 0.79}, [0, 0.625, 0, 0.375]),
        ({"top_p": 0.81}, [0, 0.5 / 0.95, 0.15 / 0.95, 0.3 / 0.95]),
        ({"top_p": 0.0}, [0, 1, 0, 0]),
        ({"top_k": 3, "top_p": 0.83}, [0, 0.625, 0, 0.375]),
        ({"temperature": 0.0}, [0, 1, 0, 0]),
        ({"temperature": 0.0, "top_k": 2, "top_p": 0.1}, [0, 1, 0, 0]),
    ],
)
def test_frequencies_are_the_distribution(settings, expected):
    # top_k=3 and top_p=0.83: of the three kept (mass .95) the first two hold .842 >= .83, so the third goes.
    assert frequencies(LOGITS, **settings) == pytest.approx(expected, abs=1.5 / GRID)


def test_frequencies_of_seeded_uniforms_pass_a_chi_square_test():
    count = 20_000
    uniforms = torch.tensor(draw_uniforms(11, count), dtype=torch.float64)
    ones = torch.ones(count)
    tokens, _ = sample(LOGITS.repeat(count, 1), uniforms, ones, ones.long() * 0, ones, greedy=False, truncate=False)
    expected = LOGITS.exp() * count
    chi_square = ((torch.bincount(tokens, minlength=4) - expected) ** 2 / expected).sum()
    assert chi_square < 16.27  # 3 degrees of freedom, p = 0.001


def test_logprobs_are_those_of_the_distribution_sampled_from():
    probabilities = [0.05, 0.5, 0.15, 0.3]
    tokens, logprobs = draw(
        [[math.log(p) for p in probabilities]] * 4,
        [0.99, 0.99, 0.99, 0.6],
        temperature=[1.0, 0.5, 1.0, 0.0],
        top_k=[0, 0, 2, 0],
        top_p=[1.0, 1.0, 1.0, 0.2],
    )
    assert tokens == [3, 3, 3, 1]
    # Greedy reports the untempered, untruncated probability.
    expected = [0.3, 0.09 / 0.365, 0.375, 0.5]
    assert logprobs == pytest.approx([math.log(p) for p in expected], abs=1e-5)


def test_a_row_does_not_depend_on_what_its_neighbours_ask_for():
    logits = torch.randn(200, 50, generator=torch.Generator().manual_seed(0)).tolist()
    uniform = draw_uniforms(3, 200)
    plain = {"temperature": [0.7] * 200, "top_k": [0] * 200, "top_p": [1.0] * 200}
    alone, alone_logprobs = draw(logits, uniform, **plain, flags=(False, False))
    with_work, with_work_logprobs = draw(logits, uniform, **plain, flags=(True, True))
    assert alone == with_work
    assert alone_logprobs == pytest.approx(with_work_logprobs, abs=1e-6)


def test_impossible_tokens_are_never_sampled_at_the_edges_of_the_unit_interval():
    never = -math.inf
    row = [never, 0.0, never, 0.0, never]
    tokens, logprobs = draw(
        [row] * 4,
        [0.0, 0.5 - 1e-12, 0.5, 1.0],
        temperature=[1.0] * 4,
        top_k=[0] * 4,
        top_p=[1.0] * 4,
    )
    assert tokens == [1, 1, 3, 3]
    assert logprobs == pytest.approx([math.log(0.5)] * 4)


def test_greedy_takes_the_first_of_equals():
    tokens, _ = draw([[0.0, 2.0, 2.0, 1.0]], [0.9], temperature=[0.0], top_k=[0], top_p=[1.0])
    assert tokens == [1]


def test_top_p_cuts_between_equals():
    prove_top_p_cuts_between_equals()


def test_a_long_tail_keeps_its_probability():
    # 150,000 tokens of 1/300,000 each against one of 1/2: sums in single precision would lose some of the tail.
    logits = torch.zeros(1, 150_001)
    logits[0, 0] = math.log(150_000)
    one = torch.ones(1)
    for uniform, token in ((0.25, 0), (0.75, 75_001), (1 - 1e-9, 150_000)):
        drawn, logprob = sample(
            logits, torch.tensor([uniform], dtype=torch.float64), one, one.long() * 0, one, greedy=False, truncate=False
        )
        assert abs(int(drawn) - token) <= 1
        assert float(logprob) == pytest.approx(math.log(0.5 if token == 0 else 1 / 300_000), abs=1e-4)


def test_uniforms_depend_on_the_seed_alone_and_extend_each_other():
    assert draw_uniforms(4, 3) == draw_uniforms(4, 9)[:3]
    assert draw_uniforms(4, 3) != draw_uniforms(5, 3)
    assert all(0 <= uniform < 1 for uniform in draw_uniforms(6, 1000))
