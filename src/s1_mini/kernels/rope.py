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
NUMBERS, WARPS = 1024, 4  # of a program of `rope_store`


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
    each = max(1, NUMBERS // size)
    _rope_store_kernel[(len(qkv), triton.cdiv(heads + 2 * groups, each))](
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
        each,
        ROUND_LAST=norms is None or norms.round_last,
        FP8=keys.dtype != qkv.dtype,
        **launch(qkv),
        num_warps=WARPS,
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
def rotate(x, weights, cos, sin, eps, COUNT: tl.constexpr, SIZE: tl.constexpr, ROUND_LAST: tl.constexpr):
    """Norm the rows of x [COUNT, SIZE] by `weights`, if any, and rotate pairs by `cos` and `sin`.

    `weights` are [1 or COUNT, SIZE], `cos` and `sin` [1 or COUNT, SIZE / 2]. Norm and rotation are each rounded to x's
    dtype. Without ROUND_LAST, the norm is also rounded before it is multiplied by `weights`.
    """
    value = x.to(tl.float32)
    if weights is not None:
        scale = tl.rsqrt(tl.sum(value * value, axis=1) / SIZE + eps)[:, None]
        value = value * scale
        if not ROUND_LAST:
            value = value.to(x.dtype).to(tl.float32)
        value = (value * weights.to(tl.float32)).to(x.dtype).to(tl.float32)
    even, odd = tl.split(tl.reshape(value, [COUNT, SIZE // 2, 2]))
    rotated = tl.join(even * cos - odd * sin, odd * cos + even * sin)
    return tl.reshape(rotated, [COUNT, SIZE]).to(x.dtype)


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
    EACH: tl.constexpr,
    ROUND_LAST: tl.constexpr,
    FP8: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Process EACH heads of a row: queries, then keys, then values."""
    row = tl.program_id(0).to(tl.int64)
    line, channel = tl.program_id(1) * EACH + tl.arange(0, EACH), tl.arange(0, SIZE)[None, :]
    is_query = (line < heads)[:, None]
    is_key = ((line >= heads) & (line < heads + groups))[:, None]
    is_value = ((line >= heads + groups) & (line < heads + 2 * groups))[:, None]
    weights = None
    if q_weight is not None:
        weights = tl.where(is_query, tl.load(q_weight + channel), tl.load(k_weight + channel))
    wait_for_last(EARLY)
    at = (row * (heads + 2 * groups) + line)[:, None] * SIZE + channel
    x = tl.load(qkv + at, mask=(line < heads + 2 * groups)[:, None], other=0.0)
    angle = rope + row * rope_stride + 2 * tl.arange(0, SIZE // 2)
    cos, sin = tl.load(angle)[None, :], tl.load(angle + 1)[None, :]
    slot = row if slots is None else tl.load(slots + row)
    to = slot * slot_stride + tl.load(target + row * target_stride) * SIZE + channel
    rotated = rotate(x, weights, cos, sin, eps, EACH, SIZE, ROUND_LAST)
    tl.store(query + (row * heads + line)[:, None] * SIZE + channel, rotated, mask=is_query)
    group = (line - heads).to(tl.int64)[:, None]
    tl.store(keys + group * group_stride + to, cast_saturating(rotated, keys, FP8), mask=is_key)
    tl.store(values + (group - groups) * group_stride + to, cast_saturating(x, values, FP8), mask=is_value)
