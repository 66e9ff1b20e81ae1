"""The codec chain's kernels on a CPU: run by `test_chain.py` with Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from kernel_checks import randn
from s1_mini.kernels import convolution
from s1_mini.kernels.convolution import FEW, UNITS, ConvolutionTile, tile_of
from s1_mini.kernels.convolution_chain import (
    Epilogue,
    _exchange_past_triton,
    convolve_on,
    convolve_on_triton,
    exchange_past,
    residual_unit,
    residual_unit_triton,
)
from s1_mini.kernels.snake import Rows, snake_table
from tests.kernels.test_chain import ending_of, unit_of

ROUNDING = 2**-8  # for values up to 8 in 16 bits, and for their sums


def small(tile: ConvolutionTile) -> ConvolutionTile:
    """The same with few steps, which the interpreter finishes sooner."""
    return tile._replace(tall=16)


def assert_near(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours.float(), theirs.float(), atol=ROUNDING, rtol=ROUNDING)


@pytest.mark.parametrize(("channels", "steps"), [(96, 40), (192, 20), (384, 17), (768, 5)])
@pytest.mark.parametrize("dilation", [1, 9])
@pytest.mark.parametrize("rows", [2, 5000])
def test_a_dilated_convolution_and_its_ending(channels: int, steps: int, dilation: int, rows: int) -> None:
    x, weight = randn(2, steps + 6 * dilation, channels).half(), randn(7, channels, channels) / (7 * channels) ** 0.5
    ending = ending_of(channels, channels, 18)
    tile = tile_of(channels, 7, rows, steps)

    ours = convolve_on_triton(x, weight.half(), dilation, ending, None, small(tile))
    theirs = convolve_on(x.float(), weight.half().float(), dilation, ending)

    assert_near(ours[0], theirs[0])
    assert_near(ours[1][:, 18:], theirs[1][:, 18:])


@pytest.mark.parametrize("channels", [96, 192, 384])
@pytest.mark.parametrize("snakes", [False, True])
def test_a_pointwise_convolution_and_a_skip(channels: int, snakes: bool) -> None:
    x, skip, weight = randn(2, 21, channels).half(), randn(2, 21, channels).half().flip(0), randn(1, channels, channels)
    weight, ending = (weight / channels**0.5).half(), ending_of(channels, channels, 0, snakes=snakes)

    ours = convolve_on_triton(x, weight, 1, ending, skip, small(tile_of(channels, 1, 5000, 21)))
    theirs = convolve_on(x.float(), weight.float(), 1, ending, skip)

    assert_near(ours[0], theirs[0])
    assert_near(ours[1], theirs[1])


def test_a_transposed_convolution_whose_outputs_are_several_steps() -> None:
    x, weight = randn(2, 10, 192).half(), (randn(2, 192, 4 * 96) / 384**0.5).half()
    ending = ending_of(4 * 96, 96, 6)

    ours = convolve_on_triton(x, weight, 1, ending, None, small(tile_of(384, 2, 5000, 9)))
    theirs = convolve_on(x.float(), weight.float(), 1, ending)

    assert ours[1].shape == (2, 6 + 9 * 4, 96)
    assert_near(ours[0], theirs[0])
    assert_near(ours[1][:, 6:], theirs[1][:, 6:])


@pytest.mark.parametrize(("batch", "steps"), [(1, 3), (9, 5), (3, 16), (4, 42)])
@pytest.mark.parametrize("tile", [FEW, ConvolutionTile(64, 64, 32, 32, warps=4, stages=2)])
@pytest.mark.parametrize("keeps_total", [False, True])
def test_rows_of_few_steps_share_a_program(batch: int, steps: int, tile: ConvolutionTile, keeps_total: bool) -> None:
    assert tile.shares(steps, 6)
    x, skip, weight = randn(batch, steps + 6, 96).half(), randn(batch, steps, 192).half(), randn(7, 96, 192) / 26
    ending = replace(ending_of(192, 96, 6), keeps_total=keeps_total)

    ours = convolve_on_triton(x, weight.half(), 1, ending, skip, tile)
    theirs = convolve_on(x.float(), weight.half().float(), 1, ending, skip)

    assert_near(ours[1][:, 6:], theirs[1][:, 6:])
    if keeps_total:
        assert_near(ours[0], theirs[0])


PADDED = ConvolutionTile(16, 128, 0, 32, warps=4, stages=2, part=64)
SPLIT = ConvolutionTile(16, 64, 32, 32, warps=4, stages=2, part=32)


@pytest.mark.parametrize(
    ("channels", "tile"), [*UNITS.items(), (96, PADDED), (96, PADDED._replace(block=64)), (96, SPLIT)]
)
@pytest.mark.parametrize("dilation", [1, 9])
@pytest.mark.parametrize(("context", "snakes"), [(27, True), (0, False)])
def test_a_residual_unit(channels: int, tile: ConvolutionTile, dilation: int, context: int, snakes: bool) -> None:
    x, skip = randn(2, 21 + 6 * dilation, channels).half(), randn(2, 21, channels).half()
    weights, ending = (unit_of(channels, dilation), ending_of(channels, channels, context, snakes=snakes))
    plain = replace(weights, dilated=weights.dilated.float(), pointwise=weights.pointwise.float())

    ours = residual_unit_triton(x, weights, ending, skip, small(tile))
    theirs = residual_unit(x.float(), plain, ending, skip)

    assert_near(ours[0], theirs[0])
    assert_near(ours[1][:, context:], theirs[1][:, context:])


def test_a_unit_in_one_kernel_is_its_convolutions_apart() -> None:
    x, skip, weights = randn(1, 23, 96).half(), randn(1, 17, 96).half(), unit_of(96, 1)
    ending = ending_of(96, 96, 0)

    ours = residual_unit_triton(x, weights, ending, skip, small(UNITS[96]))
    _, inner = convolve_on_triton(x, weights.dilated, 1, weights.between, None, small(tile_of(96, 7, 5000, 17)))
    theirs = convolve_on_triton(inner, weights.pointwise, 1, ending, skip, small(tile_of(96, 1, 5000, 17)))

    assert_near(ours[0], theirs[0])
    assert_near(ours[1], theirs[1])


@pytest.mark.parametrize("steps", [1, 7, 90])
@pytest.mark.parametrize("context", [1, 6, 54])
def test_the_past_is_put_before_and_the_last_steps_kept(steps: int, context: int) -> None:
    joined, past = randn(2, context + steps, 96).half(), randn(5, context, 96).half()
    rows = Rows(torch.tensor([3, 1]), torch.tensor([False, True]))
    theirs = joined.clone(), past.clone()

    _exchange_past_triton(joined, past, rows)
    exchange_past(*theirs, rows)

    assert torch.equal(joined, theirs[0])
    assert torch.equal(past, theirs[1])


def test_angles_of_any_size_have_their_sine() -> None:
    """The weight is the identity, so the output is Snake of x, with α x up to 6,000."""
    x, alpha = (randn(1, 64, 96) * 40).half(), 0.01 + 40 * torch.rand(96, generator=torch.Generator().manual_seed(0))
    ending = Epilogue(96, None, snake_table(alpha, alpha), 0, keeps_total=False)

    ours = convolve_on_triton(x, torch.eye(96).half().unsqueeze(0), 1, ending, None, small(tile_of(96, 1, 5000, 17)))[1]

    wide, steep = x.double(), alpha.double()
    torch.testing.assert_close(ours.double(), wide + (steep * wide).sin().square() / steep, atol=2e-3, rtol=2**-10)


@pytest.mark.parametrize(("steps", "channels"), [(1, 64), (9, 48)])
def test_a_depthwise_convolution_and_its_norm(monkeypatch: pytest.MonkeyPatch, steps: int, channels: int) -> None:
    x, taps, bias, norm = randn(2, steps + 6, channels), randn(7, channels), randn(channels), nn.LayerNorm(channels)
    norm.weight.data, norm.bias.data = randn(2, channels)
    theirs = convolution.depthwise_norm(x, taps, bias, norm)
    monkeypatch.setattr(convolution, "runs_triton", lambda _: True)

    torch.testing.assert_close(convolution.depthwise_norm(x, taps, bias, norm), theirs, atol=1e-5, rtol=1e-5)
