"""The two convolutions of a residual unit, with all that stands between them and after them.

Where a program can have all channels of some steps, both are one kernel: what the first gives stays on the chip.
Shapes: B rows, T steps, P steps before them, C channels, K taps.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit, jit_for_any, runs_triton
from s1_mini.kernels.convolution_chain import Ending, convolve_on, descriptor, put, sum_taps
from s1_mini.kernels.convolution_tiles import ConvolutionTile, is_many, unit_tile
from s1_mini.kernels.snake import quick_snake_of

if HAS_TRITON:
    import triton
    import triton.language as tl


@dataclass(frozen=True)
class UnitWeights:
    """What a unit is made of, but for its ending."""

    dilated: Tensor  # [K, C, C]
    dilation: int
    between: Ending  # of the dilated convolution, with bias and Snake
    pointwise: Tensor  # [1, C, C]


def residual_unit(joined: Tensor, weights: UnitWeights, ending: Ending, skip: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `convolve_on` gives, of both convolutions on `joined` [B, P + T, C] and `skip` [B, T, C]."""
    if runs_triton(joined):
        batch, steps, channels = skip.shape
        tile = unit_tile(channels) if is_many(batch, steps) else None
        if tile is not None:
            return residual_unit_triton(joined, weights, ending, skip, tile)
    _, inner = convolve_on(joined, weights.dilated, weights.dilation, weights.between)
    return convolve_on(inner, weights.pointwise, 1, ending, skip)


def residual_unit_triton(
    joined: Tensor, weights: UnitWeights, ending: Ending, skip: Tensor, tile: ConvolutionTile
) -> tuple[Tensor, Tensor]:
    """Compute `residual_unit` with one kernel, whose tile has all channels."""
    batch, steps, channels = skip.shape
    between = weights.between
    assert joined.is_contiguous()
    assert skip.is_contiguous()
    assert between.bias is not None
    assert between.snake is not None
    assert tile.wide >= channels == ending.channels
    assert not tile.more
    out = joined.new_empty(batch, ending.context + steps, channels)
    total = joined.new_empty(batch, steps, channels) if ending.keeps_total else out
    first, second = weights.dilated.view(-1, channels), weights.pointwise.view(channels, channels)
    _unit_kernel[(triton.cdiv(steps, tile.tall), batch)](
        descriptor(joined.view(-1, channels), (tile.tall, tile.block)),
        descriptor(first, (tile.block, tile.wide)),
        descriptor(second, (tile.wide, tile.wide)),
        between.bias,
        between.snake,
        joined if ending.bias is None else ending.bias,
        joined if ending.snake is None else ending.snake,
        skip,
        total,
        out,
        joined.shape[1],
        steps,
        weights.dilation,
        ending.context * channels,
        channels,
        len(weights.dilated),
        tile.tall,
        tile.wide,
        tile.block,
        ending.bias is not None,
        ending.snake is not None,
        ending.keeps_total,
        num_warps=tile.warps,
        num_stages=tile.stages,
        maxnreg=tile.registers,
    )
    return total, out


@jit
def _between(value, bias, snake, kind, CHANNELS: tl.constexpr, WIDTH: tl.constexpr):
    """Return Snake of sums [T, WIDTH] of the channels and their bias, rounded to `kind`."""
    channel = tl.arange(0, WIDTH)
    taken = channel < CHANNELS
    value += tl.load(bias + channel, mask=taken, other=0.0).to(tl.float32)[None, :]
    return quick_snake_of(value, snake, channel, CHANNELS, taken).to(kind)


@jit_for_any("length", "steps", "dilation")
def _unit_kernel(
    x,
    weight,
    second,
    between_bias,
    between_snake,
    bias,
    snake,
    skip,
    total,
    joined,
    length,
    steps,
    dilation,
    before,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_SNAKE: tl.constexpr,
    KEEPS_TOTAL: tl.constexpr,
):
    row = tl.program_id(1)
    start = tl.program_id(0) * TALL
    sums, _ = sum_taps(x, weight, weight, row * length + start, 0, dilation, CHANNELS, TAPS, TALL, WIDE, 0, BLOCK)
    inner = _between(sums, between_bias, between_snake, joined.dtype.element_ty, CHANNELS, WIDE)
    step = start + tl.arange(0, TALL)
    far = row.to(tl.int64)
    skip += far * steps * CHANNELS
    total += far * steps * CHANNELS
    joined += far * (before + steps * CHANNELS) + before
    # Columns that fill up the width are 0, and so are the weights they would meet.
    out = tl.dot(inner, second.load([0, 0]))
    put(
        out,
        bias,
        snake,
        skip,
        total,
        joined,
        step,
        0,
        steps,
        CHANNELS,
        WIDE,
        HAS_BIAS,
        HAS_SNAKE,
        True,
        KEEPS_TOTAL,
    )
