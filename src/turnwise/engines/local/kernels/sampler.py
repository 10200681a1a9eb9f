"""Sampling in one kernel: as `sampling.sample`, in three passes over the logits and with no tensor of their size.

Invariant: as there, probabilities are integers of 40 bits, so a token of no weight is never hit; top-k and top-p,
which must sort, are left to that function. Shapes: B rows, V vocabulary.
"""

import torch
import triton
import triton.language as tl

from turnwise.engines.local.sampling import WEIGHT_BITS, sample

_BLOCK = 4096


def sample_rows(
    logits: torch.Tensor,
    uniform: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    *,
    greedy: bool,
    truncate: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token per row and its logprob, both [B], from logits [B, V] of any type and four settings [B]."""
    if truncate:
        return sample(logits, uniform, temperature, top_k, top_p, greedy=greedy, truncate=truncate)
    rows, vocabulary = logits.shape
    token = torch.empty(rows, dtype=torch.long, device=logits.device)
    logprob = torch.empty(rows, dtype=torch.float32, device=logits.device)
    sample_kernel[(rows,)](
        logits,
        uniform,
        temperature,
        token,
        logprob,
        vocabulary,
        logits.stride(0),
        WHOLE=float(2**WEIGHT_BITS),
        BLOCK=_BLOCK,
        num_warps=8,
    )
    return token, logprob


@triton.jit
def sample_kernel(
    logits,  # [B, V]
    uniform,  # [B]
    temperature,  # [B]
    token,  # [B]
    logprob,  # [B]
    vocabulary,
    row_stride,
    WHOLE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a row: the maximum, then the sums, then the token at which the sum reaches the draw."""
    row = tl.program_id(0).to(tl.int64)
    scale = tl.load(temperature + row)
    is_greedy = scale == 0.0
    scale = tl.where(is_greedy, 1.0, scale)
    source = logits + row * row_stride
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(source + column, mask=column < vocabulary, other=float("-inf")).to(tl.float32)
        best = tl.maximum(best, x / scale)
    top = tl.max(best, axis=0)
    mass = tl.zeros([BLOCK], tl.float32)
    weights = tl.zeros([BLOCK], tl.int64)
    for start in range(0, vocabulary, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(source + column, mask=column < vocabulary, other=float("-inf")).to(tl.float32)
        scaled = x / scale - top
        probability = tl.exp(scaled)
        mass += probability
        weights += tl.where(is_greedy, (scaled == 0.0).to(tl.int64), (probability * WHOLE).to(tl.int64))
    whole = tl.sum(weights, axis=0)
    draw = tl.where(is_greedy, 0.0, tl.load(uniform + row))
    target = tl.minimum((draw * whole.to(tl.float64)).to(tl.int64), whole - 1)
    cumulative = tl.zeros([], tl.int64)
    found = tl.zeros([], tl.int64)
    chosen = tl.full([], float("-inf"), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(source + column, mask=column < vocabulary, other=float("-inf")).to(tl.float32)
        scaled = x / scale - top
        weight = tl.where(is_greedy, (scaled == 0.0).to(tl.int64), (tl.exp(scaled) * WHOLE).to(tl.int64))
        here = tl.sum(weight, axis=0)
        if (cumulative <= target) & (target < cumulative + here):
            before = cumulative + tl.cumsum(weight, axis=0)  # with the token itself
            found = start + tl.sum((before <= target).to(tl.int64), axis=0)
            chosen = tl.max(tl.where(column == found, scaled, float("-inf")), axis=0)
        cumulative += here
    # With logits that are not finite no token is found; the caller sees it by the logprob, which is not finite either.
    tl.store(token + row, tl.minimum(found, vocabulary - 1))
    tl.store(logprob + row, chosen - tl.log(tl.sum(mass, axis=0)))
