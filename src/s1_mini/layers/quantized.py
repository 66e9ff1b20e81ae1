"""Linear layers with quantized weights."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from s1_mini.kernels.compiled.product import Product
from s1_mini.kernels.weight import QuantizedWeight, pack, product, quantize


class QuantizedLinear(nn.Module):
    """An `nn.Linear` with quantized weights, only for inference."""

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        weight = quantize(linear.weight.detach(), dtype)
        self.values = nn.Parameter(weight.values, requires_grad=False)
        self.scale = nn.Parameter(weight.scale, requires_grad=False)
        self.bias = linear.bias

    @property
    def weight(self) -> QuantizedWeight:
        return QuantizedWeight(self.values, self.scale)

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight, self.bias)


def quantize_linears(module: nn.Module, dtype: torch.dtype) -> None:
    """Replace the linear layers of `module` by `QuantizedLinear` in int8 or float8_e4m3fn.

    The layers are replaced one at a time, which needs less memory.
    """
    for parent in [each for each in module.modules() if not isinstance(each, nn.Linear)]:
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, QuantizedLinear(child, dtype))


def pack_linears(*layers: nn.Module) -> Product:
    """Copy linear layers, which may be quantized, for compiled kernels; without layers, return an empty stack.

    The weights have the smallest lossless format.
    """
    if not layers:
        empty = np.zeros((0, 0), np.float32)
        return Product(empty, empty, empty)
    linears = [layer for layer in layers if isinstance(layer, nn.Linear | QuantizedLinear)]
    return pack([each.weight for each in linears], [each.bias for each in linears])
