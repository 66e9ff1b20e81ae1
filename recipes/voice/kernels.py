"""Adaptive instance norm and Snake of the teacher's generator, as two Triton kernels or in plain torch.

In half precision the generator's time goes into these, not into its convolutions. One pass gathers sums over time (and
adds the residual on the way), one pass norms and applies Snake. x is [B, C, 1, T], channels last.
"""

from __future__ import annotations

import torch
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit, runs_triton

if HAS_TRITON:
    import triton
    import triton.language as tl

EPS = 1e-5
STEPS, ROUNDS = 32, 16  # of time: one load, and loads of one program


def norm_snake(x: Tensor, style: Tensor, alpha: Tensor, residual: Tensor | None = None) -> Tensor:
    """Norm x over time, scale and shift it by style [B, 2 C], apply Snake; x keeps x + residual if one is given."""
    if runs_triton(x):
        return _norm_snake_fused(x, style, alpha, residual)
    if residual is not None:
        x.add_(residual)
    scale, shift = style.float()[:, :, None, None].chunk(2, dim=1)
    variance, mean = torch.var_mean(x.float(), dim=3, keepdim=True, correction=0)
    y = (x.float() - mean) * torch.rsqrt(variance + EPS) * (1 + scale) + shift
    wide = alpha.float().view(1, -1, 1, 1)
    return (y + torch.sin(wide * y).square() / wide).to(x.dtype)


def _norm_snake_fused(x: Tensor, style: Tensor, alpha: Tensor, residual: Tensor | None) -> Tensor:
    batch, channels, _, steps = x.shape
    width = min(channels, 128)
    chunks = triton.cdiv(steps, STEPS * ROUNDS)
    sums = torch.empty(batch, chunks, 2, channels, device=x.device, dtype=torch.float32)
    other = x if residual is None else residual
    _sum_over_time[(batch, chunks, channels // width)](
        x, other, sums, steps, channels, width, STEPS, ROUNDS, residual is not None
    )
    mean, square = (sums.sum(1) / steps).unbind(1)
    gain, shift = style.float().chunk(2, dim=1)
    scale = (1 + gain) * torch.rsqrt((square - mean * mean).clamp(min=0) + EPS)
    y = torch.empty_like(x)
    _scale_and_snake[(batch, triton.cdiv(steps, STEPS), channels // width)](
        x, y, scale.contiguous(), (shift - mean * scale).contiguous(), alpha, steps, channels, width, STEPS
    )
    return y


@jit
def _sum_over_time(
    x, other, sums, steps, C: tl.constexpr, W: tl.constexpr, T: tl.constexpr, R: tl.constexpr, ADDS: tl.constexpr
):
    """Sum values and squares of T times R steps [W channels], and store x + other in x if it ADDS."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel = tl.program_id(2) * W + tl.arange(0, W)
    total, squares = tl.zeros([W], tl.float32), tl.zeros([W], tl.float32)
    for k in range(R):
        step = (chunk * R + k) * T + tl.arange(0, T)
        at, there = (row * steps + step)[:, None] * C + channel[None], (step < steps)[:, None]
        value = tl.load(x + at, there, 0.0).to(tl.float32)
        if ADDS:
            value += tl.load(other + at, there, 0.0).to(tl.float32)
            tl.store(x + at, value.to(x.dtype.element_ty), there)
        total += tl.sum(value, 0)
        squares += tl.sum(value * value, 0)
    out = sums + (row * tl.num_programs(1) + chunk) * 2 * C + channel
    tl.store(out, total)
    tl.store(out + C, squares)


@jit
def _scale_and_snake(x, y, scale, shift, alpha, steps, C: tl.constexpr, W: tl.constexpr, T: tl.constexpr):
    """Scale and shift T steps of W channels, then Snake."""
    row, step = tl.program_id(0).to(tl.int64), tl.program_id(1) * T + tl.arange(0, T)
    channel = tl.program_id(2) * W + tl.arange(0, W)
    at, there = (row * steps + step)[:, None] * C + channel[None], (step < steps)[:, None]
    a = tl.load(alpha + channel)[None]
    gain, offset = tl.load(scale + row * C + channel)[None], tl.load(shift + row * C + channel)[None]
    value = tl.load(x + at, there, 0.0).to(tl.float32) * gain + offset
    wave = tl.sin(a * value)
    tl.store(y + at, (value + wave * wave / a).to(y.dtype.element_ty), there)
