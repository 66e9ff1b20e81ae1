"""Eight-bit weights and weights packed for a CPU: rounding errors and products."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.kernels.linear import branch_sum, linear_sum, norm_linear
from s1_mini.kernels.norm import Norm
from s1_mini.kernels.weight import QuantizedWeight, cast_saturating, pack, product, quantize

FP8 = torch.float8_e4m3fn
formats = pytest.mark.parametrize("dtype", [torch.int8, FP8], ids=["int8", "fp8"])


def randn(*shape: int) -> Tensor:
    """Random numbers that bf16 represents exactly, so that no format rounds them."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16().float()


def test_int8_is_within_half_a_step_of_the_largest_weights_127th() -> None:
    weight = randn(40, 96) * torch.logspace(-4, 4, 40).unsqueeze(1)

    kept = quantize(weight, torch.int8)

    step = kept.scale.float().unsqueeze(1)
    assert ((kept.dequantize(torch.float32) - weight).abs() <= 0.76 * step).all()  # 0.26: the scale is a bf16 number
    torch.testing.assert_close(step[:, 0] * 127, weight.abs().amax(1), rtol=2**-8, atol=0)


def test_fp8_is_within_a_sixteenth_of_every_weight_that_is_not_tiny() -> None:
    weight = randn(40, 96) * torch.logspace(-4, 4, 40).unsqueeze(1)

    kept = quantize(weight, FP8).dequantize(torch.float32)

    small = weight.abs().amax(1, keepdim=True) / 448 * 2**-9  # half of fp8's smallest step
    assert ((kept - weight).abs() <= weight.abs() / 16 + small).all()


@formats
def test_weights_of_zero_give_an_output_of_zero(dtype: torch.dtype) -> None:
    kept = quantize(torch.zeros(3, 8), dtype)

    assert torch.equal(product(randn(2, 8), kept), torch.zeros(2, 3))


@formats
@pytest.mark.parametrize("shape", [(1, 96), (5, 96), (2, 3, 96), (3, 100), (2, 24)])
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_is_that_of_the_dequantized_weights(dtype: torch.dtype, shape: tuple[int, ...], biased: bool) -> None:
    x, kept, bias = randn(*shape), quantize(randn(40, shape[-1]), dtype), randn(40) if biased else None

    exact = F.linear(x, kept.dequantize(torch.float32))
    difference = product(x, kept, bias) - (exact if bias is None else exact + bias)
    assert (difference.abs() <= exact.abs() * 2**-8 + 1e-4).all()  # half a step of bf16, which int8 is multiplied in


def test_a_row_of_an_int8_product_has_the_same_bits_with_any_neighbours() -> None:
    x, kept = randn(70, 96), quantize(randn(24, 96), torch.int8)

    together = product(x, kept)

    assert all(torch.equal(product(x[row : row + 1], kept)[0], together[row]) for row in range(len(x)))


@formats
@pytest.mark.parametrize("gated", [False, True])
def test_a_step_with_quantized_weights_matches_one_with_dequantized_weights(dtype: torch.dtype, gated: bool) -> None:
    x, spec, residual = randn(3, 24), Norm(randn(24), 1e-6), randn(3, 10)
    kept = quantize(randn(10, 24), dtype)
    wide = kept.dequantize(torch.float32)

    ours, theirs = (norm_linear(x, None, spec, weight, gated=gated)[1] for weight in (kept, wide))
    sums, expected = (branch_sum(*linear_sum(x, weight, None, residual)) for weight in (kept, wide))

    torch.testing.assert_close(ours, theirs, rtol=2**-6, atol=0.05)
    torch.testing.assert_close(sums, expected, rtol=2**-6, atol=0.05)


def test_values_too_large_for_fp8_saturate() -> None:
    kept = cast_saturating(torch.tensor([-1e9, -448.0, 1.0, 1e9]), FP8)

    assert kept.float().tolist() == [-448, -448, 1, 448]


WEIGHTS = torch.randn(2, 40, 33, generator=torch.Generator().manual_seed(0))


def almost_bfloat16() -> torch.Tensor:
    """All values but one are bf16 numbers; that one differs by its last bit."""
    weights = WEIGHTS.bfloat16().float()
    weights[1, 0, 0] = 1 + 2**-23
    return weights


@pytest.mark.parametrize(
    ("weights", "kept"),
    [
        (list(WEIGHTS), "float32"),
        (list(almost_bfloat16()), "float32"),
        (list(WEIGHTS.bfloat16().float()), "uint16"),
        ([quantize(weight, torch.int8).dequantize(torch.float32) for weight in WEIGHTS], "int8"),
        ([quantize(weight, torch.int8) for weight in WEIGHTS], "int8"),
    ],
)
def test_products_are_those_of_the_weights_that_were_packed(
    weights: list[torch.Tensor | QuantizedWeight], kept: str
) -> None:
    multiply = pytest.importorskip("s1_mini.kernels.compiled.multiply", reason="numba has no wheels for this platform")
    bias = torch.linspace(-1, 1, 40)
    x = torch.randn(3, 33, generator=torch.Generator().manual_seed(1))

    packed = pack(weights, [None, bias])
    out = np.empty((3, 40), np.float32)
    multiply.product(x.numpy(), packed.weight[1], packed.scale[1], packed.bias[1], out)

    last = weights[1].dequantize(torch.float32) if isinstance(weights[1], QuantizedWeight) else weights[1]
    assert packed.weight.dtype.name == kept
    torch.testing.assert_close(torch.from_numpy(out), x @ last.T + bias)
