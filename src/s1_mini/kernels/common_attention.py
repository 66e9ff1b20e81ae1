"""Attention over common prefixes: keys and values of a voice's prompt are read once for all rows of a group.

Each slot has its own copy of the prefix. The copies of a group are bit-equal, so the kernel reads only the copy of one
slot, the leader. The queries of all rows of a group are the lines of one matrix product. The kernel stores sums over
the common positions; `attention_kernels.part_kernel` then adds the row's other positions to them. In batch-invariant
mode, the result is the same to the last bit with and without sharing, because in both cases each block is a separate
sum from products of the same shape, and blocks are added in the same order.
Shapes: B rows, H query heads, G key-value heads, D head size, S positions.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from s1_mini.kernels.attention_kernels import (
    block_scores,
    block_values,
    fetch_block,
    norm_and_rotate,
    part_positions,
    store_sums,
)
from s1_mini.kernels.backend import HAS_TRITON, is_batch_invariant, jit, launch, runs_triton, wait_for_last
from s1_mini.kernels.rope import HeadNorms

if HAS_TRITON:
    import triton
    import triton.language as tl

INVARIANT_BLOCK = 32  # positions of a block in batch-invariant mode, for any number of rows
WHOLE_BLOCKS = 32  # the number of common positions is a multiple of this, so no block mixes common and own positions
FEWEST_ROWS = 4  # minimum size of a group; fewer rows read their own copies
MAX_COMMON = 1024  # maximum number of common positions; limits the memory for sums
LEADER, LENGTH, MEMBERS = 0, 1, 2  # indices in a group's row of the table


class Shape(NamedTuple):
    """How the attention of a group is divided among programs."""

    lines: int  # queries in one product: rows of a group times query heads per key-value head
    block: int  # positions per iteration
    parts: int  # programs that divide the positions of a group
    warps: int


FREE = Shape(lines=64, block=64, parts=2, warps=4)
# Block and warps are those of `part_kernel` in batch-invariant mode, so that threads sum a block in the same layout.
ORDERED = Shape(lines=16, block=INVARIANT_BLOCK, parts=8, warps=2)


class CommonPrefixes(NamedTuple):
    """Groups of rows with the same prefix, on the device. They may change between frames, but not during a frame."""

    table: Tensor  # int32: `starts`, then `groups`
    slots: int
    group_rows: int  # maximum size of a group

    @property
    def starts(self) -> Tensor:
        """Position [slots] at which each row's own positions begin, after its common prefix; 0 without a group."""
        return self.table[: self.slots]

    @property
    def groups(self) -> Tensor:
        """Each group's leader slot, number of common positions (0: unused) and rows' slots or -1 [groups, 2 + rows]."""
        return self.table[self.slots :].view(-1, MEMBERS + self.group_rows)


class CommonSums(NamedTuple):
    """Sums over common positions for each row, each head, and each block (in batch-invariant mode) or part."""

    starts: Tensor  # see `CommonPrefixes.starts`
    sums: Tensor  # float32 [B, H, blocks or parts, D] weighted values
    tops: Tensor  # float32 [B, H, blocks or parts, 2] highest score, sum of weights
    shape: Shape


def allocate_common(slots: int, heads: int, groups: int, size: int, like: Tensor) -> CommonPrefixes | None:
    """Allocate an empty table of groups for `slots` rows; None if no kernel supports these sizes or this device.

    `like` is any tensor with the device and dtype of the queries.
    """
    rows = _shape(heads // groups, like.dtype).lines // (heads // groups)
    if not runs_triton(like) or size < 16 or size & (size - 1) or rows < FEWEST_ROWS or slots < FEWEST_ROWS:
        return None
    count = slots // FEWEST_ROWS
    table = torch.zeros(slots + count * (MEMBERS + rows), dtype=torch.int32, device=like.device)
    return CommonPrefixes(table, slots, rows)


def attend_common(
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    rope: Tensor,
    norms: HeadNorms | None,
    common: CommonPrefixes,
) -> CommonSums:
    """Attend from the tokens qkv [B, (H + 2 G) D] to the common positions of their groups.

    Keys and values are [slots, G, S, D], of qkv's dtype or fp8; `rope` [B, D / 2, 2] and `norms` apply to the queries.
    All rows of groups must be among the first B, and only the first B / `FEWEST_ROWS` groups may be in use. Sums of
    rows without a group stay uninitialized.
    """
    groups, size = keys.shape[1], keys.shape[3]
    rows, heads = len(qkv), qkv.shape[1] // size - 2 * groups
    shape = _shape(heads // groups, qkv.dtype)
    assert common.group_rows * (heads // groups) <= shape.lines, "groups were allocated for products of another shape"
    # The step's span does not limit the number of sums: a group of idle slots may have more common positions.
    num_sums = triton.cdiv(min(keys.shape[2], MAX_COMMON), shape.block) if is_batch_invariant() else shape.parts
    sums = torch.empty(rows, heads, num_sums, size, dtype=torch.float32, device=qkv.device)
    tops = torch.empty(rows, heads, num_sums, 2, dtype=torch.float32, device=qkv.device)
    count = max(1, min(len(common.groups), rows // FEWEST_ROWS))
    _common_kernel[(count, groups, shape.parts)](
        qkv,
        keys,
        values,
        common.groups,
        rope,
        norms.query if norms else None,
        norms.eps if norms else 0.0,
        sums,
        tops,
        1 / math.sqrt(size),
        keys.stride(0),
        keys.stride(1),
        rope.stride(0),
        heads,
        groups,
        num_sums,
        common.group_rows,
        heads // groups,
        shape.lines,
        size,
        shape.block,
        shape.parts,
        BLOCKWISE=is_batch_invariant(),
        ROUND_LAST=norms is None or norms.round_last,
        LINE=128 // keys.element_size(),
        **launch(qkv),
        enable_fp_fusion=not is_batch_invariant(),
        num_warps=shape.warps,
        num_stages=2,
    )
    return CommonSums(common.starts, sums, tops, shape)


def _shape(shared: int, dtype: torch.dtype) -> Shape:
    """Return the shape for `shared` query heads per key-value head. In float32, FREE would need too many registers."""
    shape = ORDERED if is_batch_invariant() or dtype == torch.float32 else FREE
    return shape._replace(lines=max(shape.lines, 1 << (shared - 1).bit_length()))


@jit
def _common_kernel(
    queries,
    keys,
    values,
    table,
    rope,
    q_norm,
    eps,
    sums,
    tops,
    scale,
    slot_stride,
    group_stride,
    rope_stride,
    heads,
    groups,
    num_sums,
    ROWS: tl.constexpr,
    SHARED: tl.constexpr,
    LINES: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCKWISE: tl.constexpr,
    ROUND_LAST: tl.constexpr,
    LINE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Attend to a part of the common positions of one group at one key-value head, for all of its rows."""
    group_line = table + tl.program_id(0) * (2 + ROWS)
    group, part = tl.program_id(1), tl.program_id(2)
    length = tl.load(group_line + 1)
    each = part_positions(length, PARTS, BLOCK)
    first = part * each
    last = tl.minimum(first + each, length)
    start = tl.load(group_line).to(tl.int64) * slot_stride + group * group_stride
    if EARLY:
        if first < last:
            ahead = tl.minimum(first + tl.arange(0, BLOCK), last - 1)
            fetch_block(keys, values, start, ahead, SIZE, LINE)
    wait_for_last(EARLY)
    if first < last:
        line = tl.arange(0, LINES)
        row = tl.load(group_line + 2 + line // SHARED, mask=line < ROWS * SHARED, other=-1).to(tl.int64)
        is_member = row >= 0
        row = tl.maximum(row, 0)
        head = group * SHARED + line % SHARED
        channel = tl.arange(0, SIZE)
        at_query = (row * (heads + 2 * groups) + head)[:, None] * SIZE + channel[None, :]
        q = tl.load(queries + at_query, mask=is_member[:, None], other=0.0)
        cos_sin = rope + row[:, None] * rope_stride + 2 * tl.arange(0, SIZE // 2)[None, :]
        q = norm_and_rotate(q, q_norm, tl.load(cos_sin), tl.load(cos_sin + 1), eps, LINES, SIZE, ROUND_LAST)
        at = (row * heads + head) * num_sums
        top = tl.full([LINES], float("-inf"), tl.float32)
        total = tl.zeros([LINES], tl.float32)
        mixed = tl.zeros([LINES, SIZE], tl.float32)
        for begin in range(first, last, BLOCK):
            index = begin + tl.arange(0, BLOCK)
            score = block_scores(q, keys, start, index, last, scale, SIZE, EARLY)
            higher = tl.max(score, axis=1) if BLOCKWISE else tl.maximum(top, tl.max(score, axis=1))
            weight = tl.exp(score - higher[:, None])
            block_mixed = block_values(weight, q, values, start, index, last, SIZE, EARLY)
            if BLOCKWISE:
                store_sums(
                    sums, tops, at + begin // BLOCK, is_member, higher, tl.sum(weight, axis=1), block_mixed, SIZE
                )
            else:
                fade = tl.exp(top - higher)
                mixed = mixed * fade[:, None] + block_mixed
                total = total * fade + tl.sum(weight, axis=1)
                top = higher
        if not BLOCKWISE:
            store_sums(sums, tops, at + part, is_member, top, total, mixed, SIZE)
