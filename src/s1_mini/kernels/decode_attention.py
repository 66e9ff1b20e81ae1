"""Attention of one token per row over the columns that the row has used, grouped-query, split over the length.

How many columns a row has is read on the device, so one captured graph serves rows of any length. Each of some parts of
a row's columns is attended to by a program of its own (flash decoding, Dao et al. 2023); a second kernel adds them up.
Where the tokens are the rows' newest, the same kernel norms and turns them and puts them into the cache.
Shapes: B rows, H query heads, G key-value heads, D head size, S columns.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.kernels.backend import (
    HAS_TRITON,
    fetch_ahead,
    in_one_order,
    jit,
    launch,
    runs_triton,
    wait_for_last,
    widen,
)
from s1_mini.kernels.rope_store import HeadNorms, as_kept, rope_store

if HAS_TRITON:
    import triton
    import triton.language as tl

COLUMNS_AT_ONCE = 64
MANY_ROWS = 64  # above, smaller blocks are faster
PROGRAMS = 256  # wanted, to fill the GPU: few rows are split into more parts
BLOCK_IN_ONE_ORDER = 32  # columns, of any number of rows; each block is a sum of its own there


def used_columns(position: Tensor, span: int, size: int) -> Tensor | None:
    """Give what [B, 1, 1, `span`] rows look at, if `decode_attention` is going to ask; once for all layers.

    That is all columns up to their `position` [B], and always the first. `size` is that of the heads.
    """
    if _can_attend(position, size):
        return None
    return (torch.arange(span, device=position.device) <= position.clamp_min(0).unsqueeze(1))[:, None, None]


def step_attention(
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    columns: Tensor,
    position: Tensor,
    rope: Tensor,
    norms: HeadNorms | None,
    *,
    span: int,
    mask: Tensor | None,
    slots: Tensor | None = None,
) -> Tensor:
    """Put a token of each row into the cache, and attend from it to the row's columns; [B, H D].

    `qkv` [B, (H + 2 G) D] is the token's projection; its key and value go to `columns` [B] of keys and values
    [slots, G, S, D], which have qkv's format or fp8. The row then looks at all columns up to its `position` [B];
    without `slots` the new one counts as the last of them wherever it was put. `slots` [B] says whose the rows are, and
    may name one several times; None means the first ones, in order. `rope` [B, D / 2, 2] is each row's part of the
    table. Every position is below `span`; `mask` is what `used_columns` gave. No kernel of a frame may write positions
    or slots: they are read before the last one has ended.
    """
    if slots is None and _can_attend(qkv, keys.shape[-1]):
        return _attend_triton(qkv, keys, values, position, span, new=(columns, rope, norms))
    query = rope_store(qkv, keys, values, columns, rope, norms, slots)
    return decode_attention(query, keys, values, position, span, mask, slots).flatten(1)


def decode_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    span: int,
    mask: Tensor | None,
    slots: Tensor | None = None,
) -> Tensor:
    """Attend from `query` [B, H, D] to each row's columns up to its `position` [B]; [B, H, D].

    Keys and values are [slots, G, S, D]; every position is below `span`. `mask` is what `used_columns` gave, or None if
    all rows have `span` columns. `slots` [B] says whose the rows are; None means the first ones, in order.
    """
    if _can_attend(query, query.shape[-1]):
        rows = query.flatten(1).contiguous()  # they may be a part of a joint projection
        return _attend_triton(rows, keys, values, position, span, slots=slots).view(query.shape)
    chosen = slice(len(query)) if slots is None else slots
    out = F.scaled_dot_product_attention(
        query.unsqueeze(2),
        keys[chosen, :, :span].to(query.dtype),
        values[chosen, :, :span].to(query.dtype),
        attn_mask=mask,
        enable_gqa=keys.shape[1] != query.shape[1],
    )
    return out.squeeze(2)


def _can_attend(x: Tensor, size: int) -> bool:
    """Whether the kernel can: Triton's product wants 16 channels or more, and a power of two."""
    return runs_triton(x) and size >= 16 and size & (size - 1) == 0


def _attend_triton(
    asked: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    span: int,
    *,
    slots: Tensor | None = None,
    new: tuple[Tensor, Tensor, HeadNorms | None] | None = None,
) -> Tensor:
    """Attend from queries, or from the projections of `new` tokens with their columns, rotary rows and norms."""
    groups, size = keys.shape[1], keys.shape[3]
    rows, heads = len(asked), asked.shape[1] // size - (2 * groups if new else 0)
    shared = heads // groups
    block, parts = _split(rows, groups, span)
    blockwise = in_one_order()
    kept = triton.cdiv(span, block) + 1 if blockwise else parts  # what is joined: blocks and the new token, or parts
    out = torch.empty(rows, heads * size, dtype=asked.dtype, device=asked.device)
    sums = torch.empty(rows, heads, kept if parts > 1 else 0, size, dtype=torch.float32, device=asked.device)
    tops = torch.empty(rows, heads, kept if parts > 1 else 0, 2, dtype=torch.float32, device=asked.device)
    columns, rope, norms = new or (position, asked, None)
    _part_kernel[(rows, groups, parts)](
        asked,
        keys,
        values,
        position,
        position if slots is None else slots,
        columns,
        rope,
        norms.query if norms else asked,
        norms.key if norms else asked,
        norms.eps if norms else 0.0,
        out,
        sums,
        tops,
        1 / math.sqrt(size),
        keys.stride(0),
        keys.stride(1),
        position.stride(0),
        columns.stride(0),
        rope.stride(0),
        heads,
        groups,
        parts,
        kept,
        shared,
        triton.next_power_of_2(max(16, shared)),
        size,
        block,
        ALONE=parts == 1,
        BLOCKWISE=blockwise,
        SLOTS=slots is not None,
        NEW=new is not None,
        NORMS=norms is not None,
        NARROW=keys.dtype != asked.dtype,
        LINE=128 // keys.element_size(),
        **launch(asked),
        enable_fp_fusion=not blockwise,
        num_warps=2 if block > 16 else 4,
        num_stages=2,
    )
    if parts > 1 and blockwise:
        _join_blocks_kernel[(rows, heads)](
            sums,
            tops,
            out,
            position,
            position.stride(0),
            heads,
            kept,
            block,
            size,
            NEW=new is not None,
            **launch(asked),
            enable_fp_fusion=False,
            num_warps=1,
        )
    elif parts > 1:
        _join_kernel[(rows, heads)](
            sums, tops, out, heads, parts, triton.next_power_of_2(parts), size, **launch(asked), num_warps=1
        )
    return out


def _split(rows: int, groups: int, span: int) -> tuple[int, int]:
    """Give the columns that a program attends to at once, and the parts that a row's columns are shared out to."""
    block = COLUMNS_AT_ONCE // 2 if rows > MANY_ROWS else COLUMNS_AT_ONCE
    if in_one_order():
        block = BLOCK_IN_ONE_ORDER
    block = min(block, max(16, 1 << (span - 1).bit_length()))
    return block, max(1, min(-(-span // block), -(-PROGRAMS // (rows * groups))))


@jit
def _turn(x, weight, rope, eps, COUNT: tl.constexpr, SIZE: tl.constexpr, NORMS: tl.constexpr):
    """Norm the rows of x [COUNT, SIZE] if asked to, and rotate their pairs; both round to x's dtype."""
    wide = x.to(tl.float32)
    if NORMS:
        scale = tl.rsqrt(tl.sum(wide * wide, axis=1) / SIZE + eps)[:, None]
        weights = tl.load(weight + tl.arange(0, SIZE)).to(tl.float32)[None, :]
        wide = (wide * scale * weights).to(x.dtype).to(tl.float32)
    even, odd = tl.split(tl.reshape(wide, [COUNT, SIZE // 2, 2]))
    pair = tl.arange(0, SIZE // 2)
    cos, sin = tl.load(rope + 2 * pair)[None, :], tl.load(rope + 2 * pair + 1)[None, :]
    turned = tl.join(even * cos - odd * sin, odd * cos + even * sin)
    return tl.reshape(turned, [COUNT, SIZE]).to(x.dtype)


@jit
def _part_kernel(  # noqa: C901 - its branches are taken when it is compiled
    asked,
    keys,
    values,
    position,
    slots,
    columns,
    rope,
    q_norm,
    k_norm,
    eps,
    out,
    sums,
    tops,
    scale,
    slot_stride,
    group_stride,
    position_stride,
    columns_stride,
    rope_stride,
    heads,
    groups,
    parts,
    kept,
    SHARED: tl.constexpr,
    PADDED: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ALONE: tl.constexpr,
    BLOCKWISE: tl.constexpr,
    SLOTS: tl.constexpr,
    NEW: tl.constexpr,
    NORMS: tl.constexpr,
    NARROW: tl.constexpr,
    LINE: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    part = tl.program_id(2)
    slot = tl.load(slots + row) if SLOTS else row
    length = tl.load(position + row * position_stride)  # without the new one, which is not there yet
    if not NEW:
        length = tl.maximum(length + 1, 1)
    each = tl.cdiv(tl.cdiv(length, parts), BLOCK) * BLOCK
    first = part * each
    last = tl.minimum(first + each, length)
    channel = tl.arange(0, SIZE)
    start = slot * slot_stride + group * group_stride
    if EARLY:
        ahead = tl.minimum(first + tl.arange(0, BLOCK), tl.maximum(length - 1, 0))
        line = start + ahead[:, None] * SIZE + tl.arange(0, (SIZE + LINE - 1) // LINE)[None, :] * LINE
        fetch_ahead(keys + line)
        fetch_ahead(values + line)
    wait_for_last(EARLY)
    local = tl.arange(0, PADDED)
    head = group * SHARED + local
    mine = local < SHARED
    width = heads + 2 * groups if NEW else heads
    q = tl.load(asked + (row * width + head[:, None]) * SIZE + channel[None, :], mask=mine[:, None], other=0.0)
    top = tl.full([PADDED], float("-inf"), tl.float32)
    total = tl.zeros([PADDED], tl.float32)
    mixed = tl.zeros([PADDED, SIZE], tl.float32)
    if NEW:
        turn = rope + row * rope_stride
        q = _turn(q, q_norm, turn, eps, PADDED, SIZE, NORMS)
        if part == 0:
            one = tl.arange(0, 1)[:, None]
            k = tl.load(asked + (row * width + heads + group + one) * SIZE + channel[None, :])
            k = _turn(k, k_norm, turn, eps, 1, SIZE, NORMS)
            v = tl.load(asked + (row * width + heads + groups + group + one) * SIZE + channel[None, :])
            to = start + (tl.load(columns + row * columns_stride) + one) * SIZE + channel[None, :]
            k, v = as_kept(k, keys, NARROW), as_kept(v, values, NARROW)
            tl.store(keys + to, k)
            tl.store(values + to, v)
            top = tl.sum(q.to(tl.float32) * k.to(tl.float32), axis=1) * scale
            total = tl.full([PADDED], 1.0, tl.float32)
            mixed += v.to(tl.float32)
    for begin in range(first, last, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        inside = column < last
        k = tl.load(keys + start + column[None, :] * SIZE + channel[:, None], mask=inside[None, :], other=0.0)
        score = tl.dot(q, widen(k, q, EARLY), input_precision="ieee") * scale
        score = tl.where(inside[None, :], score, float("-inf"))
        higher = tl.max(score, axis=1) if BLOCKWISE else tl.maximum(top, tl.max(score, axis=1))
        weight = tl.exp(score - higher[:, None])
        v = tl.load(values + start + column[:, None] * SIZE + channel[None, :], mask=inside[:, None], other=0.0)
        if BLOCKWISE:
            block_total = tl.sum(weight, axis=1)
            block_mixed = tl.dot(weight.to(q.dtype), widen(v, q, EARLY), input_precision="ieee")
            if ALONE:
                top, total, mixed = _merge(top, total, mixed, higher, block_total, block_mixed)
            else:
                at = (row * heads + head) * kept + begin // BLOCK + NEW
                _keep(sums, tops, at, mine, higher, block_total, block_mixed, SIZE)
        else:
            fade = tl.exp(top - higher)
            mixed = mixed * fade[:, None] + tl.dot(weight.to(q.dtype), widen(v, q, EARLY), input_precision="ieee")
            total = total * fade + tl.sum(weight, axis=1)
            top = higher
    if ALONE:
        where = (row * heads + head[:, None]) * SIZE + channel[None, :]
        tl.store(out + where, (mixed / total[:, None]).to(out.dtype.element_ty), mask=mine[:, None])
    elif not BLOCKWISE:
        _keep(sums, tops, (row * heads + head) * kept + part, mine, top, total, mixed, SIZE)
    elif NEW:
        _keep(sums, tops, (row * heads + head) * kept, mine & (part == 0), top, total, mixed, SIZE)


@jit
def _keep(sums, tops, at, mine, top, total, mixed, SIZE: tl.constexpr):
    """Keep some sums for the kernel that joins them."""
    tl.store(sums + at[:, None] * SIZE + tl.arange(0, SIZE)[None, :], mixed, mask=mine[:, None])
    tl.store(tops + 2 * at, top, mask=mine)
    tl.store(tops + 2 * at + 1, total, mask=mine)


@jit
def _merge(top, total, mixed, block_top, block_total, block_mixed):
    """Add the sums [N] and [N, SIZE] of a block to those before it; fused as told, so every kernel rounds alike."""
    higher = tl.maximum(top, block_top)
    fade, gain = tl.exp(top - higher), tl.exp(block_top - higher)
    total = tl.fma(total, fade, block_total * gain)
    wide_fade = tl.broadcast_to(fade[:, None], mixed.shape)
    mixed = tl.fma(mixed, wide_fade, block_mixed * gain[:, None])
    return higher, total, mixed


@jit
def _join_blocks_kernel(
    sums,
    tops,
    out,
    position,
    position_stride,
    heads,
    kept,
    BLOCK: tl.constexpr,
    SIZE: tl.constexpr,
    NEW: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Merge blocks one after the other, as a program does that has all of a row."""
    row = tl.program_id(0).to(tl.int64)
    at = row * heads + tl.program_id(1)
    length = tl.load(position + row * position_stride)
    if not NEW:
        length = tl.maximum(length + 1, 1)
    one, channel = tl.arange(0, 1), tl.arange(0, SIZE)
    top = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    mixed = tl.zeros([1, SIZE], tl.float32)
    wait_for_last(EARLY)
    for number in range(0, tl.cdiv(length, BLOCK) + NEW):
        block = at * kept + number
        block_top, block_total = tl.load(tops + 2 * block + one), tl.load(tops + 2 * block + 1 + one)
        block_mixed = tl.load(sums + block * SIZE + one[:, None] + channel[None, :])
        top, total, mixed = _merge(top, total, mixed, block_top, block_total, block_mixed)
    where = at * SIZE + one[:, None] + channel[None, :]
    tl.store(out + where, (mixed / total[:, None]).to(out.dtype.element_ty))


@jit
def _join_kernel(sums, tops, out, heads, parts, PARTS: tl.constexpr, SIZE: tl.constexpr, EARLY: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * heads + tl.program_id(1)
    part = tl.arange(0, PARTS)
    channel = tl.arange(0, SIZE)
    inside = part < parts
    wait_for_last(EARLY)
    top = tl.load(tops + 2 * (at * parts + part), mask=inside, other=float("-inf"))
    total = tl.load(tops + 2 * (at * parts + part) + 1, mask=inside, other=0.0)
    fade = tl.where(inside, tl.exp(top - tl.max(top, axis=0)), 0.0)
    mixed = tl.load(sums + (at * parts + part[:, None]) * SIZE + channel[None, :], mask=inside[:, None], other=0.0)
    joined = tl.sum(mixed * fade[:, None], axis=0) / tl.sum(total * fade, axis=0)
    tl.store(out + at * SIZE + channel, joined.to(out.dtype.element_ty))
