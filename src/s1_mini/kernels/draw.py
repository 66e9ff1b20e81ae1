"""One token per row: penalty, nucleus, temperature and draw in one kernel, by ranks (a bitonic sort in one program).

Shapes: B rows, V vocabulary, N penalised tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit, runs_triton
from s1_mini.layers.sampling import MIN_TEMPERATURE, draw, penalise, ranked_probabilities

if HAS_TRITON:
    import triton
    import triton.language as tl

MAX_VOCABULARY = 8192  # that one program sorts


def draw_token(
    logits: Tensor,
    tokens: Tensor,
    valid: Tensor,
    penalty: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    uniform: Tensor,
) -> Tensor:
    """Draw a token of each row [B] from `logits` [B, V] at `uniform` [B], `tokens` [B, N] penalised where `valid`."""
    if runs_triton(logits) and logits.shape[1] <= MAX_VOCABULARY:
        return _draw_triton(logits, tokens, valid, penalty, temperature, top_p, uniform)
    logits = penalise(logits.float(), tokens, valid, penalty)
    return draw(*ranked_probabilities(logits, temperature, top_p), uniform)


def _draw_triton(
    logits: Tensor,
    tokens: Tensor,
    valid: Tensor,
    penalty: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    uniform: Tensor,
) -> Tensor:
    rows, size = logits.shape
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    block = triton.next_power_of_2(size)
    _draw_kernel[(rows,)](
        logits.contiguous(),
        tokens.contiguous(),
        valid.contiguous(),
        penalty,
        temperature,
        top_p,
        uniform.contiguous(),
        out,
        size,
        tokens.shape[1],
        MIN_TEMPERATURE,
        block,
        num_warps=max(4, min(32, block // 256)),
    )
    return out


@jit
def _draw_kernel(  # type: ignore[no-untyped-def]  # noqa: ANN202, PLR0913
    logits,  # noqa: ANN001
    tokens,  # noqa: ANN001
    valid,  # noqa: ANN001
    penalty,  # noqa: ANN001
    temperature,  # noqa: ANN001
    top_p,  # noqa: ANN001
    uniform,  # noqa: ANN001
    out,  # noqa: ANN001
    size,  # noqa: ANN001
    num_tokens,  # noqa: ANN001
    least_heat,  # noqa: ANN001
    BLOCK: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    logit = tl.load(logits + row * size + at, mask=inside, other=float("-inf")).to(tl.float32)
    hit = tl.zeros([BLOCK], tl.int32)
    for number in range(num_tokens):
        token = tl.load(tokens + row * num_tokens + number)
        counts = tl.load(valid + row * num_tokens + number)
        hit = hit | ((at == token) & (counts != 0)).to(tl.int32)
    strength = tl.load(penalty + row)
    logit = tl.where(hit != 0, tl.where(logit < 0, logit * strength, logit / strength), logit)
    # Keys whose order as integers is that of the logits; below them the token, the lowest first among equals.
    bits = logit.to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    packed = tl.sort((key << 16) | (BLOCK - 1 - at).to(tl.int64), descending=True)
    token = BLOCK - 1 - (packed & 0xFFFF).to(tl.int32)
    key = (packed >> 16).to(tl.int32)
    ranked = tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)
    highest = tl.max(ranked, axis=0)
    mass = tl.exp(ranked - highest)
    below = tl.cumsum(mass / tl.sum(mass, axis=0), axis=0)
    kept = (below <= tl.load(top_p + row)) | (at == 0)
    heat = tl.maximum(tl.load(temperature + row), least_heat)
    share = tl.where(kept, tl.exp((ranked - highest) / heat), 0.0)
    cumulative = tl.cumsum(share, axis=0)
    goal = tl.load(uniform + row) * tl.sum(share, axis=0)
    rank = tl.sum((cumulative <= goal).to(tl.int32), axis=0)
    last = tl.maximum(tl.sum((share > 0).to(tl.int32), axis=0), 1) - 1
    chosen = tl.minimum(rank, last)
    tl.store(out + row, tl.sum(tl.where(at == chosen, token, 0), axis=0).to(tl.int64))
