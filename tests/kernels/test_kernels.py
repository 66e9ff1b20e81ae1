"""Every kernel matches its plain reference, in fp32 within rounding and in bf16 within one step of it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernel_checks import assert_close, assert_near, by_both, dtypes, needs_gpu, randn
from s1_mini.kernels import convolution, decode_attention, head_scores, linear, norm, snake, swiglu, weight
from s1_mini.kernels import rope as rotary

pytestmark = needs_gpu

SIZES = [(1024, 4096), (1000, 48), (64, 200), (896, 4864), (4864, 96)]
FP8 = torch.float8_e4m3fn
needs_fp8 = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9), reason="needs a GPU with fp8"
)
formats = pytest.mark.parametrize(
    "kept", [None, torch.int8, pytest.param(FP8, marks=needs_fp8)], ids=["full", "int8", "fp8"]
)


def weights_of(outputs: int, inputs: int, dtype: torch.dtype, kept: torch.dtype | None) -> weight.Weight:
    wide = randn(outputs, inputs) / inputs**0.5
    return wide.to(dtype) if kept is None else weight.quantize(wide, kept)


@dtypes
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("centred", [False, True])
def test_a_sum_and_its_norm(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, adds: bool, centred: bool) -> None:
    x, branch = 1 + randn(3, 1000, dtype=dtype), randn(3, 1000, dtype=dtype)
    spec = norm.Norm(randn(1000, dtype=dtype), 1e-6, centred)

    ours, theirs = by_both(monkeypatch, norm, lambda: norm.add_norm(x, branch if adds else None, spec))

    assert torch.equal(ours[0], theirs[0])
    assert_close(ours[1], theirs[1], dtype)


@dtypes
def test_swiglu(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    both = randn(3, 2 * 3072, dtype=dtype)

    assert_close(*by_both(monkeypatch, swiglu, lambda: swiglu.swiglu(both)), dtype)


def norms_of(size: int, dtype: torch.dtype, rounded: str) -> rotary.HeadNorms | None:
    """Norms of queries and keys that are rounded last, or before their weights; None for an empty string."""
    weights = randn(size, dtype=dtype), randn(size, dtype=dtype)
    return rotary.HeadNorms(*weights, 1e-6, round_last=rounded == "last") if rounded else None


@dtypes
@pytest.mark.parametrize("sizes", [(4, 2, 64), (16, 8, 128), (14, 2, 64)])
@pytest.mark.parametrize("normed", ["", "last", "first"])
@pytest.mark.parametrize("slots", [None, (3, 0, 2)])
def test_queries_are_rotated_and_keys_and_values_are_stored(
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    sizes: tuple[int, int, int],
    normed: str,
    slots: tuple[int, ...] | None,
) -> None:
    heads, groups, size = sizes
    qkv, rope = randn(3, (heads + 2 * groups) * size, dtype=dtype), randn(3, size // 2, 2)
    positions = torch.tensor([0, 5, 299], device="cuda")
    norms, rows = norms_of(size, dtype, normed), torch.tensor(slots, device="cuda") if slots else None

    def call() -> Tensor:
        keys, values = (torch.zeros(4, groups, 300, size, dtype=dtype, device="cuda") for _ in range(2))
        query = rotary.rope_store(qkv, keys, values, positions, rope, norms, rows)
        return torch.cat((query.flatten(), keys.flatten(), values.flatten()))

    assert_close(*by_both(monkeypatch, rotary, call), dtype)


@dtypes
@pytest.mark.parametrize("rows", [1, 3, 70])
def test_attention_over_rows_of_any_length(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, rows: int) -> None:
    query = randn(rows, 16, 128, dtype=dtype)
    keys, values = (randn(rows, 8, 700, 128, dtype=dtype) for _ in range(2))
    position = torch.arange(rows, device="cuda") * 9
    mask = (torch.arange(700, device="cuda") <= position.unsqueeze(1))[:, None, None]

    def call() -> Tensor:
        return decode_attention.decode_attention(query, keys, values, position, 700, mask)

    assert_close(*by_both(monkeypatch, decode_attention, call), dtype)


def test_one_position_may_be_given_for_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    query, keys, values = randn(5, 4, 64), randn(5, 2, 10, 64), randn(5, 2, 10, 64)
    position = torch.tensor([6], device="cuda").expand(5)

    def call() -> Tensor:
        return decode_attention.decode_attention(query, keys, values, position, 7, None)

    assert_close(*by_both(monkeypatch, decode_attention, call), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("context", [None, 1, 6, 54])
@pytest.mark.parametrize("steps", [2, 40, 300])
@pytest.mark.parametrize("whole", [False, True])
def test_snake_between_two_convolutions(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, context: int | None, steps: int, whole: bool
) -> None:
    x, alpha, bias = randn(3, steps, 100, dtype=dtype) * 9, 0.5 + randn(100, dtype=dtype).abs(), randn(100, dtype=dtype)
    skip = randn(3, steps, 100, dtype=dtype) if whole else None
    rows = snake.Rows(torch.tensor([4, 0, 2], device="cuda"), torch.tensor([False, True, False], device="cuda"))

    def call() -> Tensor:
        past = None if context is None else randn(5, context, 100, dtype=dtype)
        total, joined = snake.snake_extend(
            x, (alpha, alpha) if whole else None, past, rows, bias=bias, skip=skip, keeps_total=whole
        )
        parts = [joined] + ([total] if whole else []) + ([past] if past is not None else [])
        return torch.cat([part.flatten() for part in parts])

    assert_close(*by_both(monkeypatch, snake, call), dtype)


@dtypes
@pytest.mark.parametrize("sizes", [(4, 2, 16), (16, 16, 64)])
def test_queries_and_keys_are_rotated_and_split(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, sizes: tuple[int, int, int]
) -> None:
    heads, groups, size = sizes
    qkv, turns = randn(2, 5, (heads + 2 * groups) * size, dtype=dtype), randn(2, 5, size // 2, 2)

    def call() -> Tensor:
        return torch.cat([part.flatten() for part in rotary.rope_and_split(qkv, turns, heads, groups)])

    assert_close(*by_both(monkeypatch, rotary, call), dtype)


@dtypes
@formats
@pytest.mark.parametrize("rows", [1, 2, 3, 64, 65, 128, 200])
@pytest.mark.parametrize("sizes", [(inputs, outputs, gated) for inputs, outputs in SIZES for gated in (False, True)])
def test_a_norm_and_a_product(
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    kept: torch.dtype | None,
    rows: int,
    sizes: tuple[int, int, bool],
) -> None:
    inputs, outputs, gated = sizes
    x, weights = randn(rows, inputs, dtype=dtype), weights_of(outputs * (1 + gated), inputs, dtype, kept)
    bias = None if gated else randn(outputs, dtype=dtype)
    spec = norm.Norm(randn(inputs, dtype=dtype), 1e-6)

    for branch in (None, randn(2, rows, inputs)):
        ours, theirs = by_both(
            monkeypatch, linear, lambda branch=branch: linear.norm_linear(x, branch, spec, weights, bias, gated=gated)
        )
        assert_close(ours[0], theirs[0], dtype)
        assert_near(ours[1], theirs[1], dtype)


@dtypes
@pytest.mark.parametrize("rows", [1, 2, 3, 64, 200])
def test_a_layer_norm_a_product_and_gelu(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, rows: int) -> None:
    x, weights = 1 + randn(rows, 768, dtype=dtype), weights_of(3072, 768, dtype, None)
    spec, bias = norm.Norm(randn(768, dtype=dtype), 1e-5, centred=True), randn(3072, dtype=dtype)

    ours, theirs = by_both(monkeypatch, linear, lambda: linear.norm_linear(x, None, spec, weights, bias, gelu=True)[1])

    assert_near(ours, theirs, dtype)


@dtypes
@formats
@pytest.mark.parametrize("rows", [1, 2, 3, 64, 128, 200])
@pytest.mark.parametrize("sizes", [(2048, 1024), (1000, 48), (64, 200)])
def test_a_product_and_a_residual(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, kept: torch.dtype | None, rows: int, sizes: tuple[int, int]
) -> None:
    inputs, outputs = sizes
    x, residual = randn(rows, inputs, dtype=dtype), randn(rows, outputs, dtype=dtype)
    weights, bias = weights_of(outputs, inputs, dtype, kept), randn(outputs, dtype=dtype)

    ours, theirs = by_both(
        monkeypatch, linear, lambda: linear.branch_sum(*linear.linear_sum(x, weights, bias, residual))
    )

    assert_near(ours, theirs, dtype)


@dtypes
@pytest.mark.parametrize("rows", [1, 3, 70])
@pytest.mark.parametrize("sizes", [(4, 2, 64, 700), (16, 8, 128, 700), (16, 8, 128, 11), (14, 2, 64, 11)])
@pytest.mark.parametrize("normed", ["", "last", "first"])
def test_a_step_of_attention(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, rows: int, sizes: tuple[int, int, int, int], normed: str
) -> None:
    heads, groups, size, span = sizes
    qkv, rope = randn(rows, (heads + 2 * groups) * size, dtype=dtype), randn(rows, size // 2, 2)
    before = [randn(rows, groups, span + 1, size, dtype=dtype) for _ in range(2)]
    position = torch.arange(rows, device="cuda") * 9 % span
    norms = norms_of(size, dtype, normed)
    mask = (torch.arange(span, device="cuda") <= position.unsqueeze(1))[:, None, None]

    def call() -> tuple[Tensor, Tensor]:
        keys, values = (tensor.clone() for tensor in before)
        out = decode_attention.step_attention(qkv, keys, values, position, position, rope, norms, span=span, mask=mask)
        return out, torch.cat((keys.flatten(), values.flatten()))

    ours, theirs = by_both(monkeypatch, (decode_attention, rotary), call)

    assert_close(ours[0], theirs[0], dtype)
    assert_close(ours[1], theirs[1], dtype)


def test_rows_of_one_slot_see_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    qkv, rope = randn(5, 8 * 64), randn(5, 32, 2)
    slots, positions = torch.tensor([1, 1, 1, 0, 0], device="cuda"), torch.tensor([3, 4, 5, 0, 1], device="cuda")
    mask = (torch.arange(16, device="cuda") <= positions.unsqueeze(1))[:, None, None]

    def call() -> Tensor:
        keys, values = randn(2, 2, 16, 64), randn(2, 2, 16, 64)
        return decode_attention.step_attention(
            qkv, keys, values, positions, positions, rope, None, span=16, mask=mask, slots=slots
        )

    assert_close(*by_both(monkeypatch, (decode_attention, rotary), call), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("steps", [1, 40, 5000])
@pytest.mark.parametrize("sizes", [(96, 96), (100, 24), (128, 64)])
@pytest.mark.parametrize("dilation", [1, 9])
def test_a_dilated_convolution(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, steps: int, sizes: tuple[int, int], dilation: int
) -> None:
    inputs, outputs = sizes
    x, weight = randn(2, steps + 6 * dilation, inputs, dtype=dtype), randn(7, inputs, outputs, dtype=dtype)
    weight = weight / (7 * inputs) ** 0.5

    ours, theirs = by_both(monkeypatch, convolution, lambda: convolution.convolve(x, weight, dilation))

    bound = {torch.float32: 1e-2, torch.float16: 2**-7, torch.bfloat16: 2**-4}[dtype]  # cuDNN may use TF32
    assert (ours.float() - theirs.float()).abs().max() <= bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("rows", "steps", "channels"), [(1, 1, 1024), (3, 50, 1024), (2, 5, 48), (70, 16, 512)])
def test_a_depthwise_convolution_and_its_norm(dtype: torch.dtype, rows: int, steps: int, channels: int) -> None:
    x, weight, bias = (
        randn(*shape, dtype=dtype) for shape in ((rows, steps + 6, channels), (7, channels), (channels,))
    )
    spec = nn.LayerNorm(channels, eps=1e-6, device=x.device, dtype=dtype)
    spec.weight.data, spec.bias.data = 1 + weight[0], bias.flip(0)

    ours = convolution.depthwise_norm(x, weight, bias, spec)

    total = sum(x[:, tap : tap + steps].float() * weight[tap].float() for tap in range(7)) + bias.float()
    assert_close(ours, F.layer_norm(total, (channels,), spec.weight.float(), spec.bias.float(), spec.eps), dtype)


@needs_fp8
@dtypes
@pytest.mark.parametrize("rows", [1, 3, 70])
@pytest.mark.parametrize("shared", [False, True])
def test_a_step_of_attention_over_an_fp8_cache(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, rows: int, shared: bool
) -> None:
    """A value halfway between two fp8 numbers may round either way: one in a hundred may differ by a step."""
    qkv, rope = randn(rows, 32 * 128, dtype=dtype), randn(rows, 64, 2)
    before = [randn(rows, 8, 701, 128).to(FP8) for _ in range(2)]
    position = torch.arange(rows, device="cuda") * 9
    norms = rotary.HeadNorms(randn(128, dtype=dtype), randn(128, dtype=dtype), 1e-6)
    mask = (torch.arange(700, device="cuda") <= position.unsqueeze(1))[:, None, None]
    slots = torch.arange(rows, device="cuda") if shared else None

    def call() -> tuple[Tensor, Tensor]:
        keys, values = (tensor.clone() for tensor in before)
        out = decode_attention.step_attention(
            qkv, keys, values, position, position, rope, norms, span=700, mask=mask, slots=slots
        )
        return out.float(), torch.cat((keys.flatten(), values.flatten())).float()

    ours, theirs = by_both(monkeypatch, (decode_attention, rotary), call)

    torch.testing.assert_close(ours[0], theirs[0], atol=2**-5, rtol=2**-5)
    torch.testing.assert_close(ours[1], theirs[1], atol=2**-9, rtol=1 / 7)
    assert int((ours[1] != theirs[1]).sum()) <= rows * 16  # of 2,048


@needs_fp8
def test_values_too_large_for_an_fp8_cache_saturate() -> None:
    qkv = torch.full((2, 32 * 128), 1e4, device="cuda", dtype=torch.bfloat16)
    keys, values = (torch.zeros(2, 8, 4, 128, device="cuda").to(FP8) for _ in range(2))
    positions, rope = torch.zeros(2, device="cuda").long(), torch.ones(2, 64, 2, device="cuda")

    decode_attention.step_attention(qkv, keys, values, positions, positions, rope, None, span=4, mask=None)

    assert (values[:, :, 0].float() == 448).all()
    assert keys.float().isfinite().all()


@dtypes
@pytest.mark.parametrize("kind", [torch.int8, FP8])
@pytest.mark.parametrize("rows", [1, 40, 300])
def test_a_product_alone_with_weights_in_eight_bits(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, kind: torch.dtype, rows: int
) -> None:
    x, bias = randn(rows, 768, dtype=dtype) / 28, randn(2304, dtype=dtype)
    narrow = weight.quantize(randn(2304, 768), kind)

    assert_close(*by_both(monkeypatch, linear, lambda: linear.linear(x, narrow, bias)), dtype)


@dtypes
def test_queries_may_be_a_part_of_a_joint_projection(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    query = randn(5, 3, 4, 64, dtype=dtype)[:, 0]
    keys, values = (randn(5, 4, 200, 64, dtype=dtype) for _ in range(2))
    position = torch.arange(5, device="cuda") * 40
    mask = (torch.arange(200, device="cuda") <= position.unsqueeze(1))[:, None, None]

    def call() -> Tensor:
        return decode_attention.decode_attention(query, keys, values, position, 200, mask)

    assert_close(*by_both(monkeypatch, decode_attention, call), dtype)


@dtypes
@pytest.mark.parametrize("normed", ["", "last", "first"])
@pytest.mark.parametrize("kept", [None, pytest.param(FP8, marks=needs_fp8)], ids=["full", "fp8"])
def test_scores_of_one_head(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, normed: bool, kept: torch.dtype | None
) -> None:
    heads, groups, size, span, head = 8, 2, 64, 200, 5
    qkv, keys = randn(3, (heads + 2 * groups) * size, dtype=dtype), randn(4, groups, span, size, dtype=dtype)
    keys = keys if kept is None else keys.to(kept)
    norms = norms_of(size, dtype, normed)
    position, rope = torch.tensor([0, 63, 199], device="cuda"), randn(3, size // 2, 2)

    def call() -> Tensor:
        scores = torch.full((4, span + 1), -7.0, device="cuda")
        head_scores.store_scores(qkv, keys, position, rope, norms, span, head_scores.KeptHead(1, head, scores))
        return scores

    ours, theirs = by_both(monkeypatch, head_scores, call)

    for row, last in enumerate(position.tolist()):
        assert_near(ours[row, : last + 1], theirs[row, : last + 1], dtype)
    assert (ours[3] == -7).all()
