"""Weights are packed in the narrowest format that changes none of them, and multiplied as they were."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from s1_mini.kernels.packed import pack
from s1_mini.kernels.weight import QuantizedWeight, quantize

WEIGHTS = torch.randn(2, 40, 33, generator=torch.Generator().manual_seed(0))


def almost_bfloat16() -> torch.Tensor:
    """All but one number, and that by its last bit."""
    weights = WEIGHTS.bfloat16().float()
    weights[1, 0, 0] = 1 + 2**-23
    return weights


def in_eight_bits(weight: torch.Tensor) -> torch.Tensor:
    return quantize(weight, torch.int8).dequantize(torch.float32)


@pytest.mark.parametrize(
    ("weights", "kept"),
    [
        (list(WEIGHTS), "float32"),
        (list(almost_bfloat16()), "float32"),
        (list(WEIGHTS.bfloat16().float()), "uint16"),
        ([in_eight_bits(weight) for weight in WEIGHTS], "int8"),
        ([quantize(weight, torch.int8) for weight in WEIGHTS], "int8"),
    ],
)
def test_products_are_those_of_the_weights_that_were_packed(
    weights: list[torch.Tensor | QuantizedWeight], kept: str
) -> None:
    layers = pytest.importorskip("s1_mini.kernels.compiled.layers", reason="numba has no wheels for this platform")
    bias = torch.linspace(-1, 1, 40)
    x = torch.randn(3, 33, generator=torch.Generator().manual_seed(1))

    packed = pack(weights, [None, bias])
    out = np.empty((3, 40), np.float32)
    layers.product(x.numpy(), packed.weight[1], packed.scale[1], packed.bias[1], out)

    last = weights[1].dequantize(torch.float32) if isinstance(weights[1], QuantizedWeight) else weights[1]
    assert packed.weight.dtype.name == kept
    torch.testing.assert_close(torch.from_numpy(out), x @ last.T + bias)
