"""Products and convolutions with packed weights are exact, and the bits of a row do not depend on the other rows."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from s1_mini.kernels.compiled.product import BLOCK

pytest.importorskip("numba", reason="numba has no wheels for this platform")
ROWS, INPUTS, OUTPUTS = 9, 1022, 8 * BLOCK + 52
NOTHING = np.zeros((0, 0), np.float32)

from s1_mini.kernels.compiled.codec import convolve, convolve_int16  # noqa: E402
from s1_mini.kernels.compiled.int16 import HAS_VNNI  # noqa: E402
from s1_mini.kernels.compiled.multiply import product  # noqa: E402
from s1_mini.kernels.weight import pack, pack_int16  # noqa: E402


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
    shape = (taps, dilation)
    out, total = np.empty((steps + 2, outputs), np.float32), skip.numpy().copy()

    convolve(x.numpy(), shape, part, total, total, snake, out)

    expected = F.conv1d(x.t(), weight, bias, dilation=dilation).t() + skip
    np.testing.assert_allclose(total, expected, rtol=0, atol=3e-5)
    np.testing.assert_allclose(out[2:], expected + (alpha * expected).sin().square() / beta, rtol=0, atol=1e-4)
    for step in (0, 17, 40):
        alone = np.empty((1, outputs), np.float32)
        seen, added = x[step : step + (taps - 1) * dilation + 1].numpy(), skip[step : step + 1].numpy()
        convolve(seen, shape, part, added, NOTHING, snake, alone)
        np.testing.assert_array_equal(alone[0], out[2 + step])


needs_vnni = pytest.mark.skipif(not HAS_VNNI, reason="needs a processor with AVX-512 VNNI")


def convolved(x: torch.Tensor, weight: torch.Tensor, dilation: int) -> np.ndarray:
    """Return the convolution [T, N] of x [P + T, C] with weights [N, C, taps], in int16."""
    outputs, _, taps = weight.shape
    part = pack_int16(weight.transpose(1, 2).flatten(1), torch.zeros(outputs), taps)
    out = np.full((len(x) - (taps - 1) * dilation, outputs), np.nan, np.float32)
    convolve_int16(x.numpy(), (taps, dilation), part, NOTHING, NOTHING, NOTHING, out)
    return out


@needs_vnni
@pytest.mark.parametrize(("outputs", "channels"), [(16, 2), (96, 34), (130, 256)])
@pytest.mark.parametrize("in_int8", [True, False])
def test_a_convolution_in_int16_is_torchs_and_a_step_has_the_same_bits_alone(
    outputs: int, channels: int, *, in_int8: bool
) -> None:
    taps, dilation = 3, 5
    x, weight = torch.randn(41 + (taps - 1) * dilation, channels), torch.randn(outputs, channels, taps)
    if in_int8:
        weight = (40 * weight).round().clamp(-127, 127)
        weight[:, 0, 0] = 127

    out = convolved(x, weight, dilation)

    expected = F.conv1d(x.t(), weight, dilation=dilation).t()
    assert float((torch.from_numpy(out) - expected).square().mean() / expected.square().mean()) < 1e-7  # 70 dB
    for step in (0, 17, 40):
        alone = convolved(x[step : step + (taps - 1) * dilation + 1], weight, dilation)
        np.testing.assert_array_equal(alone[0], out[step])


@needs_vnni
def test_the_largest_integers_do_not_overflow() -> None:
    x, weight = torch.ones(8, 64), torch.ones(3, 64, 1)

    np.testing.assert_allclose(convolved(x, weight, 1), 64, rtol=3e-4)
    np.testing.assert_allclose(convolved(-3 * x, weight, 1), -192, rtol=3e-4)


@needs_vnni
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_has_no_finite_output_in_int16(bad: float) -> None:
    x = torch.ones(8, 64)
    x[3, 5] = bad

    finite = np.isfinite(convolved(x, torch.ones(3, 64, 2), 1)).all(1)

    assert finite.tolist() == [True, True, False, False, True, True, True]


def output_of(program: str, **variables: str) -> str:
    """Return what a Python process prints, with other environment variables."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, env=os.environ | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


CONVOLUTION = """
import torch
from s1_mini.codecs.causal import compiled
layer, x = compiled.CausalConv1d(64, 96, 3), torch.randn(9, 64)
convolution = compiled._Convolution(layer, 1)
out = convolution(convolution.join(x.numpy(), 0))
expected = layer.conv(torch.nn.functional.pad(x.t(), (2, 0))).t()
print(convolution.formats, torch.allclose(torch.from_numpy(out), expected, atol=1e-5))
"""
FOLDER = "from s1_mini.kernels.compiled import build; print(build.cache_folder(build.Path(build.__file__)))"


@pytest.mark.long
def test_a_convolution_avoids_instructions_that_numba_must_not_use() -> None:
    """It is large enough for int16, and aborted the process where the processor has VNNI."""
    assert output_of(CONVOLUTION, NUMBA_ENABLE_AVX="0") == "['convolve float32'] True"


def test_code_for_another_target_has_another_cache_folder() -> None:
    assert output_of(FOLDER, NUMBA_CPU_NAME="generic") != output_of(FOLDER)
