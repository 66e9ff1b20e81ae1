"""What a causal convolution sees of the chunk before: put before its input, and kept for the next chunk.

Shapes: B rows, T steps, P steps of past, C channels, R rows that pasts are kept of.
"""

from __future__ import annotations

from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit_for_any, runs_triton
from s1_mini.kernels.snake import Rows

if HAS_TRITON:
    import triton
    import triton.language as tl

LANES = 32  # channels of a program


def exchange_past(joined: Tensor, past: Tensor, rows: Rows) -> None:
    """Fill the first P steps of `joined` [B, P + T, C] from `past` [R, P, C], which then holds its last P."""
    if runs_triton(joined):
        _exchange_past_triton(joined, past, rows)
        return
    context = past.shape[1]
    joined[:, :context] = past[rows.chosen].masked_fill(rows.fresh[:, None, None], 0)
    past[rows.chosen] = joined[:, joined.shape[1] - context :]


def _exchange_past_triton(joined: Tensor, past: Tensor, rows: Rows) -> None:
    batch, length, channels = joined.shape
    context = past.shape[1]
    _exchange_kernel[(triton.cdiv(channels, LANES), batch)](
        joined,
        past,
        rows.chosen,
        rows.fresh,
        length,
        channels,
        context,
        triton.next_power_of_2(context),
        LANES,
        num_warps=4,
    )


@jit_for_any("length")
def _exchange_kernel(
    joined, past, chosen, fresh, length, channels, CONTEXT: tl.constexpr, PAST: tl.constexpr, EACH: tl.constexpr
):
    row = tl.program_id(1).to(tl.int64)
    lane = tl.program_id(0) * EACH + tl.arange(0, EACH)
    step = tl.arange(0, PAST)
    inside = (step < CONTEXT)[:, None] & (lane < channels)[None, :]
    at = step[:, None] * channels + lane[None, :]
    out = joined + row * length * channels
    kept = past + tl.load(chosen + row) * CONTEXT * channels
    num_old = CONTEXT * (1 - tl.load(fresh + row).to(tl.int32))
    steps = length - CONTEXT
    before = tl.load(kept + at, mask=inside & (step < num_old)[:, None], other=0.0)
    # The last steps are new ones, or, of a chunk shorter than the past, the past's own.
    is_old = (step + steps < CONTEXT)[:, None]
    old = tl.load(kept + steps * channels + at, mask=inside & (step + steps < num_old)[:, None], other=0.0)
    new = tl.load(out + steps * channels + at, mask=inside & (step + steps >= CONTEXT)[:, None], other=0.0)
    tl.debug_barrier()
    tl.store(out + at, before, mask=inside)
    tl.store(kept + at, tl.where(is_old, old, new), mask=inside)
