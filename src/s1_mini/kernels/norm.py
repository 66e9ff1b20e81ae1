"""A residual sum and the root-mean-square norm of it, in one pass.

Shapes: N rows, D channels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit, runs_triton

if HAS_TRITON:
    import triton
    import triton.language as tl


def add_rms_norm(x: Tensor, branch: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Give x + `branch` [..., D] and its norm, rounded to x's dtype before it is multiplied by `weight` [D]."""
    if runs_triton(x) and x.shape[-1] <= 16_384:
        return _add_rms_norm_triton(x, branch, weight, eps)
    total = x if branch is None else x + branch
    if x.dtype == torch.float32:
        return total, F.rms_norm(total, weight.shape, weight, eps)
    wide = total.float()
    normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return total, normal.to(x.dtype) * weight


def _add_rms_norm_triton(x: Tensor, branch: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    x = x.contiguous()
    total = x if branch is None else torch.empty_like(x)
    normal = torch.empty_like(x)
    size = x.shape[-1]
    block = triton.next_power_of_2(size)
    added = x if branch is None else branch.contiguous()
    _add_rms_norm_kernel[(x.numel() // size,)](
        x, added, weight, total, normal, size, eps, branch is not None, block, num_warps=max(1, min(8, block // 256))
    )
    return total, normal


@jit
def _add_rms_norm_kernel(x, branch, weight, total, normal, size, eps, ADDS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * size
    at = tl.arange(0, BLOCK)
    inside = at < size
    value = tl.load(x + row + at, mask=inside, other=0.0)
    if ADDS:
        value = (value.to(tl.float32) + tl.load(branch + row + at, mask=inside, other=0.0).to(tl.float32)).to(
            value.dtype
        )
        tl.store(total + row + at, value, mask=inside)
    wide = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / size + eps)
    rounded = (wide * scale).to(value.dtype).to(tl.float32)
    weights = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(normal + row + at, (rounded * weights).to(value.dtype), mask=inside)
