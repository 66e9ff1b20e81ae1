"""Sampling and ranking with integers, whose sums, unlike those of floating-point numbers, are the same in any order.

The kernels rank without sorting: `order` turns numbers into integers of the same order, and `edge` and `find_token`
find, bit by bit, where the cumulative probability passes a limit.
Shapes: B rows, V tokens.
"""

from __future__ import annotations

from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, jit

if HAS_TRITON:
    import triton.language as tl

SCALE = 1 << 31  # the integer for a probability of 1
MIN_TEMPERATURE = 1e-5  # up to this temperature, sampling is greedy; among equal logits, the first token wins


def sample(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Return a token [...] for each row of `probabilities` [..., V] and `uniform` [...]."""
    return invert(to_integers(probabilities), uniform)


def invert(masses: Tensor, uniform: Tensor) -> Tensor:
    """Invert the cumulative sum of integers [..., V] at `uniform` [...]."""
    cumulative = masses.cumsum(-1)
    total = cumulative[..., -1]
    goal = (((uniform * (1 << 24)).long() * total) >> 24).minimum(total - 1)  # random numbers have 24 bits
    return (cumulative <= goal.unsqueeze(-1)).sum(-1).clamp_max(masses.shape[-1] - 1)  # clamped in case of NaN


def to_integers(share: Tensor) -> Tensor:
    return (share * SCALE).long()


@jit
def order(x, BITS: tl.constexpr):
    """Return unsigned integer keys of BITS bits in the order of x; the key of every number is above 0."""
    if BITS == 16:
        bits = x.to(tl.uint16, bitcast=True).to(tl.uint32)
        ordered = tl.where(bits >> 15 != 0, 0xFFFF - bits, bits | 0x8000)
    else:
        bits = x.to(tl.uint32, bitcast=True)
        ordered = tl.where(bits >> 31 != 0, 0xFFFFFFFF - bits, bits | 0x80000000).to(tl.uint64)
    return ordered


@jit
def edge(key, mass, bound, BITS: tl.constexpr, most=None):
    """Return the highest key for which the total mass of all keys from it upwards exceeds `bound`, or 0.

    With `most`, it may also be the highest key for which the number of all keys from it upwards exceeds `most`.
    """
    found = tl.sum(tl.zeros_like(key), axis=0)
    step = found + 1
    if most is not None:
        mass = mass.to(tl.int64) + (1 << 32)  # the upper half counts keys, because the total mass has 32 bits
    for bit in range(BITS):
        higher = found | (step << (BITS - 1 - bit))
        total = tl.sum(tl.where(key >= higher, mass, 0), axis=0)
        over = total > bound
        if most is not None:
            over = ((total & 0xFFFFFFFF) > bound) | ((total >> 32) > most)
        found = tl.where(over, higher, found)
    return found


@jit
def find_token(at, mass, goal, BITS: tl.constexpr):
    """Return the first token at which the cumulative mass, including the token's own, exceeds `goal`."""
    found = tl.sum(tl.zeros_like(at), axis=0)
    for bit in range(BITS):
        later = found | (1 << (BITS - 1 - bit))
        fits = tl.sum(tl.where(at < later, mass, 0), axis=0) <= goal
        found = tl.where(fits, later, found)
    return found
