"""Products of a few rows with packed weights, by one thread.

Each output is summed in the order of its inputs, so its bits do not depend on the rows.
Shapes: R rows, K inputs, N outputs.
"""

# ruff: noqa: ARG001 - the arguments of intrinsics are types, and `build` gets the values

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import extending, types

from s1_mini.kernels.compiled.build import in_order
from s1_mini.kernels.compiled.product import BLOCK

f32 = np.float32
intrinsic: Any = extending.intrinsic
AHEAD = 4096  # bytes; the processor's own prefetch stops at the end of a page, and is late after it


def dequantize(_weight):
    """Return a weight in float32. Only a name for numba, which compiles `_dequantize` in its place."""


@extending.overload(dequantize, inline="always")
def _dequantize(weight):
    if weight == numba.uint16:
        return lambda weight: np.uint32(np.uint32(weight) << np.uint32(16)).view(np.float32)
    return lambda weight: np.float32(weight)  # noqa: PLW0108 - numba inlines it


@intrinsic
def prefetch(_, array, index):
    """Begin to read a number of an array, which may be outside it."""

    def build(context, builder, signature, values):
        byte, whole = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, whole, whole, whole])
        data = context.make_array(signature.args[0])(context, builder, values[0]).data
        address = builder.bitcast(builder.gep(data, [values[1]]), byte)
        builder.call(builder.module.declare_intrinsic("llvm.prefetch", [byte], kind), [address, *map(whole, (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.intp), build


@in_order
def _block(x, weight, scale, bias, out, first):  # noqa: C901 - nested loops are one kernel
    """Put the outputs from `first` on, up to `BLOCK`, of x [R, K] times `weight` [K N] into `out` [R, N]."""
    rows, inputs = x.shape
    last = min(out.shape[1], first + BLOCK)
    size = last - first
    block = weight[first * inputs : last * inputs].reshape((inputs, size))
    fours, line = inputs // 4 * 4, 64 // weight.itemsize
    for row in range(rows):
        for n in range(first, last):
            out[row, n] = f32(0)
    for k in range(0, fours, 4):
        w0, w1, w2, w3 = block[k], block[k + 1], block[k + 2], block[k + 3]
        ahead = first * inputs + k * size + AHEAD // weight.itemsize
        for place in range(ahead, ahead + 4 * size, line):
            prefetch(weight, place)
        for row in range(rows):
            x0, x1, x2, x3 = x[row, k], x[row, k + 1], x[row, k + 2], x[row, k + 3]
            to = out[row, first:last]
            for n in range(size):
                to[n] += (
                    x0 * dequantize(w0[n]) + x1 * dequantize(w1[n]) + x2 * dequantize(w2[n]) + x3 * dequantize(w3[n])
                )
    for k in range(fours, inputs):
        for row in range(rows):
            for n in range(size):
                out[row, first + n] += x[row, k] * dequantize(block[k, n])
    for row in range(rows):
        for n in range(first, last):
            out[row, n] = out[row, n] * scale[n] + bias[n]


@in_order
def product(x, weight, scale, bias, out):
    """Put x [R, K] times `weight` [K N] times `scale` [N] plus `bias` [N] into `out` [R, N]."""
    for first in range(0, out.shape[1], BLOCK):
        _block(x, weight, scale, bias, out, first)
