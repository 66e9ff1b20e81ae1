"""A depthwise convolution and the layer norm of its result, in one kernel; it begins the ConvNeXt blocks of codecs.

torch needs five kernels, because its convolution needs channels first. All arithmetic is fp32, and each step is
computed alone, so the result does not depend on the rest of the batch.
Shapes: B rows, T steps, P steps before them, C channels, K taps.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit, runs_triton

if HAS_TRITON:
    import triton
    import triton.language as tl


def depthwise_norm(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    """Convolve x [B, P + T, C] with `weight` [K, C] and `bias` [C]; return the result's layer norm [B, T, C].

    P is K - 1. `scale` and `shift` [C] are the weights of the norm.
    """
    taps, channels = weight.shape
    if not runs_triton(x):
        inner = F.conv1d(x.transpose(1, 2), weight.t().unsqueeze(1), bias, groups=channels).transpose(1, 2)
        return F.layer_norm(inner, (channels,), scale, shift, eps)
    x = x.contiguous()
    batch, length, _ = x.shape
    steps = length - taps + 1
    out = x.new_empty(batch, steps, channels)
    block = triton.next_power_of_2(channels)
    _depthwise_norm_kernel[(batch * steps,)](
        x,
        weight,
        bias,
        scale,
        shift,
        out,
        steps,
        eps,
        channels,
        taps,
        block,
        num_warps=max(1, min(8, block // 256)),
    )
    return out


@jit
def _depthwise_norm_kernel(
    x,
    weight,
    bias,
    scale,
    shift,
    out,
    steps,
    eps,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    first = program + (program // steps) * (TAPS - 1)  # a row has TAPS - 1 steps more than `out`
    channel = tl.arange(0, BLOCK)
    inside = channel < CHANNELS
    total = tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
    for tap in tl.static_range(TAPS):
        value = tl.load(x + (first + tap) * CHANNELS + channel, mask=inside, other=0.0).to(tl.float32)
        total += value * tl.load(weight + tap * CHANNELS + channel, mask=inside, other=0.0).to(tl.float32)
    centred = tl.where(inside, total - tl.sum(total, axis=0) / CHANNELS, 0.0)
    normed = centred * tl.rsqrt(tl.sum(centred * centred, axis=0) / CHANNELS + eps)
    normed *= tl.load(scale + channel, mask=inside, other=0.0).to(tl.float32)
    normed += tl.load(shift + channel, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + program * CHANNELS + channel, normed.to(out.dtype.element_ty), mask=inside)
