"""A residual sum and its RMS norm or layer norm in one kernel.

Shapes: N rows, D channels, P parts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit, launch, runs_triton, wait_for_last

if HAS_TRITON:
    import triton
    import triton.language as tl


MAX_CHANNELS = 16_384  # limit of one program


class Norm(NamedTuple):
    """An RMS norm, or a layer norm without a bias."""

    weight: Tensor  # [D]
    eps: float
    centred: bool = False  # whether it is a layer norm


def add_norm(x: Tensor, branch: Tensor | None, norm: Norm) -> tuple[Tensor, Tensor]:
    """Return x + `branch` [..., D] and the norm of this sum. x is returned as it is if `branch` is None.

    An RMS norm is rounded to x's dtype before it is multiplied by its weights. If `branch` is [P, N, D] for x [N, D],
    its P parts are first summed, and the sum is rounded to x's dtype.
    """
    size = x.shape[-1]
    if not runs_triton(x) or size > MAX_CHANNELS:
        if branch is not None and branch.ndim > x.ndim:
            branch = branch.sum(0).to(x.dtype)
        total = x if branch is None else x + branch
        if norm.centred:
            return total, F.layer_norm(total, norm.weight.shape, norm.weight, None, norm.eps)
        return total, rms_norm(total, norm.weight, norm.eps)
    x = x.contiguous()
    total, normed = x if branch is None else torch.empty_like(x), torch.empty_like(x)
    added = x if branch is None else branch.contiguous()
    block = triton.next_power_of_2(size)
    _add_norm_kernel[(x.numel() // size,)](
        x,
        added,
        norm.weight,
        total,
        normed,
        size,
        x.numel(),
        norm.eps,
        0 if branch is None else added.numel() // x.numel(),
        block,
        CENTRED=norm.centred,
        **launch(x),
        num_warps=max(1, min(8, block // 256)),
    )
    return total, normed


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, round_last: bool = False) -> Tensor:
    """Return the RMS norm of x [..., D], computed by torch, with gradients.

    The norm is rounded to x's dtype before it is multiplied by `weight` [D], or with `round_last` only afterwards.
    """
    if x.dtype == torch.float32:
        return F.rms_norm(x, weight.shape, weight, eps)  # in fp32, `round_last` changes nothing
    normed = x.float()
    normed = normed * torch.rsqrt(normed.square().mean(-1, keepdim=True) + eps)
    return (normed * weight.float()).to(x.dtype) if round_last else normed.to(x.dtype) * weight


@jit
def _add_norm_kernel(
    x,
    branch,
    weight,
    total,
    normed,
    size,
    part_size,
    eps,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    CENTRED: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * size
    at = tl.arange(0, BLOCK)
    inside = at < size
    weights = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    wait_for_last(EARLY)
    value = tl.load(x + row + at, mask=inside, other=0.0)
    if PARTS > 0:
        added = tl.zeros([BLOCK], tl.float32)
        for part in tl.static_range(PARTS):
            added += tl.load(branch + part * part_size + row + at, mask=inside, other=0.0).to(tl.float32)
        value = (value.to(tl.float32) + added.to(value.dtype).to(tl.float32)).to(value.dtype)
        tl.store(total + row + at, value, mask=inside)
    full = value.to(tl.float32)
    if CENTRED:
        full = tl.where(inside, full - tl.sum(full, axis=0) / size, 0.0)
    scale = tl.rsqrt(tl.sum(full * full, axis=0) / size + eps)
    rounded = full * scale
    if not CENTRED:
        rounded = rounded.to(value.dtype).to(tl.float32)
    tl.store(normed + row + at, (rounded * weights).to(value.dtype), mask=inside)
