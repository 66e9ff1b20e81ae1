"""Many small writes to a GPU's memory in one kernel: copies of bytes, and random numbers.

Sources are in the GPU's memory or in pinned memory of the host, which a GPU reads at the same address.

A table has one line for each write, int64 [n, `FIELDS`]: the address of its target, the address of its source (0 for
random numbers), its size in bytes, and the seed and the utterance of random numbers. Random numbers are those of
`layers/randomness.py`, bit for bit: fp32 from Philox 4×64 with ten rounds (Salmon et al. 2011), as numpy computes them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON, current, jit

if HAS_TRITON:
    import triton
    import triton.language as tl

FIELDS = 5
BLOCK = 1024  # words of four bytes per program


def write_all(table: Tensor, count: int, largest: int, device: torch.device) -> None:
    """Carry out the first `count` writes of a `table`, which is in pinned memory, on a GPU.

    No write has more than `largest` bytes.
    """
    with current(device):
        _write_kernel[(count, triton.cdiv(largest, 4 * BLOCK))](table, FIELDS, BLOCK, num_warps=4)


@jit
def _copy(target, source, start, size, KIND: tl.constexpr, BYTES: tl.constexpr, BLOCK: tl.constexpr):
    """Copy up to 4 × BLOCK bytes from `start` on, as numbers of KIND with BYTES bytes each."""
    COUNT: tl.constexpr = 4 * BLOCK // BYTES
    at = start // BYTES + tl.arange(0, COUNT)
    inside = at < size // BYTES
    value = tl.load(source.to(tl.pointer_type(KIND)) + at, mask=inside, other=0)
    tl.store(target.to(tl.pointer_type(KIND)) + at, value, mask=inside)


@jit
def _philox(counter, seed, piece):
    """Return the four random words of each `counter`, uint64."""
    zero = counter * 0
    a, b, c, d = counter, zero, zero, zero
    first_key, second_key = zero + seed.to(tl.uint64, bitcast=True), zero + piece.to(tl.uint64, bitcast=True)
    first_factor, second_factor = zero + 0xD2E7470EE14C6C93, zero + 0xCA5A826395121157
    for _ in tl.static_range(10):
        high, other_high = tl.umulhi(first_factor, a), tl.umulhi(second_factor, c)
        low, other_low = first_factor * a, second_factor * c
        a, b, c, d = other_high ^ b ^ first_key, other_low, high ^ d ^ second_key, low
        first_key += 0x9E3779B97F4A7C15
        second_key += 0xBB67AE8584CAA73B
    return a, b, c, d


@jit
def _store_uniforms(target, at, size, word):
    """Store two random numbers from each of the words at number `at`; 24 bits each, the lower half of a word first."""
    low, high = ((word >> 8) & 0xFFFFFF).to(tl.int32), (word >> 40).to(tl.int32)
    to = target.to(tl.pointer_type(tl.float32)) + at
    tl.store(to, low.to(tl.float32) * (1.0 / (1 << 24)), mask=at < size // 4)
    tl.store(to + 1, high.to(tl.float32) * (1.0 / (1 << 24)), mask=at + 1 < size // 4)


@jit
def _write_kernel(table, FIELDS: tl.constexpr, BLOCK: tl.constexpr):
    line = table + tl.program_id(0) * FIELDS
    target, source, size = tl.load(line), tl.load(line + 1), tl.load(line + 2)
    start = tl.program_id(1) * 4 * BLOCK
    if start < size:
        together = target | source | size
        if source == 0:
            index = start // 4 + 8 * tl.arange(0, BLOCK // 8)
            counter = (index // 8 + 1).to(tl.uint64)  # numpy counts before it computes
            a, b, c, d = _philox(counter, tl.load(line + 3), tl.load(line + 4))
            _store_uniforms(target, index, size, a)
            _store_uniforms(target, index + 2, size, b)
            _store_uniforms(target, index + 4, size, c)
            _store_uniforms(target, index + 6, size, d)
        elif together % 8 == 0:
            _copy(target, source, start, size, tl.int64, 8, BLOCK)
        elif together % 4 == 0:
            _copy(target, source, start, size, tl.int32, 4, BLOCK)
        else:
            _copy(target, source, start, size, tl.int8, 1, BLOCK)
