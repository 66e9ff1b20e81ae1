"""One token per row: penalty, nucleus, temperature and draw in one kernel, by searching for thresholds, without a sort.

Where the nucleus ends and where the draw falls are the logits at which a sum over all that are higher passes a bound:
found bit by bit, two bits at a time, and only as many bits as the logits' dtype has. Among equal logits the lower token
ranks first, as in the reference.
Shapes: B rows, V vocabulary, N penalised tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit, launch, runs_triton, wait_for_last

if HAS_TRITON:
    import triton
    import triton.language as tl

MAX_VOCABULARY = 8192  # that one program holds


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
    table: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Do as `layers.sampling.draw_token`, which says what; no temperature is below `least_heat`.

    Gives the row of `table` [V, D] of each token as well, [B, D].
    """
    rows, size = logits.shape
    embedded = None if table is None else torch.empty(rows, table.shape[1], dtype=table.dtype, device=table.device)
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    block = triton.next_power_of_2(size)
    _draw_kernel[(rows,)](
        logits.contiguous(),
        tokens,
        valid,
        penalty,
        temperature,
        top_p,
        uniform,
        out,
        logits if table is None else table,
        logits if embedded is None else embedded,
        size,
        *tokens.stride(),
        *valid.stride(),
        uniform.stride(0),
        least_heat,
        block,
        tokens.shape[1],
        8 if logits.dtype == torch.bfloat16 else 16,
        0 if table is None else table.shape[1],
        **launch(logits),
        num_warps=max(1, min(16, block // 256)),
    )
    return out, embedded


@jit
def _sum_three(a, b, c, d, e, f):
    return a + d, b + e, c + f


@jit
def _threshold(key, mass, bound, STEPS: tl.constexpr):
    """The highest key at and above which the mass is over the bound, else 0; keys differ in their first bits only."""
    found = tl.cast(0, tl.uint32)
    for step in tl.static_range(STEPS):
        low = tl.cast(1 << (30 - 2 * step), tl.uint32)
        first, second, third = found + low, found + low + low, found + low + low + low
        sums = tl.reduce(
            (
                tl.where(key >= first, mass, 0.0),
                tl.where(key >= second, mass, 0.0),
                tl.where(key >= third, mass, 0.0),
            ),
            axis=0,
            combine_fn=_sum_three,
        )
        found += low * (
            (sums[0] > bound).to(tl.uint32) + (sums[1] > bound).to(tl.uint32) + (sums[2] > bound).to(tl.uint32)
        )
    return found


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
    table,
    embedded,
    size,
    tokens_row_stride,
    tokens_stride,
    valid_row_stride,
    valid_stride,
    uniform_stride,
    least_heat,
    BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
    STEPS: tl.constexpr,
    WIDTH: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < size
    wait_for_last(EARLY)
    logit = tl.load(logits + row * size + at, mask=inside, other=float("-inf")).to(tl.float32)
    hit = tl.zeros([BLOCK], tl.int32)
    for number in tl.static_range(TOKENS):
        token = tl.load(tokens + row * tokens_row_stride + number * tokens_stride)
        counts = tl.load(valid + row * valid_row_stride + number * valid_stride)
        hit = hit | ((at == token) & (counts != 0)).to(tl.int32)
    strength = tl.load(penalty + row)
    logit = tl.where(hit != 0, tl.where(logit < 0, logit * strength, logit / strength), logit)
    logit = logit.to(logits.dtype.element_ty).to(tl.float32)
    logit = tl.where(logit == 0.0, 0.0, logit)  # one zero, not two
    # Keys whose order as unsigned integers is that of the logits; 0 is below every number's.
    bits = logit.to(tl.uint32, bitcast=True)
    key = tl.where(inside, tl.where(bits >> 31 != 0, 0xFFFFFFFF - bits, bits | 0x80000000), 0)
    if STEPS == 8:
        key = key & 0xFFFF0000
    highest = tl.max(logit, axis=0)
    mass = tl.exp(logit - highest)
    mass = mass / tl.sum(mass, axis=0)
    # The nucleus: all above the key that crosses top_p, and of those equal to it the first that fit.
    share_of_nucleus = tl.load(top_p + row)
    edge = _threshold(key, mass, share_of_nucleus, STEPS)
    above = tl.sum(tl.where(key > edge, mass, 0.0), axis=0)
    tied = key == edge
    place = tl.cumsum(tied.to(tl.int32), axis=0)
    kept = (key > edge) | (tied & (above + place * mass <= share_of_nucleus))
    kept = inside & (kept | ((key == tl.max(key, axis=0)) & tied & (place == 1)))  # the most likely is always in
    heat = tl.maximum(tl.load(temperature + row), least_heat)
    share = tl.where(kept, tl.exp((logit - highest) / heat), 0.0)
    goal = tl.load(uniform + row * uniform_stride) * tl.sum(share, axis=0)
    drawn = _threshold(key, share, goal, STEPS)
    over = tl.sum(tl.where(key > drawn, share, 0.0), axis=0)
    tied = kept & (key == drawn)
    place = tl.cumsum(tied.to(tl.int32), axis=0)
    last = tl.sum(tied.to(tl.int32), axis=0)
    fits = tied & ((over + place * share > goal) | (place == last))
    token = tl.min(tl.where(fits, at, BLOCK), axis=0)
    token = tl.where(token < size, token, 0).to(tl.int64)
    tl.store(out + row, token)
    for begin in tl.static_range(0, WIDTH, BLOCK):
        channel = begin + at
        value = tl.load(table + token * WIDTH + channel, mask=channel < WIDTH, other=0.0)
        tl.store(embedded + row * WIDTH + channel, value, mask=channel < WIDTH)
