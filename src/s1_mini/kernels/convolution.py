"""A dilated convolution over steps that lie channels last, as products of shifted steps with one tap after another.

cuDNN is as fast for most sizes; for some it chooses a way that takes hundreds of milliseconds (2026-11, torch 2.11,
96 channels, 7 taps), and to let it try them all takes long at every start.
Shapes: B rows, T steps, P steps before them, C inputs, O outputs, K taps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, in_one_order, jit, runs_triton

if HAS_TRITON:
    import triton
    import triton.language as tl

MANY_STEPS = 4096  # from here on programs take large tiles; below they must be many
MANY_IN_ONE_ORDER = 512  # of each row: there the number of rows must not decide


def convolve(x: Tensor, weight: Tensor, dilation: int) -> Tensor:
    """Return [B, T, O] of x [B, P + T, C] and `weight` [K, C, O], P being (K - 1) * `dilation`."""
    if runs_triton(x):
        return _convolve_triton(x.contiguous(), weight, dilation)
    return F.conv1d(x.transpose(1, 2), weight.permute(2, 1, 0), dilation=dilation).transpose(1, 2).contiguous()


def _convolve_triton(x: Tensor, weight: Tensor, dilation: int) -> Tensor:
    batch, length, inputs = x.shape
    taps, _, outputs = weight.shape
    steps = length - (taps - 1) * dilation
    out = torch.empty(batch, steps, outputs, dtype=x.dtype, device=x.device)
    block = next((size for size in (64, 32, 16) if inputs % size == 0), 64)
    are_many = steps >= MANY_IN_ONE_ORDER if in_one_order() else batch * steps >= MANY_STEPS
    if are_many and x.element_size() <= 2:
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
