"""Whether Triton is there, so that a module of kernels can be imported on any machine."""

from __future__ import annotations

from typing import Any

from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # Windows, macOS and CPU builds have none
    triton = tl = None

HAS_TRITON = triton is not None


def runs_triton(x: Tensor) -> bool:
    """Whether a kernel can work on this tensor."""
    return HAS_TRITON and x.is_cuda


def jit(function: Any) -> Any:
    """Mark a Triton kernel; without Triton it is never called."""
    return triton.jit(function) if HAS_TRITON else function


def constexpr(value: int) -> Any:
    """A constant that kernels may use."""
    return tl.constexpr(value) if HAS_TRITON else value
