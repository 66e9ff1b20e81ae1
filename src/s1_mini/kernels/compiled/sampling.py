"""Parts of sampling without a sort, with integers as in `kernels/ranking.py`. Shapes: V tokens."""

from __future__ import annotations

import numpy as np

from s1_mini.kernels.compiled.build import in_order
from s1_mini.kernels.compiled.layers import exp, sum_of
from s1_mini.kernels.compiled.multiply import f32

SCALE = 1 << 31  # that of `kernels/ranking.py`, which imports torch


@in_order
def is_finite(x):
    """Return whether no number of x [V] is infinite or NaN."""
    wrong = 0
    for place in range(x.shape[0]):
        wrong += 0 if abs(x[place]) < f32(np.inf) else 1
    return wrong == 0


@in_order
def order(logits, keys):
    """Put integers with the order of the logits into `keys` [V]. Return the likeliest token, the first of equals."""
    likeliest = 0
    for token in range(logits.shape[0]):
        bits = np.float32(logits[token] + f32(0)).view(np.uint32)  # turns -0 into 0
        keys[token] = ~bits if bits >> np.uint32(31) else bits | np.uint32(0x80000000)
    for token in range(logits.shape[0]):
        likeliest = token if keys[token] > keys[likeliest] else likeliest
    return likeliest


@in_order
def softmax(logits, top, inverse_temperature, kept, masses, shares):
    """Put the softmax of (logits - top) * inverse_temperature of kept tokens, as integers, into `masses` [V]."""
    for token in range(logits.shape[0]):
        share = exp((logits[token] - top) * inverse_temperature)
        shares[token] = share if kept[token] else f32(0)
    to_masses(shares, masses)


@in_order
def to_masses(shares, masses):
    """Put the shares of their sum, as whole numbers, into `masses` [V]."""
    total = sum_of(shares)
    for token in range(shares.shape[0]):
        masses[token] = np.uint32(np.int64(shares[token] / total * f32(SCALE)))


@in_order
def _mass_from(keys, masses, least):
    total = np.uint32(0)
    for token in range(keys.shape[0]):
        total += masses[token] if keys[token] >= least else np.uint32(0)
    return total


@in_order
def edge(keys, masses, bound):
    """Return the highest key at and above which the mass exceeds `bound`; 0 if there is none."""
    found = np.uint32(0)
    for bit in range(31, -1, -1):
        higher = found | np.uint32(1 << bit)
        if _mass_from(keys, masses, higher) > bound:
            found = higher
    return found


@in_order
def mass_above(keys, masses, key):
    """Return the mass of all keys above `key`."""
    mass = np.uint32(0)
    for token in range(keys.shape[0]):
        mass += masses[token] if keys[token] > key else np.uint32(0)
    return mass


@in_order
def pick(masses, uniform):
    """Return the token where the cumulative mass exceeds `uniform` times the total."""
    total = np.int64(0)
    for token in range(masses.shape[0]):
        total += masses[token]
    goal = min((np.int64(uniform * f32(1 << 24)) * total) >> 24, total - 1)
    mass = np.uint32(0)
    for token in range(masses.shape[0]):
        mass += masses[token]
        if mass > goal:
            return token
    return masses.shape[0] - 1
