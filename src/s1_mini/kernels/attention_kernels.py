"""GPU kernels of attention of one token per row: the parts of a row, and their sum. `decode_attention` launches them.

Each kernel's row has P = PADDED lines, at least the 16 of a product; the first SHARED are the query heads of one
key-value head.
"""

from __future__ import annotations

from s1_mini.kernels.backend import HAS_TRITON, dequantize, fetch_ahead, jit, wait_for_last
from s1_mini.kernels.rope import as_kept

if HAS_TRITON:
    import triton.language as tl


@jit
def turn_rows(x, weight, cos, sin, eps, COUNT: tl.constexpr, SIZE: tl.constexpr):
    """Norm the rows of x [COUNT, SIZE] by `weight`, if any, and rotate pairs by `cos` and `sin` [1 or COUNT, SIZE / 2].

    Both round to x's dtype.
    """
    wide = x.to(tl.float32)
    if weight is not None:
        scale = tl.rsqrt(tl.sum(wide * wide, axis=1) / SIZE + eps)[:, None]
        weights = tl.load(weight + tl.arange(0, SIZE)).to(tl.float32)[None, :]
        wide = (wide * scale * weights).to(x.dtype).to(tl.float32)
    even, odd = tl.split(tl.reshape(wide, [COUNT, SIZE // 2, 2]))
    turned = tl.join(even * cos - odd * sin, odd * cos + even * sin)
    return tl.reshape(turned, [COUNT, SIZE]).to(x.dtype)


@jit
def keep_sums(sums, tops, at, mine, top, total, mixed, SIZE: tl.constexpr):
    """Store sums for the kernel that joins them."""
    tl.store(sums + at[:, None] * SIZE + tl.arange(0, SIZE)[None, :], mixed, mask=mine[:, None])
    tl.store(tops + 2 * at, top, mask=mine)
    tl.store(tops + 2 * at + 1, total, mask=mine)


@jit
def merge_sums(top, total, mixed, block_top, block_total, block_mixed):
    """Add the sums [N] and [N, SIZE] of a block to those before it; explicit fma, so that all kernels round alike."""
    higher = tl.maximum(top, block_top)
    fade, gain = tl.exp(top - higher), tl.exp(block_top - higher)
    total = tl.fma(total, fade, block_total * gain)
    wide_fade = tl.broadcast_to(fade[:, None], mixed.shape)
    mixed = tl.fma(mixed, wide_fade, block_mixed * gain[:, None])
    return higher, total, mixed


@jit
def block_scores(q, keys, start, column, last, scale, SIZE: tl.constexpr, EARLY: tl.constexpr):
    """Score q [P, SIZE] with the keys of columns [BLOCK]; minus infinity from `last` on."""
    inside, channel = column < last, tl.arange(0, SIZE)
    k = tl.load(keys + start + column[None, :] * SIZE + channel[:, None], mask=inside[None, :], other=0.0)
    score = tl.dot(q, dequantize(k, q, EARLY), input_precision="ieee") * scale
    return tl.where(inside[None, :], score, float("-inf"))


@jit
def block_values(weight, q, values, start, column, last, SIZE: tl.constexpr, EARLY: tl.constexpr):
    """Add up the values of columns [BLOCK] by weight [P, BLOCK], which is rounded to q's format; [P, SIZE]."""
    inside, channel = column < last, tl.arange(0, SIZE)
    v = tl.load(values + start + column[:, None] * SIZE + channel[None, :], mask=inside[:, None], other=0.0)
    return tl.dot(weight.to(q.dtype), dequantize(v, q, EARLY), input_precision="ieee")


@jit
def fetch_block(keys, values, start, column, SIZE: tl.constexpr, LINE: tl.constexpr):
    """Prefetch keys and values of columns [BLOCK] into the L2 cache, whose lines have `LINE` elements."""
    line = start + column[:, None] * SIZE + tl.arange(0, (SIZE + LINE - 1) // LINE)[None, :] * LINE
    fetch_ahead(keys + line)
    fetch_ahead(values + line)


@jit
def part_positions(length, parts, BLOCK: tl.constexpr):
    """Return the number of columns of each part of `length` but the last: whole blocks."""
    return tl.cdiv(tl.cdiv(length, parts), BLOCK) * BLOCK


@jit
def part_kernel(  # noqa: C901, PLR0912 - its branches are resolved at compile time
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
    starts,
    common_sums,
    common_tops,
    common_kept,
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
    NEW: tl.constexpr,
    NARROW: tl.constexpr,
    LINE: tl.constexpr,
    COMMON_PARTS: tl.constexpr,
    COMMON_BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Attend to a part of a row's columns at one key-value head; rotate and store a token that is NEW."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    part = tl.program_id(2)
    slot = row if slots is None else tl.load(slots + row)
    length = tl.load(position + row * position_stride)  # without the new one, which is not stored yet
    if not NEW:
        length = tl.maximum(length + 1, 1)
    each = part_positions(length, parts, BLOCK)
    own = 0 if starts is None else tl.load(starts + row).to(tl.int64)
    first = part * each if starts is None else own  # rows with something in common have one part
    last = tl.minimum(first + each, length) if starts is None else length
    channel = tl.arange(0, SIZE)
    start = slot * slot_stride + group * group_stride
    if EARLY:
        ahead = tl.minimum(first + tl.arange(0, BLOCK), tl.maximum(length - 1, 0))
        fetch_block(keys, values, start, ahead, SIZE, LINE)
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
        turn = rope + row * rope_stride + 2 * tl.arange(0, SIZE // 2)
        cos, sin = tl.load(turn)[None, :], tl.load(turn + 1)[None, :]
        q = turn_rows(q, q_norm, cos, sin, eps, PADDED, SIZE)
        if part == 0:
            one = tl.arange(0, 1)[:, None]
            k = tl.load(asked + (row * width + heads + group + one) * SIZE + channel[None, :])
            k = turn_rows(k, k_norm, cos, sin, eps, 1, SIZE)
            v = tl.load(asked + (row * width + heads + groups + group + one) * SIZE + channel[None, :])
            to = start + (tl.load(columns + row * columns_stride) + one) * SIZE + channel[None, :]
            k, v = as_kept(k, keys, NARROW), as_kept(v, values, NARROW)
            tl.store(keys + to, k)
            tl.store(values + to, v)
            top = tl.sum(q.to(tl.float32) * k.to(tl.float32), axis=1) * scale
            total = tl.full([PADDED], 1.0, tl.float32)
            mixed += v.to(tl.float32)
    if starts is not None:
        if own > 0:  # add the sums of the columns before, which a group's program has stored
            stored = (row * heads + head) * common_kept
            count = own // COMMON_BLOCK if BLOCKWISE else tl.cdiv(own, part_positions(own, COMMON_PARTS, COMMON_BLOCK))
            for number in range(0, count):  # unrolled, it takes registers of twice as many programs
                common_top = tl.load(common_tops + 2 * (stored + number), mask=mine, other=float("-inf"))
                common_total = tl.load(common_tops + 2 * (stored + number) + 1, mask=mine, other=0.0)
                common_mixed = tl.load(
                    common_sums + (stored + number)[:, None] * SIZE + channel[None, :], mask=mine[:, None], other=0.0
                )
                top, total, mixed = merge_sums(top, total, mixed, common_top, common_total, common_mixed)
    for begin in range(first, last, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        score = block_scores(q, keys, start, column, last, scale, SIZE, EARLY)
        higher = tl.max(score, axis=1) if BLOCKWISE else tl.maximum(top, tl.max(score, axis=1))
        weight = tl.exp(score - higher[:, None])
        block_mixed = block_values(weight, q, values, start, column, last, SIZE, EARLY)
        if not BLOCKWISE:
            fade = tl.exp(top - higher)
            mixed = mixed * fade[:, None] + block_mixed
            total = total * fade + tl.sum(weight, axis=1)
            top = higher
        elif ALONE:
            top, total, mixed = merge_sums(top, total, mixed, higher, tl.sum(weight, axis=1), block_mixed)
        else:
            at = (row * heads + head) * kept + begin // BLOCK + NEW
            keep_sums(sums, tops, at, mine, higher, tl.sum(weight, axis=1), block_mixed, SIZE)
    if ALONE:
        where = (row * heads + head[:, None]) * SIZE + channel[None, :]
        tl.store(out + where, (mixed / total[:, None]).to(out.dtype.element_ty), mask=mine[:, None])
    elif not BLOCKWISE:
        keep_sums(sums, tops, (row * heads + head) * kept + part, mine, top, total, mixed, SIZE)
    elif NEW:
        keep_sums(sums, tops, (row * heads + head) * kept, mine & (part == 0), top, total, mixed, SIZE)


@jit
def join_blocks_kernel(
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
    """Merge blocks one after the other, as a program with a whole row does."""
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
        top, total, mixed = merge_sums(top, total, mixed, block_top, block_total, block_mixed)
    where = at * SIZE + one[:, None] + channel[None, :]
    tl.store(out + where, (mixed / total[:, None]).to(out.dtype.element_ty))


@jit
def join_kernel(sums, tops, out, heads, parts, PARTS: tl.constexpr, SIZE: tl.constexpr, EARLY: tl.constexpr):
    """Add up the parts of one head of a row."""
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
