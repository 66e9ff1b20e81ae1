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
from s1_mini.kernels.convolution import (
    DILATED,
    FEW,
    LARGE,
    LARGEST,
    MIDDLE,
    POINTWISE,
    TRANSPOSED,
    UNITS,
    ConvolutionTile,
    is_many,
    tile_of,
)
from s1_mini.kernels.convolution_chain import (
    Epilogue,
    UnitWeights,
    _exchange_past_triton,
    convolve_on,
    exchange_past,
    residual_unit,
    residual_unit_triton,
    runs_chain,
)
from s1_mini.kernels.snake import Rows, snake_of_table, snake_table

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
    ahead = tile.stages * tile.block * (tile.tall + tile.outputs)
    second = tile.part * (2 * tile.outputs + 2 * tile.tall)
    assert max(ahead, second) * 2 <= H100


def test_a_width_without_a_tile_uses_the_tile_of_a_divisor() -> None:
    assert tile_of(2304, 7, 16, 800) == DILATED[768]
    assert tile_of(6144, 2, 16, 800) == TRANSPOSED[3072]
    assert tile_of(160, 7, 16, 800) == DILATED[max(DILATED)]
    assert tile_of(160, 7, 1, 4) == FEW


@pytest.mark.parametrize(
    ("outputs", "taps", "rows", "steps", "tile"),
    [
        (768, 7, 16, 800, LARGEST),
        (1536, 7, 16, 100, LARGEST),
        (1536, 7, 64, 16, LARGE),
        (6144, 2, 64, 16, LARGEST),
        (1536, 7, 8, 32, MIDDLE),
        (1536, 7, 1, 4, FEW),
    ],
)
def test_a_call_with_fewer_steps_uses_smaller_tiles(
    outputs: int, taps: int, rows: int, steps: int, tile: ConvolutionTile
) -> None:
    assert tile_of(outputs, taps, rows, steps) == tile


def test_rows_share_programs_if_their_steps_would_fill_less_than_three_quarters() -> None:
    assert [LARGE.shares(steps, 6) for steps in (1, 16, 90, 91, 128, 129)] == [True] * 3 + [False, False, True]
    assert LARGE.shares(138, 54)
    assert not LARGE.shares(139, 54)


def test_many_rows_of_few_steps_are_many() -> None:
    assert [is_many(rows, 100) for rows in (1, 64)] == [False, True]


def test_in_batch_invariant_mode_the_number_of_rows_does_not_choose_tiles() -> None:
    with batch_invariance():
        assert [is_many(rows, steps) for steps in (100, 800) for rows in (1, 64)] == [False, False, True, True]
        for steps in (4, 32, 100, 400, 800):
            assert tile_of(6144, 2, 64, steps) == tile_of(6144, 2, 1, steps)


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


def exact(x: torch.Tensor, weight: torch.Tensor, ending: Epilogue, skip: torch.Tensor) -> torch.Tensor:
    """The total [B, T', N] of a convolution with dilation 1, in fp32."""
    steps = x.shape[1] - len(weight) + 1
    sums = sum(x[:, tap : tap + steps].float() @ weight[tap].float() for tap in range(len(weight)))
    return (sums + ending.bias.float() + skip.float()).view(len(x), -1, ending.channels)


@needs_gpu[0]
@needs_gpu[1]
@pytest.mark.parametrize(("inputs", "outputs", "taps"), [(1024, 1536, 7), (1536, 6144, 2), (768, 768, 1), (96, 192, 7)])
def test_any_number_of_rows_of_any_few_steps(inputs: int, outputs: int, taps: int) -> None:
    """Rows share programs or not, in tiles of all sizes; the widths are those of a codec."""
    needs_chain()
    weight = (randn(taps, inputs, outputs) / (taps * inputs) ** 0.5).half()
    ending = ending_of(outputs, outputs // (8 if taps == 2 else 1), 6)
    for rows in (1, 2, 5, 16, 33, 70):
        for steps in (1, 4, 7, 16, 32, 60, 64, 90, 100, 130):
            x, skip = (
                randn(rows, *shape, dtype=torch.float16) for shape in ((steps + taps - 1, inputs), (steps, outputs))
            )
            total, joined = convolve_on(x, weight, 1, ending, skip)
            expected = exact(x, weight, ending, skip)
            snaked = snake_of_table(expected, ending.snake[:, : ending.channels])
            for ours, theirs in ((total, expected), (joined[:, 6:], snaked)):
                assert (ours - theirs).abs().max() <= 2**-10 * theirs.abs().max(), f"{rows} rows of {steps} steps"


@needs_gpu[0]
@needs_gpu[1]
@pytest.mark.parametrize("channels", [96, 192])
def test_a_unit_of_any_length_in_one_kernel(channels: int) -> None:
    needs_chain()
    weights, ending = unit_of(channels, 3), ending_of(channels, channels, 18)
    for rows, steps in ((1, 1), (1, 64), (3, 65), (70, 129), (2, 5000)):
        x, skip = (randn(rows, steps + past, channels, dtype=torch.float16) for past in (18, 0))
        ours = residual_unit_triton(x, weights, ending, skip, UNITS[channels])
        _, inner = convolve_on(x, weights.dilated, 3, weights.between)
        theirs = convolve_on(inner, weights.pointwise, 1, ending, skip)
        for pair in zip(ours, theirs, strict=True):
            one, two = (each[:, -steps:].float() for each in pair)
            assert (one - two).abs().max() <= 2**-8 * two.abs().max(), f"{rows} rows of {steps} steps"


@needs_gpu[0]
@needs_gpu[1]
def test_angles_of_any_size_have_their_sine_on_a_gpu() -> None:
    """The weight is the identity, so the output is Snake of x, with α x up to 6,000."""
    needs_chain()
    x, alpha = (randn(8, 64, 96) * 40).half(), 0.01 + 40 * torch.rand(96, device="cuda")
    ending = Epilogue(96, None, snake_table(alpha, alpha), 0, keeps_total=False)

    ours = convolve_on(x, torch.eye(96, device="cuda").half().unsqueeze(0), 1, ending)[1]

    wide, steep = x.double(), alpha.double()
    torch.testing.assert_close(ours.double(), wide + (steep * wide).sin().square() / steep, atol=2e-3, rtol=2**-10)


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
