"""An LM head and the softmax over its vocabulary in tiles: logprob and entropy of tokens, with no tensor of all logits.

Invariant: what is kept between forward and backward are two numbers per token; logits live in one tile at a time, and
are computed again where a gradient asks for them. The gradient is plain autograd's:

    z = logits / T,   log Σ = logsumexp z,   log p = z − log Σ,   H = log Σ − Σ p z
    ∂ log p_target / ∂z = 1[target] − p             ∂H / ∂z = −p (log p + H)

Shapes: m tokens, H hidden size, V vocabulary; a tile is [a, c] logits, of some tokens over some of the vocabulary.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn

F = TypeVar("F", bound=Callable[..., object])

_TILE = {"cpu": (2048, 2**20), "cuda": (2**14, 2**27)}
"""The most tokens and the most logits of a tile. On a CPU it stays in the cache; elsewhere it keeps the device busy."""
_ALIGNED = 64
"""Tiles are a multiple of this wide, where that is no wider than the vocabulary: a GPU multiplies others slowly."""

_fused: ContextVar[bool] = ContextVar("_fused", default=False)


@contextmanager
def fusing() -> Iterator[None]:
    """Within it, what is done to a tile on a GPU is one kernel, by torch.compile; so it is in the backward pass."""
    token = _fused.set(True)
    try:
        yield
    finally:
        _fused.reset(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Squash:
    """What becomes of the head's output before the softmax."""

    temperature: float
    softcap: float | None
    """Logits are bent to stay within ± this, as in Gemma; None leaves them."""


def is_plain(head: nn.Module) -> bool:
    """Whether a head is weights and nothing else: not wrapped (adapters), and nobody listens to what it reads."""
    return type(head) is nn.Linear and not head._forward_hooks and not head._forward_pre_hooks


def score_states(
    states: torch.Tensor, head: nn.Linear, target: torch.Tensor, squash: Squash, *, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The logprob [m] of target ids [m] after states [m, H], and the entropy [m] of what they were chosen from.

    Without `entropy`, the second is zero. Products are taken in autocast's type where it is on.
    """
    logprob, spread = _Scores.apply(states, head.weight, head.bias, target, squash, entropy)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return logprob, spread


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        target: torch.Tensor,
        squash: Squash,
        entropy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        fused = states.is_cuda and _fused.get()
        head = _Head.of(states, weight, bias, squash, _product_dtype(weight), fused)
        chosen, log_total, spread = head.look(target, entropy)  # [m]
        ctx.save_for_backward(states, weight, bias, target, log_total, spread)  # type: ignore[arg-type]  # may be None
        ctx.like = squash, head.states.dtype, fused  # type: ignore[attr-defined]  # a bag for whatever we like
        ctx.set_materialize_grads(False)
        return chosen - log_total, spread

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: torch.autograd.function.FunctionCtx, by_logprob: torch.Tensor | None, by_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        states, weight, bias, target, log_total, spread = ctx.saved_tensors  # type: ignore[attr-defined]
        head = _Head.of(states, weight, bias, *ctx.like)  # type: ignore[attr-defined]
        if by_logprob is None:
            by_logprob = torch.zeros_like(log_total)  # [m]
        slope = _Slope(head, *ctx.needs_input_grad[:3])  # type: ignore[attr-defined]
        slope.climb(target, log_total, spread, by_logprob, by_entropy)
        given = ((slope.states, states), (slope.weight, weight), (slope.bias, bias))
        return (*(None if found is None else found.to(like.dtype) for found, like in given), None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """States and weights in the type they are multiplied in, and what follows."""

    states: torch.Tensor
    """[m, H]"""
    weight: torch.Tensor
    """[V, H]"""
    bias: torch.Tensor | None
    """[V]"""
    squash: Squash
    dtype: torch.dtype
    """Of everything after the product: float32, or what is wider."""
    fused: bool

    @classmethod
    def of(
        cls,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        squash: Squash,
        product_dtype: torch.dtype,
        fused: bool,
    ) -> "_Head":
        return cls(
            states=states.detach().to(product_dtype),
            weight=weight.detach().to(product_dtype),
            bias=None if bias is None else bias.detach().to(product_dtype),
            squash=squash,
            dtype=torch.promote_types(product_dtype, torch.float32),
            fused=fused,
        )

    def tiles(self, target: torch.Tensor) -> Iterator["_Tile"]:
        """Tokens within vocabulary, so that each weight is read once and its gradient written once.

        All tiles lie in the same memory, one after the other: fresh pages would cost more than the sums in them.
        """
        tokens, logits = _TILE.get(self.states.device.type, _TILE["cuda"])
        tokens = min(tokens, len(self.states))
        width = _width(len(self.weight), max(1, logits // max(1, tokens)))
        room = self.states.new_empty(tokens * width)
        for first in range(0, len(self.weight), width):
            words = slice(first, min(first + width, len(self.weight)))
            for start in range(0, len(self.states), max(1, tokens)):
                some = slice(start, min(start + tokens, len(self.states)))
                place = target[some] - first  # [a]
                inside = (place >= 0) & (place < words.stop - first)  # [a]
                product = self._multiply(some, words, room)  # [a, c]
                yield _Tile(
                    tokens=some, words=words, product=product, place=place.masked_fill(~inside, 0), inside=inside
                )

    def _multiply(self, tokens: slice, words: slice, room: torch.Tensor) -> torch.Tensor:
        states, weight = self.states[tokens], self.weight[words]  # [a, H], [c, H]
        out = room[: len(states) * len(weight)].view(len(states), len(weight))  # [a, c]
        if self.bias is None:
            return torch.mm(states, weight.T, out=out)
        return torch.addmm(self.bias[words], states, weight.T, out=out)

    def look(self, target: torch.Tensor, entropy: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Each token's own logit [m], the logarithm of the softmax's sum [m], and the entropy [m] or zero."""
        blank = self.states.new_zeros(len(self.states), dtype=self.dtype)  # [m]
        top = torch.full_like(blank, torch.finfo(self.dtype).min)  # [m]
        chosen, total, drift = blank, blank.clone(), blank.clone()  # [m]
        fold = _compiled(_fold) if self.fused else _fold
        for tile in self.tiles(target):
            some = tile.tokens
            chosen[some], top[some], total[some], drift[some] = fold(
                tile.product,
                tile.place,
                tile.inside,
                chosen[some],
                top[some],
                total[some],
                drift[some],
                self.squash,
                self.dtype,
                entropy,
            )
        log_sum = total.log()  # [m]
        return chosen, top + log_sum, log_sum - drift / total if entropy else drift


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tile:
    """The head's output for some tokens over some of the vocabulary."""

    tokens: slice
    words: slice
    product: torch.Tensor
    """[a, c]: to be used up, before the next tile takes its place."""
    place: torch.Tensor
    """[a] long: the column of each token's own id; 0 where it is not among these words."""
    inside: torch.Tensor
    """[a] bool: whether it is."""


class _Slope:
    """Gradients by states [m, H], weights [V, H] and bias [V], summed up tile by tile; None where nobody asks."""

    def __init__(self, head: _Head, for_states: bool, for_weight: bool, for_bias: bool) -> None:
        self._head = head
        self.states = torch.zeros_like(head.states, dtype=head.dtype) if for_states else None
        self.weight = torch.zeros_like(head.weight, dtype=head.dtype) if for_weight else None
        self.bias = head.weight.new_zeros(len(head.weight), dtype=head.dtype) if for_bias else None

    def climb(
        self,
        target: torch.Tensor,
        log_total: torch.Tensor,
        spread: torch.Tensor,
        by_logprob: torch.Tensor,
        by_entropy: torch.Tensor | None,
    ) -> None:
        """Adds the gradient of Σ by_logprob · log p + by_entropy · H, all [m]."""
        head = self._head
        push = by_logprob / head.squash.temperature  # [m]
        lift = None if by_entropy is None else by_entropy / head.squash.temperature  # [m]
        tilt = _compiled(_tilt) if head.fused else _tilt
        for tile in head.tiles(target):
            some = tile.tokens
            slope = tilt(
                tile.product,
                tile.place,
                tile.inside,
                log_total[some],
                spread[some],
                push[some],
                None if lift is None else lift[some],
                head.squash,
                head.dtype,
                head.states.dtype if self.bias is None else head.dtype,
            )  # [a, c]
            if self.bias is not None:
                self.bias[tile.words] += slope.sum(0)
                slope = slope.to(head.states.dtype)
            if self.states is not None:
                _add_product(self.states[some], slope, head.weight[tile.words])
            if self.weight is not None:
                _add_product(self.weight[tile.words], slope.T, head.states[some])


def _width(words: int, most: int) -> int:
    """Of tiles that are equally wide, or nearly: 49,152 words at most 6,808 at a time are eight tiles of 6,144."""
    tiles = -(-words // most)
    even = -(-words // tiles)
    return min(-(-even // _ALIGNED) * _ALIGNED, words)


def _fold(
    product: torch.Tensor,
    place: torch.Tensor,
    inside: torch.Tensor,
    chosen: torch.Tensor,
    top: torch.Tensor,
    total: torch.Tensor,
    drift: torch.Tensor,
    squash: Squash,
    dtype: torch.dtype,
    entropy: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """One more tile [a, c] for the running sums of its tokens, all [a].

    `total` is of exp(z − top) and `drift` of (z − top) exp(z − top), for the largest z so far, `top`; when a larger one
    comes they shrink.
    """
    tile = _squash(product, squash, dtype)  # [a, c]
    chosen = torch.where(inside, tile.gather(1, place[:, None]).squeeze(1), chosen)
    rise = torch.maximum(top, tile.amax(1))
    fall = top - rise
    tile.sub_(rise[:, None])
    power = tile.exp()  # [a, c]
    shrink = fall.exp()
    if entropy:
        drift = shrink * (drift + total * fall) + tile.mul_(power).sum(1)
    return chosen, rise, shrink * total + power.sum(1), drift


def _tilt(
    product: torch.Tensor,
    place: torch.Tensor,
    inside: torch.Tensor,
    log_total: torch.Tensor,
    spread: torch.Tensor,
    push: torch.Tensor,
    lift: torch.Tensor | None,
    squash: Squash,
    dtype: torch.dtype,
    given_in: torch.dtype,
) -> torch.Tensor:
    """The gradient [a, c] by a tile of the head's output, of Σ push · log p + lift · H, all [a]."""
    tile = _squash(product, squash, dtype)  # [a, c]
    bend = None  # [a, c]: what softcapping leaves of a slope
    if squash.softcap is not None:
        bend = 1 - (tile * (squash.temperature / squash.softcap)).square()
    tile.sub_(log_total[:, None])
    if lift is None:
        tile.exp_().mul_(-push[:, None])
    else:
        chance = tile.exp()  # [a, c]
        tile.mul_(-lift[:, None]).sub_((push + lift * spread)[:, None]).mul_(chance)
    own = torch.where(inside, push, 0)[:, None]  # [a, 1]
    if torch.compiler.is_compiling():  # a scatter would be a kernel of its own
        columns = torch.arange(tile.shape[1], device=tile.device)  # [c]
        tile = tile + torch.where(columns == place[:, None], own, 0)
    else:
        tile.scatter_add_(1, place[:, None], own)
    return (tile if bend is None else tile.mul_(bend)).to(given_in)


def _squash(product: torch.Tensor, squash: Squash, dtype: torch.dtype) -> torch.Tensor:
    """What the softmax is taken of, in the place of the product where its type allows."""
    tile = product.to(dtype)
    if squash.softcap is not None:
        return tile.div_(squash.softcap).tanh_().mul_(squash.softcap / squash.temperature)
    return tile if squash.temperature == 1 else tile.div_(squash.temperature)


def _product_dtype(weight: torch.Tensor) -> torch.dtype:
    place = weight.device.type
    if torch.is_autocast_enabled(place) and weight.dtype != torch.double:  # which autocast leaves alone
        return torch.get_autocast_dtype(place)
    return weight.dtype


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """total += left @ right, where the sum may be of a wider type than its factors."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


@functools.cache
def _compiled(step: F) -> F:
    compiled: F = torch.compile(step, dynamic=True)  # type: ignore[assignment]  # it takes and gives the same
    return compiled
