"""Attention of one query per row over the columns that the row has used, grouped-query, split over the length.

How many columns a row has is read on the device, so one captured graph serves rows of any length. Each of some parts of
a row's columns is attended to by a program of its own (flash decoding, Dao et al. 2023); a second kernel adds them up.
Shapes: B rows, H query heads, G key-value heads, D head size, S columns.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit, runs_triton

if HAS_TRITON:
    import triton
    import triton.language as tl

COLUMNS_AT_ONCE = 64
PROGRAMS = 512  # wanted, to fill the GPU: few rows are split into more parts


def used_columns(lengths: Tensor, span: int, size: int) -> Tensor | None:
    """Give where [B, 1, 1, `span`] rows have columns, if `decode_attention` is going to ask; once for all layers.

    `size` is that of the heads.
    """
    if _can_attend(lengths, size):
        return None
    return (torch.arange(span, device=lengths.device) < lengths.unsqueeze(1))[:, None, None]


def decode_attention(
    query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, span: int, mask: Tensor | None
) -> Tensor:
    """Attend from `query` [B, H, D] to the first `lengths` [B] columns of each row; [B, H, D].

    Keys and values are [slots >= B, G, S, D]; no row may have more than `span` columns. `mask` is what `used_columns`
    gave, or None if all rows have `span`.
    """
    rows = len(query)
    if _can_attend(query, query.shape[-1]):
        return _decode_attention_triton(query, keys[:rows], values[:rows], lengths, span)
    out = F.scaled_dot_product_attention(
        query.unsqueeze(2),
        keys[:rows, :, :span],
        values[:rows, :, :span],
        attn_mask=mask,
        enable_gqa=keys.shape[1] != query.shape[1],
    )
    return out.squeeze(2)


def _can_attend(x: Tensor, size: int) -> bool:
    """Whether the kernel can: Triton's product wants 16 channels or more, and a power of two."""
    return runs_triton(x) and size >= 16 and size & (size - 1) == 0


def _decode_attention_triton(query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, span: int) -> Tensor:
    rows, heads, size = query.shape
    groups = keys.shape[1]
    shared = heads // groups
    parts = max(1, min(triton.cdiv(span, COLUMNS_AT_ONCE), triton.cdiv(PROGRAMS, rows * groups)))
    out = torch.empty_like(query)
    sums = torch.empty(rows, heads, parts, size, dtype=torch.float32, device=query.device)
    tops = torch.empty(rows, heads, parts, 2, dtype=torch.float32, device=query.device)
    _part_kernel[(rows, groups, parts)](
        query,
        keys,
        values,
        lengths,
        out,
        sums,
        tops,
        1 / math.sqrt(size),
        keys.stride(0),
        keys.stride(1),
        lengths.stride(0),
        heads,
        parts,
        shared,
        triton.next_power_of_2(max(16, shared)),
        size,
        COLUMNS_AT_ONCE,
        parts == 1,
        num_warps=4,
        num_stages=3,
    )
    if parts > 1:
        _join_kernel[(rows, heads)](sums, tops, out, heads, parts, triton.next_power_of_2(parts), size, num_warps=2)
    return out


@jit
def _part_kernel(
    query,
    keys,
    values,
    lengths,
    out,
    sums,
    tops,
    scale,
    slot_stride,
    group_stride,
    lengths_stride,
    heads,
    parts,
    SHARED: tl.constexpr,
    PADDED: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ALONE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    part = tl.program_id(2)
    length = tl.load(lengths + row * lengths_stride)
    each = tl.cdiv(tl.cdiv(length, parts), BLOCK) * BLOCK
    first = part * each
    last = tl.minimum(first + each, length)
    local = tl.arange(0, PADDED)
    channel = tl.arange(0, SIZE)
    head = group * SHARED + local
    mine = local < SHARED
    q = tl.load(query + (row * heads + head[:, None]) * SIZE + channel[None, :], mask=mine[:, None], other=0.0)
    top = tl.full([PADDED], float("-inf"), tl.float32)
    total = tl.zeros([PADDED], tl.float32)
    mixed = tl.zeros([PADDED, SIZE], tl.float32)
    start = row * slot_stride + group * group_stride
    for begin in range(first, last, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        inside = column < last
        k = tl.load(keys + start + column[None, :] * SIZE + channel[:, None], mask=inside[None, :], other=0.0)
        score = tl.dot(q, k, input_precision="ieee") * scale
        score = tl.where(inside[None, :], score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, axis=1))
        fade = tl.exp(top - higher)
        weight = tl.exp(score - higher[:, None])
        v = tl.load(values + start + column[:, None] * SIZE + channel[None, :], mask=inside[:, None], other=0.0)
        mixed = mixed * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        total = total * fade + tl.sum(weight, axis=1)
        top = higher
    if ALONE:
        where = (row * heads + head[:, None]) * SIZE + channel[None, :]
        tl.store(out + where, (mixed / total[:, None]).to(out.dtype.element_ty), mask=mine[:, None])
    else:
        at = (row * heads + head) * parts + part
        tl.store(sums + at[:, None] * SIZE + channel[None, :], mixed, mask=mine[:, None])
        tl.store(tops + 2 * at, top, mask=mine)
        tl.store(tops + 2 * at + 1, total, mask=mine)


@jit
def _join_kernel(sums, tops, out, heads, parts, PARTS: tl.constexpr, SIZE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * heads + tl.program_id(1)
    part = tl.arange(0, PARTS)
    channel = tl.arange(0, SIZE)
    inside = part < parts
    top = tl.load(tops + 2 * (at * parts + part), mask=inside, other=float("-inf"))
    total = tl.load(tops + 2 * (at * parts + part) + 1, mask=inside, other=0.0)
    fade = tl.where(inside, tl.exp(top - tl.max(top, axis=0)), 0.0)
    mixed = tl.load(sums + (at * parts + part[:, None]) * SIZE + channel[None, :], mask=inside[:, None], other=0.0)
    joined = tl.sum(mixed * fade[:, None], axis=0) / tl.sum(total * fade, axis=0)
    tl.store(out + at * SIZE + channel, joined.to(out.dtype.element_ty))
