"""Products with packed weights have the same bits with and without helper threads."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread

import numpy as np
import pytest
import torch

from s1_mini.kernels.compiled.product import BLOCK
from waiting import wait_until

pytest.importorskip("numba", reason="numba has no wheels for this platform")
ROWS, INPUTS, OUTPUTS = 3, 1022, 8 * BLOCK + 52
formats = pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.float32])

from s1_mini.families.codec_lm.compiled import Team  # noqa: E402
from s1_mini.kernels.compiled import multiply  # noqa: E402


def arrays(dtype: type) -> list[np.ndarray]:
    """Input, weights, scales, biases, and an output of NaN."""
    random = np.random.default_rng(0)
    weight = random.standard_normal(INPUTS * OUTPUTS, np.float32)
    if dtype == np.int8:
        weight = (30 * weight).round().clip(-127, 127)
    if dtype == np.uint16:
        weight = weight.view(np.uint32) >> 16
    scale, bias = random.standard_normal((2, OUTPUTS), np.float32)
    out = np.full((ROWS, OUTPUTS), np.nan, np.float32)
    return [random.standard_normal((ROWS, INPUTS), np.float32), weight.astype(dtype), scale, bias, out]


def expected(dtype: type) -> np.ndarray:
    inputs = arrays(dtype)
    multiply.product(*inputs)
    return inputs[-1]


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@formats
def test_helpers_alone_compute_the_same_bits(dtype: type) -> None:
    inputs, board = arrays(dtype), np.zeros(multiply.TEAM_SIZE, np.int64)
    x, weight, scale, bias, out = (each.ctypes.data for each in inputs)
    fields = x, ROWS, INPUTS, weight, inputs[1].itemsize, scale, bias, out, OUTPUTS
    board[multiply.FIELDS : multiply.FIELDS + 9] = fields
    helpers = [Thread(target=multiply.help_out, args=(board, 1), daemon=True) for _ in range(2)]
    for helper in helpers:
        helper.start()

    board[multiply.TICKET] = 1 << 32 | 9 << 16  # nine blocks
    wait_until(lambda: board[multiply.DONE] == 9)
    board[multiply.ENDED] = 1

    for helper in helpers:
        helper.join()
    np.testing.assert_array_equal(inputs[-1], expected(dtype))


@formats
@pytest.mark.usefixtures("two_threads")
def test_a_team_computes_the_same_bits(dtype: type) -> None:
    team = Team()
    results: list[np.ndarray] = []

    def step() -> None:
        for _ in range(20):
            inputs = arrays(dtype)
            multiply.team_product(*inputs, team.board)
            results.append(inputs[-1])

    team.run(step)
    team.run(step)

    assert team.board[multiply.NUM_HELPERS] == 1
    for each in results:
        np.testing.assert_array_equal(each, expected(dtype))


@pytest.mark.usefixtures("two_threads")
def test_helpers_stop_when_a_step_fails() -> None:
    team = Team()

    def step() -> None:
        raise ValueError("of this test")

    with pytest.raises(ValueError, match="of this test"):
        team.run(step)

    team._pool.shutdown(wait=True)  # returns only if no helper waits for a product
