"""The kernels of a step without Triton match the same formulas in plain torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.kernels.decode_attention import step_attention, used_positions
from s1_mini.kernels.linear import branch_sum, linear, linear_sum, norm_linear
from s1_mini.kernels.norm import Norm
from s1_mini.kernels.rope import HeadNorms
from s1_mini.kernels.weight import quantize
from s1_mini.layers.transformer import rope_table, rotate

HEADS, GROUPS, SIZE, POSITIONS = 4, 2, 16, 12
TOKENS = 6


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("parts", [None, 0, 3])
def test_a_product_accepts_its_residual_whole_or_in_parts(parts: int | None, gated: bool) -> None:
    x, weight, spec = randn(3, 24), randn(10, 24), Norm(randn(24), 1e-6)
    bias = None if gated else randn(10)
    branch = None if parts is None else randn(parts, 3, 24) if parts else randn(3, 24)

    total, out = norm_linear(x, branch, spec, weight, bias, gated=gated)

    expected = x if branch is None else x + branch.reshape(-1, 3, 24).sum(0)
    normal = expected * torch.rsqrt(expected.square().mean(-1, keepdim=True) + 1e-6) * spec.weight
    product = normal @ weight.T
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(out, F.silu(product[:, :5]) * product[:, 5:] if gated else product + bias)


def test_a_product_alone_takes_weights_in_full_and_in_eight_bits() -> None:
    x, weight, bias = randn(2, 3, 32), randn(12, 32), randn(12)
    narrow = quantize(weight, torch.int8)

    torch.testing.assert_close(linear(x, weight, bias), x @ weight.T + bias)
    expected = x @ narrow.dequantize(torch.float32).T + bias
    torch.testing.assert_close(linear(x, narrow, bias), expected, atol=0.15, rtol=0.02)


@pytest.mark.parametrize("biased", [False, True])
def test_a_linear_sum_gives_residual_and_product(biased: bool) -> None:
    x, weight, residual = randn(3, 24), randn(10, 24), randn(3, 10)
    bias = randn(10) if biased else None

    given = linear_sum(x, weight, bias, residual)

    torch.testing.assert_close(branch_sum(*given), residual + F.linear(x, weight, bias))


def test_parts_are_summed_before_they_are_rounded() -> None:
    """256 + 1 is 256 in bf16: parts added to the residual one by one would be lost."""
    x, parts = torch.full((2, 3), 256.0, dtype=torch.bfloat16), torch.ones(4, 2, 3)

    assert torch.equal(branch_sum(x, parts), torch.full((2, 3), 260.0, dtype=torch.bfloat16))
    assert torch.equal(branch_sum(x, None), x)


@pytest.mark.parametrize("normed", [False, True])
def test_rows_that_name_one_slot_attend_as_a_block_of_its_tokens(normed: bool) -> None:
    """Tokens of two slots in one step: all of one slot, and the tokens of the other after its cached ones."""
    past = {1: 0, 2: 5}
    norms = HeadNorms(randn(SIZE), randn(SIZE) + 1, 1e-6) if normed else None
    rope = rope_table(POSITIONS, SIZE, 10_000, torch.device("cpu"), rounded_to=torch.bfloat16)
    qkv = {slot: randn(TOKENS + slot, (HEADS + 2 * GROUPS) * SIZE)[:TOKENS] for slot in past}
    keys, values = (
        randn(3, GROUPS, POSITIONS, SIZE),
        randn(3, GROUPS, POSITIONS + 1, SIZE)[:, :, :POSITIONS].contiguous(),
    )
    before = keys.clone(), values.clone()
    slots = torch.tensor([slot for slot in past for _ in range(TOKENS)])
    positions = torch.cat([torch.arange(first, first + TOKENS) for first in past.values()])
    order = torch.randperm(len(slots), generator=torch.Generator().manual_seed(0))

    out = step_attention(
        torch.cat(list(qkv.values()))[order],
        keys,
        values,
        positions[order],
        positions[order],
        rope[positions[order]],
        norms,
        span=POSITIONS,
        mask=used_positions(positions[order], POSITIONS, SIZE),
        slots=slots[order],
    )

    for slot, first in past.items():
        here, last = slice(first, first + TOKENS), first + TOKENS
        query, key, value = _turned(qkv[slot], rope[here], norms)
        known = [tensor[slot].clone() for tensor in before]
        known[0][:, here], known[1][:, here] = key, value
        mask = torch.arange(last) <= torch.arange(first, last).unsqueeze(1)
        block = F.scaled_dot_product_attention(
            query, *(one[:, :last].repeat_interleave(HEADS // GROUPS, 0) for one in known), attn_mask=mask
        )
        own = slots[order] == slot
        torch.testing.assert_close(out[own][positions[order][own].argsort()], block.transpose(0, 1).flatten(1))
        torch.testing.assert_close(keys[slot], known[0])
        torch.testing.assert_close(values[slot], known[1])
    assert torch.equal(keys[0], before[0][0])  # not selected
    assert torch.equal(values[0], before[1][0])


def _turned(qkv: Tensor, rope: Tensor, norms: HeadNorms | None) -> list[Tensor]:
    """Queries, keys and values [heads, T, D] of tokens [T, …]: normed and rotated."""
    query, key, value = qkv.unflatten(1, (-1, SIZE)).transpose(0, 1).split((HEADS, GROUPS, GROUPS))
    if norms is not None:
        query = F.rms_norm(query, (SIZE,), norms.query, norms.eps)
        key = F.rms_norm(key, (SIZE,), norms.key, norms.eps)
    return [rotate(part.unsqueeze(0), rope.unsqueeze(0))[0] for part in (query, key)] + [value]
