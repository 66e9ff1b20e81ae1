"""Attention over common prefixes: keys and values of a voice's prompt are read once for all rows of a group.

Each slot keeps its own copy; those of a group are equal to the last bit, and its program reads the copy of one slot,
its leader. The queries of all its rows are the lines of one product. The result is stored as sums, to which the program
of each row adds its own columns (`attention_kernels.part_kernel`). In one order the same blocks of the same columns are
added up in the same order as for a single row: a block is a separate sum in both cases, by products of the same shape,
so that sharing does not change a bit.
Shapes: B rows, H query heads, G key-value heads, D head size, S columns.
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
    keep_sums,
    part_positions,
    turn_rows,
)
from s1_mini.kernels.backend import HAS_TRITON, is_batch_invariant, jit, launch, runs_triton, wait_for_last
from s1_mini.kernels.rope import HeadNorms

if HAS_TRITON:
    import triton
    import triton.language as tl

BLOCK_IN_ONE_ORDER = 32  # columns, of any number of rows; each block is a separate sum
WHOLE_BLOCKS = 32  # common columns are a multiple of this: a row's own begin at the start of a block
FEWEST_ROWS = 4  # of a group; fewer read their own copies
MOST_COLUMNS = 1024  # in common, which bounds the memory for sums
LEADER, LENGTH, MEMBERS = 0, 1, 2  # places in a group's line of the table


class Shape(NamedTuple):
    """Split of a group's work."""

    lines: int  # of a product: rows of a group times query heads of a key-value head
    block: int  # columns at once
    parts: int  # programs that share the columns of a group
    warps: int


FREE = Shape(lines=64, block=64, parts=4, warps=4)
# Lines, block and warps of a row's own program, so that sums over a block are laid out over threads alike.
ORDERED = Shape(lines=16, block=BLOCK_IN_ONE_ORDER, parts=8, warps=2)


class CommonPrefixes(NamedTuple):
    """Rows whose first columns are the same, on the device; may change between frames, not within one."""

    table: Tensor  # int32: `starts`, then `groups`
    slots: int
    group_rows: int  # that a group may have

    @property
    def starts(self) -> Tensor:
        """Start of each row's own columns [slots]; 0 for a row without a group."""
        return self.table[: self.slots]

    @property
    def groups(self) -> Tensor:
        """Leader's slot, number of common columns (0: unused) and the rows' slots or -1, [groups, 2 + rows]."""
        return self.table[self.slots :].view(-1, MEMBERS + self.group_rows)


class CommonSums(NamedTuple):
    """Sums over common columns, for each row, head, and block or part."""

    starts: Tensor  # as above
    sums: Tensor  # float32 [B, H, kept, D] weighted values
    tops: Tensor  # float32 [B, H, kept, 2] highest score, sum of weights
    shape: Shape


def allocate_common(slots: int, heads: int, groups: int, size: int, like: Tensor) -> CommonPrefixes | None:
    """Allocate a table of groups for `slots` rows, empty; None if no kernel supports it. Queries are as `like`."""
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
    """Attend from the tokens qkv [B, (H + 2 G) D] to the common columns of their groups.

    Keys and values are [slots, G, S, D], of qkv's format or fp8; `rope` [B, D / 2, 2] and `norms` are for the
    queries. All rows of groups must be among the first B, and only the first B / `FEWEST_ROWS` groups in use. Sums of
    rows without a group stay uninitialized.
    """
    groups, size = keys.shape[1], keys.shape[3]
    rows, heads = len(qkv), qkv.shape[1] // size - 2 * groups
    shape = _shape(heads // groups, qkv.dtype)
    assert common.group_rows * (heads // groups) <= shape.lines, "groups were made for products of another shape"
    # A group may have more common columns than the step's span: idle slots may be longer.
    kept = triton.cdiv(min(keys.shape[2], MOST_COLUMNS), shape.block) if is_batch_invariant() else shape.parts
    sums = torch.empty(rows, heads, kept, size, dtype=torch.float32, device=qkv.device)
    tops = torch.empty(rows, heads, kept, 2, dtype=torch.float32, device=qkv.device)
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
        kept,
        common.group_rows,
        heads // groups,
        shape.lines,
        size,
        shape.block,
        shape.parts,
        BLOCKWISE=is_batch_invariant(),
        LINE=128 // keys.element_size(),
        **launch(qkv),
        enable_fp_fusion=not is_batch_invariant(),
        num_warps=shape.warps,
        num_stages=2,
    )
    return CommonSums(common.starts, sums, tops, shape)


def _shape(shared: int, dtype: torch.dtype) -> Shape:
    """Return the shape for `shared` query heads of a key-value head; float32 lacks registers for the large one."""
    shape = ORDERED if is_batch_invariant() or dtype == torch.float32 else FREE
    return shape._replace(lines=max(shape.lines, 1 << (shared - 1).bit_length()))


@jit
def _common_kernel(
    asked,
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
    kept,
    ROWS: tl.constexpr,
    SHARED: tl.constexpr,
    LINES: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCKWISE: tl.constexpr,
    LINE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Add up a part of the columns of one group at one key-value head, for all of its rows."""
    about = table + tl.program_id(0) * (2 + ROWS)
    group, part = tl.program_id(1), tl.program_id(2)
    length = tl.load(about + 1)
    each = part_positions(length, PARTS, BLOCK)
    first = part * each
    last = tl.minimum(first + each, length)
    start = tl.load(about).to(tl.int64) * slot_stride + group * group_stride
    if EARLY:
        if first < last:
            ahead = tl.minimum(first + tl.arange(0, BLOCK), last - 1)
            fetch_block(keys, values, start, ahead, SIZE, LINE)
    wait_for_last(EARLY)
    if first < last:
        line = tl.arange(0, LINES)
        row = tl.load(about + 2 + line // SHARED, mask=line < ROWS * SHARED, other=-1).to(tl.int64)
        mine = row >= 0
        row = tl.maximum(row, 0)
        head = group * SHARED + line % SHARED
        channel = tl.arange(0, SIZE)
        at_query = (row * (heads + 2 * groups) + head)[:, None] * SIZE + channel[None, :]
        q = tl.load(asked + at_query, mask=mine[:, None], other=0.0)
        turn = rope + row[:, None] * rope_stride + 2 * tl.arange(0, SIZE // 2)[None, :]
        q = turn_rows(q, q_norm, tl.load(turn), tl.load(turn + 1), eps, LINES, SIZE)
        at = (row * heads + head) * kept
        top = tl.full([LINES], float("-inf"), tl.float32)
        total = tl.zeros([LINES], tl.float32)
        mixed = tl.zeros([LINES, SIZE], tl.float32)
        for begin in range(first, last, BLOCK):
            column = begin + tl.arange(0, BLOCK)
            score = block_scores(q, keys, start, column, last, scale, SIZE, EARLY)
            higher = tl.max(score, axis=1) if BLOCKWISE else tl.maximum(top, tl.max(score, axis=1))
            weight = tl.exp(score - higher[:, None])
            block_mixed = block_values(weight, q, values, start, column, last, SIZE, EARLY)
            if BLOCKWISE:
                keep_sums(sums, tops, at + begin // BLOCK, mine, higher, tl.sum(weight, axis=1), block_mixed, SIZE)
            else:
                fade = tl.exp(top - higher)
                mixed = mixed * fade[:, None] + block_mixed
                total = total * fade + tl.sum(weight, axis=1)
                top = higher
        if not BLOCKWISE:
            keep_sums(sums, tops, at + part, mine, top, total, mixed, SIZE)
