"""Storage of the attention scores of one head, from which speech and text are aligned.

Shapes: B rows, H query heads, G key-value heads, D head size, S positions.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from s1_mini.kernels.attention_kernels import norm_and_rotate
from s1_mini.kernels.backend import HAS_TRITON, jit, launch, runs_triton, wait_for_last
from s1_mini.kernels.norm import rms_norm
from s1_mini.kernels.rope import HeadNorms, apply_rope

if HAS_TRITON:
    import triton
    import triton.language as tl

BLOCK = 64  # positions of a program


class KeptHead(NamedTuple):
    """The attention head whose scores are stored at each step, and where they are stored."""

    layer: int
    head: int
    scores: Tensor  # [slots, S] float32


def store_scores(
    qkv: Tensor, keys: Tensor, position: Tensor, rope: Tensor, norms: HeadNorms | None, span: int, kept: KeptHead
) -> None:
    """Store in `kept.scores` the scores of the kept head's new query with the keys of its row.

    `qkv` [B, (H + 2 G) D] are projections of the new tokens, whose keys are already in `keys` [slots, G, S, D]. Scores
    are valid up to each row's `position` [B], which is below `span`; scores of later positions are undefined.
    """
    rows, groups, size = len(qkv), keys.shape[1], keys.shape[3]
    heads = qkv.shape[-1] // size - 2 * groups
    group, scale = kept.head // (heads // groups), 1 / math.sqrt(size)
    if runs_triton(qkv) and size & (size - 1) == 0:
        _scores_kernel[(rows, triton.cdiv(span, BLOCK))](
            qkv,
            keys,
            position,
            rope,
            norms.query if norms else None,
            norms.eps if norms else 0.0,
            kept.scores,
            scale,
            kept.head,
            group,
            heads + 2 * groups,
            keys.stride(0),
            keys.stride(1),
            position.stride(0),
            rope.stride(0),
            kept.scores.stride(0),
            SIZE=size,
            BLOCK=BLOCK,
            ROUND_LAST=norms is None or norms.round_last,
            **launch(qkv),
            num_warps=4,
        )
        return
    query = qkv[:, kept.head * size : (kept.head + 1) * size]
    if norms is not None:
        query = rms_norm(query, norms.query, norms.eps, round_last=norms.round_last)
    store_query_scores(apply_rope(query, rope), keys[:rows, group, :span], kept)


def store_query_scores(query: Tensor, keys: Tensor, kept: KeptHead) -> None:
    """Store in `kept.scores` the scores of each query [B, D] of the kept head with the keys of its row [B, S, D]."""
    rows, span, size = keys.shape
    scores = (keys.float() @ query.float().unsqueeze(-1)).squeeze(-1)
    torch.mul(scores, 1 / math.sqrt(size), out=kept.scores[:rows, :span])


@jit
def _scores_kernel(
    qkv,
    keys,
    position,
    rope,
    q_norm,
    eps,
    scores,
    scale,
    head,
    group,
    width,
    slot_stride,
    group_stride,
    position_stride,
    rope_stride,
    scores_stride,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROUND_LAST: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    one, channel = tl.arange(0, 1), tl.arange(0, SIZE)
    cos_sin = rope + row * rope_stride + 2 * tl.arange(0, SIZE // 2)
    wait_for_last(EARLY)
    inside = index <= tl.load(position + row * position_stride)
    cos, sin = tl.load(cos_sin)[None, :], tl.load(cos_sin + 1)[None, :]
    q = tl.load(qkv + (row * width + head + one[:, None]) * SIZE + channel[None, :])
    q = norm_and_rotate(q, q_norm, cos, sin, eps, 1, SIZE, ROUND_LAST).to(tl.float32)
    start = row * slot_stride + group * group_stride
    k = tl.load(keys + start + index[:, None] * SIZE + channel[None, :], mask=inside[:, None], other=0.0)
    score = tl.sum(k.to(tl.float32) * q, axis=1) * scale
    tl.store(scores + row * scores_stride + index, score, mask=inside)
