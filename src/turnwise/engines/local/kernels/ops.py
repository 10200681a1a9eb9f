"""The layer operations of the fused forward, one Triton launch each; `torch_ops.TorchOps` documents each.

Invariant: sums are in float32 and rounded once, when a result is stored.
"""

from typing import NamedTuple

import torch
import triton

from turnwise.engines.local.architecture import Activation, Architecture, Layer, Norm
from turnwise.engines.local.cache import DecodeInputs, PrefillInputs
from turnwise.engines.local.kernels.attention import decode_attention, merge_splits, prefill_attention
from turnwise.engines.local.kernels.dense import add_rms_norm, gated_activation, rope_and_store

_PROGRAMS = 264
"""Programs that fill a large GPU twice; with fewer, a slot's keys are split between several."""
_SPLIT_KEYS = 256
"""The least keys of a split."""
_QUERIES = 64
"""Queries of a prefill per program."""


class TritonOps:
    """Norms, rotary embeddings, attention and gated activations of one model, on a GPU."""

    replays_prefills = True
    """The kernels read the bounds of chunks on the device."""
    reads_any_row = True
    """And the rows of slots, too."""

    def __init__(self, architecture: Architecture, *, positions: int, dtype: torch.dtype, device: torch.device) -> None:
        """`positions` is the longest context; `dtype` is the type of matrix products."""
        self._architecture = architecture
        self._dtype = dtype
        half = architecture.head_size // 2
        # Both halves of a head rotate by the same angles.
        self._angles = {
            kind: (cosine[:, :half].contiguous(), sine[:, :half].contiguous())  # [C, D/2] each
            for kind, (cosine, sine) in architecture.angles(positions, device).items()
        }

    def add_norm(self, residual: torch.Tensor, update: torch.Tensor | None, norm: Norm) -> torch.Tensor:
        tokens, width = residual.shape
        out = torch.empty_like(residual, dtype=self._dtype)
        add_rms_norm[(tokens,)](
            residual,
            residual if update is None else update,
            norm.weight,
            out,
            width,
            norm.eps,
            norm.offset,
            HAS_UPDATE=update is not None,
            BLOCK=triton.next_power_of_2(width),
            num_warps=4 if width <= 2048 else 8,
        )
        return out

    def norm(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        """RMSNorm of [N, E], for models that norm the output of a layer."""
        return self.add_norm(x, None, norm).to(x.dtype)

    def gate(self, gate: torch.Tensor, up: torch.Tensor, activation: Activation) -> torch.Tensor:
        tokens, width = gate.shape
        out = gate.new_empty(tokens, width)
        block = 1024
        gated_activation[(tokens, triton.cdiv(width, block))](
            gate, up, out, width, gate.stride(0), up.stride(0), GELU=activation == "gelu", BLOCK=block
        )
        return out

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layer: Layer,
        cache: tuple[torch.Tensor, torch.Tensor],
        inputs: DecodeInputs | PrefillInputs,
    ) -> torch.Tensor:
        out = torch.empty(query.shape, dtype=cache[0].dtype, device=query.device)  # [N, H·G, D]
        if isinstance(inputs, DecodeInputs):
            self._decode(query, key, value, layer, cache, inputs, out)
        else:
            self._prefill(self._rope_and_store(query, key, value, layer, cache, inputs), cache, layer, inputs, out)
        return out.view(len(query), -1)

    def _rope_and_store(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layer: Layer,
        cache: tuple[torch.Tensor, torch.Tensor],
        inputs: PrefillInputs,
    ) -> torch.Tensor:
        """Norms and rotates queries and keys, stores keys and values, and returns the queries, contiguous."""
        keys, values = cache
        tokens, query_heads, size = query.shape
        heads = key.shape[1]
        rotated = torch.empty((tokens, query_heads, size), dtype=keys.dtype, device=query.device)
        cosine, sine = self._angles[layer.kind]
        norms = _Norms.of(layer, query)
        rope_and_store[(tokens, 3)](
            query,
            key,
            value,
            rotated,
            keys,
            values,
            norms.query,
            norms.key,
            cosine,
            sine,
            inputs.rows,
            inputs.positions,
            norms.eps,
            norms.offset,
            query_heads,
            heads,
            query.stride(0),
            key.stride(0),
            value.stride(0),
            keys.stride(0),
            keys.stride(1),
            NORMED=norms.present,
            SIZE=size,
            DEPTH=_depth(size),
            HEADS=triton.next_power_of_2(query_heads),
        )
        return rotated

    def _decode(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layer: Layer,
        cache: tuple[torch.Tensor, torch.Tensor],
        inputs: DecodeInputs,
        out: torch.Tensor,
    ) -> None:
        keys, values = cache
        slots, query_heads, size = query.shape
        heads = keys.shape[1]
        splits = _count_splits(slots * heads, inputs.length)
        shape = (slots, query_heads, splits)
        partial = torch.empty((*shape, size), dtype=torch.float32, device=query.device) if splits > 1 else out
        extent = torch.empty((*shape, 2), dtype=torch.float32, device=query.device) if splits > 1 else out
        cosine, sine = self._angles[layer.kind]
        norms = _Norms.of(layer, query)
        decode_attention[(slots, heads, splits)](
            query,
            key,
            value,
            keys,
            values,
            norms.query,
            norms.key,
            cosine,
            sine,
            inputs.rows,
            inputs.positions,
            out,
            partial,
            extent,
            norms.eps,
            norms.offset,
            self._architecture.scale,
            self._architecture.score_cap or 0.0,
            layer.window or 0,
            query.stride(0),
            key.stride(0),
            value.stride(0),
            keys.stride(0),
            keys.stride(1),
            triton.cdiv(inputs.length, splits),
            query_heads // heads,
            query_heads,
            NORMED=norms.present,
            SPLITS=splits,
            CAPPED=self._architecture.score_cap is not None,
            WINDOWED=layer.window is not None,
            PRECISION=_precision(keys.dtype),
            SIZE=size,
            DEPTH=_depth(size),
            GROUP=max(16, triton.next_power_of_2(query_heads // heads)),
            BLOCK=64,
            num_warps=4,
            num_stages=2 if keys.dtype != torch.float32 else 1,
        )
        if splits > 1:
            merge_splits[(slots, query_heads)](
                partial, extent, out, query_heads, SPLITS=splits, SIZE=size, DEPTH=_depth(size)
            )

    def _prefill(
        self,
        query: torch.Tensor,
        cache: tuple[torch.Tensor, torch.Tensor],
        layer: Layer,
        inputs: PrefillInputs,
        out: torch.Tensor,
    ) -> None:
        keys, values = cache
        _, query_heads, size = query.shape
        heads = keys.shape[1]
        wide = keys.dtype == torch.float32 or size > 128
        queries = 32 if wide else _QUERIES
        prefill_attention[(triton.cdiv(inputs.width, queries), len(inputs.slots), query_heads)](
            query,
            keys,
            values,
            inputs.positions,
            inputs.starts,
            inputs.slots,
            out,
            self._architecture.scale,
            self._architecture.score_cap or 0.0,
            layer.window or 0,
            keys.stride(0),
            keys.stride(1),
            query_heads // heads,
            query_heads,
            CAPPED=self._architecture.score_cap is not None,
            WINDOWED=layer.window is not None,
            PRECISION=_precision(keys.dtype),
            SIZE=size,
            DEPTH=_depth(size),
            QUERIES=queries,
            BLOCK=32 if wide else 64,
            num_warps=4,
            num_stages=1 if wide else 2,
        )


class _Norms(NamedTuple):
    """The norms of queries and keys as kernel arguments."""

    query: torch.Tensor
    """[D] weights, as `key` is; an arbitrary tensor, never read, if the layer has none."""
    key: torch.Tensor
    eps: float
    offset: float
    present: bool

    @classmethod
    def of(cls, layer: Layer, any_tensor: torch.Tensor) -> "_Norms":
        query, key = layer.query_norm, layer.key_norm
        if query is None or key is None:
            return cls(any_tensor, any_tensor, 0.0, 0.0, present=False)
        return cls(query.weight, key.weight, query.eps, query.offset, present=True)


def _count_splits(programs: int, length: int) -> int:
    """How many programs share a slot's keys: a power of two, so that few shapes are compiled."""
    splits = 1
    while programs * splits * 2 <= _PROGRAMS and length // (splits * 2) >= _SPLIT_KEYS:
        splits *= 2
    return splits


def _depth(size: int) -> int:
    return max(16, int(triton.next_power_of_2(size)))


def _precision(dtype: torch.dtype) -> str:
    """Full precision for float32: tf32 would not agree with the learner."""
    return "ieee" if dtype == torch.float32 else "tf32"
