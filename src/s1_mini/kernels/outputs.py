"""What kernels of products do with outputs: they multiply those of eight bits by their scales, and take GELU."""

from __future__ import annotations

from s1_mini.kernels.backend import HAS_TRITON, jit

if HAS_TRITON:
    import triton.language as tl


@jit
def load_scales(scale, at, there, SCALED: tl.constexpr):
    """Give what these outputs are multiplied by; 1 where the weights are kept as they were trained."""
    if SCALED:
        return tl.load(scale + at, mask=there, other=0.0).to(tl.float32)
    return tl.full(at.shape, 1.0, tl.float32)


@jit
def gelu_of(x):
    """The exact GELU (Hendrycks and Gimpel 2016)."""
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
