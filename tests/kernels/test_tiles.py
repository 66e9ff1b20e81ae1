"""Tile sizes of the GEMM kernel, by the shared memory of a GPU."""

from __future__ import annotations

import pytest

from s1_mini.kernels.linear import Tile, gemm_tile

T4, A10G, A100, H100 = 65_536, 101_376, 166_912, 232_448  # bytes per program, by CUDA's tables
ROWS = (1, 2, 3, 8, 16, 63, 64, 65, 128, 129, 256)
SIZES = [
    (rows, outputs, inputs, gated)
    for rows in (8, 64, 128, 300)
    for outputs in (16, 1024, 4096, 155_776)
    for inputs in (24, 512, 1024, 3072, 8192)
    for gated in (False, True)
]


@pytest.mark.parametrize("item_size", [2, 4])
@pytest.mark.parametrize("limit", [T4, A10G, A100, H100])
def test_every_product_has_a_tile_that_fits_the_gpu(limit: int, item_size: int) -> None:
    for rows, outputs, inputs, gated in SIZES:
        tile = gemm_tile(rows, outputs, inputs, gated=gated, item_size=item_size, limit=limit)

        assert tile.shared_bytes(item_size, gated) <= limit
        assert min(tile.rows, tile.outputs, tile.inputs) >= 16  # the minimum of Triton's dot
        assert tile.stages >= 2


def test_a_gpu_with_enough_keeps_the_tile_that_was_fastest() -> None:
    half = [gemm_tile(64, 3072, 1024, gated=True, item_size=2, limit=limit) for limit in (H100, A100, A10G, T4)]

    assert half[0] == half[1] == Tile(64, 32, 128, warps=4, stages=5)
    assert [tile.stages for tile in half[2:]] == [3, 2]
    # Triton 3.6 for compute capability 8.6 uses one stage less than it loads ahead, and too much for 99 KB.
    assert half[0].shared_bytes(2, gated=True) * 4 // 5 == 131_072 > A10G


@pytest.mark.parametrize("limit", [T4, H100])
@pytest.mark.parametrize("item_size", [2, 4])
@pytest.mark.parametrize(("outputs", "inputs", "gated"), [(4096, 1024, False), (1024, 3072, False), (3072, 1024, True)])
def test_any_number_of_rows_walks_through_inputs_in_the_same_steps(
    limit: int, item_size: int, outputs: int, inputs: int, gated: bool
) -> None:
    sizes = {"gated": gated, "item_size": item_size, "limit": limit}
    tiles = [gemm_tile(rows, outputs, inputs, batch_invariance=True, **sizes) for rows in (*ROWS, 5000)]

    assert len({tile.inputs for tile in tiles}) == 1
    assert all(tile.shared_bytes(item_size, gated) <= limit for tile in tiles)
