"""Weights laid out for the compiled kernels of a CPU, in the narrowest format that loses nothing.

Checkpoints are stored in fewer bits than a CPU computes in, and reading weights is half of a step's time.
Shapes: L layers, N outputs, K inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from s1_mini.kernels.compiled.product import Product
from s1_mini.kernels.weight import QuantizedWeight, Weight, quantize

FIRST = 16  # outputs that are looked at before all


def pack(weights: Sequence[Weight], biases: Sequence[Tensor | None], *, narrow: bool = True) -> Product:
    """Copy weights [N, K] of each layer, in float32 or int8, and their biases [N]; perhaps in float32 in any case."""
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
    """Whether no two numbers differ by more than a share of the largest."""
    return bool((first - second).abs().max() <= share * first.abs().max())


def _in_eight_bits(weights: Sequence[Weight]) -> list[QuantizedWeight] | None:
    """Return weights in eight bits where that changes none of them."""
    quantized = []
    for weight in weights:
        if isinstance(weight, QuantizedWeight):
            quantized.append(weight)
            continue
        for rows in (weight[:FIRST], weight):  # most differ at once, and all of them are many
            narrow = quantize(rows.detach(), torch.int8)
            if not torch.equal(narrow.dequantize(torch.float32), rows):
                return None
        quantized.append(narrow)
    return quantized
