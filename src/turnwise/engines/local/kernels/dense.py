"""Kernels over tokens: residual add with RMSNorm, gated activation, and rotary embedding with the store to the cache.

Shapes: N tokens, E hidden size, I width of the MLP, H key/value heads, D head size, C capacity.
"""

import triton
import triton.language as tl


@triton.jit
def add_rms_norm(
    residual,  # [N, E], added to in place
    update,  # [N, E]
    weight,  # [E]
    out,  # [N, E]
    width,
    eps,
    offset,
    HAS_UPDATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a token: residual += update; out = residual / rms(residual) · (weight + offset)."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(residual + token * width + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_UPDATE:
        x += tl.load(update + token * width + column, mask=inside, other=0.0).to(tl.float32)
        rounded = x.to(residual.dtype.element_ty)
        tl.store(residual + token * width + column, rounded, mask=inside)
        x = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32) + offset
    tl.store(out + token * width + column, (x * scale * w).to(out.dtype.element_ty), mask=inside)


@triton.jit
def gated_activation(
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
def apply_rope(x, at, weight, eps, offset, cosines, sines, there, kept, NORMED: tl.constexpr, SIZE: tl.constexpr):
    """Heads [Q, D] at `x + at`, normed and rotated by the angles of a position, which begin at `there`.

    Depths d and d + D/2 rotate together, so each is loaded with its partner.
    """
    depth = tl.arange(0, kept.shape[1])[None, :]
    half = SIZE // 2
    low = depth < half
    partner_offset = tl.where(low, half, -half)
    own = tl.load(x + at + depth, mask=kept, other=0.0).to(tl.float32)
    partner = tl.load(x + at + depth + partner_offset, mask=kept, other=0.0).to(tl.float32)
    if NORMED:
        scale = tl.rsqrt(tl.sum(own * own, axis=1) / SIZE + eps)[:, None]
        known = depth < SIZE
        own *= scale * (tl.load(weight + depth, mask=known, other=0.0).to(tl.float32) + offset)
        partner *= scale * (tl.load(weight + depth + partner_offset, mask=known, other=0.0).to(tl.float32) + offset)
    angle = there + tl.where(low, depth, depth - half)
    cosine = tl.load(cosines + angle, mask=depth < SIZE, other=0.0)
    sine = tl.load(sines + angle, mask=depth < SIZE, other=0.0)
    return own * cosine + partner * tl.where(low, -sine, sine)


@triton.jit
def rope_and_store(
    query,  # [N, H·G, D], as the next two but for their heads and strides
    key,
    value,
    rotated,  # [N, H·G, D]
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
    DEPTH: tl.constexpr,
    HEADS: tl.constexpr,
):
    """One program for a token's queries, one for its keys, one for its values: norm, rotate, store."""
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    position = tl.load(positions + token)
    head = tl.arange(0, HEADS)[:, None]
    depth = tl.arange(0, DEPTH)[None, :]
    angle = position * (SIZE // 2)
    here = tl.load(rows + token) * row_stride + head * head_stride + position * SIZE + depth  # in the cache
    if part == 0:
        kept = (head < query_heads) & (depth < SIZE)
        at = token * query_stride + head * SIZE
        found = apply_rope(query, at, query_norm, eps, offset, cosines, sines, angle, kept, NORMED, SIZE)
        there = rotated + (token * query_heads + head) * SIZE + depth
        tl.store(there, found.to(rotated.dtype.element_ty), mask=kept)
    elif part == 1:
        kept = (head < heads) & (depth < SIZE)
        at = token * key_stride + head * SIZE
        found = apply_rope(key, at, key_norm, eps, offset, cosines, sines, angle, kept, NORMED, SIZE)
        tl.store(keys + here, found.to(keys.dtype.element_ty), mask=kept)
    else:
        kept = (head < heads) & (depth < SIZE)
        found = tl.load(value + token * value_stride + head * SIZE + depth, mask=kept, other=0.0).to(tl.float32)
        tl.store(values + here, found.to(values.dtype.element_ty), mask=kept)
