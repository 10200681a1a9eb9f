"""Sampling from logits: temperature, top-k, top-p, then one inverse-CDF draw per row.

Invariant: a row's token depends on its own logits, settings and uniform alone, never on the rows beside it;
and its logprob is that of the distribution it was drawn from. Shapes: B rows, V vocabulary.
"""

import random

import torch
import torch.nn.functional as F

WEIGHT_BITS = 40
"""Probabilities become integers of this many bits: their sums are exact in any order, so the CDF never
falls, a token of no weight is never hit, and 2^18 tokens still fit in 63 bits."""
_STRETCH = 256
"""Tokens that are summed up together on the way to the one that is drawn."""


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
    untempered, untruncated softmax. `greedy` and `truncate` say whether any row needs that work: rows that
    do not are the same either way.
    """
    is_greedy = (temperature == 0)[:, None]  # [B, 1]
    scale = temperature[:, None]  # [B, 1]
    if greedy:
        scale = scale.masked_fill(is_greedy, 1.0)
    scaled = logits.float() / scale  # [B, V]
    scaled -= scaled.amax(-1, keepdim=True)  # the best is 0
    mass = scaled.exp()  # [B, V]
    if truncate:
        mass = mass * (_kept(mass, top_k[:, None], top_p[:, None]) | is_greedy)  # [B, V]
    weight = (mass * 2**WEIGHT_BITS).long()  # [B, V]
    draw = uniform[:, None]  # [B, 1]
    if greedy:
        weight = torch.where(is_greedy, (scaled == 0).long(), weight)  # [B, V]
        draw = draw.masked_fill(is_greedy, 0.0)
    token = _find(weight, draw)  # [B, 1]
    # Only logits that are not finite can overshoot; their logprob, not a finite number either, tells the caller.
    token = token.clamp(max=logits.shape[-1] - 1)
    logprob = scaled.gather(1, token) - mass.sum(-1, keepdim=True).log()  # [B, 1]
    return token[:, 0], logprob[:, 0]


def _find(weight: torch.Tensor, draw: torch.Tensor) -> torch.Tensor:
    """The token [B, 1] at which the running sum of weights [B, V] passes the share `draw` [B, 1] of the whole.

    First the stretch of the vocabulary, then the token in it: a running sum over all of V takes longer than the rest.
    """
    rows, vocabulary = weight.shape
    if vocabulary % _STRETCH:
        weight = F.pad(weight, (0, -vocabulary % _STRETCH))
    stretches = weight.view(rows, -1, _STRETCH)  # [B, V / 256, 256]
    cumulative = stretches.sum(-1).cumsum(-1)  # [B, V / 256]
    total = cumulative[:, -1:]  # [B, 1]
    target = torch.minimum((draw * total).long(), total - 1)  # [B, 1]
    stretch = torch.searchsorted(cumulative, target, right=True).clamp(max=cumulative.shape[1] - 1)  # [B, 1]
    here = stretches.gather(1, stretch[..., None].expand(-1, -1, _STRETCH))[:, 0]  # [B, 256]
    rest = target - (cumulative.gather(1, stretch) - here.sum(-1, keepdim=True))  # [B, 1]
    return stretch * _STRETCH + torch.searchsorted(here.cumsum(-1), rest, right=True)


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
