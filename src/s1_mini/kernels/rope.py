"""Queries and keys turned by their positions, and parted from one another, in one pass.

Shapes: B rows, T tokens, H query heads, G key-value heads, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit, runs_triton

if HAS_TRITON:
    import triton
    import triton.language as tl

BLOCK = 512


def turn(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate the pairs of x [..., D] by `rope`, rows of a table [..., D / 2, 2]; fp32 inside."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = rope.unbind(-1)
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2).to(x.dtype)


def turn_and_part(qkv: Tensor, rope: Tensor, heads: int, groups: int) -> tuple[Tensor, Tensor]:
    """Return queries [B, T, H * D], and keys and values beside each other [B, T, 2 * G * D].

    `qkv` [B, T, (H + 2 * G) * D] holds all; queries and keys are turned by `rope` [B, T, D / 2, 2].
    """
    size = qkv.shape[-1] // (heads + 2 * groups)
    if runs_triton(qkv):
        return _turn_and_part_triton(qkv.contiguous(), rope.contiguous(), heads, groups, size)
    turning, values = qkv.split(((heads + groups) * size, groups * size), dim=-1)
    turned = turn(turning.unflatten(-1, (-1, size)), rope.unsqueeze(2)).flatten(2)
    queries, keys = turned.split((heads * size, groups * size), dim=-1)
    return queries.contiguous(), torch.cat((keys, values), dim=-1)


def _turn_and_part_triton(qkv: Tensor, rope: Tensor, heads: int, groups: int, size: int) -> tuple[Tensor, Tensor]:
    queries = qkv.new_empty(*qkv.shape[:-1], heads * size)
    others = qkv.new_empty(*qkv.shape[:-1], 2 * groups * size)
    width = qkv.shape[-1]
    grid = (qkv.numel() // width, triton.cdiv(width // 2, BLOCK))
    _turn_and_part_kernel[grid](
        qkv, rope, queries, others, width // 2, heads * size // 2, (heads + groups) * size // 2, size // 2, BLOCK
    )
    return queries, others


@jit
def _turn_and_part_kernel(qkv, rope, queries, others, num_pairs, num_query, num_turning, half, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    pair = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = pair < num_pairs
    first = tl.load(qkv + (token * num_pairs + pair) * 2, mask=inside, other=0.0)
    second = tl.load(qkv + (token * num_pairs + pair) * 2 + 1, mask=inside, other=0.0)
    turns = inside & (pair < num_turning)
    angle = rope + (token * half + pair % half) * 2
    cos = tl.load(angle, mask=turns, other=1.0)
    sin = tl.load(angle + 1, mask=turns, other=0.0)
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
