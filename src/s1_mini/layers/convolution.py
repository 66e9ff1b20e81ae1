"""One-dimensional convolutions, computed as matrix products where torch's convolutions of short inputs are slow.

Chunks of a stream are a few steps long. For such chunks, torch's convolution on one CPU thread takes two to five times
as long as the equivalent product (2026-11, torch 2.13: 880 µs instead of 330 for 256 channels, 7 taps, dilation 9, 20
steps). On a GPU, cuDNN uses a slow Fourier transform for short float32 rows (2026-11, H200, torch 2.11: 42.8 ms for 128
rows of 75 steps, 128 to 512 channels, 7 taps; with one product per tap 0.67 ms).
Shapes: B rows, C inputs, O outputs, K taps, T steps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# For inputs of at most this many elements, torch computes dilated convolutions slowly, without oneDNN.
SHORT_INPUT = 20_480
SHORT_STEPS = 48  # up to this many steps, a product is faster than torch's transposed convolution
# cuDNN may use a Fourier transform for rows of at most this many steps with at least this many channels and taps.
TRANSFORMED_STEPS, TRANSFORMED_CHANNELS, TRANSFORMED_TAPS = 256, 64, 5


def conv1d(x: Tensor, weight: Tensor, bias: Tensor | None, *, stride: int, dilation: int, groups: int) -> Tensor:
    """Convolve x [B, C, T] with `weight` [O, C / groups, K] without padding; return [B, O, steps]."""
    if dilation > 1 and stride == groups == 1 and x.numel() <= SHORT_INPUT and bias is not None and _is_single(x):
        return _conv_as_product(x, weight, bias, dilation)
    if stride == groups == 1 and bias is not None and _is_transformed(x, weight):
        return conv_by_taps(x, weight, bias, dilation)
    return F.conv1d(x, weight, bias, stride=stride, dilation=dilation, groups=groups)


def conv_transpose1d(x: Tensor, weight: Tensor, bias: Tensor | None, *, stride: int) -> Tensor:
    """Return the transposed convolution [B, O, (T - 1) * stride + K] of x [B, C, T] with `weight` [C, O, K]."""
    if x.shape[-1] <= SHORT_STEPS and weight.shape[-1] % stride == 0 and bias is not None and _is_single(x):
        return _transpose_as_product(x, weight, bias, stride)
    return F.conv_transpose1d(x, weight, bias, stride=stride)


def _is_single(x: Tensor) -> bool:
    """Return whether x is a single row on a CPU, in inference: only then are products faster."""
    return x.shape[0] == 1 and x.device.type == "cpu" and not torch.is_grad_enabled()


def conv_by_taps(x: Tensor, weight: Tensor, bias: Tensor, dilation: int) -> Tensor:
    """Convolve x [B, C, T] with `weight` [O, C, K], without padding or stride, as a sum of one product per tap."""
    taps = weight.shape[2]
    steps = x.shape[-1] - (taps - 1) * dilation
    by_tap = [weight[:, :, tap].expand(len(x), -1, -1) for tap in range(taps)]
    out = torch.baddbmm(bias.view(1, -1, 1), by_tap[0], x[..., :steps])
    for tap in range(1, taps):
        out.baddbmm_(by_tap[tap], x[..., tap * dilation : tap * dilation + steps])
    return out


def _is_transformed(x: Tensor, weight: Tensor) -> bool:
    """Return whether cuDNN may use the slow Fourier transform for this convolution, in inference."""
    if not x.is_cuda or x.dtype != torch.float32 or x.shape[-1] > TRANSFORMED_STEPS or torch.is_grad_enabled():
        return False
    _, inputs, taps = weight.shape
    return inputs >= TRANSFORMED_CHANNELS and taps >= TRANSFORMED_TAPS


def _conv_as_product(x: Tensor, weight: Tensor, bias: Tensor, dilation: int) -> Tensor:
    outputs, inputs, taps = weight.shape
    steps = x.shape[-1] - (taps - 1) * dilation
    x = x[0].contiguous()
    seen = x.as_strided((inputs, taps, steps), (x.shape[-1], dilation, 1)).reshape(inputs * taps, steps)
    return torch.addmm(bias.unsqueeze(1), weight.reshape(outputs, -1), seen).unsqueeze(0)


def _transpose_as_product(x: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    inputs, outputs, taps = weight.shape
    steps, overlaps = x.shape[-1], taps // stride
    spread = (x[0].t() @ weight.reshape(inputs, -1)).view(steps, outputs, overlaps, stride)
    out = bias.view(1, -1, 1).repeat(steps + overlaps - 1, 1, stride)
    for overlap in range(overlaps):
        out[overlap : overlap + steps] += spread[:, :, overlap]
    return out.permute(1, 0, 2).reshape(1, outputs, -1)
