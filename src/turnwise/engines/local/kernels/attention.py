"""Attention that reads keys and values where they lie in the cache, the live ones alone, each once a key head.

The scores of a block of keys are folded into a running maximum, sum and mixture, so nothing of the length of a
context is ever stored. Shapes: B lanes, N tokens of F feeds, H key/value heads, G query heads to each, D head size,
P splits of a lane's keys.
"""

import triton
import triton.language as tl

from turnwise.engines.local.kernels.dense import turn_heads


@triton.jit
def _fold(q, k, v, seen, best, total, mixed, scale, cap, CAPPED: tl.constexpr, PRECISION: tl.constexpr):
    """Folds a block of keys [K, D] and values into what queries [Q, D] have seen so far."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale  # [Q, K]
    if CAPPED:
        scores = cap * (2 * tl.sigmoid(2 * scores / cap) - 1)
    scores = tl.where(seen, scores, float("-inf"))
    new_best = tl.maximum(best, tl.max(scores, axis=1))
    # A query that has seen nothing yet keeps a finite reference: −∞ − −∞ is not a number.
    reference = tl.where(new_best == float("-inf"), 0.0, new_best)
    share = tl.exp(scores - reference[:, None])
    fade = tl.exp(best - reference)
    total = total * fade + tl.sum(share, axis=1)
    mixed = mixed * fade[:, None] + tl.dot(share.to(v.dtype), v, input_precision=PRECISION)
    return new_best, total, mixed


@triton.jit
def decode_lanes(
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
    """One token per lane: a program norms and turns the queries and the key of one key head, stores that key and value,
    and reads the lane's keys before it, or a split of them, for all its query heads."""
    lane, head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    last = tl.load(positions + lane)
    member = tl.arange(0, GROUP)
    depth = tl.arange(0, DEPTH)
    known = (member < group)[:, None] & (depth < SIZE)[None, :]
    angle = last * (SIZE // 2)
    heads = lane * query_stride + (head * group + member)[:, None] * SIZE
    q = turn_heads(query, heads, query_norm, eps, offset, cosines, sines, angle, known, NORMED, SIZE)
    q = q.to(keys.dtype.element_ty)
    # The token's own key and value are loaded before the others are waited for.
    alone = (depth < SIZE)[None, :]
    own = lane * key_stride + head * SIZE + tl.zeros([1, 1], tl.int64)
    own_key = turn_heads(key, own, key_norm, eps, offset, cosines, sines, angle, alone, NORMED, SIZE)  # [1, D]
    own_key = own_key.to(keys.dtype.element_ty)
    own_value = tl.load(value + lane * value_stride + head * SIZE + depth[None, :], mask=alone, other=0.0)
    own_value = own_value.to(values.dtype.element_ty)  # [1, D]
    here = tl.load(rows + lane) * row_stride + head * head_stride + last * SIZE + depth[None, :]
    best = tl.full([GROUP], float("-inf"), tl.float32)
    total = tl.zeros([GROUP], tl.float32)
    mixed = tl.zeros([GROUP, DEPTH], tl.float32)
    base = lane * row_stride + head * head_stride
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
        seen = (number < end)[None, :]
        best, total, mixed = _fold(q, k, v, seen, best, total, mixed, scale, cap, CAPPED, PRECISION)
    if split == tl.minimum(last // split_keys, SPLITS - 1):
        tl.store(keys + here, own_key, mask=alone)
        tl.store(values + here, own_value, mask=alone)
        score = tl.sum(q.to(tl.float32) * own_key.to(tl.float32), axis=1) * scale  # [Q]
        if CAPPED:
            score = cap * (2 * tl.sigmoid(2 * score / cap) - 1)
        new_best = tl.maximum(best, score)
        share = tl.exp(score - new_best)
        fade = tl.exp(best - new_best)
        best, total = new_best, total * fade + share
        mixed = mixed * fade[:, None] + share[:, None] * own_value.to(tl.float32)
    if SPLITS > 1:
        row = (lane * query_heads + head * group + member) * SPLITS + split
        tl.store(partial + row[:, None] * SIZE + depth[None, :], mixed, mask=known)
        tl.store(extent + row * 2, best, mask=member < group)
        tl.store(extent + row * 2 + 1, total, mask=member < group)
    else:
        place = (lane * query_heads + head * group + member)[:, None] * SIZE + depth[None, :]
        tl.store(out + place, (mixed / total[:, None]).to(out.dtype.element_ty), mask=known)


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
    """Puts the splits of a lane's keys together; one without a live key weighs nothing."""
    row = tl.program_id(0).to(tl.int64) * query_heads + tl.program_id(1)
    split = tl.arange(0, SPLITS)
    depth = tl.arange(0, DEPTH)
    best = tl.load(extent + (row * SPLITS + split) * 2)
    total = tl.load(extent + (row * SPLITS + split) * 2 + 1)
    weight = tl.exp(best - tl.max(best, axis=0))
    there = (row * SPLITS + split)[:, None] * SIZE + depth[None, :]
    mixed = tl.load(partial + there, mask=(depth < SIZE)[None, :], other=0.0)
    merged = tl.sum(mixed * weight[:, None], axis=0) / tl.sum(total * weight, axis=0)
    tl.store(out + row * SIZE + depth, merged.to(out.dtype.element_ty), mask=depth < SIZE)


@triton.jit
def read_cache_by_feeds(
    query,  # [N, H·G, D]
    keys,  # [S + 1, H, C, D]
    values,
    positions,  # [N]
    starts,  # [F + 1]
    lanes,  # [F]
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
    """Feeds of uneven length: a program takes a block of one feed's queries of one head."""
    feed, query_head = tl.program_id(1), tl.program_id(2)
    first, behind = tl.load(starts + feed), tl.load(starts + feed + 1)
    first += tl.program_id(0) * QUERIES
    if first >= behind:
        return
    token = first + tl.arange(0, QUERIES)
    depth = tl.arange(0, DEPTH)
    live = token < behind
    known = live[:, None] & (depth < SIZE)[None, :]
    place = (token * query_heads + query_head)[:, None] * SIZE + depth[None, :]
    q = tl.load(query + place, mask=known, other=0.0)
    position = tl.load(positions + token, mask=live, other=-1)  # a query that is not there sees nothing
    end = tl.load(positions + tl.minimum(first + QUERIES, behind) - 1) + 1
    begin = end * 0
    if WINDOWED:
        begin = tl.maximum(tl.load(positions + first) - window + 1, 0)
    best = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, DEPTH], tl.float32)
    base = tl.load(lanes + feed) * row_stride + (query_head // group) * head_stride
    for start in range(begin, end, BLOCK):
        number = start + tl.arange(0, BLOCK)
        inside = (number < end)[:, None] & (depth < SIZE)[None, :]
        there = base + number[:, None] * SIZE + depth[None, :]
        k = tl.load(keys + there, mask=inside, other=0.0)
        v = tl.load(values + there, mask=inside, other=0.0)
        seen = number[None, :] <= position[:, None]
        if WINDOWED:
            seen = seen & (number[None, :] > position[:, None] - window)
        best, total, mixed = _fold(q, k, v, seen, best, total, mixed, scale, cap, CAPPED, PRECISION)
    safe = tl.where(total == 0.0, 1.0, total)
    tl.store(out + place, (mixed / safe[:, None]).to(out.dtype.element_ty), mask=known)
