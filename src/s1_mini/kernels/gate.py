"""The gate of a feed-forward layer: SiLU of one half times the other.

Shapes: N rows, D channels of each half.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit, runs_triton

if HAS_TRITON:
    import triton
    import triton.language as tl

BLOCK = 1024


def gate(both: Tensor) -> Tensor:
    """Return silu(a) * b [..., D] of `both` [..., 2 D], a before b; silu(a) is rounded first, as torch does it."""
    if not runs_triton(both):
        first, second = both.chunk(2, dim=-1)
        return F.silu(first) * second
    both, size = both.contiguous(), both.shape[-1] // 2
    out = both.new_empty(*both.shape[:-1], size)
    _gate_kernel[(both.numel() // (2 * size), triton.cdiv(size, BLOCK))](both, out, size, BLOCK)
    return out


@jit
def _gate_kernel(both, out, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    first = tl.load(both + row * 2 * size + at, mask=inside, other=0.0)
    second = tl.load(both + row * 2 * size + size + at, mask=inside, other=0.0)
    wide = first.to(tl.float32)
    opened = (wide * tl.sigmoid(wide)).to(first.dtype).to(tl.float32)
    tl.store(out + row * size + at, (opened * second.to(tl.float32)).to(first.dtype), mask=inside)
