"""Weights of a product, as they were trained or in eight bits with one scale an output; their plain product.

The values are int8 or fp8 (e4m3), symmetric about zero; the largest of an output's weights becomes the largest value.
For the compiled kernels of a CPU, `pack` takes the smallest format that loses nothing: checkpoints are stored in fewer
bits than a CPU computes in, and reading weights is half of a step's time.
Shapes: L layers, N outputs, K inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.kernels.compiled.product import Product

PACKED_INPUTS = 32  # torch's int8 kernels take 8, 16 or 32 inputs at once, by the processor
FIRST = 16  # outputs that are tested before all
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


@dataclass(frozen=True)
class QuantizedWeight:
    """Weights [N, K] as `values` * `scale`."""

    values: Tensor  # int8 or float8_e4m3fn [N, K]
    scale: Tensor  # bfloat16 [N]: a number that no format rounds

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """Return the weights [N, K] in full."""
        return (self.values.float() * self.scale.float().unsqueeze(1)).to(dtype)


Weight = Tensor | QuantizedWeight


def values_and_scale(weight: Weight) -> tuple[Tensor, Tensor | None]:
    """Return values and scales for a kernel; there are no scales for weights in full."""
    return (weight.values, weight.scale) if isinstance(weight, QuantizedWeight) else (weight, None)


def quantize(weight: Tensor, dtype: torch.dtype) -> QuantizedWeight:
    """Round weights [N, K] to int8 or float8_e4m3fn."""
    wide, largest = weight.float(), LARGEST[dtype]
    scale = (wide.abs().amax(1) / largest).clamp_min(torch.finfo(torch.bfloat16).tiny).to(torch.bfloat16)
    values = wide / scale.float().unsqueeze(1)
    values = values.round() if dtype == torch.int8 else values
    return QuantizedWeight(values.clamp(-largest, largest).to(dtype), scale)


def product(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """Return x [..., K] @ weight.T + bias, [..., N]. A CPU multiplies int8 by x in bfloat16."""
    if isinstance(weight, Tensor):
        return F.linear(x, weight, bias)
    if not _fits_packed(x, weight):
        return F.linear(x, weight.dequantize(x.dtype), bias)
    rows = x.reshape(-1, x.shape[-1]).to(torch.bfloat16)
    out = torch._weight_int8pack_mm(rows, weight.values, weight.scale).to(x.dtype).view(*x.shape[:-1], -1)
    return out if bias is None else out + bias


def _fits_packed(x: Tensor, weight: QuantizedWeight) -> bool:
    """Return whether torch's int8 product supports them; it does not check, and reads beyond rows of other lengths."""
    is_narrow = x.device.type == "cpu" and weight.values.dtype == torch.int8
    return is_narrow and weight.shape[0] % 4 == 0 and weight.shape[1] % PACKED_INPUTS == 0


def narrow(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x in the format of its cache; fp8 has no infinity, so larger numbers become the largest."""
    if dtype not in LARGEST or x.dtype == dtype:
        return x.to(dtype)
    return x.clamp(-LARGEST[dtype], LARGEST[dtype]).to(dtype)


def pack(weights: Sequence[Weight], biases: Sequence[Tensor | None], *, narrow: bool = True) -> Product:
    """Copy weights [N, K] of each layer, in float32 or int8, and their biases [N]; without `narrow` in float32."""
    quantized = _in_eight_bits(weights) if narrow else None
    if quantized is not None:
        stack, scale = torch.stack([each.values.T for each in quantized]), torch.stack([x.scale for x in quantized])
        weight, scales = stack.numpy(), scale.float()
    else:
        wide = torch.stack([each.detach().float().T for each in weights if isinstance(each, Tensor)]).contiguous()
        bits = wide.view(torch.int32)
        is_bfloat16 = narrow and not bool((bits & 0xFFFF).any())
        weight = (bits >> 16).numpy().astype(np.uint16) if is_bfloat16 else wide.numpy()
        scales = torch.ones(len(weights), wide.shape[2])
    added = [torch.zeros(scales.shape[1]) if bias is None else bias.detach().float() for bias in biases]
    return Product(np.ascontiguousarray(weight), scales.numpy(), torch.stack(added).numpy())


def is_close(first: Tensor, second: Tensor, share: float) -> bool:
    """Return whether no two numbers differ by more than a share of the largest."""
    return bool((first - second).abs().max() <= share * first.abs().max())


def _in_eight_bits(weights: Sequence[Weight]) -> list[QuantizedWeight] | None:
    """Return weights in eight bits, or None if that changes any of them."""
    quantized = []
    for weight in weights:
        if isinstance(weight, QuantizedWeight):
            quantized.append(weight)
            continue
        for rows in (weight[:FIRST], weight):  # most differ in the first, which are tested sooner
            kept = quantize(rows.detach(), torch.int8)
            if not torch.equal(kept.dequantize(torch.float32), rows):
                return None
        quantized.append(kept)
    return quantized
