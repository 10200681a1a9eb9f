"""Attention over rows that lie end to end, each row alone: it costs what the rows cost, not the square of them all.

Invariant: a token sees what came before it in its own row, and nothing else; no mask over the micro-batch is ever
built. A model attends so only within `attending_by_rows`, and as it did before outside of it.
Shapes: W tokens of rows end to end, in S pieces (a row, or what is left of one whose prompt is read in another); H
heads of queries and K of keys and values, D wide; a tokens of one piece, b of what it sees.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypedDict

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import varlen
from transformers import AttentionInterface, PreTrainedModel

from turnwise.compute.device import send
from turnwise.compute.layout import count_on
from turnwise.errors import ModelError

BY_ROWS = "turnwise_by_rows"
"""The name of this attention in transformers; having no mask function of that name, it is given no mask."""

_varlen_attention: Callable[..., object] = varlen.varlen_attn
if "enable_gqa" in inspect.signature(varlen.varlen_attn).parameters:
    # Older versions take fewer heads of keys and values without being told.
    _varlen_attention = functools.partial(varlen.varlen_attn, enable_gqa=True)


class RowArguments(TypedDict):
    """How rows lie, under the names that transformers hands down to attention; lengths on the host."""

    cu_seq_lens_q: torch.Tensor
    """[S + 1] int: where pieces begin and end among the queries."""
    cu_seq_lens_k: torch.Tensor
    """[S + 1] int: where what they see does, among the keys once `seen_keys` has chosen them."""
    max_length_q: int
    max_length_k: int
    seen_keys: torch.Tensor | None
    """Long: the keys of all pieces, piece after piece; None where each piece sees itself alone."""


def describe_rows(positions: torch.Tensor, device: torch.device) -> RowArguments:
    """Reads off positions [1, W] where rows begin: at 0, or at p in a row that goes on from the last row's first p.

    Positions 0 1 2 3 | 2 3 4 | 0 1 are a row of four, one of five that shares its first two tokens, and one of two.
    """
    place = positions[0].cpu()  # [W]
    opens = torch.ones_like(place, dtype=torch.bool)  # [W]
    opens[1:] = place.diff() != 1
    start = opens.nonzero().flatten()  # [S]
    shared = place[start]  # [S]
    length = torch.cat([start[1:], torch.tensor([len(place)])]) - start  # [S]
    head = torch.where(shared == 0, start, 0).cummax(0).values  # [S]: where the row whose beginning it shares begins
    seen = _seen(start, length, head, shared) if shared.any() else None
    return {
        "cu_seq_lens_q": of_any_length(send(_offsets(length), device)),
        "cu_seq_lens_k": of_any_length(send(_offsets(shared + length), device)),
        "max_length_q": _rounded(int(length.max())),
        "max_length_k": _rounded(int((shared + length).max())),
        "seen_keys": None if seen is None else of_any_length(send(seen, device)),
    }


def of_any_length(tensor: torch.Tensor) -> torch.Tensor:
    """Tells torch.compile that another micro-batch has another number of these, so that one compilation does."""
    torch._dynamo.maybe_mark_dynamic(tensor, tensor.dim() - 1)
    return tensor


@contextmanager
def attending_by_rows(*modules: nn.Module) -> Iterator[None]:
    """Within it, every model inside the modules attends by rows; what it did before is put back."""
    configs = {
        id(model.config): model.config
        for module in modules
        for model in module.modules()
        if isinstance(model, PreTrainedModel)
    }
    before = {key: config._attn_implementation for key, config in configs.items()}
    try:
        for config in configs.values():
            config._attn_implementation = BY_ROWS
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = before[key]


def is_by_rows(trunk: nn.Module) -> bool:
    """Whether a trunk attends by rows at the moment."""
    return getattr(getattr(trunk, "config", None), "_attn_implementation", None) == BY_ROWS


def tells_attention_all(trunk: nn.Module) -> bool:
    """Whether attention hears of everything, windows too, in its arguments: then it can do without a mask.

    Flash attention takes no mask either, so models that can use it do so.
    """
    return (
        isinstance(trunk, PreTrainedModel)
        and bool(getattr(trunk, "_supports_flash_attn", False))
        and bool(getattr(trunk, "_supports_attention_backend", False))
    )


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k: torch.Tensor | None = None,
    max_length_q: int = 0,
    max_length_k: int = 0,
    seen_keys: torch.Tensor | None = None,
    **others: object,
) -> tuple[torch.Tensor, None]:
    """Attention [1, W, H, D] of queries [1, H, W, D] over keys and values [1, K, W, D], by transformers' interface."""
    if unknown := [name for name in ("softcap", "s_aux", "position_bias") if others.get(name) is not None]:
        raise ModelError(f"attention with {unknown[0]} is not known by rows: set learner.packing: false")
    # Under autocast, positions are added in the weights' type: only what comes from a product is in autocast's.
    query, key = query.to(value.dtype), key.to(value.dtype)
    if cu_seq_lens_q is None or cu_seq_lens_k is None:
        return _attend_piece(query, key, value, scaling, dropout, sliding_window).transpose(1, 2), None
    if dropout == 0 and _has_kernel(query):
        window = (-1 if sliding_window is None else sliding_window - 1, 0)
        found = _varlen_attention(
            query[0].transpose(0, 1),  # [W, H, D]
            _choose(key[0].transpose(0, 1), seen_keys),
            _choose(value[0].transpose(0, 1), seen_keys),
            cu_seq_lens_q,
            cu_seq_lens_k,
            max_length_q,
            max_length_k,
            scale=scaling,
            window_size=window,
        )
        assert isinstance(found, torch.Tensor)
        return found[None], None
    return _attend_pieces(query, key, value, cu_seq_lens_q, cu_seq_lens_k, scaling, dropout, sliding_window), None


def _has_kernel(query: torch.Tensor) -> bool:
    """Whether one kernel can run over all pieces: flash attention, on a GPU, in half precision."""
    width = query.shape[-1]
    return query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and width <= 256 and width % 8 == 0


def _choose(states: torch.Tensor, seen: torch.Tensor | None) -> torch.Tensor:
    """Keys or values [W, K, D] of all pieces, piece after piece; their gradients are added up in float32."""
    if seen is None:
        return states
    return states.float().index_select(0, seen).to(states.dtype)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # torch leaves it untyped
def _attend_pieces(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_offsets: torch.Tensor,
    key_offsets: torch.Tensor,
    scaling: float | None,
    dropout: float,
    window: int | None,
) -> torch.Tensor:
    """Piece by piece [1, W, H, D]. Splitting has one backward for all pieces, where slices would have one each."""
    lengths: list[int] = query_offsets.diff().tolist()
    shared: list[int] = (key_offsets.diff() - query_offsets.diff()).tolist()
    queries, keys, values = (torch.split(states, lengths, dim=2) for states in (query, key, value))
    found: list[torch.Tensor] = []
    head = 0
    for piece, prompt in enumerate(shared):
        if prompt == 0:
            head = piece
        found.append(
            _attend_piece(
                queries[piece],
                _behind(keys, piece, head, prompt),
                _behind(values, piece, head, prompt),
                scaling,
                dropout,
                window,
            )
        )
    return torch.cat(found, dim=2).transpose(1, 2)  # [1, W, H, D]


def _behind(pieces: Sequence[torch.Tensor], piece: int, head: int, prompt: int) -> torch.Tensor:
    """What a piece sees [1, K, b, D]: the prompt it shares, and itself."""
    if prompt == 0:
        return pieces[piece]
    return torch.cat([pieces[head][:, :, :prompt], pieces[piece]], dim=2)


def _attend_piece(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
    dropout: float,
    window: int | None,
) -> torch.Tensor:
    """One piece [1, H, a, D] over what it sees [1, K, b, D], of which it is the end."""
    own, seen = query.shape[2], key.shape[2]
    plain = own == seen and (window is None or window >= seen)
    mask = None if plain else _mask(own, seen, window, query.device)  # [a, b]
    return F.scaled_dot_product_attention(
        query, key, value, mask, dropout, is_causal=plain, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )


def _mask(own: int, seen: int, window: int | None, device: torch.device) -> torch.Tensor:
    mask = torch.ones(own, seen, dtype=torch.bool, device=device).tril(seen - own)
    return mask if window is None else mask.triu(seen - own - window + 1)


def _seen(start: torch.Tensor, length: torch.Tensor, head: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    """The keys of every piece, one after the other: the prompt it shares, then its own."""
    first, count = torch.stack((head, start), 1).flatten(), torch.stack((shared, length), 1).flatten()  # [2S]
    return count_on(first, count)


def _offsets(length: torch.Tensor) -> torch.Tensor:
    return F.pad(length.cumsum(0), (1, 0)).int()  # [S + 1]


def _rounded(length: int) -> int:
    """A kernel only needs a bound, and compiled code is compiled anew for every other one."""
    return -(-length // 256) * 256


AttentionInterface.register(BY_ROWS, attend)
