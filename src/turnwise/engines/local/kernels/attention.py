"""Attention over the KV cache in place: each program reads the cached keys of one key head once.

The softmax is online: the scores of a block of keys update a running maximum, sum and accumulator, so nothing of the
length of a context is ever stored. Shapes: B slots, N tokens of M chunks, H key/value heads, G query heads to each,
D head size, P splits of a slot's keys.
"""

import triton
import triton.language as tl

from turnwise.engines.local.kernels.dense import apply_rope


@triton.jit
def _online_softmax(
    q, k, v, visible, running_max, running_sum, acc, scale, cap, CAPPED: tl.constexpr, PRECISION: tl.constexpr
):
    """Adds a block of keys [K, D] and values to the running softmax of queries [Q, D]."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale  # [Q, K]
    if CAPPED:
        scores = cap * (2 * tl.sigmoid(2 * scores / cap) - 1)
    scores = tl.where(visible, scores, float("-inf"))
    new_max = tl.maximum(running_max, tl.max(scores, axis=1))
    # A query without visible keys so far keeps a finite reference: −∞ − −∞ is not a number.
    reference = tl.where(new_max == float("-inf"), 0.0, new_max)
    weight = tl.exp(scores - reference[:, None])
    rescale = tl.exp(running_max - reference)
    running_sum = running_sum * rescale + tl.sum(weight, axis=1)
    acc = acc * rescale[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=PRECISION)
    return new_max, running_sum, acc


@triton.jit
def decode_attention(
    query,  # [B, H·G, D], as the next two but for their heads and strides
    key,
    value,
    keys,  # [S + 1, H, C, D]
    values,
    query_norm,  # [D]
    key_norm,
    cosines,  # [positions, D/2]
    sines,
    rows,  # [B]
    positions,  # [B]
    out,  # [B, H·G, D]
    partial,  # [B, H·G, P, D]
    extent,  # [B, H·G, P, 2]: maximum and sum of each split
    eps,
    offset,
    scale,
    cap,
    window,
    query_stride,
    key_stride,
    value_stride,
    row_stride,
    head_stride,
    split_keys,
    group,
    query_heads,
    NORMED: tl.constexpr,
    SPLITS: tl.constexpr,
    CAPPED: tl.constexpr,
    WINDOWED: tl.constexpr,
    PRECISION: tl.constexpr,
    SIZE: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One token per slot: a program norms and rotates the queries and the key of one key head, stores that key and
    value, and attends to the slot's keys before it, or a split of them, for all its query heads."""
    slot, head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    last = tl.load(positions + slot)
    member = tl.arange(0, GROUP)
    depth = tl.arange(0, DEPTH)
    known = (member < group)[:, None] & (depth < SIZE)[None, :]
    angle = last * (SIZE // 2)
    heads = slot * query_stride + (head * group + member)[:, None] * SIZE
    q = apply_rope(query, heads, query_norm, eps, offset, cosines, sines, angle, known, NORMED, SIZE)
    q = q.to(keys.dtype.element_ty)
    # The token's own key and value are loaded before the others are waited for.
    alone = (depth < SIZE)[None, :]
    own = slot * key_stride + head * SIZE + tl.zeros([1, 1], tl.int64)
    own_key = apply_rope(key, own, key_norm, eps, offset, cosines, sines, angle, alone, NORMED, SIZE)  # [1, D]
    own_key = own_key.to(keys.dtype.element_ty)
    own_value = tl.load(value + slot * value_stride + head * SIZE + depth[None, :], mask=alone, other=0.0)
    own_value = own_value.to(values.dtype.element_ty)  # [1, D]
    base = tl.load(rows + slot) * row_stride + head * head_stride
    here = base + last * SIZE + depth[None, :]
    running_max = tl.full([GROUP], float("-inf"), tl.float32)
    running_sum = tl.zeros([GROUP], tl.float32)
    acc = tl.zeros([GROUP, DEPTH], tl.float32)
    begin, end = split * split_keys, last
    if WINDOWED:
        begin = tl.maximum(begin, last - window + 1)
    if SPLITS > 1:
        end = tl.minimum(end, (split + 1) * split_keys)
    for start in range(begin, end, BLOCK):
        number = start + tl.arange(0, BLOCK)
        inside = (number < end)[:, None] & (depth < SIZE)[None, :]
        there = base + number[:, None] * SIZE + depth[None, :]
        k = tl.load(keys + there, mask=inside, other=0.0)
        v = tl.load(values + there, mask=inside, other=0.0)
        visible = (number < end)[None, :]
        running_max, running_sum, acc = _online_softmax(
            q, k, v, visible, running_max, running_sum, acc, scale, cap, CAPPED, PRECISION
        )
    if split == tl.minimum(last // split_keys, SPLITS - 1):
        tl.store(keys + here, own_key, mask=alone)
        tl.store(values + here, own_value, mask=alone)
        score = tl.sum(q.to(tl.float32) * own_key.to(tl.float32), axis=1) * scale  # [Q]
        if CAPPED:
            score = cap * (2 * tl.sigmoid(2 * score / cap) - 1)
        new_max = tl.maximum(running_max, score)
        weight = tl.exp(score - new_max)
        rescale = tl.exp(running_max - new_max)
        running_max, running_sum = new_max, running_sum * rescale + weight
        acc = acc * rescale[:, None] + weight[:, None] * own_value.to(tl.float32)
    if SPLITS > 1:
        row = (slot * query_heads + head * group + member) * SPLITS + split
        tl.store(partial + row[:, None] * SIZE + depth[None, :], acc, mask=known)
        tl.store(extent + row * 2, running_max, mask=member < group)
        tl.store(extent + row * 2 + 1, running_sum, mask=member < group)
    else:
        place = (slot * query_heads + head * group + member)[:, None] * SIZE + depth[None, :]
        tl.store(out + place, (acc / running_sum[:, None]).to(out.dtype.element_ty), mask=known)


@triton.jit
def merge_splits(
    partial,  # [B, H·G, P, D]
    extent,  # [B, H·G, P, 2]
    out,  # [B, H·G, D]
    query_heads,
    SPLITS: tl.constexpr,
    SIZE: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Combines the splits of a slot's keys; one without keys weighs nothing."""
    row = tl.program_id(0).to(tl.int64) * query_heads + tl.program_id(1)
    split = tl.arange(0, SPLITS)
    depth = tl.arange(0, DEPTH)
    running_max = tl.load(extent + (row * SPLITS + split) * 2)
    running_sum = tl.load(extent + (row * SPLITS + split) * 2 + 1)
    weight = tl.exp(running_max - tl.max(running_max, axis=0))
    there = (row * SPLITS + split)[:, None] * SIZE + depth[None, :]
    acc = tl.load(partial + there, mask=(depth < SIZE)[None, :], other=0.0)
    merged = tl.sum(acc * weight[:, None], axis=0) / tl.sum(running_sum * weight, axis=0)
    tl.store(out + row * SIZE + depth, merged.to(out.dtype.element_ty), mask=depth < SIZE)


@triton.jit
def prefill_attention(
    query,  # [N, H·G, D]
    keys,  # [S + 1, H, C, D]
    values,
    positions,  # [N]
    starts,  # [M + 1]
    slots,  # [M]
    out,  # [N, H·G, D]
    scale,
    cap,
    window,
    row_stride,
    head_stride,
    group,
    query_heads,
    CAPPED: tl.constexpr,
    WINDOWED: tl.constexpr,
    PRECISION: tl.constexpr,
    SIZE: tl.constexpr,
    DEPTH: tl.constexpr,
    QUERIES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Chunks of uneven length: a program takes a block of one chunk's queries of one head."""
    chunk, query_head = tl.program_id(1), tl.program_id(2)
    first, stop = tl.load(starts + chunk), tl.load(starts + chunk + 1)
    first += tl.program_id(0) * QUERIES
    if first >= stop:
        return
    token = first + tl.arange(0, QUERIES)
    depth = tl.arange(0, DEPTH)
    present = token < stop
    known = present[:, None] & (depth < SIZE)[None, :]
    place = (token * query_heads + query_head)[:, None] * SIZE + depth[None, :]
    q = tl.load(query + place, mask=known, other=0.0)
    position = tl.load(positions + token, mask=present, other=-1)  # an absent query attends to nothing
    end = tl.load(positions + tl.minimum(first + QUERIES, stop) - 1) + 1
    begin = end * 0
    if WINDOWED:
        begin = tl.maximum(tl.load(positions + first) - window + 1, 0)
    running_max = tl.full([QUERIES], float("-inf"), tl.float32)
    running_sum = tl.zeros([QUERIES], tl.float32)
    acc = tl.zeros([QUERIES, DEPTH], tl.float32)
    base = tl.load(slots + chunk) * row_stride + (query_head // group) * head_stride
    for start in range(begin, end, BLOCK):
        number = start + tl.arange(0, BLOCK)
        inside = (number < end)[:, None] & (depth < SIZE)[None, :]
        there = base + number[:, None] * SIZE + depth[None, :]
        k = tl.load(keys + there, mask=inside, other=0.0)
        v = tl.load(values + there, mask=inside, other=0.0)
        visible = number[None, :] <= position[:, None]
        if WINDOWED:
            visible = visible & (number[None, :] > position[:, None] - window)
        running_max, running_sum, acc = _online_softmax(
            q, k, v, visible, running_max, running_sum, acc, scale, cap, CAPPED, PRECISION
        )
    safe = tl.where(running_sum == 0.0, 1.0, running_sum)
    tl.store(out + place, (acc / safe[:, None]).to(out.dtype.element_ty), mask=known)
