"""Kernels over tokens: a residual added and normed, a gate, and tokens put in their place in the cache.

Shapes: N tokens, E width of the stream, I width of the MLP, H key/value heads, D head size, C capacity.
"""

import triton
import triton.language as tl


@triton.jit
def add_and_norm(
    stream,  # [N, E], added to in place
    update,  # [N, E]
    weight,  # [E]
    out,  # [N, E]
    width,
    eps,
    offset,
    HAS_UPDATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a token: stream += update; out = stream / rms(stream) · (weight + offset)."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(stream + token * width + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_UPDATE:
        x += tl.load(update + token * width + column, mask=inside, other=0.0).to(tl.float32)
        rounded = x.to(stream.dtype.element_ty)
        tl.store(stream + token * width + column, rounded, mask=inside)
        x = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32) + offset
    tl.store(out + token * width + column, (x * scale * w).to(out.dtype.element_ty), mask=inside)


@triton.jit
def gate_values(
    gate,  # [N, I]
    up,  # [N, I]
    out,  # [N, I]
    width,
    gate_stride,
    up_stride,
    GELU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """activation(gate) · up."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    g = tl.load(gate + token * gate_stride + column, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + token * up_stride + column, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        # ½ (1 + tanh z) is the sigmoid of 2 z.
        g = g * tl.sigmoid(1.5957691216057308 * (g + 0.044715 * g * g * g))
    else:
        g = g * tl.sigmoid(g)
    tl.store(out + token * width + column, (g * u).to(out.dtype.element_ty), mask=inside)


@triton.jit
def place_tokens(
    query,  # [N, H·G, D], as the next two but for their heads and strides
    key,
    value,
    turned,  # [N, H·G, D]
    keys,  # [S + 1, H, C, D]
    values,
    query_norm,  # [D]
    key_norm,
    cosines,  # [positions, D/2]
    sines,
    rows,  # [N]
    positions,  # [N]
    eps,
    offset,
    query_heads,
    heads,
    query_stride,
    key_stride,
    value_stride,
    row_stride,
    head_stride,
    NORMED: tl.constexpr,
    SIZE: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
):
    """One program for a token's queries, one for its keys, one for its values: norm, turn, store."""
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    position = tl.load(positions + token)
    row = tl.load(rows + token)
    head = tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, HALF)[None, :]
    half = SIZE // 2
    here = row * row_stride + head * head_stride + position * SIZE + column  # in the cache
    if part == 0:
        inside = (head < query_heads) & (column < half)
        source = query + token * query_stride + head * SIZE + column
    elif part == 1:
        inside = (head < heads) & (column < half)
        source = key + token * key_stride + head * SIZE + column
    else:
        inside = (head < heads) & (column < half)
        source = value + token * value_stride + head * SIZE + column
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + half, mask=inside, other=0.0).to(tl.float32)
    if part == 2:
        tl.store(values + here, first.to(values.dtype.element_ty), mask=inside)
        tl.store(values + here + half, second.to(values.dtype.element_ty), mask=inside)
    else:
        if NORMED:
            total = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)
            scale = tl.rsqrt(total / SIZE + eps)[:, None]
            if part == 0:
                weight = query_norm + column
            else:
                weight = key_norm + column
            first = first * scale * (tl.load(weight, mask=column < half, other=0.0).to(tl.float32) + offset)
            second = second * scale * (tl.load(weight + half, mask=column < half, other=0.0).to(tl.float32) + offset)
        c = tl.load(cosines + position * half + column, mask=column < half, other=0.0)
        s = tl.load(sines + position * half + column, mask=column < half, other=0.0)
        low, high = first * c - second * s, second * c + first * s
        if part == 0:
            there = turned + (token * query_heads + head) * SIZE + column
            tl.store(there, low.to(turned.dtype.element_ty), mask=inside)
            tl.store(there + half, high.to(turned.dtype.element_ty), mask=inside)
        else:
            tl.store(keys + here, low.to(keys.dtype.element_ty), mask=inside)
            tl.store(keys + here + half, high.to(keys.dtype.element_ty), mask=inside)
