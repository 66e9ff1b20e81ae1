"""The kernels of the codec's chain beside their plain references: without a GPU by Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from s1_mini.kernels.convolution_tiles import DILATED, POINTWISE, TRANSPOSED, UNITS, ConvolutionTile, is_many, tile_of

H100 = 232_448  # bytes of shared memory that a program may have
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
    assert tile.shared_bytes <= H100


def test_a_width_that_no_tile_is_made_for_takes_that_of_a_part() -> None:
    assert tile_of(1024, 1536, 7, many=True) == DILATED[768]
    assert tile_of(768, 3072, 2, many=True) == TRANSPOSED[768]
    assert tile_of(160, 160, 7, many=True) == DILATED[768]
    assert tile_of(160, 160, 7, many=False) == tile_of(96, 96, 1, many=False)


def test_in_one_order_the_number_of_rows_has_no_say() -> None:
    assert len({is_many(rows, 600, one_order=True) for rows in (1, 64)}) == 1
    assert len({is_many(rows, 100, one_order=True) for rows in (1, 64)}) == 1
    assert [is_many(rows, 100, one_order=False) for rows in (1, 64)] == [False, True]
