"""One token per row: penalty, nucleus, temperature and draw in one kernel, by ranks (a bitonic sort in one program).

Shapes: B rows, V vocabulary, N penalised tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit, runs_triton

if HAS_TRITON:
    import triton
    import triton.language as tl

MAX_VOCABULARY = 8192  # that one program sorts


def can_draw(logits: Tensor) -> bool:
    """Whether the kernel can draw from these logits [B, V]."""
    return runs_triton(logits) and logits.shape[1] <= MAX_VOCABULARY


def draw_in_one(
    logits: Tensor,
    tokens: Tensor,
    valid: Tensor,
    penalty: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    uniform: Tensor,
    least_heat: float,
) -> Tensor:
    """Do as `layers.sampling.draw_token`, which says what; no temperature is below `least_heat`."""
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
        least_heat,
        block,
        num_warps=max(4, min(32, block // 256)),
    )
    return out


@jit
def _draw_kernel(
    logits,
    tokens,
    valid,
    penalty,
    temperature,
    top_p,
    uniform,
    out,
    size,
    num_tokens,
    least_heat,
    BLOCK: tl.constexpr,
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
