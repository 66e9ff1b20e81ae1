"""Snake, x + sin²(αx) / β (Ziyin et al. 2020), fused with the operations around it between two causal convolutions.

One pass over memory replaces five: add the previous convolution's bias, add the skip connection, apply Snake, put the
past before the result, and store the new past. Channels are last; all arithmetic is fp32. In the original form, β is α.
Shapes: B rows, T steps, C channels, P steps of past, R slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit, runs_triton

if HAS_TRITON:
    import triton
    import triton.language as tl

    INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)  # the interpreter knows no assembly

Factors = tuple[Tensor, Tensor]  # α and β of a Snake, [C] each

NO_DIVISION_BY_ZERO = 1e-9


@dataclass(frozen=True)
class Rows:
    """The slot of each row of a batch, on the device."""

    slot_ids: Tensor  # [B] int64
    reset_mask: Tensor  # [B] bool: the row begins a new stream


def snake_extend(
    x: Tensor,
    factors: Factors | None,
    past: Tensor | None,
    rows: Rows,
    *,
    bias: Tensor | None = None,
    skip: Tensor | None = None,
    keeps_total: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return total = x + `bias` [C] + `skip` [B, T, C], and the past followed by snake(total) [B, P + T, C].

    x is [B, T, C]. `past` [R, P, C] is replaced by the last P steps of the second result. Without `factors`, Snake is
    left out. The first result is valid only with `keeps_total`.
    """
    if not runs_triton(x):
        return _snake_extend_torch(x, factors, past, rows, bias, skip)
    alpha, beta = factors or (None, None)
    x = x.contiguous()
    batch, steps, channels = x.shape
    context = 0 if past is None else past.shape[1]
    joined = x.new_empty(batch, context + steps, channels)
    stored = torch.empty_like(x) if keeps_total else None
    block_channels, block = min(64, triton.next_power_of_2(channels)), 32
    grid = (triton.cdiv(steps, block) + (context > 0), triton.cdiv(channels, block_channels), batch)
    _snake_extend_kernel[grid](
        x,
        skip,
        bias,
        alpha,
        beta,
        past,
        rows.slot_ids,
        rows.reset_mask,
        stored,
        joined,
        steps,
        channels,
        context,
        triton.next_power_of_2(max(context, 1)),
        block,
        block_channels,
        num_warps=4,
    )
    return x if stored is None else stored, joined


def _snake_extend_torch(
    x: Tensor, factors: Factors | None, past: Tensor | None, rows: Rows, bias: Tensor | None, skip: Tensor | None
) -> tuple[Tensor, Tensor]:
    total = x.float()
    if bias is not None:
        total = total + bias.float()
    if skip is not None:
        total = total + skip.float()
    out = total
    if factors is not None:
        alpha, beta = factors
        out = total + (alpha.float() * total).sin().square() / (beta.float() + NO_DIVISION_BY_ZERO)
    joined = out.to(x.dtype)
    if past is not None:
        before = past[rows.slot_ids].masked_fill(rows.reset_mask[:, None, None], 0)
        joined = torch.cat((before, joined), dim=1)
        past[rows.slot_ids] = joined[:, joined.shape[1] - past.shape[1] :]
    return total.to(x.dtype), joined


@jit
def _sum_of(x, skip, bias, start, step, channel, inside, channels):
    """Return x + bias + skip at steps [N] and channels [M], in fp32."""
    at = start + step[:, None] * channels + channel[None, :]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        value += tl.load(bias + channel, mask=channel < channels, other=0.0).to(tl.float32)[None, :]
    if skip is not None:
        value += tl.load(skip + at, mask=inside, other=0.0).to(tl.float32)
    return value


@jit
def _snake(value, alpha, beta, channel, channels):
    if alpha is not None:
        slope = tl.load(alpha + channel, mask=channel < channels, other=1.0).to(tl.float32)[None, :]
        angle = slope * value
        # sin² has period π: subtract a multiple of π, as three parts whose products are exact, then use a series.
        # `tl.sin` would be slower, because it branches for each angle.
        periods = tl.floor(angle * 0.3183098861837907 + 0.5)
        angle = angle - periods * 3.140625 - periods * 9.67502593994140625e-4 - periods * 1.509957990978376e-7
        square = angle * angle
        series = 2.7557319e-6 - square * 2.5052108e-8
        series = 8.3333333e-3 - square * (1.9841270e-4 - square * series)
        wave = angle * (1.0 - square * (0.16666667 - square * series))
        divisor = tl.load(beta + channel, mask=channel < channels, other=1.0).to(tl.float32)[None, :]
        value += wave * wave / (divisor + 1e-9)
    return value


@jit
def _snake_extend_kernel(
    x,
    skip,
    bias,
    alpha,
    beta,
    past,
    slot_ids,
    reset_mask,
    total,
    joined,
    steps,
    channels,
    CONTEXT: tl.constexpr,
    PAST: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    row = tl.program_id(2).to(tl.int64)
    channel = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    start = row * steps * channels
    out = joined + row * (CONTEXT + steps) * channels
    block = tl.program_id(0)
    if CONTEXT > 0:
        block -= 1
    if block >= 0:
        step = block * BLOCK + tl.arange(0, BLOCK)
        inside = (step < steps)[:, None] & (channel < channels)[None, :]
        at = step[:, None] * channels + channel[None, :]
        value = _sum_of(x, skip, bias, start, step, channel, inside, channels)
        if total is not None:
            tl.store(total + start + at, value.to(total.dtype.element_ty), mask=inside)
        value = _snake(value, alpha, beta, channel, channels)
        tl.store(out + CONTEXT * channels + at, value.to(out.dtype.element_ty), mask=inside)
    elif CONTEXT > 0:  # one program reads and writes the whole past of its channels, so that no other program does
        past_row = past + tl.load(slot_ids + row) * CONTEXT * channels
        num_old = CONTEXT * (1 - tl.load(reset_mask + row).to(tl.int32))
        old_step = tl.arange(0, PAST)
        is_past = (old_step < CONTEXT)[:, None] & (channel < channels)[None, :]
        where = old_step[:, None] * channels + channel[None, :]
        before = tl.load(past_row + where, mask=is_past & (old_step < num_old)[:, None], other=0.0)
        tl.store(out + where, before, mask=is_past)
        is_old = (old_step + steps < CONTEXT)[:, None]
        old = tl.load(
            past_row + steps * channels + where, mask=is_past & (old_step + steps < num_old)[:, None], other=0.0
        )
        is_new = is_past & (old_step + steps >= CONTEXT)[:, None]
        new = _sum_of(x, skip, bias, start, old_step + steps - CONTEXT, channel, is_new, channels)
        new = _snake(new, alpha, beta, channel, channels).to(past_row.dtype.element_ty)
        tl.debug_barrier()
        tl.store(past_row + where, tl.where(is_old, old, new), mask=is_past)


# Below: Snake with fewer operations, for results that are rounded to 16 bits. It uses the GPU's own sine, whose
# absolute error is below 1e-6 near 0 and grows with the angle, and a table of each channel's factors.


def snake_table(alpha: Tensor, beta: Tensor) -> Tensor:
    """Return α and 1 / β of each channel [2, C] in fp32, from `alpha` and `beta` [C]."""
    return torch.stack((alpha.double(), 1 / (beta.double() + NO_DIVISION_BY_ZERO))).float()


def snake_of_table(value: Tensor, table: Tensor) -> Tensor:
    """Return Snake of values [..., C] in fp32, with the factors of `snake_table`."""
    value = value.float()
    return value + (table[0] * value).sin().square() * table[1]


@jit
def quick_snake(value, frequency, inverse):
    """Return value + sin²(frequency · value) · inverse in fp32."""
    if INTERPRETED:
        wave = tl.sin(frequency * value)
    else:
        wave = tl.inline_asm_elementwise(
            "sin.approx.f32 $0, $1;", "=f,f", [frequency * value], dtype=tl.float32, is_pure=True, pack=1
        )
    return value + (wave * wave) * inverse


@jit
def quick_snake_of(value, table, channel, channels, inside):
    """Return Snake of values [T, N] of the given channels [N], where `inside` [N]; `table` is from `snake_table`."""
    frequency = tl.load(table + channel, mask=inside, other=0.0)
    inverse = tl.load(table + channels + channel, mask=inside, other=0.0)
    return quick_snake(value, frequency[None, :], inverse[None, :])
