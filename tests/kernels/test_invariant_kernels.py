"""In batch-invariant mode a row has the same bits in any batch and at any position; otherwise they may differ."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernel_checks import dtypes, needs_gpu, randn
from s1_mini.kernels import decode_attention
from s1_mini.kernels.backend import batch_invariance
from s1_mini.kernels.convolution import convolve
from s1_mini.kernels.convolution_chain import convolve_on, residual_unit, runs_chain
from s1_mini.kernels.linear import branch_sum, linear, linear_sum, norm_linear
from s1_mini.kernels.norm import Norm, add_norm
from s1_mini.kernels.rope import HeadNorms
from s1_mini.kernels.weight import quantize
from tests.kernels.test_chain import ending_of, unit_of

ROWS = 300
COUNTS = (1, 2, 3, 8, 16, 63, 64, 65, 128, 129, 256)


def test_positions_are_summed_in_the_same_blocks_for_any_rows_and_lengths() -> None:
    def blocks() -> set[int]:
        return {decode_attention._split(rows, 8, span)[0] for rows in COUNTS for span in (64, 100, 512, 8192)}

    free = blocks()
    with batch_invariance():
        assert len(blocks()) == 1
    assert len(free) > 1


def assert_same_bits(call: Callable[[Tensor], Tensor], counts: tuple[int, ...] = COUNTS) -> None:
    """Compare `call` on some of `ROWS` rows, the first or the last, with `call` on all of them."""
    with batch_invariance():
        whole = call(torch.arange(ROWS, device="cuda"))
        for count in counts:
            for first in (0, ROWS - count):
                some = torch.arange(first, first + count, device="cuda")
                assert torch.equal(call(some), whole[some]), f"{count} rows from {first} on"


@needs_gpu[0]
@needs_gpu[1]
@dtypes
@pytest.mark.parametrize("kept", [None, torch.int8])
@pytest.mark.parametrize(("inputs", "outputs", "gated"), [(1024, 4096, False), (1024, 3072, True), (1000, 48, False)])
def test_a_norm_and_a_product(
    dtype: torch.dtype, kept: torch.dtype | None, inputs: int, outputs: int, gated: bool
) -> None:
    x, branch = randn(ROWS, inputs, dtype=dtype), randn(2, ROWS, inputs)
    wide = randn(outputs * (1 + gated), inputs, dtype=dtype) / inputs**0.5
    weight = wide if kept is None else quantize(wide, kept)
    norm = Norm(randn(inputs, dtype=dtype), 1e-6)

    assert_same_bits(lambda rows: norm_linear(x[rows], branch[:, rows], norm, weight, gated=gated)[1])
    assert_same_bits(lambda rows: norm_linear(x[rows], None, norm, weight, gated=gated)[1], (1, 2, 64))


@needs_gpu[0]
@needs_gpu[1]
@dtypes
@pytest.mark.parametrize(("inputs", "outputs"), [(2048, 1024), (3072, 1024), (1024, 1024), (1000, 48)])
def test_a_product_and_a_residual_with_the_norm_that_follows(dtype: torch.dtype, inputs: int, outputs: int) -> None:
    x, residual = randn(ROWS, inputs, dtype=dtype), randn(ROWS, outputs, dtype=dtype)
    weight, norm = randn(outputs, inputs, dtype=dtype) / inputs**0.5, Norm(randn(outputs, dtype=dtype), 1e-6)

    def call(rows: Tensor) -> Tensor:
        given = linear_sum(x[rows], weight, None, residual[rows])
        return torch.cat((branch_sum(*given), add_norm(*given, norm)[1]), dim=1)

    assert_same_bits(call)


@needs_gpu[0]
@needs_gpu[1]
@pytest.mark.parametrize("dtype", [torch.bfloat16])  # float32 has no batch-invariant mode: the engine refuses
@pytest.mark.parametrize("span", [10, 700])
@pytest.mark.parametrize("in_slots", [False, True])
def test_a_step_of_attention(dtype: torch.dtype, span: int, in_slots: bool) -> None:
    qkv, rope = randn(ROWS, 32 * 128, dtype=dtype), randn(ROWS, 64, 2)
    keys, values = (randn(ROWS, 8, span, 128, dtype=dtype) for _ in range(2))
    norms = HeadNorms(randn(128, dtype=dtype), randn(128, dtype=dtype), 1e-6)
    position = torch.arange(ROWS, device="cuda") * 7 % span

    def call(rows: Tensor) -> Tensor:
        kept = (keys.clone(), values.clone()) if in_slots else (keys[rows], values[rows])
        at = position[rows]
        return decode_attention.step_attention(
            qkv[rows], *kept, at, at, rope[rows], norms, span=span, mask=None, slots=rows if in_slots else None
        )

    assert_same_bits(call)


@needs_gpu[0]
@needs_gpu[1]
@pytest.mark.parametrize(("channels", "steps"), [(96, 700), (768, 32)])
def test_the_kernels_of_audio_stages(channels: int, steps: int) -> None:
    x, weight = randn(ROWS, steps + 54, channels, dtype=torch.float16), randn(7, channels, channels) / channels**0.5
    kernel, flat = weight.half(), weight[0].half()

    assert_same_bits(lambda rows: convolve(x[rows], kernel, 9), (1, 16, 64))
    assert_same_bits(lambda rows: linear(x[rows], flat, None), (1, 16, 64))


@needs_gpu[0]
@needs_gpu[1]
@pytest.mark.parametrize(("channels", "steps"), [(96, 3200), (192, 700), (768, 25), (1536, 4)])
def test_a_residual_unit_and_a_transposed_convolution_of_the_chain(channels: int, steps: int) -> None:
    x = randn(ROWS, steps + 54, channels, dtype=torch.float16)
    if not runs_chain(x):
        pytest.skip("needs compute capability 9")
    unit, ending = unit_of(channels, 9), ending_of(channels, channels, 6)
    transposed = (randn(2, channels, 4 * 96) / (2 * channels) ** 0.5).half()

    assert_same_bits(lambda rows: residual_unit(x[rows], unit, ending, x[rows][:, 54:].contiguous())[0], (1, 16, 64))
    assert_same_bits(lambda rows: convolve_on(x[rows], transposed, 1, ending_of(4 * 96, 96, 0))[0], (1, 16, 64))


@needs_gpu[0]
@needs_gpu[1]
@pytest.mark.parametrize("steps", [4, 16, 100])
def test_the_first_convolutions_of_the_chain(steps: int) -> None:
    """With few steps, programs take steps of several rows."""
    x, weight = randn(ROWS, steps + 6, 1024, dtype=torch.float16), (randn(7, 1024, 1536) / 7168**0.5).half()
    if not runs_chain(x):
        pytest.skip("needs compute capability 9")
    ending = ending_of(1536, 1536, 0)

    assert_same_bits(lambda rows: convolve_on(x[rows], weight, 1, ending)[1], (1, 16, 63))
