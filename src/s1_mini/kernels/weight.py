"""Weights of a product, as they were trained or in eight bits with one scale an output; their plain product.

The values are int8 or fp8 (e4m3), symmetric about zero; the largest of an output's weights becomes the largest value.
Shapes: N outputs, K inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

PACKED_INPUTS = 32  # torch's int8 kernels take 8, 16 or 32 inputs at once, by the processor
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


def values_and_scale(weight: Weight) -> tuple[Tensor, Tensor, bool]:
    """Return values and scales for a kernel, and whether there are scales."""
    if isinstance(weight, QuantizedWeight):
        return weight.values, weight.scale, True
    return weight, weight, False


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
    """Whether torch's product with int8 can; it does not check for itself, and reads beyond rows of other lengths."""
    is_narrow = x.device.type == "cpu" and weight.values.dtype == torch.int8
    return is_narrow and weight.shape[0] % 4 == 0 and weight.shape[1] % PACKED_INPUTS == 0


def narrow(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x in the format that it is kept in; fp8 has no infinity, so what is too large becomes the largest."""
    if dtype not in LARGEST or x.dtype == dtype:
        return x.to(dtype)
    return x.clamp(-LARGEST[dtype], LARGEST[dtype]).to(dtype)
