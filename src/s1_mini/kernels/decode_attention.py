"""Attention of one token per row over the row's used columns, grouped-query, split over the length.

The number of columns of a row is read on the device, so one captured graph serves rows of any length. Each part of a
row's columns has its own program (flash decoding, Dao et al. 2023); a second kernel adds them up. Common prefixes of
many rows may be handled by another kernel, for all rows at once (`common_attention`). Where the tokens are the rows'
newest, the same kernel also norms, rotates and stores them.
Shapes: B rows, H query heads, G key-value heads, D head size, S columns.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.kernels.attention_kernels import join_blocks_kernel, join_kernel, part_kernel
from s1_mini.kernels.backend import HAS_TRITON, is_batch_invariant, launch, runs_triton
from s1_mini.kernels.common_attention import BLOCK_IN_ONE_ORDER, FEWEST_ROWS, CommonPrefixes, attend_common
from s1_mini.kernels.rope import HeadNorms, rope_store

if HAS_TRITON:
    import triton

COLUMNS_AT_ONCE = 64
MANY_ROWS = 64  # above, smaller blocks are faster
PROGRAMS = 256  # to fill the GPU, few rows are split into more parts


def used_positions(position: Tensor, span: int, size: int) -> Tensor | None:
    """Return the mask [B, 1, 1, `span`] of a step, for all layers; None if the kernel, which needs none, will run.

    Each row attends to all columns up to its `position` [B], and always to the first. `size` is that of the heads.
    """
    if _can_attend(position, size):
        return None
    return (torch.arange(span, device=position.device) <= position.clamp_min(0).unsqueeze(1))[:, None, None]


def looks_at_common(rows: int, groups: int, span: int) -> bool:
    """Return whether a step of `rows` rows may read common prefixes once: rows in several parts may not."""
    return rows >= FEWEST_ROWS and _split(rows, groups, span)[1] == 1


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
    common: CommonPrefixes | None = None,
) -> Tensor:
    """Put a token of each row into the cache, and attend from it to the row's columns; [B, H D].

    `qkv` [B, (H + 2 G) D] is the token's projection; its key and value go to `columns` [B] of keys and values
    [slots, G, S, D], which have qkv's format or fp8. The row then attends to all columns up to its `position` [B];
    without `slots` the new one counts as the last of them wherever it is stored. `slots` [B] are the rows' slots, which
    may repeat; None means the first ones, in order. `rope` [B, D / 2, 2] is each row's part of the table. Every
    position is below `span`; `mask` is that of `used_positions`. No kernel of a frame may write positions, slots or
    `common`: they are read before the previous kernel has ended. The columns in `common` are read from one slot of each
    group, where that is faster; this changes rounding only, and in one order nothing.
    """
    if slots is None and _can_attend(qkv, keys.shape[-1]):
        return _attend_triton(qkv, keys, values, position, span, new=(columns, rope, norms), common=common)
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

    Keys and values are [slots, G, S, D]; every position is below `span`. `mask` is that of `used_positions`, or None if
    all rows have `span` columns. `slots` [B] are the rows' slots; None means the first ones, in order.
    """
    if _can_attend(query, query.shape[-1]):
        rows = query.flatten(1).contiguous()  # may be a slice of a joint projection
        return _attend_triton(rows, keys, values, position, span, slots=slots).view(query.shape)
    chosen = slice(len(query)) if slots is None else slots
    if query.device.type == "cpu" and query.dtype == torch.float32:
        return _attend_by_products(query, keys[chosen, :, :span].float(), values[chosen, :, :span].float(), mask)
    out = F.scaled_dot_product_attention(
        query.unsqueeze(2),
        keys[chosen, :, :span].to(query.dtype),
        values[chosen, :, :span].to(query.dtype),
        attn_mask=mask,
        enable_gqa=keys.shape[1] != query.shape[1],
    )
    return out.squeeze(2)


def _attend_by_products(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attend by two products, whose bits do not depend on the other rows.

    On a CPU with several threads, `scaled_dot_product_attention` rounds a row by the thread that computes it (torch
    2.13), and so by the number of rows.
    """
    rows, heads, size = query.shape
    groups = keys.shape[1]
    scores = (query * size**-0.5).view(rows, groups, heads // groups, size) @ keys.transpose(-1, -2)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return (scores.softmax(-1) @ values).view(rows, heads, size)


def _can_attend(x: Tensor, size: int) -> bool:
    """Return whether the kernel supports x: Triton's product needs a power of two of at least 16 channels."""
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
    common: CommonPrefixes | None = None,
) -> Tensor:
    """Attend from queries, or from the projections of `new` tokens with their columns, rotary rows and norms."""
    groups, size = keys.shape[1], keys.shape[3]
    rows, heads = len(asked), asked.shape[1] // size - (2 * groups if new else 0)
    shared = heads // groups
    block, parts = _split(rows, groups, span)
    blockwise = is_batch_invariant()
    kept = triton.cdiv(span, block) + 1 if blockwise else parts  # sums to join: blocks and the new token, or parts
    out = torch.empty(rows, heads * size, dtype=asked.dtype, device=asked.device)
    sums = torch.empty(rows, heads, kept if parts > 1 else 0, size, dtype=torch.float32, device=asked.device)
    tops = torch.empty(rows, heads, kept if parts > 1 else 0, 2, dtype=torch.float32, device=asked.device)
    columns, rope, norms = new or (position, asked, None)
    known = None
    if common is not None and new is not None and parts == 1:
        known = attend_common(asked, keys, values, rope, norms, common)
    part_kernel[(rows, groups, parts)](
        asked,
        keys,
        values,
        position,
        slots,
        columns,
        rope,
        norms.query if norms else None,
        norms.key if norms else None,
        norms.eps if norms else 0.0,
        out,
        sums,
        tops,
        known.starts if known else None,
        known.sums if known else None,
        known.tops if known else None,
        known.sums.shape[2] if known else 1,
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
        NEW=new is not None,
        NARROW=keys.dtype != asked.dtype,
        LINE=128 // keys.element_size(),
        COMMON_PARTS=known.shape.parts if known else 1,
        COMMON_BLOCK=known.shape.block if known else 1,
        **launch(asked),
        enable_fp_fusion=not blockwise,
        num_warps=2 if block > 16 else 4,
        num_stages=2,
    )
    if parts > 1 and blockwise:
        join_blocks_kernel[(rows, heads)](
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
        join_kernel[(rows, heads)](
            sums, tops, out, heads, parts, triton.next_power_of_2(parts), size, **launch(asked), num_warps=1
        )
    return out


def _split(rows: int, groups: int, span: int) -> tuple[int, int]:
    """Return the block of columns of a program, and the number of parts of a row's columns."""
    block = COLUMNS_AT_ONCE // 2 if rows > MANY_ROWS else COLUMNS_AT_ONCE
    if is_batch_invariant():
        block = BLOCK_IN_ONE_ORDER
    block = min(block, max(16, 1 << (span - 1).bit_length()))
    return block, max(1, min(-(-span // block), -(-PROGRAMS // (rows * groups))))
