"""SwiGLU, the activation of a gated feed-forward layer: SiLU of the first half times the second half.

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


def swiglu(gated: Tensor) -> Tensor:
    """Return silu(a) * b [..., D], where `gated` [..., 2 D] holds a, then b. As in torch, silu(a) is rounded first."""
    if not runs_triton(gated):
        first, second = gated.chunk(2, dim=-1)
        return F.silu(first) * second
    gated, size = gated.contiguous(), gated.shape[-1] // 2
    out = gated.new_empty(*gated.shape[:-1], size)
    _swiglu_kernel[(gated.numel() // (2 * size), triton.cdiv(size, BLOCK))](gated, out, size, BLOCK)
    return out


@jit
def _swiglu_kernel(gated, out, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    first = tl.load(gated + row * 2 * size + at, mask=inside, other=0.0)
    second = tl.load(gated + row * 2 * size + size + at, mask=inside, other=0.0)
    gate = first.to(tl.float32)
    activated = (gate * tl.sigmoid(gate)).to(first.dtype).to(tl.float32)
    tl.store(out + row * size + at, (activated * second.to(tl.float32)).to(first.dtype), mask=inside)
