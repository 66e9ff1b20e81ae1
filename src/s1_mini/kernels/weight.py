"""Weights of linear layers, in full precision or quantized to eight bits with one scale per output, and their product.

Quantized values are int8 or fp8 (e4m3), symmetric about zero. The scale maps an output's largest weight to the largest
value of the format. For the compiled CPU kernels, `pack` chooses the smallest lossless format, because reading weights
takes half the time of a step, and checkpoints often store fewer bits than float32.
Shapes: L layers, N outputs, K inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.kernels.compiled.product import BLOCK, GROUP, LARGEST_SUM, Int16Product, Product

PACKED_INPUTS = 32  # torch's int8 kernels read 8, 16 or 32 inputs at once, depending on the processor
FIRST_OUTPUTS = 16  # outputs that `_as_int8` tests first: most weights that int8 cannot hold already fail there
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


@dataclass(frozen=True)
class QuantizedWeight:
    """Weights [N, K] as `values` * `scale`."""

    values: Tensor  # int8 or float8_e4m3fn [N, K]
    scale: Tensor  # bfloat16 [N]; conversion to float32 is exact

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """Return the weights [N, K] in full precision."""
        return (self.values.float() * self.scale.float().unsqueeze(1)).to(dtype)


Weight = Tensor | QuantizedWeight


def values_and_scale(weight: Weight) -> tuple[Tensor, Tensor | None]:
    """Return values and scales for a kernel; weights in full precision have no scales."""
    return (weight.values, weight.scale) if isinstance(weight, QuantizedWeight) else (weight, None)


def quantize(weight: Tensor, dtype: torch.dtype) -> QuantizedWeight:
    """Quantize weights [N, K] to int8 or float8_e4m3fn."""
    weight, largest = weight.float(), LARGEST[dtype]
    scale = (weight.abs().amax(1) / largest).clamp_min(torch.finfo(torch.bfloat16).tiny).to(torch.bfloat16)
    values = weight / scale.float().unsqueeze(1)
    values = values.round() if dtype == torch.int8 else values
    return QuantizedWeight(values.clamp(-largest, largest).to(dtype), scale)


def product(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """Return x [..., K] @ weight.T + bias, [..., N]. Rounds x to bfloat16 for torch's int8 product on a CPU."""
    if isinstance(weight, Tensor):
        return F.linear(x, weight, bias)
    if not _fits_packed(x, weight):
        return F.linear(x, weight.dequantize(x.dtype), bias)
    rows = x.reshape(-1, x.shape[-1]).to(torch.bfloat16)
    out = torch._weight_int8pack_mm(rows, weight.values, weight.scale).to(x.dtype).view(*x.shape[:-1], -1)
    return out if bias is None else out + bias


def _fits_packed(x: Tensor, weight: QuantizedWeight) -> bool:
    """Return whether torch's int8 product supports x and these sizes; with other sizes it reads out of bounds."""
    is_int8 = x.device.type == "cpu" and weight.values.dtype == torch.int8
    return is_int8 and weight.shape[0] % 4 == 0 and weight.shape[1] % PACKED_INPUTS == 0


def cast_saturating(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x in `dtype`; fp8 has no infinity, so numbers beyond its largest become the largest."""
    if dtype not in LARGEST or x.dtype == dtype:
        return x.to(dtype)
    return x.clamp(-LARGEST[dtype], LARGEST[dtype]).to(dtype)


def pack(weights: Sequence[Weight], biases: Sequence[Tensor | None]) -> Product:
    """Copy the weights [N, K] and biases [N] of all layers, in the smallest lossless format."""
    quantized = _as_int8(weights)
    outputs, inputs = weights[0].shape
    scale = torch.ones(len(weights), outputs)
    if quantized is not None:
        layers = [each.values for each in quantized]
        scale = torch.stack([each.scale.float() for each in quantized])
    else:
        layers = [each.detach() for each in weights if isinstance(each, Tensor)]
    is_bfloat16 = quantized is None and all(_is_bfloat16(each) for each in layers)
    dtype = np.int8 if quantized is not None else np.uint16 if is_bfloat16 else np.float32
    added = -outputs % BLOCK
    weight = np.empty((len(weights), inputs * (outputs + added)), dtype)
    for index, each in enumerate(layers):  # one by one, because large models have gigabytes of them
        layer = each.bfloat16().view(torch.uint16) if is_bfloat16 else each if quantized is not None else each.float()
        blocks = F.pad(layer, (0, 0, 0, added)).split(BLOCK)
        weight[index] = np.concatenate([block.T.numpy().ravel() for block in blocks])
    offsets = [torch.zeros(outputs) if bias is None else bias.detach().float() for bias in biases]
    return Product(weight, scale.numpy(), torch.stack(offsets).numpy())


def pack_int16(weight: Tensor, bias: Tensor | None, taps: int) -> Int16Product:
    """Copy the weights [N, taps C] and the bias [N] of a convolution for products in 16-bit integers.

    C is even. Weights that fit into int8 without loss stay so. All others are divided by the largest weight of their
    input channel and rounded to int16. int8 weights get no such equalization: a channel with inputs 300 times larger
    than the others' raises the noise by 15 dB, and by 40 dB if the weights of this channel are close to zero.
    """
    outputs, inputs = weight.shape
    gain = torch.ones(inputs // taps)
    quantized = _as_int8([weight])
    if quantized is not None:
        values, scale = quantized[0].values, quantized[0].scale.float()
    else:
        parts = weight.detach().float().view(outputs, taps, -1)
        gain = parts.abs().amax((0, 1)).clamp_min(torch.finfo(torch.float32).tiny)
        parts = parts / gain  # so that all inputs are rounded with the same relative error
        padded = F.pad(parts, (0, -len(gain) % GROUP)).unflatten(2, (-1, GROUP))
        scale = padded.abs().sum(-1).amax((1, 2)) / (LARGEST_SUM - GROUP / 2)  # rounding adds up to half to each
        scale = scale.maximum(parts.abs().amax((1, 2)) / (2**15 - 1)).clamp_min(torch.finfo(torch.float32).tiny)
        values = (parts.flatten(1) / scale.unsqueeze(1)).round().to(torch.int16)
    pairs = F.pad(values, (0, 0, 0, -outputs % BLOCK)).view(-1, BLOCK, inputs // 2, 2).transpose(1, 2)
    offset = torch.zeros(outputs) if bias is None else bias.detach().float()
    return Int16Product(pairs.contiguous().flatten().numpy(), scale.numpy(), offset.numpy(), gain.numpy())


def is_close(first: Tensor, second: Tensor, share: float) -> bool:
    """Return whether all differences are at most `share` times the largest absolute value of `first`."""
    return bool((first - second).abs().max() <= share * first.abs().max())


def _is_bfloat16(weight: Tensor) -> bool:
    return not bool((weight.float().view(torch.int32) & 0xFFFF).any())


def _as_int8(weights: Sequence[Weight]) -> list[QuantizedWeight] | None:
    """Return all weights in int8, or None if that would change any of them."""
    quantized = []
    for weight in weights:
        if isinstance(weight, QuantizedWeight):
            quantized.append(weight)
            continue
        for rows in (weight[:FIRST_OUTPUTS], weight):
            int8 = quantize(rows.detach(), torch.int8)
            if not torch.equal(int8.dequantize(torch.float32), rows):
                return None
        quantized.append(int8)
    return quantized
