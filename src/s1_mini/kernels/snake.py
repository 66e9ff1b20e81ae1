"""Snake, x + sin²(αx) / α (Ziyin et al. 2020), fused with its neighbours between two causal convolutions.

One pass over memory instead of five: the bias of the convolution before, the skip around it, the activation, the past
before the result, and the new past. Channels lie last; all arithmetic is fp32.
Shapes: B rows, T steps, C channels, P steps of past, R rows of pasts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit, runs_triton

if HAS_TRITON:
    import triton
    import triton.language as tl

NO_DIVISION_BY_ZERO = 1e-9


@dataclass(frozen=True)
class Rows:
    """The rows of the pasts that belong to a batch, on the device."""

    chosen: Tensor  # [B] int64
    fresh: Tensor  # [B] bool: it begins without a past


def snake_extend(
    x: Tensor,
    alpha: Tensor | None,
    past: Tensor | None,
    rows: Rows,
    *,
    bias: Tensor | None = None,
    skip: Tensor | None = None,
    keeps_total: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return total = x + `bias` [C] + `skip` and snake(total) with the past before it: [B, T, C] and [B, P + T, C].

    `past` [R, P, C] then holds the last P steps of the second. Without `alpha` [C] there is no activation. The first is
    valid only with `keeps_total`.
    """
    if not runs_triton(x):
        total = x.float()
        if bias is not None:
            total = total + bias.float()
        if skip is not None:
            total = total + skip.float()
        out = total
        if alpha is not None:
            wide = alpha.float()
            out = total + (wide * total).sin().square() / (wide + NO_DIVISION_BY_ZERO)
        joined = out.to(x.dtype)
        if past is not None:
            before = past[rows.chosen].masked_fill(rows.fresh[:, None, None], 0)
            joined = torch.cat((before, joined), dim=1)
            past[rows.chosen] = joined[:, joined.shape[1] - past.shape[1] :]
        return total.to(x.dtype), joined
    x = x.contiguous()
    batch, steps, channels = x.shape
    context = 0 if past is None else past.shape[1]
    joined = x.new_empty(batch, context + steps, channels)
    stored = torch.empty_like(x) if keeps_total else None
    lanes, block = min(64, triton.next_power_of_2(channels)), 32
    grid = (triton.cdiv(steps, block) + (context > 0), triton.cdiv(channels, lanes), batch)
    _snake_extend_kernel[grid](
        x,
        skip,
        bias,
        alpha,
        past,
        rows.chosen,
        rows.fresh,
        stored,
        joined,
        steps,
        channels,
        context,
        triton.next_power_of_2(max(context, 1)),
        block,
        lanes,
        num_warps=4,
    )
    return x if stored is None else stored, joined


@jit
def _total(x, skip, bias, start, step, lane, inside, channels):
    """Return x + bias + skip of some steps [N] and channels [M], in fp32."""
    at = start + step[:, None] * channels + lane[None, :]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        value += tl.load(bias + lane, mask=lane < channels, other=0.0).to(tl.float32)[None, :]
    if skip is not None:
        value += tl.load(skip + at, mask=inside, other=0.0).to(tl.float32)
    return value


@jit
def _snake(value, alpha, lane, channels):
    if alpha is not None:
        slope = tl.load(alpha + lane, mask=lane < channels, other=1.0).to(tl.float32)[None, :]
        angle = slope * value
        # The square of the sine has the period π: reduce the angle by π in three parts that multiply exactly, then take
        # a series. `tl.sin` handles any angle, with a branch for each.
        turns = tl.floor(angle * 0.3183098861837907 + 0.5)
        angle = angle - turns * 3.140625 - turns * 9.67502593994140625e-4 - turns * 1.509957990978376e-7
        square = angle * angle
        series = 2.7557319e-6 - square * 2.5052108e-8
        series = 8.3333333e-3 - square * (1.9841270e-4 - square * series)
        wave = angle * (1.0 - square * (0.16666667 - square * series))
        value += wave * wave / (slope + 1e-9)
    return value


@jit
def _snake_extend_kernel(
    x,
    skip,
    bias,
    alpha,
    past,
    chosen,
    fresh,
    total,
    joined,
    steps,
    channels,
    CONTEXT: tl.constexpr,
    PAST: tl.constexpr,
    BLOCK: tl.constexpr,
    LANES: tl.constexpr,
):
    row = tl.program_id(2).to(tl.int64)
    lane = tl.program_id(1) * LANES + tl.arange(0, LANES)
    start = row * steps * channels
    out = joined + row * (CONTEXT + steps) * channels
    block = tl.program_id(0)
    if CONTEXT > 0:
        block -= 1
    if block >= 0:
        step = block * BLOCK + tl.arange(0, BLOCK)
        inside = (step < steps)[:, None] & (lane < channels)[None, :]
        at = step[:, None] * channels + lane[None, :]
        value = _total(x, skip, bias, start, step, lane, inside, channels)
        if total is not None:
            tl.store(total + start + at, value.to(total.dtype.element_ty), mask=inside)
        value = _snake(value, alpha, lane, channels)
        tl.store(out + CONTEXT * channels + at, value.to(out.dtype.element_ty), mask=inside)
    elif CONTEXT > 0:  # one program has all the past of some channels, so that none reads another's writes
        kept = past + tl.load(chosen + row) * CONTEXT * channels
        num_old = CONTEXT * (1 - tl.load(fresh + row).to(tl.int32))
        place = tl.arange(0, PAST)
        is_past = (place < CONTEXT)[:, None] & (lane < channels)[None, :]
        where = place[:, None] * channels + lane[None, :]
        before = tl.load(kept + where, mask=is_past & (place < num_old)[:, None], other=0.0)
        tl.store(out + where, before, mask=is_past)
        is_old = (place + steps < CONTEXT)[:, None]
        old = tl.load(kept + steps * channels + where, mask=is_past & (place + steps < num_old)[:, None], other=0.0)
        is_new = is_past & (place + steps >= CONTEXT)[:, None]
        new = _total(x, skip, bias, start, place + steps - CONTEXT, lane, is_new, channels)
        new = _snake(new, alpha, lane, channels).to(kept.dtype.element_ty)
        tl.debug_barrier()
        tl.store(kept + where, tl.where(is_old, old, new), mask=is_past)


# Snake in fewer operations, for results that are rounded to 16 bits. sin² has the period π: the angle in units of π is
# reduced to ±½ and put into a series of its square, whose relative error is 1e-6. Factors of a channel are looked up.


def snake_table(alpha: Tensor) -> Tensor:
    """Return α / π and 1 / α of each channel, [2, C] fp32, of `alpha` [C]."""
    wide = alpha.double()
    return torch.stack((wide / torch.pi, 1 / (wide + NO_DIVISION_BY_ZERO))).float()


def snake_of_table(value: Tensor, table: Tensor) -> Tensor:
    """Return Snake of values [..., C] in fp32."""
    wide = value.float()
    return wide + (torch.pi * table[0] * wide).sin().square() * table[1]


@jit
def quick_snake(value, turn, inverse):
    """Return value + sin²(π · turn · value) · inverse, all fp32."""
    turns = turn * value
    # Adding and taking away 1.5 · 2²³ leaves the nearest whole number.
    rest = turns - ((turns + 12582912.0) - 12582912.0)
    square = rest * rest
    series = 42.67865753173828 + square * (10.860807418823242 * square - 29.595741271972656)
    series = 9.86959457397461 + square * (series * square - 32.467994689941406)
    return value + (square * series) * inverse


@jit
def quick_snake_of(value, table, channel, channels, inside):
    """Return Snake of values [T, N] of the channels [N], those `inside` [N]; `table` is `snake_table`'s."""
    turn = tl.load(table + channel, mask=inside, other=0.0)
    inverse = tl.load(table + channels + channel, mask=inside, other=0.0)
    return quick_snake(value, turn[None, :], inverse[None, :])
