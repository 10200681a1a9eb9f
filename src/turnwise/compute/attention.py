"""Variable-length attention over packed rows, each row alone: the cost is that of the rows, not the square of the pack.

Invariant: a token attends to earlier tokens of its own row, and to nothing else; no mask over the micro-batch is ever
built. A model attends so only within `varlen_attention`; its own attention is restored after.
Shapes: W tokens of packed rows, in S pieces (a row, or the rest of one whose prompt another row holds); H
heads of queries and K of keys and values, D wide; a tokens of one piece, b keys that it attends to.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypedDict

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import varlen
from transformers import AttentionInterface, PreTrainedModel

from turnwise.compute.device import send
from turnwise.compute.layout import concatenate_ranges
from turnwise.errors import ModelError

VARLEN_ATTENTION = "turnwise_varlen"
"""The name of this attention in transformers, which has no mask function of that name and so makes no mask."""

_COMPILED_BOUND = 4096
"""The least upper bound of a row's length in compiled code: blocks of the kernel past a row's end return at once."""
_for_compiled_code: ContextVar[bool] = ContextVar("_for_compiled_code", default=False)

_varlen_kernel: Callable[..., object] = varlen.varlen_attn
if "enable_gqa" in inspect.signature(varlen.varlen_attn).parameters:
    # Older versions take fewer heads of keys and values without this argument.
    _varlen_kernel = functools.partial(varlen.varlen_attn, enable_gqa=True)


class VarlenArguments(TypedDict):
    """The bounds of packed rows, under the names that transformers passes to attention; lengths on the host."""

    cu_seq_lens_q: torch.Tensor
    """[S + 1] int: the bounds of pieces among the queries."""
    cu_seq_lens_k: torch.Tensor
    """[S + 1] int: the bounds of their keys, after `key_index` has gathered them."""
    max_length_q: int
    max_length_k: int
    key_index: torch.Tensor | None
    """Long: the keys of all pieces, concatenated; None where each piece attends to itself alone."""


def varlen_arguments(positions: torch.Tensor, device: torch.device) -> VarlenArguments:
    """The bounds of rows from positions [1, W]: a row begins at 0, or at p if it shares the last row's first p tokens.

    Positions 0 1 2 3 | 2 3 4 | 0 1 are a row of four, one of five that shares its first two tokens, and one of two.
    """
    place = positions[0].cpu()  # [W]
    opens = torch.ones_like(place, dtype=torch.bool)  # [W]
    opens[1:] = place.diff() != 1
    start = opens.nonzero().flatten()  # [S]
    shared = place[start]  # [S]
    length = torch.cat([start[1:], torch.tensor([len(place)])]) - start  # [S]
    head = torch.where(shared == 0, start, 0).cummax(0).values  # [S]: the start of the row whose prompt it shares
    compiled = _for_compiled_code.get()
    bound = _compiled_bound if compiled else _rounded
    keys = _key_index(start, length, head, shared) if compiled or shared.any() else None
    return {
        "cu_seq_lens_q": mark_dynamic_length(send(_offsets(length), device)),
        "cu_seq_lens_k": mark_dynamic_length(send(_offsets(shared + length), device)),
        "max_length_q": bound(int(length.max())),
        "max_length_k": bound(int((shared + length).max())),
        "key_index": None if keys is None else mark_dynamic_length(send(keys, device)),
    }


def mark_dynamic_length(tensor: torch.Tensor) -> torch.Tensor:
    """Marks the last dimension as dynamic for torch.compile, so that one compilation serves every micro-batch."""
    torch._dynamo.maybe_mark_dynamic(tensor, tensor.dim() - 1)
    return tensor


@contextmanager
def same_arguments() -> Iterator[None]:
    """Within it, arguments differ in their values alone, so that code compiled for one micro-batch serves every other.

    Otherwise a micro-batch that shares no prompt, or whose longest row is longer than any before it, would be
    compiled for again, minutes into a run.
    """
    token = _for_compiled_code.set(True)
    try:
        yield
    finally:
        _for_compiled_code.reset(token)


@contextmanager
def varlen_attention(*modules: nn.Module) -> Iterator[None]:
    """Makes every model inside the modules attend row by row, and restores its own attention after."""
    configs = {
        id(model.config): model.config
        for module in modules
        for model in module.modules()
        if isinstance(model, PreTrainedModel)
    }
    before = {key: config._attn_implementation for key, config in configs.items()}
    try:
        for config in configs.values():
            config._attn_implementation = VARLEN_ATTENTION
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = before[key]


def uses_varlen_attention(backbone: nn.Module) -> bool:
    """Whether a backbone attends row by row at the moment."""
    return getattr(getattr(backbone, "config", None), "_attn_implementation", None) == VARLEN_ATTENTION


def needs_no_mask(backbone: nn.Module) -> bool:
    """Whether the model passes everything that attention needs, windows too, as arguments rather than in a mask.

    Models that support flash attention, which takes no mask, do.
    """
    return (
        isinstance(backbone, PreTrainedModel)
        and bool(getattr(backbone, "_supports_flash_attn", False))
        and bool(getattr(backbone, "_supports_attention_backend", False))
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
    key_index: torch.Tensor | None = None,
    **others: object,
) -> tuple[torch.Tensor, None]:
    """Attention [1, W, H, D] of queries [1, H, W, D] over keys and values [1, K, W, D], by transformers' interface."""
    if unknown := [name for name in ("softcap", "s_aux", "position_bias") if others.get(name) is not None]:
        raise ModelError(f"attention with {unknown[0]} is not supported over packed rows")
    # Under autocast, rotary embeddings are in the weights' type and only matrix products in autocast's.
    query, key = query.to(value.dtype), key.to(value.dtype)
    if cu_seq_lens_q is None or cu_seq_lens_k is None:
        return _attend_piece(query, key, value, scaling, dropout, sliding_window).transpose(1, 2), None
    if dropout == 0 and _has_kernel(query):
        window = (-1 if sliding_window is None else sliding_window - 1, 0)
        found = _varlen_kernel(
            query[0].transpose(0, 1),  # [W, H, D]
            _gather(key[0].transpose(0, 1), key_index),
            _gather(value[0].transpose(0, 1), key_index),
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


def _gather(states: torch.Tensor, index: torch.Tensor | None) -> torch.Tensor:
    """Gathers the keys or values [W, K, D] of all pieces; their gradients are summed in float32."""
    if index is None:
        return states
    return states.float().index_select(0, index).to(states.dtype)


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
                _keys_of(keys, piece, head, prompt),
                _keys_of(values, piece, head, prompt),
                scaling,
                dropout,
                window,
            )
        )
    return torch.cat(found, dim=2).transpose(1, 2)  # [1, W, H, D]


def _keys_of(pieces: Sequence[torch.Tensor], piece: int, head: int, prompt: int) -> torch.Tensor:
    """The keys or values of a piece [1, K, b, D]: the prompt it shares, and its own."""
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
    """One piece [1, H, a, D] over its keys [1, K, b, D], of which its own are the last."""
    queries, keys = query.shape[2], key.shape[2]
    causal = queries == keys and (window is None or window >= keys)
    mask = None if causal else _mask(queries, keys, window, query.device)  # [a, b]
    return F.scaled_dot_product_attention(
        query, key, value, mask, dropout, is_causal=causal, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )


def _mask(queries: int, keys: int, window: int | None, device: torch.device) -> torch.Tensor:
    mask = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
    return mask if window is None else mask.triu(keys - queries - window + 1)


def _key_index(start: torch.Tensor, length: torch.Tensor, head: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    """The keys of every piece, concatenated: the prompt it shares, then its own."""
    first, count = torch.stack((head, start), 1).flatten(), torch.stack((shared, length), 1).flatten()  # [2S]
    return concatenate_ranges(first, count)


def _offsets(length: torch.Tensor) -> torch.Tensor:
    return F.pad(length.cumsum(0), (1, 0)).int()  # [S + 1]


def _rounded(length: int) -> int:
    """The kernel needs only an upper bound, and every other value would be compiled for anew."""
    return -(-length // 256) * 256


def _compiled_bound(length: int) -> int:
    """One bound for nearly all rows: a power of two."""
    return max(_COMPILED_BOUND, 1 << (length - 1).bit_length())


AttentionInterface.register(VARLEN_ATTENTION, attend)
