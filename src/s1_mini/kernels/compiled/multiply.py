"""Products of a few rows with packed weights, by one thread.

Each output is summed in the order of its inputs, so its bits do not depend on the rows.
A convolution is a product whose inputs are those of all taps.
Shapes: R rows, K inputs, N outputs; P steps of past, C channels.
"""

# ruff: noqa: ARG001 - the arguments of intrinsics are types, and `build` gets the values

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from s1_mini.kernels.compiled.build import FEATURES, in_order
from s1_mini.kernels.compiled.emit import BYTE, FLOAT, LONG, WHOLE, fma, intrinsic, place, prefetch, spread, zeros
from s1_mini.kernels.compiled.product import BLOCK

f32 = np.float32
AHEAD = 4096  # bytes; the processor's own prefetch stops at the end of a page, and is late after it
ROWS = 4  # rows that share a weight in a register
# Sums that fit into the vector registers together with the weights: AVX-512 has 32 of 16 floats, AVX2 16 of 8 floats.
SUMS = 256 if "+avx512f" in FEATURES else 64
# Rows of a tile of half a block, and of a quarter, so that narrow layers fill the registers too.
HALF_ROWS, QUARTER_ROWS = min(8, SUMS // 16), min(16, SUMS // 16)
MOST_SUMS = ROWS * BLOCK


def _load(builder: Any, pointer: Any, width: int) -> Any:
    """Return `width` weights as a vector of float32."""
    kind, floats = pointer.type.pointee, ir.VectorType(FLOAT, width)
    size = 4 if kind == FLOAT else kind.width // 8
    weights = builder.load(builder.bitcast(pointer, ir.VectorType(kind, width).as_pointer()), align=size)
    prefetch(builder, pointer, width * size, AHEAD)
    if kind == FLOAT:
        return weights
    if size == 1:
        return builder.sitofp(weights, floats)
    bits = ir.VectorType(WHOLE, width)
    return builder.bitcast(builder.shl(builder.zext(weights, bits), ir.Constant(bits, [16] * width)), floats)


def _summing(rows: int, columns: int) -> Any:
    """Return a function that computes the sums of `columns` outputs for `rows` rows, which stay in registers."""
    width = min(columns, SUMS // rows)
    vector = ir.VectorType(FLOAT, width)

    @intrinsic
    def sum_tile(_, x, first, shape, weight, at, sums):
        """Put the sums of `rows` rows from `first` into `sums` [rows, columns]; see `sum_rows`.

        If there are fewer rows, the last row is used again.
        """

        def build(context, builder, signature, values):
            x, weight, sums = (context.make_array(signature.args[n])(context, builder, values[n]) for n in (0, 3, 5))
            length, channels = cgutils.unpack_tuple(builder, x.shape)
            stride = cgutils.unpack_tuple(builder, x.strides)[0]
            taps, dilation = cgutils.unpack_tuple(builder, values[2])
            one = LONG(1)
            starts = []
            last = builder.sub(length, builder.add(builder.mul(builder.sub(taps, one), dilation), one))
            for row in range(rows):
                index = builder.add(values[1], LONG(row))
                index = builder.select(builder.icmp_signed("<", index, last), index, last)
                starts.append(builder.gep(builder.bitcast(x.data, BYTE.as_pointer()), [builder.mul(index, stride)]))
            totals = [cgutils.alloca_once(builder, vector) for _ in range(rows)]
            for column in range(0, columns, width):
                for total in totals:
                    builder.store(zeros(vector), total)
                block = builder.gep(weight.data, [builder.add(values[4], LONG(column))])
                with cgutils.for_range(builder, taps) as tap:
                    part = builder.gep(block, [builder.mul(builder.mul(tap.index, channels), LONG(BLOCK))])
                    shift = builder.mul(builder.mul(tap.index, dilation), stride)
                    pointers = [builder.bitcast(builder.gep(each, [shift]), FLOAT.as_pointer()) for each in starts]
                    with cgutils.for_range(builder, channels) as channel:
                        pointer = builder.gep(part, [builder.mul(channel.index, LONG(BLOCK))])
                        weights = _load(builder, pointer, width)
                        for each, total in zip(pointers, totals, strict=True):
                            seen = spread(builder, builder.load(builder.gep(each, [channel.index])), width)
                            builder.store(fma(builder, seen, weights, builder.load(total)), total)
                for row, total in enumerate(totals):
                    to = place(builder, sums.data, LONG(row * columns + column), vector)
                    builder.store(builder.load(total), to, align=4)
            return context.get_dummy_value()

        return types.void(x, types.intp, shape, weight, types.intp, sums), build

    return sum_tile


_sum_one, _sum_two, _sum_four = (_summing(rows, BLOCK) for rows in (1, 2, ROWS))
_sum_half, _sum_quarter = _summing(HALF_ROWS, BLOCK // 2), _summing(QUARTER_ROWS, BLOCK // 4)


@in_order
def sum_rows(x, first, shape, weight, at, size, sums):
    """Put a convolution of x [P + R, C], at a few of the R rows from `first`, into `sums` [MOST_SUMS].

    `shape` is the number of taps and the dilation; of a plain product, (1, 1). `size` outputs are computed: those of
    the block of weights that begins at `at`. Returns the number of rows, and the distance between two rows in `sums`.
    """
    left = x.shape[0] - (shape[0] - 1) * shape[1] - first
    if size > BLOCK // 2 or left <= ROWS:
        if left == 1:
            _sum_one(x, first, shape, weight, at, sums)
        elif left == 2:
            _sum_two(x, first, shape, weight, at, sums)
        else:
            _sum_four(x, first, shape, weight, at, sums)
        return min(left, ROWS), BLOCK
    if size > BLOCK // 4:
        _sum_half(x, first, shape, weight, at, sums)
        return min(left, HALF_ROWS), BLOCK // 2
    _sum_quarter(x, first, shape, weight, at, sums)
    return min(left, QUARTER_ROWS), BLOCK // 4


@in_order
def product(x, weight, scale, bias, out):
    """Put x [R, K] times `weight` [K N] times `scale` [N] plus `bias` [N] into `out` [R, N]."""
    inputs = x.shape[1]
    sums = np.empty(MOST_SUMS, np.float32)
    for first in range(0, out.shape[1], BLOCK):
        last = min(out.shape[1], first + BLOCK)
        row = 0
        while row < x.shape[0]:
            count, width = sum_rows(x, row, (1, 1), weight, first * inputs, last - first, sums)
            for each in range(count):
                for n in range(first, last):
                    out[row + each, n] = sums[each * width + n - first] * scale[n] + bias[n]
            row += count
