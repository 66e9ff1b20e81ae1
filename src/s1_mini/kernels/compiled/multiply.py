"""Products of a few rows with packed weights, by one thread.

Each output is summed in the order of its inputs, so its bits do not depend on the rows.
Shapes: R rows, K inputs, N outputs.
"""

# ruff: noqa: ARG001 - the arguments of intrinsics are types, and `build` gets the values

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import extending, types
from numba.core import cgutils

from s1_mini.kernels.compiled.build import in_order
from s1_mini.kernels.compiled.product import BLOCK

f32 = np.float32
intrinsic: Any = extending.intrinsic
AHEAD = 4096  # bytes; the processor's own prefetch stops at the end of a page, and is late after it
ROWS = 4  # rows that share a weight in a register
# Sums that fit into the vector registers together with the weights: AVX-512 has 32 of 16 floats, AVX2 16 of 8 floats.
SUMS = 256 if binding.get_host_cpu_features().get("avx512f") else 64
BYTE, WHOLE, FLOAT = ir.IntType(8), ir.IntType(32), ir.FloatType()


def _load(builder: Any, pointer: Any, width: int) -> Any:
    """Return `width` weights as a vector of float32."""
    kind, floats = pointer.type.pointee, ir.VectorType(FLOAT, width)
    size = 4 if kind == FLOAT else kind.width // 8
    weights = builder.load(builder.bitcast(pointer, ir.VectorType(kind, width).as_pointer()), align=size)
    if kind == FLOAT:
        return weights
    if size == 1:
        return builder.sitofp(weights, floats)
    bits = ir.VectorType(WHOLE, width)
    return builder.bitcast(builder.shl(builder.zext(weights, bits), ir.Constant(bits, [16] * width)), floats)


def _prefetch(builder: Any, pointer: Any, width: int) -> None:
    """Begin to read the weights `AHEAD` bytes after a pointer, which may be outside the array."""
    kind = ir.FunctionType(ir.VoidType(), [BYTE.as_pointer(), WHOLE, WHOLE, WHOLE])
    prefetch = builder.module.declare_intrinsic("llvm.prefetch", [BYTE.as_pointer()], kind)
    size = 4 if pointer.type.pointee == FLOAT else pointer.type.pointee.width // 8
    first = builder.bitcast(pointer, BYTE.as_pointer())
    for line in range(0, width * size, 64):
        place = builder.gep(first, [ir.IntType(64)(AHEAD + line)])
        builder.call(prefetch, [place, *map(WHOLE, (0, 3, 1))])


def _summing(rows: int) -> Any:
    """Return a function that computes the sums of a block for `rows` rows, which stay in registers."""
    width = min(BLOCK, SUMS // rows)
    vector = ir.VectorType(FLOAT, width)

    @intrinsic
    def sum_block(_, x, first, weight, at, sums):
        """Put x[first : first + rows] times the block of `weight` that begins at `at` into `sums` [rows, BLOCK].

        If x has fewer rows, its last row is used again.
        """

        def build(context, builder, signature, values):
            x, weight, sums = (context.make_array(signature.args[n])(context, builder, values[n]) for n in (0, 2, 4))
            count, inputs = cgutils.unpack_tuple(builder, x.shape)
            step, one = ir.IntType(64), inputs.type(1)
            stride = cgutils.unpack_tuple(builder, x.strides)[0]
            fma = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.v{width}f32"
            )
            starts = []
            for row in range(rows):
                index, last = builder.add(values[1], step(row)), builder.sub(count, one)
                index = builder.select(builder.icmp_signed("<", index, last), index, last)
                start = builder.gep(builder.bitcast(x.data, BYTE.as_pointer()), [builder.mul(index, stride)])
                starts.append(builder.bitcast(start, FLOAT.as_pointer()))
            totals = [cgutils.alloca_once(builder, vector) for _ in range(rows)]
            for column in range(0, BLOCK, width):
                for total in totals:
                    builder.store(ir.Constant(vector, [0.0] * width), total)
                block = builder.gep(weight.data, [builder.add(values[3], step(column))])
                with cgutils.for_range(builder, inputs) as loop:
                    pointer = builder.gep(block, [builder.mul(loop.index, step(BLOCK))])
                    weights = _load(builder, pointer, width)
                    _prefetch(builder, pointer, width)
                    for start, total in zip(starts, totals, strict=True):
                        number = builder.load(builder.gep(start, [loop.index]))
                        lane = builder.insert_element(ir.Constant(vector, ir.Undefined), number, WHOLE(0))
                        lanes = builder.shuffle_vector(
                            lane, lane, ir.Constant(ir.VectorType(WHOLE, width), [0] * width)
                        )
                        builder.store(builder.call(fma, [lanes, weights, builder.load(total)]), total)
                for row, total in enumerate(totals):
                    place = builder.gep(sums.data, [step(row * BLOCK + column)])
                    builder.store(builder.load(total), builder.bitcast(place, vector.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(x, types.intp, weight, types.intp, sums), build

    return sum_block


_sum_one, _sum_two, _sum_four = _summing(1), _summing(2), _summing(ROWS)


@in_order
def product(x, weight, scale, bias, out):
    """Put x [R, K] times `weight` [K N] times `scale` [N] plus `bias` [N] into `out` [R, N]."""
    rows, inputs = x.shape
    sums = np.empty((ROWS, BLOCK), np.float32)
    for first in range(0, out.shape[1], BLOCK):
        last = min(out.shape[1], first + BLOCK)
        for row in range(0, rows, ROWS):
            count = min(ROWS, rows - row)
            if count == 1:
                _sum_one(x, row, weight, first * inputs, sums)
            elif count == 2:
                _sum_two(x, row, weight, first * inputs, sums)
            else:
                _sum_four(x, row, weight, first * inputs, sums)
            for each in range(count):
                for n in range(first, last):
                    out[row + each, n] = sums[each, n - first] * scale[n] + bias[n]
