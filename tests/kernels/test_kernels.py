"""Every kernel gives what its plain reference gives, in fp32 within rounding and in bf16 within one step of it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from s1_mini.kernels import decode_attention, gate, norm, rope, rope_store, snake
from s1_mini.layers import sampling

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device="cuda", generator=torch.Generator("cuda").manual_seed(sum(shape))).to(dtype)


def by_both(monkeypatch: pytest.MonkeyPatch, module: ModuleType, call: Callable[[], Any]) -> tuple[Any, Any]:
    """What the kernel gives, and the reference."""
    ours = call()
    monkeypatch.setattr(module, "runs_triton", lambda _: False)
    return ours, call()


def assert_close(ours: Tensor, theirs: Tensor, dtype: torch.dtype) -> None:
    bound = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(ours.float(), theirs.float(), atol=bound, rtol=bound)


@dtypes
@pytest.mark.parametrize("adds", [False, True])
def test_a_sum_and_its_norm(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, adds: bool) -> None:
    x, branch, weight = randn(3, 1000, dtype=dtype), randn(3, 1000, dtype=dtype), randn(1000, dtype=dtype)

    ours, theirs = by_both(monkeypatch, norm, lambda: norm.add_rms_norm(x, branch if adds else None, weight, 1e-6))

    assert torch.equal(ours[0], theirs[0])
    assert_close(ours[1], theirs[1], dtype)


@dtypes
def test_a_gate(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    both = randn(3, 2 * 3072, dtype=dtype)

    assert_close(*by_both(monkeypatch, gate, lambda: gate.gate(both)), dtype)


@dtypes
@pytest.mark.parametrize("sizes", [(4, 2, 64), (16, 8, 128)])
@pytest.mark.parametrize("normed", [False, True])
def test_queries_turn_and_keys_and_values_are_stored(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, sizes: tuple[int, int, int], normed: bool
) -> None:
    heads, groups, size = sizes
    qkv, rope = randn(3, (heads + 2 * groups) * size, dtype=dtype), randn(3, size // 2, 2)
    columns = torch.tensor([0, 5, 299], device="cuda")
    norms = (randn(size, dtype=dtype), randn(size, dtype=dtype)) if normed else None

    def call() -> Tensor:
        keys, values = (torch.zeros(4, groups, 300, size, dtype=dtype, device="cuda") for _ in range(2))
        query = rope_store.rope_store(qkv, keys, values, columns, rope, norms, 1e-6)
        return torch.cat((query.flatten(), keys.flatten(), values.flatten()))

    assert_close(*by_both(monkeypatch, rope_store, call), dtype)


@dtypes
@pytest.mark.parametrize("rows", [1, 3, 70])
def test_attention_over_rows_of_any_length(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, rows: int) -> None:
    query = randn(rows, 16, 128, dtype=dtype)
    keys, values = (randn(rows, 8, 700, 128, dtype=dtype) for _ in range(2))
    lengths = torch.arange(rows, device="cuda") * 9 + 1
    mask = (torch.arange(700, device="cuda") < lengths.unsqueeze(1))[:, None, None]

    ours, theirs = by_both(
        monkeypatch,
        decode_attention,
        lambda: decode_attention.decode_attention(query, keys, values, lengths, 700, mask),
    )

    assert_close(ours, theirs, dtype)


def test_one_length_may_be_told_for_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    query, keys, values = randn(5, 4, 64), randn(5, 2, 10, 64), randn(5, 2, 10, 64)
    lengths = torch.tensor([7], device="cuda").expand(5)

    ours, theirs = by_both(
        monkeypatch,
        decode_attention,
        lambda: decode_attention.decode_attention(query, keys, values, lengths, 7, None),
    )

    assert_close(ours, theirs, torch.float32)


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
            x, alpha if whole else None, past, rows, bias=bias, skip=skip, keeps_total=whole
        )
        parts = [joined] + ([total] if whole else []) + ([past] if past is not None else [])
        return torch.cat([part.flatten() for part in parts])

    assert_close(*by_both(monkeypatch, snake, call), dtype)


@dtypes
@pytest.mark.parametrize("sizes", [(4, 2, 16), (16, 16, 64)])
def test_queries_and_keys_turn_and_are_parted(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, sizes: tuple[int, int, int]
) -> None:
    heads, groups, size = sizes
    qkv, turns = randn(2, 5, (heads + 2 * groups) * size, dtype=dtype), randn(2, 5, size // 2, 2)

    def call() -> Tensor:
        return torch.cat([part.flatten() for part in rope.turn_and_part(qkv, turns, heads, groups)])

    assert_close(*by_both(monkeypatch, rope, call), dtype)


@pytest.mark.parametrize("vocabulary", [64, 1024, 4097])
def test_a_draw(monkeypatch: pytest.MonkeyPatch, vocabulary: int) -> None:
    chance = torch.Generator("cuda").manual_seed(vocabulary)
    rows = 256

    def some(*shape: int) -> Tensor:
        return torch.rand(*shape, device="cuda", generator=chance)

    logits = randn(rows, vocabulary) * 3
    tokens = (some(rows, 16) * vocabulary).long()
    valid, penalty = some(rows, 16) < 0.5, 1 + some(rows)
    heat, top_p, uniform = some(rows) * 1.5, some(rows) * 0.9 + 0.1, some(rows)

    def draw() -> Tensor:
        return sampling.draw_token(
            logits, tokens, valid, penalty=penalty, temperature=heat, top_p=top_p, uniform=uniform
        )

    ours = draw()
    monkeypatch.setattr(sampling, "can_draw", lambda _: False)
    theirs = draw()

    assert int((ours != theirs).sum()) <= 1  # a uniform number may fall on the edge between two ranks
