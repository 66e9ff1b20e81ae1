"""A convolution fused with its epilogue (bias, skip, Snake, space for the next layer's past), and whole residual units.

The kernels combine `kernels/convolution.py` and `kernels/snake.py`, for 16-bit dtypes on GPUs of compute capability 9,
whose copy engine moves tiles. A transposed convolution is computed as a convolution whose O outputs are the N channels
of O / N consecutive steps.
Shapes: B rows, T steps, P steps before them, C inputs, O outputs, K taps, N channels (O is a multiple of N).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit, jit_for_any, runs_triton
from s1_mini.kernels.convolution import UNITS, ConvolutionTile, convolve, is_many, tile_of
from s1_mini.kernels.snake import Rows, quick_snake_of, snake_of_table

if HAS_TRITON:
    import triton
    import triton.language as tl
    from triton.tools.tensor_descriptor import TensorDescriptor

BLOCK_CHANNELS = 32  # channels of one program of `exchange_past`
COPIED = 32  # the copy engine needs inputs and outputs that are multiples of this


def exchange_past(joined: Tensor, past: Tensor, rows: Rows) -> None:
    """Fill the first P steps of `joined` [B, P + T, C] from `past` [R, P, C]; store the last P steps in `past`.

    Rows that begin a new stream get zeros instead of their slot's past.
    """
    if runs_triton(joined):
        _exchange_past_triton(joined, past, rows)
        return
    context = past.shape[1]
    joined[:, :context] = past[rows.slot_ids].masked_fill(rows.reset_mask[:, None, None], 0)
    past[rows.slot_ids] = joined[:, joined.shape[1] - context :]


def _exchange_past_triton(joined: Tensor, past: Tensor, rows: Rows) -> None:
    batch, length, channels = joined.shape
    context = past.shape[1]
    _exchange_kernel[(triton.cdiv(channels, BLOCK_CHANNELS), batch)](
        joined,
        past,
        rows.slot_ids,
        rows.reset_mask,
        length,
        channels,
        context,
        triton.next_power_of_2(context),
        BLOCK_CHANNELS,
        num_warps=4,
    )


@jit_for_any("length")
def _exchange_kernel(
    joined, past, slot_ids, reset_mask, length, channels, CONTEXT: tl.constexpr, PAST: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    step = tl.arange(0, PAST)
    inside = (step < CONTEXT)[:, None] & (channel < channels)[None, :]
    at = step[:, None] * channels + channel[None, :]
    out = joined + row * length * channels
    past_row = past + tl.load(slot_ids + row) * CONTEXT * channels
    num_old = CONTEXT * (1 - tl.load(reset_mask + row).to(tl.int32))
    steps = length - CONTEXT
    before = tl.load(past_row + at, mask=inside & (step < num_old)[:, None], other=0.0)
    # A chunk shorter than the past replaces only a part of it.
    is_old = (step + steps < CONTEXT)[:, None]
    old = tl.load(past_row + steps * channels + at, mask=inside & (step + steps < num_old)[:, None], other=0.0)
    new = tl.load(out + steps * channels + at, mask=inside & (step + steps >= CONTEXT)[:, None], other=0.0)
    tl.debug_barrier()
    tl.store(out + at, before, mask=inside)
    tl.store(past_row + at, tl.where(is_old, old, new), mask=inside)


@dataclass(frozen=True)
class Epilogue:
    """What a convolution's kernel does with the sums: add the bias, apply Snake, leave space for the past."""

    channels: int  # N
    bias: Tensor | None  # [O]
    snake: Tensor | None  # [2, O] from `snake_table`
    context: int  # steps before the result that stay free for the past of the next convolution
    keeps_total: bool  # whether the input of Snake is stored as well as its output


def runs_chain(x: Tensor) -> bool:
    """Return whether these kernels support the dtype and device of x."""
    return runs_triton(x) and x.element_size() == 2 and _has_copy_engine(x.device)


@lru_cache
def _has_copy_engine(device: torch.device) -> bool:
    """Return whether this GPU has compute capability 9; tiles are untested on later GPUs."""
    return torch.cuda.get_device_capability(device)[0] == 9


def convolve_on(
    x: Tensor, weight: Tensor, dilation: int, epilogue: Epilogue, skip: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Convolve x [B, P + T, C] with `weight` [K, C, O], where P is (K - 1) * `dilation`; add bias and `skip` [B, T, O].

    Return the total [B, T', N], valid only if the epilogue keeps it, and its Snake [B, context + T', N], where T' is
    T * O / N. Call `exchange_past` to fill the first `context` steps of the second result.
    """
    if runs_triton(x):
        tile = tile_of(weight.shape[2], len(weight), len(x), x.shape[1] - (len(weight) - 1) * dilation)
        return convolve_on_triton(x, weight, dilation, epilogue, skip, tile)
    total = convolve(x, weight, dilation).float()
    if epilogue.bias is not None:
        total = total + epilogue.bias.float()
    if skip is not None:
        total = total + skip.view_as(total).float()
    out = total if epilogue.snake is None else snake_of_table(total, epilogue.snake)
    total, out = (each.view(len(x), -1, epilogue.channels).to(x.dtype) for each in (total, out))
    return total, torch.cat((out.new_zeros(len(x), epilogue.context, epilogue.channels), out), dim=1)


def descriptor(tensor: Tensor, *block: int) -> TensorDescriptor:
    """Return a descriptor with which the copy engine copies blocks of a tensor.

    Outside the tensor, it reads 0 and writes nothing.
    """
    return TensorDescriptor.from_tensor(tensor, list(block))


def _descriptors(tensors: Sequence[Tensor | None], tall: int, wide: int) -> list[TensorDescriptor | None]:
    return [None if each is None else descriptor(each, 1, tall, wide) for each in tensors]


def convolve_on_triton(
    x: Tensor, weight: Tensor, dilation: int, epilogue: Epilogue, skip: Tensor | None, tile: ConvolutionTile
) -> tuple[Tensor, Tensor]:
    """Compute `convolve_on` with the Triton kernel, in tiles of this size."""
    batch, length, inputs = x.shape
    taps, _, outputs = weight.shape
    assert x.is_contiguous()
    assert inputs % COPIED == outputs % COPIED == 0
    steps = length - (taps - 1) * dilation
    total, joined, stored = _outputs(x, steps, outputs, epilogue)
    tensors = [None if skip is None else skip.view(batch, steps, outputs), *stored]
    narrow = tile.more or tile.wide
    matrix = weight.view(-1, outputs)
    shared = tile.shares(steps, length - steps)
    ends: list[Tensor | TensorDescriptor | None]
    if shared:
        grid = (tile.programs((batch - 1) * length + steps, outputs), 1)
        x, ends = x.view(1, -1, inputs), [*tensors, *tensors]
    else:
        grid = (tile.programs(steps, outputs), batch)
        ends = [*_descriptors(tensors, tile.tall, tile.wide), *_descriptors(tensors, tile.tall, narrow)]
    _chain_kernel[grid](
        descriptor(x, 1, tile.tall, tile.block),
        descriptor(matrix, tile.block, tile.wide),
        descriptor(matrix, tile.block, narrow),
        epilogue.bias,
        epilogue.snake,
        *ends,
        batch,
        length,
        steps,
        epilogue.context * epilogue.channels,
        dilation,
        inputs,
        outputs,
        taps,
        shared,
        tile.tall,
        tile.wide,
        tile.more,
        tile.block,
        num_warps=tile.warps,
        num_stages=tile.stages,
        maxnreg=tile.registers,
    )
    return joined if total is None else total, joined


def _outputs(
    x: Tensor, steps: int, outputs: int, epilogue: Epilogue
) -> tuple[Tensor | None, Tensor, tuple[Tensor | None, Tensor]]:
    """Allocate both results of a convolution of T = `steps` steps; return them and their views [B, T, O] to fill."""
    batch, channels, context = len(x), epilogue.channels, epilogue.context
    length = steps * outputs // channels
    joined = x.new_empty(batch, context + length, channels)
    stored = joined.as_strided((batch, steps, outputs), ((context + length) * channels, outputs, 1), context * channels)
    if not epilogue.keeps_total:
        return None, joined, (None, stored)
    total = x.new_empty(batch, length, channels)
    return total, joined, (total.view(batch, steps, outputs), stored)


@jit
def sum_taps(
    x,
    weight,
    weight_more,
    row,
    first,
    to,
    dilation,
    INPUTS: tl.constexpr,
    TAPS: tl.constexpr,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    MORE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return the sums over all taps for TALL steps from `first`: WIDE outputs from `to`, and the next MORE outputs."""
    total = tl.zeros([TALL, WIDE], tl.float32)
    more_sums = tl.zeros([TALL, MORE if MORE > 0 else 16], tl.float32)
    BLOCKS: tl.constexpr = (INPUTS + BLOCK - 1) // BLOCK
    for number in tl.range(TAPS * BLOCKS):
        tap = number // BLOCKS
        channel = (number % BLOCKS) * BLOCK
        # Reads beyond the last channel of x return 0, so the next tap's weights, which are read there, have no effect.
        seen = x.load([row, first + tap * dilation, channel]).reshape(TALL, BLOCK)
        total = tl.dot(seen, weight.load([tap * INPUTS + channel, to]), total)
        if MORE > 0:
            more_sums = tl.dot(seen, weight_more.load([tap * INPUTS + channel, to + WIDE]), more_sums)
    return total, more_sums


@jit
def store_output(
    value,
    bias,
    snake,
    skip,
    total,
    joined,
    row,
    start,
    to,
    OUTPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
    SHARED: tl.constexpr = False,
    rows=0,
    length=0,
    steps=0,
    before=0,
):
    """Add bias and skip to sums [T, WIDTH] of the outputs from `to` on, and store the total and its Snake.

    The total is stored in `total`, its Snake in `joined`. `bias`, `snake`, `skip` and `total` may be None.
    SHARED: the sums are of several rows; `start` counts the steps of all rows and their pasts, and `skip`, `total` and
    `joined` are pointers, not descriptors.
    """
    output = to + tl.arange(0, WIDTH)
    taken = output < OUTPUTS
    if SHARED:
        position = start + tl.arange(0, value.shape[0])
        row, step = (position // length).to(tl.int64), position % length
        inside = ((row < rows) & (step < steps))[:, None] & taken[None, :]
        at = ((row * steps + step) * OUTPUTS)[:, None] + output[None, :]
    if bias is not None:
        value += tl.load(bias + output, mask=taken, other=0.0).to(tl.float32)[None, :]
    if skip is not None:
        if SHARED:
            value += tl.load(skip + at, mask=inside, other=0.0).to(tl.float32)
        else:
            value += skip.load([row, start, to]).reshape(value.shape).to(tl.float32)
    if total is not None:
        if SHARED:
            tl.store(total + at, value.to(total.dtype.element_ty), mask=inside)
        else:
            total.store([row, start, to], value.to(total.dtype).reshape(total.block_shape))
    if snake is not None:
        value = quick_snake_of(value, snake, output, OUTPUTS, taken)
    if SHARED:
        tl.store(joined + (row * before)[:, None] + at, value.to(joined.dtype.element_ty), mask=inside)
    else:
        joined.store([row, start, to], value.to(joined.dtype).reshape(joined.block_shape))


@jit_for_any("rows", "length", "steps", "dilation")
def _chain_kernel(
    x,
    weight,
    weight_more,
    bias,
    snake,
    skip,
    total,
    joined,
    skip_more,
    total_more,
    joined_more,
    rows,
    length,
    steps,
    before,
    dilation,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    TAPS: tl.constexpr,
    SHARED: tl.constexpr,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    MORE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    TILES: tl.constexpr = (OUTPUTS + WIDE + MORE - 1) // (WIDE + MORE)
    row = tl.program_id(1)
    start = (tl.program_id(0) // TILES) * TALL
    to = (tl.program_id(0) % TILES) * (WIDE + MORE)
    sums, more_sums = sum_taps(x, weight, weight_more, row, start, to, dilation, INPUTS, TAPS, TALL, WIDE, MORE, BLOCK)
    store_output(
        sums, bias, snake, skip, total, joined, row, start, to, OUTPUTS, WIDE, SHARED, rows, length, steps, before
    )
    if MORE > 0:
        to += WIDE
        store_output(
            more_sums,
            bias,
            snake,
            skip_more,
            total_more,
            joined_more,
            row,
            start,
            to,
            OUTPUTS,
            MORE,
            SHARED,
            rows,
            length,
            steps,
            before,
        )


@dataclass(frozen=True)
class UnitWeights:
    """The weights of a residual unit, except the epilogue of its second convolution."""

    dilated: Tensor  # [K, C, C]
    dilation: int
    between: Epilogue  # bias and Snake after the dilated convolution
    pointwise: Tensor  # [1, C, C]


def residual_unit(joined: Tensor, weights: UnitWeights, epilogue: Epilogue, skip: Tensor) -> tuple[Tensor, Tensor]:
    """Apply both convolutions of a unit to `joined` [B, P + T, C], and add `skip` [B, T, C]; see `convolve_on`.

    If a program can hold all channels of its steps, one kernel computes both convolutions, so that the intermediate
    results stay on the chip.
    """
    batch, steps, channels = skip.shape
    if runs_triton(joined) and is_many(batch, steps) and channels in UNITS:
        return residual_unit_triton(joined, weights, epilogue, skip, UNITS[channels])
    _, inner = convolve_on(joined, weights.dilated, weights.dilation, weights.between)
    return convolve_on(inner, weights.pointwise, 1, epilogue, skip)


def residual_unit_triton(
    joined: Tensor, weights: UnitWeights, epilogue: Epilogue, skip: Tensor, tile: ConvolutionTile
) -> tuple[Tensor, Tensor]:
    """Compute `residual_unit` with one kernel, whose tile covers all channels."""
    batch, steps, channels = skip.shape
    between = weights.between
    assert joined.is_contiguous()
    assert skip.is_contiguous()
    assert between.bias is not None
    assert between.snake is not None
    assert tile.outputs >= channels == epilogue.channels
    total, out, stored = _outputs(joined, steps, channels, epilogue)
    first, second = weights.dilated.view(-1, channels), weights.pointwise.view(channels, channels)
    narrow = tile.more or tile.wide
    _unit_kernel[(triton.cdiv(steps, tile.tall), batch)](
        descriptor(joined, 1, tile.tall, tile.block),
        descriptor(first, tile.block, tile.wide),
        descriptor(first, tile.block, narrow),
        descriptor(second, tile.wide, tile.part),
        descriptor(second, narrow, tile.part),
        between.bias,
        between.snake,
        epilogue.bias,
        epilogue.snake,
        *_descriptors((skip, *stored), tile.tall, tile.part),
        weights.dilation,
        channels,
        len(weights.dilated),
        tile.tall,
        tile.wide,
        tile.more,
        tile.block,
        tile.part,
        num_warps=tile.warps,
        num_stages=tile.stages,
        maxnreg=tile.registers,
    )
    return out if total is None else total, out


@jit
def _between(value, bias, snake, kind, first, CHANNELS: tl.constexpr, WIDTH: tl.constexpr):
    """Add the bias to the sums [T, WIDTH] of the channels from `first` on, apply Snake, round to the dtype `kind`."""
    channel = first + tl.arange(0, WIDTH)
    taken = channel < CHANNELS
    value += tl.load(bias + channel, mask=taken, other=0.0).to(tl.float32)[None, :]
    return quick_snake_of(value, snake, channel, CHANNELS, taken).to(kind)


@jit_for_any("dilation")
def _unit_kernel(
    x,
    weight,
    weight_more,
    second,
    second_more,
    between_bias,
    between_snake,
    bias,
    snake,
    skip,
    total,
    joined,
    dilation,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    MORE: tl.constexpr,
    BLOCK: tl.constexpr,
    PART: tl.constexpr,
):
    row = tl.program_id(1)
    start = tl.program_id(0) * TALL
    sums, more_sums = sum_taps(x, weight, weight_more, row, start, 0, dilation, CHANNELS, TAPS, TALL, WIDE, MORE, BLOCK)
    # `inner` is 0 in the channels that only pad the width, and their weights are 0.
    inner = _between(sums, between_bias, between_snake, joined.dtype, 0, CHANNELS, WIDE)
    if MORE > 0:
        more_inner = _between(more_sums, between_bias, between_snake, joined.dtype, WIDE, CHANNELS, MORE)
    for part in tl.range((CHANNELS + PART - 1) // PART, num_stages=2):
        out = tl.dot(inner, second.load([0, part * PART]))
        if MORE > 0:
            out = tl.dot(more_inner, second_more.load([WIDE, part * PART]), out)
        store_output(out, bias, snake, skip, total, joined, row, start, part * PART, CHANNELS, PART)
