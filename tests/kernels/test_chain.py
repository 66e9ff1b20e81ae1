"""The codec chain's kernels match their plain references; without a GPU under Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from kernel_checks import needs_gpu, randn
from s1_mini.kernels.backend import batch_invariance
from s1_mini.kernels.convolution import DILATED, POINTWISE, TRANSPOSED, UNITS, ConvolutionTile, is_many, tile_of
from s1_mini.kernels.convolution_chain import (
    Epilogue,
    UnitWeights,
    _exchange_past_triton,
    convolve_on,
    exchange_past,
    residual_unit,
    runs_chain,
)
from s1_mini.kernels.snake import Rows, snake_table

H100 = 232_448  # bytes of shared memory per program
INTERPRETED = Path(__file__).with_name("interpreted_chain.py")


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a process that sees no GPU")
def test_every_kernel_gives_what_torch_gives_step_by_step() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(INTERPRETED)]

    settings = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, check=False, env=settings, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize("tile", [tile for table in (DILATED, TRANSPOSED, POINTWISE, UNITS) for tile in table.values()])
def test_a_tile_fits_the_gpu(tile: ConvolutionTile) -> None:
    assert tile.stages * tile.block * (tile.tall + tile.outputs) * 2 <= H100


def test_a_width_without_a_tile_uses_the_tile_of_a_divisor() -> None:
    assert tile_of(2304, 7, many=True) == DILATED[768]
    assert tile_of(6144, 2, many=True) == TRANSPOSED[3072]
    assert tile_of(160, 7, many=True) == DILATED[max(DILATED)]
    assert tile_of(160, 7, many=False) == tile_of(96, 1, many=False)


def test_many_rows_of_few_steps_are_many() -> None:
    assert [is_many(rows, 100) for rows in (1, 64)] == [False, True]


def test_in_batch_invariant_mode_the_number_of_rows_does_not_choose_tiles() -> None:
    with batch_invariance():
        assert [is_many(rows, steps) for steps in (100, 800) for rows in (1, 64)] == [False, False, True, True]


def needs_chain() -> None:
    if not runs_chain(randn(1, dtype=torch.float16)):
        pytest.skip("needs compute capability 9")


def ending_of(
    outputs: int, channels: int, context: int, dtype: torch.dtype = torch.float16, *, snakes: bool = True
) -> Epilogue:
    alpha = 0.5 + randn(channels).abs()
    table = snake_table(alpha, alpha).repeat(1, outputs // channels)
    return Epilogue(channels, randn(outputs, dtype=dtype), table if snakes else None, context, keeps_total=True)


def unit_of(channels: int, dilation: int, dtype: torch.dtype = torch.float16) -> UnitWeights:
    first, second = randn(7, channels, channels) / (7 * channels) ** 0.5, randn(1, channels, channels) / channels**0.5
    return UnitWeights(first.to(dtype), dilation, ending_of(channels, channels, 0, dtype), second.to(dtype))


def assert_near(ours: torch.Tensor, theirs: torch.Tensor, dtype: torch.dtype) -> None:
    assert ours.isfinite().all()
    assert (ours.float() - theirs.float()).norm() / theirs.float().norm() <= 2 * torch.finfo(dtype).eps


halves = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


@needs_gpu[0]
@needs_gpu[1]
@halves
@pytest.mark.parametrize(
    "sizes", [(96, 96, 7), (192, 192, 7), (384, 384, 7), (768, 768, 7), (192, 192, 2), (384, 768, 2), (192, 192, 1)]
)
@pytest.mark.parametrize("steps", [5, 300, 5000])
@pytest.mark.parametrize("dilation", [1, 9])
def test_a_convolution_and_its_ending(
    dtype: torch.dtype, sizes: tuple[int, int, int], steps: int, dilation: int
) -> None:
    needs_chain()
    inputs, outputs, taps = sizes
    x = randn(2, steps + (taps - 1) * dilation, inputs, dtype=dtype)
    weight = (randn(taps, inputs, outputs) / (taps * inputs) ** 0.5).to(dtype)
    channels = outputs // (2 if taps == 2 else 1)
    ending, skip = ending_of(outputs, channels, 6, dtype), randn(2, steps, outputs, dtype=dtype)

    ours = convolve_on(x, weight, dilation, ending, skip)
    theirs = convolve_on(x.cpu().float(), weight.cpu().float(), dilation, on_cpu(ending), skip.cpu())

    assert_near(ours[0].cpu(), theirs[0], dtype)
    assert_near(ours[1][:, 6:].cpu(), theirs[1][:, 6:], dtype)


def on_cpu(ending: Epilogue) -> Epilogue:
    assert ending.bias is not None
    assert ending.snake is not None
    return replace(ending, bias=ending.bias.cpu(), snake=ending.snake.cpu())


@needs_gpu[0]
@needs_gpu[1]
@halves
@pytest.mark.parametrize("channels", [96, 192, 384])
@pytest.mark.parametrize("steps", [40, 5000])
def test_a_residual_unit(dtype: torch.dtype, channels: int, steps: int) -> None:
    needs_chain()
    x, skip = randn(2, steps + 54, channels, dtype=dtype), randn(2, steps, channels, dtype=dtype)
    weights, ending = unit_of(channels, 9, dtype), ending_of(channels, channels, 54, dtype)
    plain = UnitWeights(weights.dilated.cpu().float(), 9, on_cpu(weights.between), weights.pointwise.cpu().float())

    ours = residual_unit(x, weights, ending, skip)
    theirs = residual_unit(x.cpu().float(), plain, on_cpu(ending), skip.cpu())

    assert_near(ours[0].cpu(), theirs[0], dtype)
    assert_near(ours[1][:, 54:].cpu(), theirs[1][:, 54:], dtype)


@needs_gpu[0]
@needs_gpu[1]
@pytest.mark.parametrize("steps", [3, 400])
@pytest.mark.parametrize("context", [1, 6, 54])
def test_the_past_of_rows_on_a_gpu(steps: int, context: int) -> None:
    joined, past = randn(2, context + steps, 96), randn(5, context, 96)
    rows = Rows(torch.tensor([3, 1], device="cuda"), torch.tensor([False, True], device="cuda"))
    theirs = joined.cpu(), past.cpu()

    _exchange_past_triton(joined, past, rows)
    exchange_past(*theirs, Rows(rows.slot_ids.cpu(), rows.reset_mask.cpu()))

    assert torch.equal(joined.cpu(), theirs[0])
    assert torch.equal(past.cpu(), theirs[1])
