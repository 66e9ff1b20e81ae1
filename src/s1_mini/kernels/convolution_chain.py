"""A convolution fused with its epilogue (bias, skip, Snake, room for the next one's past), and whole residual units.

`kernels/convolution.py` and `kernels/snake.py` in one kernel, for 16 bits and GPUs whose copy engine loads tiles
(compute capability 9). A transposed convolution is one whose outputs are those of several steps.
Shapes: B rows, T steps, P steps before them, C inputs, O outputs, K taps, N channels that O are a multiple of.
"""

from __future__ import annotations

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

LANES = 32  # channels of a program
COPIED = 32  # numbers of inputs and outputs are multiples of it


def exchange_past(joined: Tensor, past: Tensor, rows: Rows) -> None:
    """Fill the first P steps of `joined` [B, P + T, C] from `past` [R, P, C], which then holds its last P."""
    if runs_triton(joined):
        _exchange_past_triton(joined, past, rows)
        return
    context = past.shape[1]
    joined[:, :context] = past[rows.chosen].masked_fill(rows.fresh[:, None, None], 0)
    past[rows.chosen] = joined[:, joined.shape[1] - context :]


def _exchange_past_triton(joined: Tensor, past: Tensor, rows: Rows) -> None:
    batch, length, channels = joined.shape
    context = past.shape[1]
    _exchange_kernel[(triton.cdiv(channels, LANES), batch)](
        joined,
        past,
        rows.chosen,
        rows.fresh,
        length,
        channels,
        context,
        triton.next_power_of_2(context),
        LANES,
        num_warps=4,
    )


@jit_for_any("length")
def _exchange_kernel(
    joined, past, chosen, fresh, length, channels, CONTEXT: tl.constexpr, PAST: tl.constexpr, EACH: tl.constexpr
):
    row = tl.program_id(1).to(tl.int64)
    lane = tl.program_id(0) * EACH + tl.arange(0, EACH)
    step = tl.arange(0, PAST)
    inside = (step < CONTEXT)[:, None] & (lane < channels)[None, :]
    at = step[:, None] * channels + lane[None, :]
    out = joined + row * length * channels
    kept = past + tl.load(chosen + row) * CONTEXT * channels
    num_old = CONTEXT * (1 - tl.load(fresh + row).to(tl.int32))
    steps = length - CONTEXT
    before = tl.load(kept + at, mask=inside & (step < num_old)[:, None], other=0.0)
    # The last steps are new ones, or, of a chunk shorter than the past, the past's own.
    is_old = (step + steps < CONTEXT)[:, None]
    old = tl.load(kept + steps * channels + at, mask=inside & (step + steps < num_old)[:, None], other=0.0)
    new = tl.load(out + steps * channels + at, mask=inside & (step + steps >= CONTEXT)[:, None], other=0.0)
    tl.debug_barrier()
    tl.store(out + at, before, mask=inside)
    tl.store(kept + at, tl.where(is_old, old, new), mask=inside)


@dataclass(frozen=True)
class Epilogue:
    """The epilogue of a convolution."""

    channels: int  # N
    bias: Tensor | None  # [O]
    snake: Tensor | None  # [2, O], as `snake_table` gives it for each channel
    context: int  # steps of past before the result, for the next convolution
    keeps_total: bool  # whether the input of Snake is stored, too


def runs_chain(x: Tensor) -> bool:
    """Return whether these kernels handle tensors like this one."""
    return runs_triton(x) and x.element_size() == 2 and _has_copy_engine(x.device)


@lru_cache
def _has_copy_engine(device: torch.device) -> bool:
    """Return whether the tiles are for this GPU: later ones multiply differently, which is untested."""
    return torch.cuda.get_device_capability(device)[0] == 9


def convolve_on(
    x: Tensor, weight: Tensor, dilation: int, ending: Epilogue, skip: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Convolve x [B, P + T, C] with `weight` [K, C, O], P being (K - 1) * `dilation`; add bias and `skip` [B, T, O].

    Return the total [B, T', N], valid only if the ending keeps it, and its Snake after `context` steps, which are left
    to `exchange_past`: [B, context + T', N], T' being T * O / N.
    """
    if runs_triton(x):
        many = is_many(len(x), x.shape[1] - (len(weight) - 1) * dilation)
        tile = tile_of(weight.shape[2], len(weight), many=many)
        return convolve_on_triton(x, weight, dilation, ending, skip, tile)
    total = convolve(x, weight, dilation).float()
    if ending.bias is not None:
        total = total + ending.bias.float()
    if skip is not None:
        total = total + skip.view_as(total).float()
    out = total if ending.snake is None else snake_of_table(total, ending.snake)
    total, out = (one.view(len(x), -1, ending.channels).to(x.dtype) for one in (total, out))
    return total, torch.cat((out.new_zeros(len(x), ending.context, ending.channels), out), dim=1)


def descriptor(matrix: Tensor, block: tuple[int, int]) -> TensorDescriptor:
    """Describe blocks of a matrix to the copy engine; outside the matrix reads return 0."""
    return TensorDescriptor.from_tensor(matrix, list(block))


def convolve_on_triton(
    x: Tensor, weight: Tensor, dilation: int, ending: Epilogue, skip: Tensor | None, tile: ConvolutionTile
) -> tuple[Tensor, Tensor]:
    """Compute `convolve_on` with a kernel that works on tiles of this size."""
    batch, length, inputs = x.shape
    taps, _, outputs = weight.shape
    assert x.is_contiguous()
    assert inputs % COPIED == outputs % COPIED == 0
    steps = length - (taps - 1) * dilation
    spread = outputs // ending.channels
    joined = x.new_empty(batch, ending.context + steps * spread, ending.channels)
    total = x.new_empty(batch, steps * spread, ending.channels) if ending.keeps_total else None
    flat = weight.view(-1, outputs)
    _chain_kernel[(triton.cdiv(steps, tile.tall) * triton.cdiv(outputs, tile.outputs), batch)](
        descriptor(x.view(-1, inputs), (tile.tall, tile.block)),
        descriptor(flat, (tile.block, tile.wide)),
        descriptor(flat, (tile.block, tile.more or tile.wide)),
        ending.bias,
        ending.snake,
        skip,
        total,
        joined,
        length,
        steps,
        dilation,
        ending.context * ending.channels,
        inputs,
        outputs,
        taps,
        tile.tall,
        tile.wide,
        tile.more,
        tile.block,
        num_warps=tile.warps,
        num_stages=tile.stages,
        maxnreg=tile.registers,
    )
    return joined if total is None else total, joined


@jit
def sum_taps(
    x,
    weight,
    weight_more,
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
    """Return the products of all taps for TALL steps from `first` on and WIDE outputs from `to` on, and MORE after."""
    total = tl.zeros([TALL, WIDE], tl.float32)
    beside = tl.zeros([TALL, MORE if MORE > 0 else 16], tl.float32)
    BLOCKS: tl.constexpr = (INPUTS + BLOCK - 1) // BLOCK
    for number in tl.range(TAPS * BLOCKS):
        tap = number // BLOCKS
        channel = (number % BLOCKS) * BLOCK
        # Beyond its channels x is 0, whatever weights are met there.
        seen = x.load([first + tap * dilation, channel])
        total = tl.dot(seen, weight.load([tap * INPUTS + channel, to]), total)
        if MORE > 0:
            beside = tl.dot(seen, weight_more.load([tap * INPUTS + channel, to + WIDE]), beside)
    return total, beside


@jit
def put(
    value,
    bias,
    snake,
    skip,
    total,
    joined,
    step,
    to,
    steps,
    OUTPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Store sums [T, WIDTH] of outputs from `to` on with their bias and skip, and Snake of that; all may be None."""
    output = to + tl.arange(0, WIDTH)
    taken = output < OUTPUTS
    at = step[:, None] * OUTPUTS + output[None, :]
    inside = (step < steps)[:, None] & taken[None, :]
    if bias is not None:
        value += tl.load(bias + output, mask=taken, other=0.0).to(tl.float32)[None, :]
    if skip is not None:
        value += tl.load(skip + at, mask=inside, other=0.0).to(tl.float32)
    if total is not None:
        tl.store(total + at, value.to(total.dtype.element_ty), mask=inside)
    if snake is not None:
        value = quick_snake_of(value, snake, output, OUTPUTS, taken)
    tl.store(joined + at, value.to(joined.dtype.element_ty), mask=inside)


@jit_for_any("length", "steps", "dilation")
def _chain_kernel(
    x,
    weight,
    weight_more,
    bias,
    snake,
    skip,
    total,
    joined,
    length,
    steps,
    dilation,
    before,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    TAPS: tl.constexpr,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    MORE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    TILES: tl.constexpr = (OUTPUTS + WIDE + MORE - 1) // (WIDE + MORE)
    row = tl.program_id(1)
    start = (tl.program_id(0) // TILES) * TALL
    to = (tl.program_id(0) % TILES) * (WIDE + MORE)
    sums, beside = sum_taps(
        x, weight, weight_more, row * length + start, to, dilation, INPUTS, TAPS, TALL, WIDE, MORE, BLOCK
    )
    step = start + tl.arange(0, TALL)
    far = row.to(tl.int64)
    if skip is not None:
        skip += far * steps * OUTPUTS
    if total is not None:
        total += far * steps * OUTPUTS
    joined += far * (before + steps * OUTPUTS) + before
    put(sums, bias, snake, skip, total, joined, step, to, steps, OUTPUTS, WIDE)
    if MORE > 0:
        put(beside, bias, snake, skip, total, joined, step, to + WIDE, steps, OUTPUTS, MORE)


@dataclass(frozen=True)
class UnitWeights:
    """The weights of a residual unit, except those of its ending."""

    dilated: Tensor  # [K, C, C]
    dilation: int
    between: Epilogue  # of the dilated convolution, with bias and Snake
    pointwise: Tensor  # [1, C, C]


def residual_unit(joined: Tensor, weights: UnitWeights, ending: Epilogue, skip: Tensor) -> tuple[Tensor, Tensor]:
    """Return as `convolve_on`, of both convolutions on `joined` [B, P + T, C] and `skip` [B, T, C].

    They are one kernel where a program can have all channels of some steps: intermediate results stay on the chip.
    """
    batch, steps, channels = skip.shape
    if runs_triton(joined) and is_many(batch, steps) and channels in UNITS:
        return residual_unit_triton(joined, weights, ending, skip, UNITS[channels])
    _, inner = convolve_on(joined, weights.dilated, weights.dilation, weights.between)
    return convolve_on(inner, weights.pointwise, 1, ending, skip)


def residual_unit_triton(
    joined: Tensor, weights: UnitWeights, ending: Epilogue, skip: Tensor, tile: ConvolutionTile
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
    total = joined.new_empty(batch, steps, channels) if ending.keeps_total else None
    first, second = weights.dilated.view(-1, channels), weights.pointwise.view(channels, channels)
    _unit_kernel[(triton.cdiv(steps, tile.tall), batch)](
        descriptor(joined.view(-1, channels), (tile.tall, tile.block)),
        descriptor(first, (tile.block, tile.wide)),
        descriptor(second, (tile.wide, tile.wide)),
        between.bias,
        between.snake,
        ending.bias,
        ending.snake,
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
        num_warps=tile.warps,
        num_stages=tile.stages,
        maxnreg=tile.registers,
    )
    return out if total is None else total, out


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
):
    row = tl.program_id(1)
    start = tl.program_id(0) * TALL
    sums, _ = sum_taps(x, weight, weight, row * length + start, 0, dilation, CHANNELS, TAPS, TALL, WIDE, 0, BLOCK)
    inner = _between(sums, between_bias, between_snake, joined.dtype.element_ty, CHANNELS, WIDE)
    step = start + tl.arange(0, TALL)
    far = row.to(tl.int64)
    skip += far * steps * CHANNELS
    if total is not None:
        total += far * steps * CHANNELS
    joined += far * (before + steps * CHANNELS) + before
    # Columns that pad the width are 0, and so are their weights.
    out = tl.dot(inner, second.load([0, 0]))
    put(out, bias, snake, skip, total, joined, step, 0, steps, CHANNELS, WIDE)
