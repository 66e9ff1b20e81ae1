"""Channels-last convolutions, computed as the sum of one matrix product per tap, and the sizes of their tiles.

cuDNN is slower at all measured sizes (docs/internals/codec_kernels.md). For some sizes cuDNN chooses an algorithm that
takes hundreds of milliseconds (2026-11, torch 2.11, 96 channels, 7 taps), and its autotuning would delay every start.
With the fastest tiles, two programs share a multiprocessor, so that one multiplies while the other stores its results.
Shapes: B rows, T steps, P steps before them, C inputs, O outputs, K taps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from s1_mini.kernels.backend import HAS_TRITON, is_batch_invariant, jit, jit_for_any, runs_triton

if HAS_TRITON:
    import triton
    import triton.language as tl

MANY_STEPS = 4096  # steps of all rows together; from here on tiles are the largest, because enough programs run
INVARIANT_MANY_STEPS = 512  # the same limit in batch-invariant mode, for the steps of one row
STEPS_PER_NORM = 4  # steps of one program of `depthwise_norm`
ENOUGH_PROGRAMS = 72  # programs of a call with fewer steps, for which its tile is chosen (of 132 multiprocessors)


class ConvolutionTile(NamedTuple):
    """Sizes of a program. Triton needs powers of two, so that 96 outputs, for example, are 64 `wide` and 32 `more`."""

    tall: int  # steps
    wide: int  # outputs
    more: int  # further outputs, or 0
    block: int  # inputs per iteration
    warps: int
    stages: int
    registers: int | None = None  # limit per thread
    part: int = 0  # outputs of a residual unit that are computed at once

    @property
    def outputs(self) -> int:
        return self.wide + self.more

    def programs(self, steps: int, outputs: int) -> int:
        """Return the number of programs that compute `steps` and `outputs`."""
        return -(-steps // self.tall) * -(-outputs // self.outputs)

    def shares(self, steps: int, past: int) -> bool:
        """Return whether programs take steps of several rows, and compute as many useless steps between rows as P.

        They do if this saves at least a quarter of the products of a row, for any number of rows.
        """
        return 4 * (past + steps) <= 3 * -(-steps // self.tall) * self.tall


FEW = ConvolutionTile(64, 32, 0, 64, warps=4, stages=4)
MIDDLE = ConvolutionTile(64, 64, 0, 64, warps=4, stages=4)
LARGE = ConvolutionTile(128, 128, 0, 64, warps=8, stages=3, registers=128)
LARGEST = ConvolutionTile(128, 256, 0, 64, warps=8, stages=3)
# Keys are numbers of outputs. Other numbers use the largest key that divides them, or the largest key if none does.
# Tuned for 16 streams of 25 frames.
DILATED = {
    96: ConvolutionTile(128, 64, 32, 32, warps=4, stages=4),
    192: ConvolutionTile(128, 128, 64, 32, warps=8, stages=5, registers=128),
    384: ConvolutionTile(256, 128, 0, 64, warps=8, stages=3),
    768: LARGEST,
}
TRANSPOSED = {
    192: ConvolutionTile(128, 128, 64, 32, warps=8, stages=4, registers=128),
    768: LARGE,
    3072: LARGEST,
}
POINTWISE = {384: LARGE}
UNITS = {  # keys are the channels of residual units that one kernel computes
    96: ConvolutionTile(128, 64, 32, 32, warps=4, stages=4, registers=168, part=32),
    192: ConvolutionTile(64, 128, 64, 32, warps=4, stages=4, registers=168, part=64),
}


def is_many(rows: int, steps: int) -> bool:
    """Return whether `rows` of `steps` steps use the largest tiles, because these fill a GPU.

    In batch-invariant mode, the result does not depend on `rows`, but on whether a row is long.
    """
    return steps >= INVARIANT_MANY_STEPS if is_batch_invariant() else rows * steps >= MANY_STEPS


def tile_of(outputs: int, taps: int, rows: int, steps: int) -> ConvolutionTile:
    """Return the tile of a convolution of `rows` of `steps` steps: the largest one that gives enough programs.

    In batch-invariant mode, the result does not depend on `rows`.
    """
    table = {1: POINTWISE, 2: TRANSPOSED}.get(taps, DILATED)
    fitting = [width for width in table if outputs % width == 0]
    best = table[max(fitting or table)]
    if is_many(rows, steps):
        return best
    total = steps if is_batch_invariant() else rows * steps
    return next((tile for tile in (best, LARGE, MIDDLE) if tile.programs(total, outputs) >= ENOUGH_PROGRAMS), FEW)


def convolve(x: Tensor, weight: Tensor, dilation: int) -> Tensor:
    """Convolve x [B, P + T, C] with `weight` [K, C, O]; return [B, T, O]. P is (K - 1) * `dilation`."""
    if not runs_triton(x):
        return F.conv1d(x.transpose(1, 2), weight.permute(2, 1, 0), dilation=dilation).transpose(1, 2).contiguous()
    x = x.contiguous()
    batch, length, inputs = x.shape
    taps, _, outputs = weight.shape
    steps = length - (taps - 1) * dilation
    out = x.new_empty(batch, steps, outputs)
    block = next((size for size in (64, 32, 16) if inputs % size == 0), 64)
    if is_many(batch, steps) and x.element_size() <= 2:
        tall, wide, warps, stages = 128, 128 if outputs > 64 else 64, 8, 3
    else:
        tall, wide, warps, stages = 32 if steps > 16 else 16, 32, 4, 4
    grid = (triton.cdiv(steps, tall) * triton.cdiv(outputs, wide), batch)
    _convolve_kernel[grid](
        x,
        weight,
        out,
        length,
        steps,
        dilation,
        outputs,
        inputs,
        taps,
        tall,
        wide,
        block,
        num_warps=warps,
        num_stages=stages,
    )
    return out


@jit
def _convolve_kernel(
    x,
    weight,
    out,
    length,
    steps,
    dilation,
    outputs,
    INPUTS: tl.constexpr,
    TAPS: tl.constexpr,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(outputs, WIDE)
    step = (tl.program_id(0) // tiles) * TALL + tl.arange(0, TALL)
    to = (tl.program_id(0) % tiles) * WIDE + tl.arange(0, WIDE)
    present, taken = step < steps, to < outputs
    total = tl.zeros([TALL, WIDE], tl.float32)
    from_x = x + row * length * INPUTS + step[:, None] * INPUTS
    blocks = tl.cdiv(INPUTS, BLOCK)
    for number in range(TAPS * blocks):
        tap = number // blocks
        channel = (number % blocks) * BLOCK + tl.arange(0, BLOCK)
        if INPUTS % BLOCK == 0:
            inside = channel >= 0
        else:
            inside = channel < INPUTS
        seen = tl.load(
            from_x + tap * dilation * INPUTS + channel[None, :], mask=present[:, None] & inside[None, :], other=0.0
        )
        weights = tl.load(
            weight + (tap * INPUTS + channel[:, None]) * outputs + to[None, :],
            mask=inside[:, None] & taken[None, :],
            other=0.0,
        )
        total = tl.dot(seen, weights, total, input_precision="ieee")
    where = out + row * steps * outputs + step[:, None] * outputs + to[None, :]
    tl.store(where, total.to(out.dtype.element_ty), mask=present[:, None] & taken[None, :])


def depthwise_norm(x: Tensor, weight: Tensor, bias: Tensor | None, norm: nn.LayerNorm) -> Tensor:
    """Convolve each channel of x [B, P + T, C] with `weight` [K, C], where P is K - 1; return its norm [B, T, C]."""
    batch, length, channels = x.shape
    taps = len(weight)
    if not runs_triton(x):
        inner = F.conv1d(x.transpose(1, 2), weight.t().unsqueeze(1), bias, groups=channels).transpose(1, 2)
        return norm(inner)
    steps = length - taps + 1
    out = x.new_empty(batch, steps, channels)
    _depthwise_norm_kernel[(triton.cdiv(steps, STEPS_PER_NORM), batch)](
        x.contiguous(),
        weight,
        bias,
        norm.weight,
        norm.bias,
        out,
        length,
        steps,
        norm.eps,
        channels,
        triton.next_power_of_2(channels),
        taps,
        STEPS_PER_NORM,
        num_warps=8,
    )
    return out


@jit_for_any("length", "steps", "eps")
def _depthwise_norm_kernel(
    x,
    weight,
    bias,
    scale,
    shift,
    out,
    length,
    steps,
    eps,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    step = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.arange(0, WIDTH)
    taken = channel < CHANNELS
    inside = (step < steps)[:, None] & taken[None, :]
    at = step[:, None] * CHANNELS + channel[None, :]
    x += row * length * CHANNELS
    total = tl.zeros([BLOCK, WIDTH], tl.float32)
    if bias is not None:
        total += tl.load(bias + channel, mask=taken, other=0.0).to(tl.float32)[None, :]
    for tap in tl.static_range(TAPS):
        seen = tl.load(x + tap * CHANNELS + at, mask=inside, other=0.0).to(tl.float32)
        total += seen * tl.load(weight + tap * CHANNELS + channel, mask=taken, other=0.0).to(tl.float32)[None, :]
    rest = tl.where(taken[None, :], total - (tl.sum(total, axis=1) / CHANNELS)[:, None], 0.0)
    normed = rest * tl.rsqrt(tl.sum(rest * rest, axis=1) / CHANNELS + eps)[:, None]
    normed = normed * tl.load(scale + channel, mask=taken, other=0.0).to(tl.float32)[None, :]
    normed += tl.load(shift + channel, mask=taken, other=0.0).to(tl.float32)[None, :]
    tl.store(out + row * steps * CHANNELS + at, normed.to(out.dtype.element_ty), mask=inside)
