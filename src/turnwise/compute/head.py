"""An LM head with the softmax over its vocabulary in tiles: logprobs and entropies without a tensor of all logits.

Invariant: only two numbers per token are saved for the backward pass; logits exist one tile at a time and are
recomputed for gradients. The gradient is that of plain autograd:

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
def compiled_tiles() -> Iterator[None]:
    """Runs the work on each tile as one compiled kernel on a GPU, in forward and backward."""
    token = _fused.set(True)
    try:
        yield
    finally:
        _fused.reset(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitTransform:
    """How logits are changed before the softmax."""

    temperature: float
    softcap: float | None
    """cap · tanh(logit / cap), as in Gemma; None disables."""


def is_unmodified_linear(head: nn.Module) -> bool:
    """Whether a head is a linear layer without adapter or hooks, so that its weights are all of it."""
    return type(head) is nn.Linear and not head._forward_hooks and not head._forward_pre_hooks


def score_states(
    states: torch.Tensor, head: nn.Linear, target: torch.Tensor, transform: LogitTransform, *, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The logprob [m] of target ids [m] after states [m, H], and the entropy [m] of their distributions.

    Without `entropy`, the second is zero. Matrix products are in autocast's type where it is on.
    """
    logprob, entropies = _Scores.apply(states, head.weight, head.bias, target, transform, entropy)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return logprob, entropies


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        target: torch.Tensor,
        transform: LogitTransform,
        with_entropy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        fused = states.is_cuda and _fused.get()
        head = _Head.of(states, weight, bias, transform, _product_dtype(weight), fused)
        chosen, log_total, entropy = head.reduce(target, with_entropy)  # [m]
        ctx.save_for_backward(states, weight, bias, target, log_total, entropy)  # type: ignore[arg-type]  # may be None
        ctx.like = transform, head.states.dtype, fused  # type: ignore[attr-defined]  # for backward
        ctx.set_materialize_grads(False)
        return chosen - log_total, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: torch.autograd.function.FunctionCtx, grad_logprob: torch.Tensor | None, grad_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        states, weight, bias, target, log_total, entropy = ctx.saved_tensors  # type: ignore[attr-defined]
        head = _Head.of(states, weight, bias, *ctx.like)  # type: ignore[attr-defined]
        if grad_logprob is None:
            grad_logprob = torch.zeros_like(log_total)  # [m]
        gradients = _HeadGradients(head, *ctx.needs_input_grad[:3])  # type: ignore[attr-defined]
        gradients.accumulate(target, log_total, entropy, grad_logprob, grad_entropy)
        found = ((gradients.states, states), (gradients.weight, weight), (gradients.bias, bias))
        return (*(None if gradient is None else gradient.to(like.dtype) for gradient, like in found), None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """States and weights in the type of matrix products."""

    states: torch.Tensor
    """[m, H]"""
    weight: torch.Tensor
    """[V, H]"""
    bias: torch.Tensor | None
    """[V]"""
    transform: LogitTransform
    dtype: torch.dtype
    """Of everything after the product: float32 or wider."""
    fused: bool

    @classmethod
    def of(
        cls,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        transform: LogitTransform,
        product_dtype: torch.dtype,
        fused: bool,
    ) -> "_Head":
        return cls(
            states=states.detach().to(product_dtype),
            weight=weight.detach().to(product_dtype),
            bias=None if bias is None else bias.detach().to(product_dtype),
            transform=transform,
            dtype=torch.promote_types(product_dtype, torch.float32),
            fused=fused,
        )

    def tiles(self, target: torch.Tensor) -> Iterator["_Tile"]:
        """Tiles with tokens as the inner loop, so that each weight is read once and its gradient written once.

        All tiles reuse the same memory: fresh pages would cost more than the sums in them.
        """
        tokens, logits = _TILE.get(self.states.device.type, _TILE["cuda"])
        tokens = min(tokens, len(self.states))
        width = _tile_width(len(self.weight), max(1, logits // max(1, tokens)))
        buffer = self.states.new_empty(tokens * width)
        for first in range(0, len(self.weight), width):
            vocab = slice(first, min(first + width, len(self.weight)))
            for start in range(0, len(self.states), max(1, tokens)):
                rows = slice(start, min(start + tokens, len(self.states)))
                place = target[rows] - first  # [a]
                inside = (place >= 0) & (place < vocab.stop - first)  # [a]
                product = self._multiply(rows, vocab, buffer)  # [a, c]
                yield _Tile(
                    tokens=rows, vocab=vocab, product=product, place=place.masked_fill(~inside, 0), inside=inside
                )

    def _multiply(self, tokens: slice, vocab: slice, buffer: torch.Tensor) -> torch.Tensor:
        states, weight = self.states[tokens], self.weight[vocab]  # [a, H], [c, H]
        out = buffer[: len(states) * len(weight)].view(len(states), len(weight))  # [a, c]
        if self.bias is None:
            return torch.mm(states, weight.T, out=out)
        return torch.addmm(self.bias[vocab], states, weight.T, out=out)

    def reduce(self, target: torch.Tensor, with_entropy: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The logit of each target [m], the logsumexp [m], and the entropy [m] or zero."""
        zeros = self.states.new_zeros(len(self.states), dtype=self.dtype)  # [m]
        top = torch.full_like(zeros, torch.finfo(self.dtype).min)  # [m]
        chosen, total, weighted = zeros, zeros.clone(), zeros.clone()  # [m]
        accumulate = _compiled(_accumulate_logsumexp) if self.fused else _accumulate_logsumexp
        for tile in self.tiles(target):
            rows = tile.tokens
            chosen[rows], top[rows], total[rows], weighted[rows] = accumulate(
                tile.product,
                tile.place,
                tile.inside,
                chosen[rows],
                top[rows],
                total[rows],
                weighted[rows],
                self.transform,
                self.dtype,
                with_entropy,
            )
        log_sum = total.log()  # [m]
        return chosen, top + log_sum, log_sum - weighted / total if with_entropy else weighted


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tile:
    """The head's output for some tokens over some of the vocabulary."""

    tokens: slice
    vocab: slice
    product: torch.Tensor
    """[a, c]: overwritten by the next tile."""
    place: torch.Tensor
    """[a] long: the column of each target; 0 where it is outside this tile."""
    inside: torch.Tensor
    """[a] bool: whether the target is inside."""


class _HeadGradients:
    """Gradients by states [m, H], weights [V, H] and bias [V], accumulated over tiles; None if not needed."""

    def __init__(self, head: _Head, for_states: bool, for_weight: bool, for_bias: bool) -> None:
        self._head = head
        self.states = torch.zeros_like(head.states, dtype=head.dtype) if for_states else None
        self.weight = torch.zeros_like(head.weight, dtype=head.dtype) if for_weight else None
        self.bias = head.weight.new_zeros(len(head.weight), dtype=head.dtype) if for_bias else None

    def accumulate(
        self,
        target: torch.Tensor,
        log_total: torch.Tensor,
        entropy: torch.Tensor,
        grad_logprob: torch.Tensor,
        grad_entropy: torch.Tensor | None,
    ) -> None:
        """Adds the gradient of Σ grad_logprob · log p + grad_entropy · H, all [m]."""
        head = self._head
        logprob_grad = grad_logprob / head.transform.temperature  # [m]
        entropy_grad = None if grad_entropy is None else grad_entropy / head.transform.temperature  # [m]
        logit_grad = _compiled(_logit_grad) if head.fused else _logit_grad
        for tile in head.tiles(target):
            rows = tile.tokens
            grad = logit_grad(
                tile.product,
                tile.place,
                tile.inside,
                log_total[rows],
                entropy[rows],
                logprob_grad[rows],
                None if entropy_grad is None else entropy_grad[rows],
                head.transform,
                head.dtype,
                head.states.dtype if self.bias is None else head.dtype,
            )  # [a, c]
            if self.bias is not None:
                self.bias[tile.vocab] += grad.sum(0)
                grad = grad.to(head.states.dtype)
            if self.states is not None:
                _add_product(self.states[rows], grad, head.weight[tile.vocab])
            if self.weight is not None:
                _add_product(self.weight[tile.vocab], grad.T, head.states[rows])


def _tile_width(vocab: int, most: int) -> int:
    """The width of nearly equal tiles: a vocabulary of 49,152, at most 6,808 at a time, is eight tiles of 6,144."""
    tiles = -(-vocab // most)
    even = -(-vocab // tiles)
    return min(-(-even // _ALIGNED) * _ALIGNED, vocab)


def _accumulate_logsumexp(
    product: torch.Tensor,
    place: torch.Tensor,
    inside: torch.Tensor,
    chosen: torch.Tensor,
    top: torch.Tensor,
    total: torch.Tensor,
    weighted: torch.Tensor,
    transform: LogitTransform,
    dtype: torch.dtype,
    with_entropy: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Adds one tile [a, c] to the running sums of its tokens, all [a].

    `total` is Σ exp(z − top) and `weighted` is Σ (z − top) exp(z − top), for the largest z so far, `top`; both are
    rescaled when a larger one comes.
    """
    tile = _transform_logits(product, transform, dtype)  # [a, c]
    chosen = torch.where(inside, tile.gather(1, place[:, None]).squeeze(1), chosen)
    new_top = torch.maximum(top, tile.amax(1))
    change = top - new_top
    tile.sub_(new_top[:, None])
    exp = tile.exp()  # [a, c]
    rescale = change.exp()
    if with_entropy:
        weighted = rescale * (weighted + total * change) + tile.mul_(exp).sum(1)
    return chosen, new_top, rescale * total + exp.sum(1), weighted


def _logit_grad(
    product: torch.Tensor,
    place: torch.Tensor,
    inside: torch.Tensor,
    log_total: torch.Tensor,
    entropy: torch.Tensor,
    logprob_grad: torch.Tensor,
    entropy_grad: torch.Tensor | None,
    transform: LogitTransform,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """The gradient [a, c] by a tile of the head's output, of Σ logprob_grad · log p + entropy_grad · H, all [a]."""
    tile = _transform_logits(product, transform, dtype)  # [a, c]
    softcap_grad = None  # [a, c]: the derivative of softcapping
    if transform.softcap is not None:
        softcap_grad = 1 - (tile * (transform.temperature / transform.softcap)).square()
    tile.sub_(log_total[:, None])
    if entropy_grad is None:
        tile.exp_().mul_(-logprob_grad[:, None])
    else:
        probability = tile.exp()  # [a, c]
        tile.mul_(-entropy_grad[:, None]).sub_((logprob_grad + entropy_grad * entropy)[:, None]).mul_(probability)
    own = torch.where(inside, logprob_grad, 0)[:, None]  # [a, 1]
    if torch.compiler.is_compiling():  # a scatter would be a kernel of its own
        columns = torch.arange(tile.shape[1], device=tile.device)  # [c]
        tile = tile + torch.where(columns == place[:, None], own, 0)
    else:
        tile.scatter_add_(1, place[:, None], own)
    return (tile if softcap_grad is None else tile.mul_(softcap_grad)).to(out_dtype)


def _transform_logits(product: torch.Tensor, transform: LogitTransform, dtype: torch.dtype) -> torch.Tensor:
    """The logits that the softmax is taken of, computed in place where the type allows."""
    tile = product.to(dtype)
    if transform.softcap is not None:
        return tile.div_(transform.softcap).tanh_().mul_(transform.softcap / transform.temperature)
    return tile if transform.temperature == 1 else tile.div_(transform.temperature)


def _product_dtype(weight: torch.Tensor) -> torch.dtype:
    device = weight.device.type
    if torch.is_autocast_enabled(device) and weight.dtype != torch.double:  # which autocast leaves alone
        return torch.get_autocast_dtype(device)
    return weight.dtype


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """total += left @ right, where the sum may be of a wider type than its factors."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


@functools.cache
def _compiled(step: F) -> F:
    compiled: F = torch.compile(step, dynamic=True)  # type: ignore[assignment]  # same signature
    return compiled
