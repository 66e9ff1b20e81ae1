"""GPU kernels for attention of one token per row, in parts that other kernels join, and of prompts.

`decode_attention` launches these kernels. `short_kernel` attends to few positions, as in a depth transformer, without
`tl.dot`. A program computes P = PADDED lines, a power of two; in `part_kernel` at least 16, because `tl.dot` requires
as many. The first SHARED lines are the query heads that share one key-value head; the others are padding.
"""

from __future__ import annotations

from s1_mini.kernels.backend import HAS_TRITON, dequantize, fetch_ahead, jit, wait_for_last
from s1_mini.kernels.rope import cast_saturating, rotate

if HAS_TRITON:
    import triton.language as tl


@jit
def norm_and_rotate(x, weight, cos, sin, eps, COUNT: tl.constexpr, SIZE: tl.constexpr, ROUND_LAST: tl.constexpr):
    """Norm the rows of x [COUNT, SIZE] by the weights at `weight`, if any, and rotate pairs, as `rotate` does."""
    weights = None
    if weight is not None:
        weights = tl.load(weight + tl.arange(0, SIZE))[None, :]
    return rotate(x, weights, cos, sin, eps, COUNT, SIZE, ROUND_LAST)


@jit
def store_sums(sums, tops, at, is_head, top, total, mixed, SIZE: tl.constexpr):
    """Store the sums of a part or block for the kernel that joins parts or blocks."""
    tl.store(sums + at[:, None] * SIZE + tl.arange(0, SIZE)[None, :], mixed, mask=is_head[:, None])
    tl.store(tops + 2 * at, top, mask=is_head)
    tl.store(tops + 2 * at + 1, total, mask=is_head)


@jit
def merge_sums(top, total, mixed, block_top, block_total, block_mixed):
    """Add the sums [N] and [N, SIZE] of a block to earlier sums; explicit fma makes all kernels round alike."""
    higher = tl.maximum(top, block_top)
    fade, gain = tl.exp(top - higher), tl.exp(block_top - higher)
    total = tl.fma(total, fade, block_total * gain)
    broadcast_fade = tl.broadcast_to(fade[:, None], mixed.shape)
    mixed = tl.fma(mixed, broadcast_fade, block_mixed * gain[:, None])
    return higher, total, mixed


@jit
def operands(x, cached, EARLY: tl.constexpr):
    """Return x and cached keys or values in the dtype of their product.

    For fp8 and bf16, this is fp16, whose numbers include those of fp8: from capability 9 on, one instruction converts
    two fp8 numbers to fp16; bf16 needs several.
    """
    KIND: tl.constexpr = tl.float16 if EARLY and x.dtype == tl.bfloat16 and cached.dtype != x.dtype else x.dtype
    x = x.to(KIND)
    return x, dequantize(cached, x, EARLY)


@jit
def block_scores(q, keys, start, index, last, scale, SIZE: tl.constexpr, EARLY: tl.constexpr):
    """Return the scores [P, BLOCK] of q [P, SIZE] with the keys of positions `index`; minus infinity from `last` on."""
    inside, channel = index < last, tl.arange(0, SIZE)
    k = tl.load(keys + start + index[None, :] * SIZE + channel[:, None], mask=inside[None, :], other=0.0)
    q, k = operands(q, k, EARLY)
    score = tl.dot(q, k, input_precision="ieee") * scale
    return tl.where(inside[None, :], score, float("-inf"))


@jit
def block_values(weight, q, values, start, index, last, SIZE: tl.constexpr, EARLY: tl.constexpr):
    """Return the sum [P, SIZE] of the values of positions `index` [BLOCK], times `weight` [P, BLOCK] in q's dtype."""
    inside, channel = index < last, tl.arange(0, SIZE)
    v = tl.load(values + start + index[:, None] * SIZE + channel[None, :], mask=inside[:, None], other=0.0)
    weight, v = operands(weight.to(q.dtype), v, EARLY)
    return tl.dot(weight, v, input_precision="ieee")


@jit
def fetch_block(keys, values, start, index, SIZE: tl.constexpr, LINE: tl.constexpr):
    """Prefetch keys and values of positions `index` [BLOCK] into the L2 cache, whose lines have `LINE` elements."""
    line = start + index[:, None] * SIZE + tl.arange(0, (SIZE + LINE - 1) // LINE)[None, :] * LINE
    fetch_ahead(keys + line)
    fetch_ahead(values + line)


@jit
def part_positions(length, parts, BLOCK: tl.constexpr):
    """Return the number of positions in each part of `length`, a multiple of BLOCK; the last part may have fewer."""
    return tl.cdiv(tl.cdiv(length, parts), BLOCK) * BLOCK


@jit
def part_kernel(  # noqa: C901, PLR0912 - its branches are resolved at compile time
    queries,
    keys,
    values,
    position,
    slots,
    target,
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
    num_common_sums,
    scale,
    slot_stride,
    group_stride,
    position_stride,
    target_stride,
    rope_stride,
    heads,
    groups,
    parts,
    num_sums,
    SHARED: tl.constexpr,
    PADDED: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ONE_PART: tl.constexpr,
    BLOCKWISE: tl.constexpr,
    NEW: tl.constexpr,
    ROUND_LAST: tl.constexpr,
    FP8: tl.constexpr,
    LINE: tl.constexpr,
    COMMON_PARTS: tl.constexpr,
    COMMON_BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Attend to a part of a row's positions at one key-value head; if NEW, first rotate and store the row's token."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    part = tl.program_id(2)
    slot = row if slots is None else tl.load(slots + row)
    length = tl.load(position + row * position_stride)  # a NEW token is not stored yet
    if not NEW:
        length = tl.maximum(length + 1, 1)
    each = part_positions(length, parts, BLOCK)
    own = 0 if starts is None else tl.load(starts + row).to(tl.int64)
    first = part * each if starts is None else own  # with common prefixes, a row is never split into parts
    last = tl.minimum(first + each, length) if starts is None else length
    channel = tl.arange(0, SIZE)
    start = slot * slot_stride + group * group_stride
    if EARLY:
        ahead = tl.minimum(first + tl.arange(0, BLOCK), tl.maximum(length - 1, 0))
        fetch_block(keys, values, start, ahead, SIZE, LINE)
    wait_for_last(EARLY)
    line = tl.arange(0, PADDED)
    head = group * SHARED + line
    is_head = line < SHARED
    width = heads + 2 * groups if NEW else heads
    q = tl.load(queries + (row * width + head[:, None]) * SIZE + channel[None, :], mask=is_head[:, None], other=0.0)
    top = tl.full([PADDED], float("-inf"), tl.float32)
    total = tl.zeros([PADDED], tl.float32)
    mixed = tl.zeros([PADDED, SIZE], tl.float32)
    if NEW:
        cos_sin = rope + row * rope_stride + 2 * tl.arange(0, SIZE // 2)
        cos, sin = tl.load(cos_sin)[None, :], tl.load(cos_sin + 1)[None, :]
        q = norm_and_rotate(q, q_norm, cos, sin, eps, PADDED, SIZE, ROUND_LAST)
        if part == 0:
            one = tl.arange(0, 1)[:, None]
            k = tl.load(queries + (row * width + heads + group + one) * SIZE + channel[None, :])
            k = norm_and_rotate(k, k_norm, cos, sin, eps, 1, SIZE, ROUND_LAST)
            v = tl.load(queries + (row * width + heads + groups + group + one) * SIZE + channel[None, :])
            to = start + (tl.load(target + row * target_stride) + one) * SIZE + channel[None, :]
            k, v = cast_saturating(k, keys, FP8), cast_saturating(v, values, FP8)
            tl.store(keys + to, k)
            tl.store(values + to, v)
            top = tl.sum(q.to(tl.float32) * k.to(tl.float32), axis=1) * scale
            total = tl.full([PADDED], 1.0, tl.float32)
            mixed += v.to(tl.float32)
    if starts is not None:
        if own > 0:  # add the sums of the common prefix, which `common_attention` has stored
            stored = (row * heads + head) * num_common_sums
            count = own // COMMON_BLOCK if BLOCKWISE else tl.cdiv(own, part_positions(own, COMMON_PARTS, COMMON_BLOCK))
            for number in range(0, count):  # unrolling would double the registers
                common_top = tl.load(common_tops + 2 * (stored + number), mask=is_head, other=float("-inf"))
                common_total = tl.load(common_tops + 2 * (stored + number) + 1, mask=is_head, other=0.0)
                common_mixed = tl.load(
                    common_sums + (stored + number)[:, None] * SIZE + channel[None, :], mask=is_head[:, None], other=0.0
                )
                top, total, mixed = merge_sums(top, total, mixed, common_top, common_total, common_mixed)
    for begin in range(first, last, BLOCK):
        index = begin + tl.arange(0, BLOCK)
        score = block_scores(q, keys, start, index, last, scale, SIZE, EARLY)
        higher = tl.max(score, axis=1) if BLOCKWISE else tl.maximum(top, tl.max(score, axis=1))
        weight = tl.exp(score - higher[:, None])
        block_mixed = block_values(weight, q, values, start, index, last, SIZE, EARLY)
        if not BLOCKWISE:
            fade = tl.exp(top - higher)
            mixed = mixed * fade[:, None] + block_mixed
            total = total * fade + tl.sum(weight, axis=1)
            top = higher
        elif ONE_PART:
            top, total, mixed = merge_sums(top, total, mixed, higher, tl.sum(weight, axis=1), block_mixed)
        else:
            at = (row * heads + head) * num_sums + begin // BLOCK + NEW
            store_sums(sums, tops, at, is_head, higher, tl.sum(weight, axis=1), block_mixed, SIZE)
    if ONE_PART:
        where = (row * heads + head[:, None]) * SIZE + channel[None, :]
        tl.store(out + where, (mixed / total[:, None]).to(out.dtype.element_ty), mask=is_head[:, None])
    elif not BLOCKWISE:
        store_sums(sums, tops, (row * heads + head) * num_sums + part, is_head, top, total, mixed, SIZE)
    elif NEW:
        store_sums(sums, tops, (row * heads + head) * num_sums, is_head & (part == 0), top, total, mixed, SIZE)


@jit
def prompt_kernel(
    queries,
    keys,
    values,
    position,
    slots,
    out,
    rows,
    scale,
    slot_stride,
    group_stride,
    heads,
    SHARED: tl.constexpr,
    PADDED: tl.constexpr,
    LINES: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Attend at one key-value head from a tile of rows, with PADDED lines each, to the positions of their slots.

    Keys and values are read once for all neighbouring rows of a slot in the tile.
    """
    line, channel = tl.arange(0, LINES), tl.arange(0, SIZE)
    row = (tl.program_id(0) * (LINES // PADDED) + line // PADDED).to(tl.int64)
    group = tl.program_id(1)
    is_row = row < rows
    is_head = is_row & (line % PADDED < SHARED)
    at = tl.load(position + row, mask=is_row, other=-1)
    slot = tl.load(slots + row, mask=is_row, other=-1)
    where = (row * heads + group * SHARED + line % PADDED)[:, None] * SIZE + channel[None, :]
    wait_for_last(EARLY)
    q = tl.load(queries + where, mask=is_head[:, None], other=0.0)
    top = tl.full([LINES], float("-inf"), tl.float32)
    total = tl.zeros([LINES], tl.float32)
    mixed = tl.zeros([LINES, SIZE], tl.float32)
    first = 0
    while first < LINES:  # once for neighbouring rows of a slot
        current = tl.max(tl.where(line == first, slot, -1), axis=0)
        after = tl.min(tl.where((line > first) & (slot != current), line, LINES), axis=0)
        is_own = (line >= first) & (line < after)
        last = tl.max(tl.where(is_own, at, -1), axis=0) + 1
        start = current * slot_stride + group * group_stride
        for begin in range(0, last, BLOCK):
            index = begin + tl.arange(0, BLOCK)
            score = block_scores(q, keys, start, index, last, scale, SIZE, EARLY)
            score = tl.where(is_own[:, None] & (index[None, :] <= at[:, None]), score, float("-inf"))
            higher = tl.maximum(top, tl.max(score, axis=1))
            finite = tl.where(higher > float("-inf"), higher, 0.0)  # lines of later slots have no score yet
            weight, fade = tl.exp(score - finite[:, None]), tl.exp(top - finite)
            mixed = mixed * fade[:, None] + block_values(weight, q, values, start, index, last, SIZE, EARLY)
            total = total * fade + tl.sum(weight, axis=1)
            top = higher
        first = after
    total = tl.where(total > 0, total, 1.0)  # padding attends to nothing
    tl.store(out + where, (mixed / total[:, None]).to(out.dtype.element_ty), mask=is_head[:, None])


@jit
def short_kernel(
    qkv,
    keys,
    values,
    position,
    target,
    rope,
    q_norm,
    k_norm,
    eps,
    out,
    scale,
    slot_stride,
    group_stride,
    position_stride,
    target_stride,
    rope_stride,
    heads,
    groups,
    SHARED: tl.constexpr,
    PADDED: tl.constexpr,
    SIZE: tl.constexpr,
    SPAN: tl.constexpr,
    ROUND_LAST: tl.constexpr,
    FP8: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Rotate and store a row's token at one key-value head, and attend to at most SPAN positions before it."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    length = tl.load(position + row * position_stride)
    index, channel, one = tl.arange(0, SPAN), tl.arange(0, SIZE), tl.arange(0, 1)[:, None]
    inside = (index < length)[:, None]
    start = row * slot_stride + group * group_stride
    earlier = start + index[:, None] * SIZE + channel[None, :]
    line = tl.arange(0, PADDED)
    head = group * SHARED + line
    is_head = None if PADDED == SHARED else (line < SHARED)[:, None]
    token = qkv + row * (heads + 2 * groups) * SIZE
    cos_sin = rope + row * rope_stride + 2 * tl.arange(0, SIZE // 2)
    wait_for_last(EARLY)
    # All loads come first, so that they wait for memory together.
    q = tl.load(token + head[:, None] * SIZE + channel[None, :], mask=is_head)
    k = tl.load(token + (heads + group + one) * SIZE + channel[None, :])
    v = tl.load(token + (heads + groups + group + one) * SIZE + channel[None, :])
    cos, sin = tl.load(cos_sin)[None, :], tl.load(cos_sin + 1)[None, :]
    to = start + (tl.load(target + row * target_stride) + one) * SIZE + channel[None, :]
    old_keys = tl.load(keys + earlier, mask=inside, other=0.0)
    old_values = tl.load(values + earlier, mask=inside, other=0.0)
    q = norm_and_rotate(q, q_norm, cos, sin, eps, PADDED, SIZE, ROUND_LAST).to(tl.float32)
    k = norm_and_rotate(k, k_norm, cos, sin, eps, 1, SIZE, ROUND_LAST)
    k, v = cast_saturating(k, keys, FP8), cast_saturating(v, values, FP8)
    tl.store(keys + to, k)
    tl.store(values + to, v)
    score = tl.sum(q[:, None, :] * old_keys.to(tl.float32)[None, :, :], axis=2) * scale
    score = tl.where((index < length)[None, :], score, float("-inf"))
    last = tl.sum(q * k.to(tl.float32), axis=1) * scale
    top = tl.maximum(tl.max(score, axis=1), last)
    weight, last = tl.exp(score - top[:, None]), tl.exp(last - top)
    mixed = tl.sum(weight[:, :, None] * old_values.to(tl.float32)[None, :, :], axis=1)
    mixed = (mixed + last[:, None] * v.to(tl.float32)) / (tl.sum(weight, axis=1) + last)[:, None]
    where = (row * heads + head[:, None]) * SIZE + channel[None, :]
    tl.store(out + where, mixed.to(out.dtype.element_ty), mask=is_head)


@jit
def join_blocks_kernel(
    sums,
    tops,
    out,
    position,
    position_stride,
    heads,
    num_sums,
    BLOCK: tl.constexpr,
    SIZE: tl.constexpr,
    NEW: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Merge the blocks of one head of a row in the order in which `part_kernel` merges the blocks of an unsplit row."""
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
        block = at * num_sums + number
        block_top, block_total = tl.load(tops + 2 * block + one), tl.load(tops + 2 * block + 1 + one)
        block_mixed = tl.load(sums + block * SIZE + one[:, None] + channel[None, :])
        top, total, mixed = merge_sums(top, total, mixed, block_top, block_total, block_mixed)
    where = at * SIZE + one[:, None] + channel[None, :]
    tl.store(out + where, (mixed / total[:, None]).to(out.dtype.element_ty))


@jit
def join_kernel(sums, tops, out, heads, parts, PARTS: tl.constexpr, SIZE: tl.constexpr, EARLY: tl.constexpr):
    """Join the parts of one head of a row."""
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
