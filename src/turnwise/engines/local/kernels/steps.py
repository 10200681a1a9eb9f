"""The steps of a lean forward as one kernel launch each; `plain.PlainSteps` says what each computes.

Invariant: sums are kept in float32 and rounded once, when a result is stored.
"""

from typing import NamedTuple

import torch
import triton

from turnwise.engines.local.architecture import Activation, Anatomy, Layer, Norm
from turnwise.engines.local.cache import Decode, Prefill
from turnwise.engines.local.kernels.attention import decode_lanes, merge_splits, read_cache_by_feeds
from turnwise.engines.local.kernels.dense import add_and_norm, gate_values, place_tokens

_PROGRAMS = 264
"""Programs that fill a large GPU twice; with fewer, a lane's keys are split between several."""
_SPLIT_KEYS = 256
"""A split reads at least so many keys."""
_QUERIES = 64
"""Queries of a prefill that one program takes."""


class KernelSteps:
    """Norms, rotations, attention and gates of one model, on a GPU."""

    replays_prefills = True
    """A kernel reads where feeds begin and end on the device."""

    def __init__(self, anatomy: Anatomy, *, positions: int, dtype: torch.dtype, device: torch.device) -> None:
        """`positions` is the longest context; `dtype` is what matrix products are computed in."""
        self._anatomy = anatomy
        self._dtype = dtype
        half = anatomy.head_size // 2
        # The two halves of a head turn by the same angles.
        self._angles = {
            kind: (cosine[:, :half].contiguous(), sine[:, :half].contiguous())  # [C, D/2] each
            for kind, (cosine, sine) in anatomy.angles(positions, device).items()
        }

    def add_norm(self, stream: torch.Tensor, update: torch.Tensor | None, norm: Norm) -> torch.Tensor:
        tokens, width = stream.shape
        out = torch.empty_like(stream, dtype=self._dtype)
        add_and_norm[(tokens,)](
            stream,
            stream if update is None else update,
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
        """Of [N, E]: used where a model norms what a layer gives back."""
        return self.add_norm(x, None, norm).to(x.dtype)

    def gate(self, gate: torch.Tensor, up: torch.Tensor, activation: Activation) -> torch.Tensor:
        tokens, width = gate.shape
        out = gate.new_empty(tokens, width)
        block = 1024
        gate_values[(tokens, triton.cdiv(width, block))](
            gate, up, out, width, gate.stride(0), up.stride(0), GELU=activation == "gelu", BLOCK=block
        )
        return out

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layer: Layer,
        held: tuple[torch.Tensor, torch.Tensor],
        aim: Decode | Prefill,
    ) -> torch.Tensor:
        out = torch.empty(query.shape, dtype=held[0].dtype, device=query.device)  # [N, H·G, D]
        if isinstance(aim, Decode):
            self._decode(query, key, value, layer, held, aim, out)
        else:
            self._read_by_feeds(self._place(query, key, value, layer, held, aim), held, layer, aim, out)
        return out.view(len(query), -1)

    def _place(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layer: Layer,
        held: tuple[torch.Tensor, torch.Tensor],
        aim: Prefill,
    ) -> torch.Tensor:
        """Norms and turns queries and keys, stores keys and values, and gives the queries, contiguous."""
        keys, values = held
        tokens, query_heads, size = query.shape
        heads = key.shape[1]
        turned = torch.empty((tokens, query_heads, size), dtype=keys.dtype, device=query.device)
        cosine, sine = self._angles[layer.kind]
        norms = _Norms.of(layer, query)
        place_tokens[(tokens, 3)](
            query,
            key,
            value,
            turned,
            keys,
            values,
            norms.query,
            norms.key,
            cosine,
            sine,
            aim.rows,
            aim.positions,
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
        return turned

    def _decode(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layer: Layer,
        held: tuple[torch.Tensor, torch.Tensor],
        aim: Decode,
        out: torch.Tensor,
    ) -> None:
        keys, values = held
        lanes, query_heads, size = query.shape
        heads = keys.shape[1]
        splits = _count_splits(lanes * heads, aim.length)
        shape = (lanes, query_heads, splits)
        partial = torch.empty((*shape, size), dtype=torch.float32, device=query.device) if splits > 1 else out
        extent = torch.empty((*shape, 2), dtype=torch.float32, device=query.device) if splits > 1 else out
        cosine, sine = self._angles[layer.kind]
        norms = _Norms.of(layer, query)
        decode_lanes[(lanes, heads, splits)](
            query,
            key,
            value,
            keys,
            values,
            norms.query,
            norms.key,
            cosine,
            sine,
            aim.rows,
            aim.positions,
            out,
            partial,
            extent,
            norms.eps,
            norms.offset,
            self._anatomy.scale,
            self._anatomy.score_cap or 0.0,
            layer.window or 0,
            query.stride(0),
            key.stride(0),
            value.stride(0),
            keys.stride(0),
            keys.stride(1),
            triton.cdiv(aim.length, splits),
            query_heads // heads,
            query_heads,
            NORMED=norms.present,
            SPLITS=splits,
            CAPPED=self._anatomy.score_cap is not None,
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
            merge_splits[(lanes, query_heads)](
                partial, extent, out, query_heads, SPLITS=splits, SIZE=size, DEPTH=_depth(size)
            )

    def _read_by_feeds(
        self,
        query: torch.Tensor,
        held: tuple[torch.Tensor, torch.Tensor],
        layer: Layer,
        aim: Prefill,
        out: torch.Tensor,
    ) -> None:
        keys, values = held
        _, query_heads, size = query.shape
        heads = keys.shape[1]
        wide = keys.dtype == torch.float32 or size > 128
        queries = 32 if wide else _QUERIES
        read_cache_by_feeds[(triton.cdiv(aim.width, queries), len(aim.lanes), query_heads)](
            query,
            keys,
            values,
            aim.positions,
            aim.starts,
            aim.lanes,
            out,
            self._anatomy.scale,
            self._anatomy.score_cap or 0.0,
            layer.window or 0,
            keys.stride(0),
            keys.stride(1),
            query_heads // heads,
            query_heads,
            CAPPED=self._anatomy.score_cap is not None,
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
    """What queries and keys are normed by before they are turned, as kernels are told."""

    query: torch.Tensor
    """[D] weights, as `key` is; any tensor where there is none, which is not read then."""
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
    """How many programs share a lane's keys: a power of two, so that few shapes are compiled."""
    splits = 1
    while programs * splits * 2 <= _PROGRAMS and length // (splits * 2) >= _SPLIT_KEYS:
        splits *= 2
    return splits


def _depth(size: int) -> int:
    return max(16, int(triton.next_power_of_2(size)))


def _precision(dtype: torch.dtype) -> str:
    """Float32 is multiplied as such: the shorter tf32 would not agree with the learner."""
    return "ieee" if dtype == torch.float32 else "tf32"
