"""Ranking in a kernel without a sort: integer keys in the order of numbers, and a search for a cumulative mass."""

from __future__ import annotations

from s1_mini.kernels.backend import HAS_TRITON, jit

if HAS_TRITON:
    import triton.language as tl


@jit
def order(x, BITS: tl.constexpr):
    """Return unsigned integer keys with the bits and the order of x; all keys are above 0."""
    if BITS == 16:
        bits = x.to(tl.uint16, bitcast=True).to(tl.uint32)
        ordered = tl.where(bits >> 15 != 0, 0xFFFF - bits, bits | 0x8000)
    else:
        bits = x.to(tl.uint32, bitcast=True)
        ordered = tl.where(bits >> 31 != 0, 0xFFFFFFFF - bits, bits | 0x80000000).to(tl.uint64)
    return ordered


@jit
def edge(key, mass, bound, BITS: tl.constexpr):
    """Return the highest key for which the mass of keys at and above it exceeds the bound, or 0."""
    found = tl.sum(tl.zeros_like(key), axis=0)
    step = found + 1
    for bit in range(BITS):
        higher = found | (step << (BITS - 1 - bit))
        over = tl.sum(tl.where(key >= higher, mass, 0), axis=0) > bound
        found = tl.where(over, higher, found)
    return found
