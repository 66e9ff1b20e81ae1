"""Fused kernels for the element-wise operations between convolutions of the discriminators and of the teacher.

Eager PyTorch needs several launches for each of them; torch's compiler fuses them, but takes minutes.
Tensors must be contiguous, with the C channels last in memory. Kernels that need no channels treat tensors as flat
memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit, runs_triton

if HAS_TRITON:
    import triton
    import triton.language as tl

SLOPE = 0.1
PROGRAMS = 528  # four for each multiprocessor of an H200
SPAN = 4096  # numbers that a program reads at once
OFFSET = 1e-3  # keeps a feature near zero from getting a large weight


@jit
def _leaky_forward(x, bias, y, count, C: tl.constexpr, SIZE: tl.constexpr, SLOPE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    value = tl.load(x + at, mask=at < count, other=0.0).to(tl.float32) + tl.load(bias + at % C)
    tl.store(y + at, tl.where(value > 0, value, value * SLOPE).to(y.dtype.element_ty), mask=at < count)


@jit
def _leaky_backward(dy, y, dx, shares, count, C: tl.constexpr, TALL: tl.constexpr, SLOPE: tl.constexpr):
    """Each program writes its part of the bias's gradient to `shares`. C is a power of two."""
    c = tl.arange(0, C)
    of_bias = tl.zeros([C], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(count, TALL), tl.num_programs(0)):
        t = tile * TALL + tl.arange(0, TALL)
        where = t[:, None].to(tl.int64) * C + c[None, :]
        present = (t < count)[:, None]
        value = tl.load(y + where, mask=present, other=0.0).to(tl.float32)
        grad = tl.load(dy + where, mask=present, other=0.0).to(tl.float32)
        grad = tl.where(value > 0, grad, grad * SLOPE)
        tl.store(dx + where, grad.to(dx.dtype.element_ty), mask=present)
        of_bias += tl.sum(grad, 0)
    tl.store(shares + tl.program_id(0) * C + c, of_bias)


@jit
def _distance_forward(mine, real, shares, count, SPAN: tl.constexpr):
    """Each program writes its part of the sums of differences and of amplitudes to `shares`."""
    apart, loud = tl.zeros([SPAN], tl.float32), tl.zeros([SPAN], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(count, SPAN), tl.num_programs(0)):
        at = tl.arange(0, SPAN).to(tl.int64) + tile * SPAN
        a = tl.load(mine + at, mask=at < count, other=0.0).to(tl.float32)
        b = tl.load(real + at, mask=at < count, other=0.0).to(tl.float32)
        apart += tl.abs(a - b)
        loud += tl.abs(b)
    tl.store(shares + 2 * tl.program_id(0), tl.sum(apart, 0))
    tl.store(shares + 2 * tl.program_id(0) + 1, tl.sum(loud, 0))


@jit
def _distance_backward(mine, real, factor, given, count, SPAN: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * SPAN + tl.arange(0, SPAN)
    a = tl.load(mine + at, mask=at < count, other=0.0).to(tl.float32)
    b = tl.load(real + at, mask=at < count, other=0.0).to(tl.float32)
    scale = tl.load(factor)
    sign = tl.where(a > b, scale, tl.where(a < b, -scale, 0.0))
    tl.store(given + at, sign.to(given.dtype.element_ty), mask=at < count)


class _Leaky(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        y = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), SPAN),)
        _leaky_forward[grid](x, bias, y, x.numel(), C=len(bias), SIZE=SPAN, SLOPE=SLOPE)
        ctx.save_for_backward(y)
        ctx.channels = len(bias)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None]:
        (y,), channels = ctx.saved_tensors, ctx.channels
        dy = _laid_like(gradients[0], y)
        dx = torch.empty_like(y)
        count = y.numel() // channels
        tall = SPAN // channels
        programs = min(triton.cdiv(count, tall), PROGRAMS)
        shares = torch.empty(programs, channels, dtype=torch.float32, device=y.device)
        _leaky_backward[(programs,)](dy, y, dx, shares, count, C=channels, TALL=tall, SLOPE=SLOPE)
        return dx, shares.sum(0) if ctx.needs_input_grad[1] else None


class _Distance(torch.autograd.Function):
    """Sum over features of mean |mine - real| / mean |real|; arguments are first all of mine, then all of real."""

    @staticmethod
    def forward(ctx: Any, *features: Tensor) -> Tensor:
        half = len(features) // 2
        mine, real = features[:half], features[half:]
        shares = torch.zeros(half, PROGRAMS, 2, dtype=torch.float32, device=mine[0].device)
        for index in range(half):
            count = mine[index].numel()
            programs = min(triton.cdiv(count, SPAN), PROGRAMS)
            _distance_forward[(programs,)](mine[index], real[index], shares[index], count, SPAN=SPAN)
        counts = [feature.numel() for feature in mine]
        apart, loud = shares.sum(1).unbind(1)
        number = _counts(tuple(counts), mine[0].device)
        factors = 1 / (loud / number + OFFSET) / number
        ctx.save_for_backward(factors, *features)
        return (apart * factors).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        factors, *features = ctx.saved_tensors
        half = len(features) // 2
        factors = factors * gradients[0]
        given = []
        for index, (mine, real) in enumerate(zip(features[:half], features[half:], strict=True)):
            of_mine = torch.empty_like(mine)
            grid = (triton.cdiv(mine.numel(), SPAN),)
            _distance_backward[grid](mine, real, factors[index], of_mine, mine.numel(), SPAN=SPAN)
            given.append(of_mine)
        return *given, *[None] * half


def squares(values: Sequence[Tensor], targets: Sequence[float]) -> Tensor:
    """Return the sum of the mean squared distances of all values to all targets.

    The rows of each value are divided into as many equal parts as there are targets, and each part has its own target,
    in the same order.
    """
    flat = torch.cat([value.flatten(1) for value in values], dim=1)
    shares = _shares(tuple(value[0].numel() for value in values), flat.device)
    goal = _goal(tuple(targets), len(flat), flat.device)
    return ((flat - goal).square() * shares).sum() * (len(targets) / len(flat))


@lru_cache
def _shares(counts: tuple[int, ...], device: torch.device) -> Tensor:
    """Return one weight per element, for groups of `counts` elements, so that the weights of each group add up to 1.

    Cached, because a captured step cannot copy to the device.
    """
    return torch.cat([torch.full((count,), 1.0 / count) for count in counts]).to(device)


@lru_cache
def _goal(targets: tuple[float, ...], rows: int, device: torch.device) -> Tensor:
    return torch.tensor(targets).repeat_interleave(rows // len(targets)).unsqueeze(1).to(device)


@lru_cache
def _counts(counts: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(counts, dtype=torch.float32).to(device)


def _laid_like(x: Tensor, like: Tensor) -> Tensor:
    if x.stride() == like.stride():
        return x
    return torch.empty_like(like).copy_(x)


def leaky(x: Tensor, bias: Tensor) -> Tensor:
    """Return the leaky rectifier of x + bias; x is [B, C, H, W] with channels last."""
    if runs_triton(x):
        given: Tensor = _Leaky.apply(x.contiguous(memory_format=torch.channels_last), bias)
        return given
    return F.leaky_relu(x + bias.view(-1, 1, 1), SLOPE)


def distance(mine: Sequence[Tensor], real: Sequence[Tensor]) -> Tensor:
    """Return the sum over features of mean |mine - real| / mean |real|; layouts must be equal."""
    if runs_triton(mine[0]):
        given: Tensor = _Distance.apply(*mine, *real)
        return given
    total = mine[0].new_zeros((), dtype=torch.float32)
    for a, b in zip(mine, real, strict=True):
        total = total + (a - b).abs().mean(dtype=torch.float32) / (b.abs().mean(dtype=torch.float32) + OFFSET)
    return total


# Adaptive instance norm and Snake of the teacher's generator, which take most of its time in half precision. One pass
# gathers sums over time (and adds the residual), one normalizes and applies Snake. x is [B, C, 1, T], channels last.

EPS = 1e-5
STEPS, ROUNDS = 32, 16  # time steps per load, and loads per program


def norm_snake(x: Tensor, style: Tensor, alpha: Tensor, residual: Tensor | None = None) -> Tensor:
    """Norm x over time, scale and shift it by style [B, 2 C], apply Snake. A residual is first added to x in place."""
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
    """Sum values and squares of T times R steps [W channels]; if ADDS is set, of x + other, which is stored in x."""
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
