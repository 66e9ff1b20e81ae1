"""From one projected token per row: queries ready to attend, its key and value put into the cache.

Norm of queries and keys (where the model has it), rotation by the table, and the write, in one pass.
Shapes: B rows, H query heads, G key-value heads, D head size, S columns.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit, launch, runs_triton, wait_for_last
from s1_mini.kernels.norm import rms_norm
from s1_mini.kernels.rope import turn
from s1_mini.kernels.weight import narrow

if HAS_TRITON:
    import triton.language as tl


class HeadNorms(NamedTuple):
    """Root-mean-square norms of each head's query and key."""

    query: Tensor  # [D]
    key: Tensor  # [D]
    eps: float


def rope_store(
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    columns: Tensor,
    rope: Tensor,
    norms: HeadNorms | None,
    slots: Tensor | None = None,
) -> Tensor:
    """Return queries [B, H, D] of `qkv` [B, (H + 2 G) D]; keys and values [slots, G, S, D] get theirs at `columns` [B].

    `rope` [B, D / 2, 2] is each row's part of the table, `norms` what the model has of those. `slots` [B] says
    whose the rows are; None means that they are the first ones, in order.
    """
    groups, size = keys.shape[1], keys.shape[3]
    heads = qkv.shape[-1] // size - 2 * groups
    if runs_triton(qkv) and size & (size - 1) == 0:
        return _rope_store_triton(qkv, keys, values, columns, rope, norms, slots, heads)
    turning, value = qkv.view(len(qkv), heads + 2 * groups, size).split((heads + groups, groups), dim=1)
    if norms is not None:
        query, key = turning.split((heads, groups), dim=1)
        pairs = (query, norms.query), (key, norms.key)
        turning = torch.cat([rms_norm(x, weight, norms.eps, round_last=True) for x, weight in pairs], dim=1)
    turned = turn(turning, rope.unsqueeze(1))
    rows = torch.arange(len(qkv), device=qkv.device) if slots is None else slots
    keys[rows, :, columns] = narrow(turned[:, heads:], keys.dtype)
    values[rows, :, columns] = narrow(value, values.dtype)
    return turned[:, :heads]


def _rope_store_triton(
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    columns: Tensor,
    rope: Tensor,
    norms: HeadNorms | None,
    slots: Tensor | None,
    heads: int,
) -> Tensor:
    groups, size = keys.shape[1], keys.shape[3]
    query = torch.empty(len(qkv), heads, size, dtype=qkv.dtype, device=qkv.device)
    _rope_store_kernel[(len(qkv), heads + 2 * groups)](
        qkv,
        query,
        keys,
        values,
        columns,
        rope,
        norms.query if norms else qkv,
        norms.key if norms else qkv,
        columns if slots is None else slots,
        norms.eps if norms else 0.0,
        keys.stride(0),
        keys.stride(1),
        rope.stride(0),
        columns.stride(0),
        heads,
        groups,
        norms is not None,
        slots is not None,
        size,
        NARROW=keys.dtype != qkv.dtype,
        **launch(qkv),
        num_warps=1,
    )
    return query


@jit
def as_kept(x, kept, NARROW: tl.constexpr):
    """Return x in the format that `kept` points to: its own, or fp8, where what is too large becomes the largest."""
    if NARROW:
        x = tl.minimum(tl.maximum(x.to(tl.float32), -448.0), 448.0).to(kept.dtype.element_ty)
    return x


@jit
def _rope_store_kernel(
    qkv,
    query,
    keys,
    values,
    columns,
    rope,
    q_weight,
    k_weight,
    slots,
    eps,
    slot_stride,
    group_stride,
    rope_stride,
    columns_stride,
    heads,
    groups,
    NORMS: tl.constexpr,
    SLOTS: tl.constexpr,
    SIZE: tl.constexpr,
    NARROW: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    pair = tl.arange(0, SIZE // 2)
    wait_for_last(EARLY)
    slot = tl.load(slots + row) if SLOTS else row
    at = qkv + (row * (heads + 2 * groups) + head) * SIZE
    even, odd = tl.load(at + 2 * pair), tl.load(at + 2 * pair + 1)
    kind = even.dtype
    column = tl.load(columns + row * columns_stride)
    if head >= heads + groups:
        out = values + slot * slot_stride + (head - heads - groups) * group_stride + column * SIZE
        tl.store(out + 2 * pair, as_kept(even, values, NARROW))
        tl.store(out + 2 * pair + 1, as_kept(odd, values, NARROW))
    else:
        first, second = even.to(tl.float32), odd.to(tl.float32)
        if NORMS:
            asks = head < heads
            first_weight = tl.where(asks, tl.load(q_weight + 2 * pair), tl.load(k_weight + 2 * pair))
            second_weight = tl.where(asks, tl.load(q_weight + 2 * pair + 1), tl.load(k_weight + 2 * pair + 1))
            scale = tl.rsqrt((tl.sum(first * first, axis=0) + tl.sum(second * second, axis=0)) / SIZE + eps)
            first = (first * scale * first_weight.to(tl.float32)).to(kind).to(tl.float32)
            second = (second * scale * second_weight.to(tl.float32)).to(kind).to(tl.float32)
        cos = tl.load(rope + row * rope_stride + 2 * pair)
        sin = tl.load(rope + row * rope_stride + 2 * pair + 1)
        turned, crossed = first * cos - second * sin, second * cos + first * sin
        if head < heads:
            asked = query + (row * heads + head) * SIZE
            tl.store(asked + 2 * pair, turned.to(kind))
            tl.store(asked + 2 * pair + 1, crossed.to(kind))
        else:
            kept = keys + slot * slot_stride + (head - heads) * group_stride + column * SIZE
            tl.store(kept + 2 * pair, as_kept(turned.to(kind), keys, NARROW))
            tl.store(kept + 2 * pair + 1, as_kept(crossed.to(kind), keys, NARROW))
