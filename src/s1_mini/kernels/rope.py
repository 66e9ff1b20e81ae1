"""Rotary positions: rotate queries and keys, and in the same kernel split them or store them in the cache.

Shapes: B rows, T tokens, H query heads, G key-value heads, D head size, S positions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit, launch, runs_triton, wait_for_last
from s1_mini.kernels.norm import rms_norm
from s1_mini.kernels.weight import cast_saturating as cast_tensor

if HAS_TRITON:
    import triton
    import triton.language as tl

BLOCK = 512


def apply_rope(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate the pairs of x [..., D] by the cos and sin in `rope` [..., D / 2, 2], computed in fp32."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = rope.unbind(-1)
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2).to(x.dtype)


def rope_and_split(qkv: Tensor, rope: Tensor, heads: int, groups: int) -> tuple[Tensor, Tensor]:
    """Return queries [B, T, H * D], and keys and values side by side [B, T, 2 * G * D].

    `qkv` [B, T, (H + 2 * G) * D] holds all three; queries and keys are rotated by `rope` [B, T, D / 2, 2].
    """
    width = qkv.shape[-1]
    size = width // (heads + 2 * groups)
    if not runs_triton(qkv):
        qk, values = qkv.split(((heads + groups) * size, groups * size), dim=-1)
        rotated = apply_rope(qk.unflatten(-1, (-1, size)), rope.unsqueeze(2)).flatten(2)
        query, keys = rotated.split((heads * size, groups * size), dim=-1)
        return query.contiguous(), torch.cat((keys, values), dim=-1)
    qkv, rope = qkv.contiguous(), rope.contiguous()
    queries = qkv.new_empty(*qkv.shape[:-1], heads * size)
    others = qkv.new_empty(*qkv.shape[:-1], 2 * groups * size)
    _rope_and_split_kernel[(qkv.numel() // width, triton.cdiv(width // 2, BLOCK))](
        qkv, rope, queries, others, width // 2, heads * size // 2, (heads + groups) * size // 2, size // 2, BLOCK
    )
    return queries, others


@jit
def _rope_and_split_kernel(qkv, rope, queries, others, num_pairs, num_query, num_rotated, half, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    pair = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = pair < num_pairs
    first = tl.load(qkv + (token * num_pairs + pair) * 2, mask=inside, other=0.0)
    second = tl.load(qkv + (token * num_pairs + pair) * 2 + 1, mask=inside, other=0.0)
    is_rotated = inside & (pair < num_rotated)
    angle = rope + (token * half + pair % half) * 2
    cos = tl.load(angle, mask=is_rotated, other=1.0)
    sin = tl.load(angle + 1, mask=is_rotated, other=0.0)
    even, odd = first.to(tl.float32), second.to(tl.float32)
    new_even = (even * cos - odd * sin).to(first.dtype)
    new_odd = (odd * cos + even * sin).to(first.dtype)
    is_query = pair < num_query
    at = queries + (token * num_query + pair) * 2
    tl.store(at, new_even, mask=is_query)
    tl.store(at + 1, new_odd, mask=is_query)
    at = others + (token * (num_pairs - num_query) + pair - num_query) * 2
    tl.store(at, new_even, mask=inside & (pair >= num_query))
    tl.store(at + 1, new_odd, mask=inside & (pair >= num_query))


class HeadNorms(NamedTuple):
    """Root-mean-square norms of each head's query and key."""

    query: Tensor  # [D]
    key: Tensor  # [D]
    eps: float
    round_last: bool = True  # round only after the multiplication by the weights, not also before it


def rope_store(
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    target: Tensor,
    rope: Tensor,
    norms: HeadNorms | None,
    slots: Tensor | None = None,
) -> Tensor:
    """Return queries [B, H, D] of `qkv` [B, (H + 2 G) D]; store keys and values at `target` [B] of the cache.

    The cache consists of `keys` and `values` [slots, G, S, D], of qkv's dtype or fp8. `rope` [B, D / 2, 2] has the cos
    and sin of each row; queries and keys are normed by `norms`, if any, and rotated. `slots` [B] are the rows' slots;
    None means the first B slots.
    """
    groups, size = keys.shape[1], keys.shape[3]
    heads = qkv.shape[-1] // size - 2 * groups
    if not runs_triton(qkv) or size & (size - 1):
        return _rope_store_torch(qkv, keys, values, target, rope, norms, slots)
    query = qkv.new_empty(len(qkv), heads, size)
    _rope_store_kernel[(len(qkv), heads + 2 * groups)](
        qkv,
        query,
        keys,
        values,
        target,
        rope,
        norms.query if norms else None,
        norms.key if norms else None,
        slots,
        norms.eps if norms else 0.0,
        keys.stride(0),
        keys.stride(1),
        rope.stride(0),
        target.stride(0),
        heads,
        groups,
        size,
        ROUND_LAST=norms is None or norms.round_last,
        FP8=keys.dtype != qkv.dtype,
        **launch(qkv),
        num_warps=1,
    )
    return query


def _rope_store_torch(
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    target: Tensor,
    rope: Tensor,
    norms: HeadNorms | None,
    slots: Tensor | None,
) -> Tensor:
    groups, size = keys.shape[1], keys.shape[3]
    heads = qkv.shape[-1] // size - 2 * groups
    qk, value = qkv.view(len(qkv), heads + 2 * groups, size).split((heads + groups, groups), dim=1)
    if norms is not None:
        pairs = zip(qk.split((heads, groups), dim=1), (norms.query, norms.key), strict=True)
        qk = torch.cat([rms_norm(x, weight, norms.eps, round_last=norms.round_last) for x, weight in pairs], dim=1)
    rotated = apply_rope(qk, rope.unsqueeze(1))
    rows = torch.arange(len(qkv), device=qkv.device) if slots is None else slots
    keys[rows, :, target] = cast_tensor(rotated[:, heads:], keys.dtype)
    values[rows, :, target] = cast_tensor(value, values.dtype)
    return rotated[:, :heads]


@jit
def cast_saturating(x, pointer, FP8: tl.constexpr):
    """Return x in the dtype of `pointer`'s elements: x's own dtype, or if FP8, limited to the largest fp8 number."""
    if FP8:
        x = tl.minimum(tl.maximum(x.to(tl.float32), -448.0), 448.0).to(pointer.dtype.element_ty)
    return x


@jit
def _rope_store_kernel(
    qkv,
    query,
    keys,
    values,
    target,
    rope,
    q_weight,
    k_weight,
    slots,
    eps,
    slot_stride,
    group_stride,
    rope_stride,
    target_stride,
    heads,
    groups,
    SIZE: tl.constexpr,
    ROUND_LAST: tl.constexpr,
    FP8: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    pair = tl.arange(0, SIZE // 2)
    wait_for_last(EARLY)
    slot = row if slots is None else tl.load(slots + row)
    at = qkv + (row * (heads + 2 * groups) + head) * SIZE
    even, odd = tl.load(at + 2 * pair), tl.load(at + 2 * pair + 1)
    kind = even.dtype
    index = tl.load(target + row * target_stride)
    if head >= heads + groups:
        out = values + slot * slot_stride + (head - heads - groups) * group_stride + index * SIZE
        tl.store(out + 2 * pair, cast_saturating(even, values, FP8))
        tl.store(out + 2 * pair + 1, cast_saturating(odd, values, FP8))
    else:
        first, second = even.to(tl.float32), odd.to(tl.float32)
        if q_weight is not None:
            is_query = head < heads
            first_weight = tl.where(is_query, tl.load(q_weight + 2 * pair), tl.load(k_weight + 2 * pair))
            second_weight = tl.where(is_query, tl.load(q_weight + 2 * pair + 1), tl.load(k_weight + 2 * pair + 1))
            scale = tl.rsqrt((tl.sum(first * first, axis=0) + tl.sum(second * second, axis=0)) / SIZE + eps)
            first, second = first * scale, second * scale
            if not ROUND_LAST:
                first, second = first.to(kind).to(tl.float32), second.to(kind).to(tl.float32)
            first = (first * first_weight.to(tl.float32)).to(kind).to(tl.float32)
            second = (second * second_weight.to(tl.float32)).to(kind).to(tl.float32)
        cos = tl.load(rope + row * rope_stride + 2 * pair)
        sin = tl.load(rope + row * rope_stride + 2 * pair + 1)
        new_even, new_odd = first * cos - second * sin, second * cos + first * sin
        if head < heads:
            to = query + (row * heads + head) * SIZE
            tl.store(to + 2 * pair, new_even.to(kind))
            tl.store(to + 2 * pair + 1, new_odd.to(kind))
        else:
            kept = keys + slot * slot_stride + (head - heads) * group_stride + index * SIZE
            tl.store(kept + 2 * pair, cast_saturating(new_even.to(kind), keys, FP8))
            tl.store(kept + 2 * pair + 1, cast_saturating(new_odd.to(kind), keys, FP8))
