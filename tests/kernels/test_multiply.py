"""Products and convolutions with packed weights are exact, and the bits of a row do not depend on the other rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from s1_mini.kernels.compiled.product import BLOCK

pytest.importorskip("numba", reason="numba has no wheels for this platform")
ROWS, INPUTS, OUTPUTS = 9, 1022, 8 * BLOCK + 52

from s1_mini.kernels.compiled.codec import convolve  # noqa: E402
from s1_mini.kernels.compiled.multiply import product  # noqa: E402
from s1_mini.kernels.weight import pack  # noqa: E402


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.float32])
def test_a_product_is_that_of_numpy_and_a_row_has_the_same_bits_with_fewer_others(dtype: type) -> None:
    random = np.random.default_rng(0)
    plain = random.standard_normal((INPUTS, OUTPUTS), np.float32)
    if dtype == np.int8:
        plain = (30 * plain).round().clip(-127, 127)
    if dtype == np.uint16:
        plain = (plain.view(np.uint32) >> 16 << 16).view(np.float32)
    stored = (plain.view(np.uint32) >> 16).astype(dtype) if dtype == np.uint16 else plain.astype(dtype)
    padded = np.pad(stored, ((0, 0), (0, -OUTPUTS % BLOCK)))
    weight = np.concatenate([padded[:, first : first + BLOCK].ravel() for first in range(0, OUTPUTS, BLOCK)])
    scale, bias = random.standard_normal((2, OUTPUTS), np.float32)
    x, out = random.standard_normal((ROWS, INPUTS), np.float32), np.full((ROWS, OUTPUTS), np.nan, np.float32)

    product(x, weight, scale, bias, out)

    np.testing.assert_allclose(out, x.astype(np.float64) @ plain * scale + bias, rtol=1e-4, atol=2e-2)
    for count in (1, 2, 3, 8):
        fewer = np.empty((count, OUTPUTS), np.float32)
        product(x[-count:], weight, scale, bias, fewer)
        np.testing.assert_array_equal(fewer, out[-count:])


@pytest.mark.parametrize("outputs", [1, 16, 24, 32, 64, 96])
def test_a_dilated_convolution_with_skip_and_snake_is_torchs_and_a_step_has_the_same_bits_alone(outputs: int) -> None:
    steps, channels, taps, dilation = 41, 12, 3, 5
    x = torch.randn(steps + (taps - 1) * dilation, channels)
    weight, bias = torch.randn(outputs, channels, taps), torch.randn(outputs)
    alpha, beta, skip = torch.rand(outputs) + 0.5, torch.rand(outputs) + 0.5, torch.randn(steps, outputs)
    part = pack([weight.transpose(1, 2).flatten(1)], [bias])
    snake = torch.stack((alpha, 1 / beta)).numpy()
    shape, nothing = (taps, dilation), np.zeros((0, 0), np.float32)
    out, total = np.empty((steps + 2, outputs), np.float32), skip.numpy().copy()

    convolve(x.numpy(), shape, part, total, total, snake, out)

    expected = F.conv1d(x.t(), weight, bias, dilation=dilation).t() + skip
    np.testing.assert_allclose(total, expected, rtol=0, atol=3e-5)
    np.testing.assert_allclose(out[2:], expected + (alpha * expected).sin().square() / beta, rtol=0, atol=1e-4)
    for step in (0, 17, 40):
        alone = np.empty((1, outputs), np.float32)
        seen, added = x[step : step + (taps - 1) * dilation + 1].numpy(), skip[step : step + 1].numpy()
        convolve(seen, shape, part, added, nothing, snake, alone)
        np.testing.assert_array_equal(alone[0], out[2 + step])
