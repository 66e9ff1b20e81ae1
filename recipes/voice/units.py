"""A residual unit of the codec in a few kernels, forward and backward, in channels-last layout.

y = x + W2 · snake(W1 * snake(x) + b1) + b2, W1 a dilated convolution of seven taps. With up to `MOST_CHANNELS`
channels, cuDNN and separate element-wise kernels take several times as long. Snake is recomputed wherever it is needed.
Shapes: B rows, T steps, C channels, K taps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit

if HAS_TRITON:
    import triton
    import triton.language as tl

TAPS = 7
MOST_CHANNELS = 128  # with more channels there are few steps, and plain products are as fast
PROGRAMS = 528  # four for each multiprocessor of an H200


def _for_any_dilation(function: Any) -> Any:
    """Mark a kernel that is compiled once for all dilations."""
    return triton.jit(function, do_not_specialize=["dilation"]) if HAS_TRITON else function


@jit
def _sin(x, FAST: tl.constexpr):
    if FAST:  # accurate enough up to a hundred periods
        return tl.inline_asm_elementwise("sin.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    return tl.sin(x)


@jit
def _snake(x, alpha, FAST: tl.constexpr):
    wave = _sin(x * alpha, FAST)
    return x + wave * wave / alpha


@jit
def _of_alpha(x, alpha, FAST: tl.constexpr):
    """The derivative of Snake with respect to alpha."""
    wave = _sin(x * alpha, FAST) / alpha
    return x * _sin(2 * x * alpha, FAST) / alpha - wave * wave


@_for_any_dilation
def _forward(
    x, a1, w1, b1, a2, w2, b2, inner, y, steps, dilation,
    C: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0) * TALL + tl.arange(0, TALL)
    c = tl.arange(0, WIDE)
    there = c < C
    start = tl.program_id(1).to(tl.int64) * steps * C
    square = there[:, None] & there[None, :]
    first = tl.load(a1 + c, mask=there, other=1.0)[None, :]
    total = tl.zeros([TALL, WIDE], tl.float32)
    for tap in range(7):
        at = t + (tap - 6) * dilation
        seen = tl.load(
            x + start + at[:, None] * C + c[None, :],
            mask=((at >= 0) & (at < steps))[:, None] & there[None, :],
            other=0.0,
        ).to(tl.float32)
        weight = tl.load(w1 + (tap * C + c[:, None]) * C + c[None, :], mask=square, other=0.0)
        total = tl.dot(_snake(seen, first, FAST).to(weight.dtype), weight, total, input_precision="ieee")
    total += tl.load(b1 + c, mask=there, other=0.0)[None, :]
    where = start + t[:, None] * C + c[None, :]
    present = (t < steps)[:, None] & there[None, :]
    kept = total.to(x.dtype.element_ty)
    tl.store(inner + where, kept, mask=present)
    second = tl.load(a2 + c, mask=there, other=1.0)[None, :]
    weight = tl.load(w2 + c[:, None] * C + c[None, :], mask=square, other=0.0)
    out = tl.dot(_snake(kept.to(tl.float32), second, FAST).to(weight.dtype), weight, input_precision="ieee")
    out += tl.load(b2 + c, mask=there, other=0.0)[None, :] + tl.load(x + where, mask=present, other=0.0).to(tl.float32)
    tl.store(y + where, out.to(x.dtype.element_ty), mask=present)


@jit
def _backward_outer(
    dy, inner, a2, w2, d_inner, shares, steps, tiles_a_row, tiles,
    C: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Backward through W2 and the second Snake.

    Each program writes its parts of the gradients of W2, b2, b1 and a2 to `shares`, in this order.
    """
    c = tl.arange(0, WIDE)
    there = c < C
    square = there[:, None] & there[None, :]
    second = tl.load(a2 + c, mask=there, other=1.0)[None, :]
    back = tl.load(w2 + c[None, :] * C + c[:, None], mask=square, other=0.0)  # transposed
    of_weight = tl.zeros([WIDE, WIDE], tl.float32)
    of_b2, of_b1, of_a2 = tl.zeros([WIDE], tl.float32), tl.zeros([WIDE], tl.float32), tl.zeros([WIDE], tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row = tile // tiles_a_row
        t = (tile - row * tiles_a_row) * TALL + tl.arange(0, TALL)
        where = row.to(tl.int64) * steps * C + t[:, None] * C + c[None, :]
        present = (t < steps)[:, None] & there[None, :]
        grad = tl.load(dy + where, mask=present, other=0.0)
        h = tl.load(inner + where, mask=present, other=0.0).to(tl.float32)
        turned = _snake(h, second, FAST).to(grad.dtype)
        of_weight = tl.dot(tl.trans(turned), grad, of_weight, input_precision="ieee")
        of_turned = tl.dot(grad, back.to(grad.dtype), input_precision="ieee")
        of_h = of_turned * (1 + _sin(2 * h * second, FAST))
        tl.store(d_inner + where, of_h.to(dy.dtype.element_ty), mask=present)
        of_b2 += tl.sum(grad.to(tl.float32), 0)
        of_b1 += tl.sum(of_h, 0)
        of_a2 += tl.sum(of_turned * _of_alpha(h, second, FAST), 0)
    base = shares + tl.program_id(0).to(tl.int64) * (C * C + 3 * C)
    tl.store(base + c[:, None] * C + c[None, :], of_weight, mask=square)
    tl.store(base + C * C + c, of_b2, mask=there)
    tl.store(base + C * C + C + c, of_b1, mask=there)
    tl.store(base + C * C + 2 * C + c, of_a2, mask=there)


@_for_any_dilation
def _backward_inner(
    dy, d_inner, x, a1, w1, dx, shares, steps, tiles_a_row, tiles, dilation,
    C: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Backward through W1 and the first Snake; each program writes its part of a1's gradient to `shares`."""
    c = tl.arange(0, WIDE)
    there = c < C
    square = there[:, None] & there[None, :]
    first = tl.load(a1 + c, mask=there, other=1.0)[None, :]
    of_a1 = tl.zeros([WIDE], tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row = tile // tiles_a_row
        t = (tile - row * tiles_a_row) * TALL + tl.arange(0, TALL)
        start = row.to(tl.int64) * steps * C
        total = tl.zeros([TALL, WIDE], tl.float32)
        for tap in range(7):
            at = t + (6 - tap) * dilation
            grad = tl.load(
                d_inner + start + at[:, None] * C + c[None, :], mask=(at < steps)[:, None] & there[None, :], other=0.0
            )
            back = tl.load(w1 + (tap * C + c[None, :]) * C + c[:, None], mask=square, other=0.0)  # transposed
            total = tl.dot(grad, back.to(grad.dtype), total, input_precision="ieee")
        where = start + t[:, None] * C + c[None, :]
        present = (t < steps)[:, None] & there[None, :]
        value = tl.load(x + where, mask=present, other=0.0).to(tl.float32)
        given = tl.load(dy + where, mask=present, other=0.0).to(tl.float32)
        given += total * (1 + _sin(2 * value * first, FAST))
        tl.store(dx + where, given.to(dx.dtype.element_ty), mask=present)
        of_a1 += tl.sum(tl.where(present, total * _of_alpha(value, first, FAST), 0.0), 0)
    tl.store(shares + tl.program_id(0) * C + c, of_a1, mask=there)


@_for_any_dilation
def _backward_taps(
    d_inner, x, a1, shares, steps, tiles_a_row, tiles, dilation,
    C: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Each program writes its part of the gradient of one tap of W1 to `shares`."""
    tap = tl.program_id(0)
    c = tl.arange(0, WIDE)
    there = c < C
    first = tl.load(a1 + c, mask=there, other=1.0)[None, :]
    total = tl.zeros([WIDE, WIDE], tl.float32)
    for tile in range(tl.program_id(1), tiles, tl.num_programs(1)):
        row = tile // tiles_a_row
        t = (tile - row * tiles_a_row) * TALL + tl.arange(0, TALL)
        at = t + (tap - 6) * dilation
        start = row.to(tl.int64) * steps * C
        present = (t < steps)[:, None] & there[None, :]
        seen = tl.load(x + start + at[:, None] * C + c[None, :], mask=present & (at >= 0)[:, None], other=0.0)
        grad = tl.load(d_inner + start + t[:, None] * C + c[None, :], mask=present, other=0.0)
        turned = _snake(seen.to(tl.float32), first, FAST).to(grad.dtype)
        total = tl.dot(tl.trans(turned), grad, total, input_precision="ieee")
    base = shares + (tl.program_id(1).to(tl.int64) * 7 + tap) * C * C
    tl.store(base + c[:, None] * C + c[None, :], total, mask=there[:, None] & there[None, :])


@jit
def _snake_forward(x, alpha, y, count, C: tl.constexpr, SIZE: tl.constexpr, FAST: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    value = tl.load(x + at, mask=at < count, other=0.0).to(tl.float32)
    given = _snake(value, tl.load(alpha + at % C), FAST)
    tl.store(y + at, given.to(y.dtype.element_ty), mask=at < count)


@jit
def _snake_backward(
    dy, x, alpha, dx, shares, count,
    C: tl.constexpr, WIDE: tl.constexpr, TALL: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Each program writes its part of alpha's gradient to `shares`. `count` is the number of steps of all rows."""
    c = tl.arange(0, WIDE)
    there = c < C
    factor = tl.load(alpha + c, mask=there, other=1.0)[None, :]
    of_alpha = tl.zeros([WIDE], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(count, TALL), tl.num_programs(0)):
        t = tile * TALL + tl.arange(0, TALL)
        where = t[:, None].to(tl.int64) * C + c[None, :]
        present = (t < count)[:, None] & there[None, :]
        value = tl.load(x + where, mask=present, other=0.0).to(tl.float32)
        grad = tl.load(dy + where, mask=present, other=0.0).to(tl.float32)
        tl.store(dx + where, (grad * (1 + _sin(2 * value * factor, FAST))).to(dx.dtype.element_ty), mask=present)
        of_alpha += tl.sum(grad * _of_alpha(value, factor, FAST), 0)
    tl.store(shares + tl.program_id(0) * C + c, of_alpha, mask=there)


def _sizes(channels: int) -> dict[str, int]:
    wide = max(16, triton.next_power_of_2(channels))
    tall, warps = {16: (128, 4), 32: (128, 4), 64: (128, 8)}.get(wide, (64, 8))
    return {"C": channels, "WIDE": wide, "TALL": tall, "num_warps": warps, "num_stages": 2}


class _Unit(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, a1: Tensor, w1: Tensor, b1: Tensor, a2: Tensor, w2: Tensor, b2: Tensor, dilation: int
    ) -> Tensor:
        x = x.contiguous()
        (rows, steps, channels), fast = x.shape, x.is_cuda
        taps = w1.permute(2, 1, 0).to(x.dtype).contiguous()  # [K, C, C]
        point = w2.squeeze(2).t().to(x.dtype).contiguous()
        inner, y = torch.empty_like(x), torch.empty_like(x)
        sizes = _sizes(channels)
        grid = (triton.cdiv(steps, sizes["TALL"]), rows)
        _forward[grid](
            x, a1, taps, b1, a2, point, b2, inner, y, steps, dilation, FAST=fast, **sizes
        )  # fmt: skip
        ctx.save_for_backward(x, inner, a1, a2, taps, point)
        ctx.dilation = dilation
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, inner, a1, a2, taps, point = ctx.saved_tensors
        (rows, steps, channels), fast = x.shape, x.is_cuda
        dy = gradients[0].contiguous()
        sizes = _sizes(channels)
        tiles_a_row = triton.cdiv(steps, sizes["TALL"])
        tiles = rows * tiles_a_row
        programs = min(tiles, PROGRAMS if channels <= 64 else PROGRAMS // 4)
        d_inner, dx = torch.empty_like(x), torch.empty_like(x)
        outer = torch.empty(programs, channels * (channels + 3), dtype=torch.float32, device=x.device)
        _backward_outer[(programs,)](
            dy, inner, a2, point, d_inner, outer, steps, tiles_a_row, tiles, FAST=fast, **sizes
        )  # fmt: skip
        of_a1 = torch.empty(programs, channels, dtype=torch.float32, device=x.device)
        _backward_inner[(programs,)](
            dy, d_inner, x, a1, taps, dx, of_a1, steps, tiles_a_row, tiles, ctx.dilation, FAST=fast, **sizes
        )  # fmt: skip
        pieces = min(tiles, 96 if channels <= 64 else 24)
        of_taps = torch.empty(pieces, TAPS, channels, channels, dtype=torch.float32, device=x.device)
        _backward_taps[(TAPS, pieces)](
            d_inner, x, a1, of_taps, steps, tiles_a_row, tiles, ctx.dilation, FAST=fast, **sizes
        )  # fmt: skip
        of_w2, of_b2, of_b1, of_a2 = outer.sum(0).split((channels * channels, channels, channels, channels))
        of_w1 = of_taps.sum(0).permute(2, 1, 0)
        of_w2 = of_w2.view(channels, channels).t().unsqueeze(2)
        return dx, of_a1.sum(0).view_as(a1), of_w1, of_b1, of_a2.view_as(a2), of_w2, of_b2, None


class _Snake(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), 1024),)
        _snake_forward[grid](x, alpha, y, x.numel(), C=x.shape[-1], SIZE=1024, FAST=x.is_cuda)
        ctx.save_for_backward(x, alpha)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, alpha = ctx.saved_tensors
        channels = x.shape[-1]
        count = x.numel() // channels
        wide = triton.next_power_of_2(channels)
        tall = max(1, 4096 // wide)
        programs = min(triton.cdiv(count, tall), PROGRAMS)
        dx = torch.empty_like(x)
        shares = torch.empty(programs, channels, dtype=torch.float32, device=x.device)
        _snake_backward[(programs,)](
            gradients[0].contiguous(), x, alpha, dx, shares, count, C=channels, WIDE=wide, TALL=tall, FAST=x.is_cuda
        )  # fmt: skip
        return dx, shares.sum(0).view_as(alpha)


def unit(x: Tensor, a1: Tensor, w1: Tensor, b1: Tensor, a2: Tensor, w2: Tensor, b2: Tensor, dilation: int) -> Tensor:
    """The residual unit of x [B, T, C], by kernels; C is at most `MOST_CHANNELS`."""
    given: Tensor = _Unit.apply(x, a1, w1, b1, a2, w2, b2, dilation)
    return given


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    given: Tensor = _Snake.apply(x, alpha)
    return given
