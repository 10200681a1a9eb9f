"""Sampling from logits: temperature, top-k, top-p, then one inverse-CDF draw per row.

Invariant: a row's token depends on its own logits, settings and uniform alone, never on the rows beside it;
and its logprob is that of the distribution it was drawn from. Shapes: B rows, V vocabulary.
"""

import random
from collections.abc import Sequence
from typing import TypedDict

import torch
import torch.nn.functional as F

from turnwise.compute.device import Arriving
from turnwise.engines.base import Sampling

WEIGHT_BITS = 40
"""Probabilities become integers of this many bits: their sums are exact in any order, so the CDF never
falls, a token of no weight is never hit, and 2^18 tokens still fit in 63 bits."""
_SEGMENT = 256
"""The vocabulary is searched by segments of this many tokens."""


class SamplingWork(TypedDict):
    """Which optional parts of sampling any row of a batch needs."""

    greedy: bool
    truncate: bool


def needed_work(samplings: Sequence[Sampling]) -> SamplingWork:
    """The parts of sampling that these settings need."""
    return {
        "greedy": any(sampling.temperature == 0 for sampling in samplings),
        "truncate": any(sampling.top_k > 0 or sampling.top_p < 1 for sampling in samplings),
    }


class PendingTokens:
    """Sampled tokens and their logprobs, on their way to the host."""

    def __init__(self, both: torch.Tensor) -> None:
        """Tokens and logprobs in doubles, [2, B], as `join` makes them."""
        self._both = Arriving(both)

    @staticmethod
    def join(token: torch.Tensor, logprob: torch.Tensor) -> torch.Tensor:
        """Both [B] in one tensor [2, B], for one transfer: doubles hold ids exactly."""
        return torch.stack((token.double(), logprob.double()))

    def wait(self) -> tuple[list[int], list[float]]:
        """Waits for the copy and returns tokens and logprobs."""
        tokens, logprobs = self._both.wait()
        return tokens.long().tolist(), logprobs.tolist()


def draw_uniforms(seed: int, count: int) -> list[float]:
    """The uniforms in [0, 1) of a turn's first `count` tokens, from its seed alone."""
    draw = random.Random(seed).random
    return [draw() for _ in range(count)]


def sample(
    logits: torch.Tensor,
    uniform: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    *,
    greedy: bool,
    truncate: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token per row and its logprob, both [B], from logits [B, V] and four settings [B].

    A temperature of 0 takes the most likely token (the first among equals), whose logprob is that of the
    untempered, untruncated softmax. `greedy` and `truncate`: whether any row needs that work; the other rows
    are the same either way.
    """
    is_greedy = (temperature == 0)[:, None]  # [B, 1]
    scale = temperature[:, None]  # [B, 1]
    if greedy:
        scale = scale.masked_fill(is_greedy, 1.0)
    scaled = logits.float() / scale  # [B, V]
    scaled -= scaled.amax(-1, keepdim=True)  # the most likely token has 0
    mass = scaled.exp()  # [B, V]
    if truncate:
        mass = mass * (_kept(mass, top_k[:, None], top_p[:, None]) | is_greedy)  # [B, V]
    weight = (mass * 2**WEIGHT_BITS).long()  # [B, V]
    draw = uniform[:, None]  # [B, 1]
    if greedy:
        weight = torch.where(is_greedy, (scaled == 0).long(), weight)  # [B, V]
        draw = draw.masked_fill(is_greedy, 0.0)
    token = _find(weight, draw)  # [B, 1]
    # Only logits that are not finite can overshoot; the caller sees it by their logprob, which is not finite either.
    token = token.clamp(max=logits.shape[-1] - 1)
    logprob = scaled.gather(1, token) - mass.sum(-1, keepdim=True).log()  # [B, 1]
    return token[:, 0], logprob[:, 0]


def _find(weight: torch.Tensor, draw: torch.Tensor) -> torch.Tensor:
    """The token [B, 1] at which the running sum of weights [B, V] passes the share `draw` [B, 1] of the whole.

    First the segment of the vocabulary, then the token in it: one running sum over all of V would dominate the time.
    """
    rows, vocabulary = weight.shape
    if vocabulary % _SEGMENT:
        weight = F.pad(weight, (0, -vocabulary % _SEGMENT))
    segments = weight.view(rows, -1, _SEGMENT)  # [B, V / 256, 256]
    cumulative = segments.sum(-1).cumsum(-1)  # [B, V / 256]
    total = cumulative[:, -1:]  # [B, 1]
    target = torch.minimum((draw * total).long(), total - 1)  # [B, 1]
    segment = torch.searchsorted(cumulative, target, right=True).clamp(max=cumulative.shape[1] - 1)  # [B, 1]
    here = segments.gather(1, segment[..., None].expand(-1, -1, _SEGMENT))[:, 0]  # [B, 256]
    rest = target - (cumulative.gather(1, segment) - here.sum(-1, keepdim=True))  # [B, 1]
    return segment * _SEGMENT + torch.searchsorted(here.cumsum(-1), rest, right=True)


def _kept(mass: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Which tokens top-k and then top-p keep, [B, V] bool; the most likely one always stays."""
    ordered, order = torch.sort(mass.double(), dim=-1, descending=True, stable=True)  # [B, V] each
    rank = torch.arange(mass.shape[-1], device=mass.device)  # [V]
    in_top_k = (rank < top_k) | (top_k == 0)  # [B, V]
    ordered = ordered * in_top_k
    total = ordered.sum(-1, keepdim=True)  # [B, 1]
    before = ordered.cumsum(-1) - ordered  # [B, V], mass of the likelier tokens
    in_top_p = (before < top_p * total) | (top_p >= 1) | (rank == 0)  # [B, V]
    return torch.zeros_like(in_top_p).scatter(1, order, in_top_k & in_top_p)
