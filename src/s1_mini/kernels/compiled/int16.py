"""Convolutions in 16-bit integers, for processors that add two such products to a 32-bit sum at once (VNNI).

Each step is quantized with a scale of its own. A sum of up to `GROUP` inputs of a tap is an exact integer; these sums
are then added in float32, in the order of the inputs, so that the bits of a step do not depend on the other steps.
Shapes: R rows, P steps of past, C channels.
"""

# ruff: noqa: ARG001 - the arguments of intrinsics are types, and `build` gets the values

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from s1_mini.kernels.compiled.build import FEATURES, in_order
from s1_mini.kernels.compiled.emit import LONG, WHOLE, call, fma, intrinsic, place, prefetch, spread, zeros
from s1_mini.kernels.compiled.epilogue import LANES, VECTOR
from s1_mini.kernels.compiled.multiply import AHEAD, f32
from s1_mini.kernels.compiled.product import BLOCK, GROUP, LARGEST_STEP

HAS_VNNI = "+avx512vnni" in FEATURES
TILE_ROWS, TILE_COLUMNS = 6, 32  # integers and floats of a tile take 24 of 32 vector registers
TILE_SUMS = TILE_ROWS * BLOCK
WHOLES, PAIRS = ir.VectorType(WHOLE, LANES), ir.VectorType(ir.IntType(16), 2 * LANES)


@in_order
def quantize_steps(x, gain, out, scales):
    """Quantize x [R, C] times `gain` [C] to int16 `out` [R, C] times `scales` [R].

    NaN and infinity make the scale of their row NaN or infinite.
    """
    rounder = f32(12582912.0)  # 1.5 * 2^23: adding it rounds to a whole number
    scaled = np.empty(x.shape[1], np.float32)
    bits = scaled.view(np.int32)
    for row in range(x.shape[0]):
        source, to, top = x[row], out[row], np.int32(0)
        for k in range(scaled.shape[0]):
            scaled[k] = source[k] * gain[k]
        for k in range(scaled.shape[0]):
            top = max(top, bits[k] & np.int32(0x7FFFFFFF))  # as integers, NaN is larger than infinity
        largest = np.int32(top).view(np.float32)
        scales[row] = largest / f32(LARGEST_STEP)
        factor = f32(LARGEST_STEP) / largest if largest > f32(1e-30) else f32(0)
        for k in range(scaled.shape[0]):
            to[k] = np.int16(np.int32((scaled[k] * factor + rounder) - rounder))


def _summing(rows: int) -> Any:
    """Return a function that computes the sums of `TILE_COLUMNS` outputs for `rows` rows, which stay in registers."""
    tile = [(row, column) for row in range(rows) for column in range(0, TILE_COLUMNS, LANES)]

    @intrinsic
    def sum_tile(_, x, scales, first, shape, weight, at, sums, column):
        """Put the sums of `rows` rows from `first` into `sums` [rows, BLOCK] from `column`; see `sum_steps`."""

        def build(context, builder, signature, values):
            x, scales, weight, sums = (
                context.make_array(signature.args[n])(context, builder, values[n]) for n in (0, 1, 4, 6)
            )
            taps, dilation = cgutils.unpack_tuple(builder, values[3])
            pairs = builder.sdiv(builder.extract_value(x.shape, 1), LONG(2))
            steps, block = builder.bitcast(x.data, WHOLE.as_pointer()), builder.gep(weight.data, [values[5]])
            stored = ir.VectorType(block.type.pointee, PAIRS.count)
            totals = {each: cgutils.alloca_once(builder, VECTOR) for each in tile}
            wholes = {each: cgutils.alloca_once(builder, WHOLES) for each in tile}
            for total in totals.values():
                builder.store(zeros(VECTOR), total)
            groups = cgutils.for_range_slice(builder, LONG(0), pairs, LONG(GROUP // 2))
            with cgutils.for_range(builder, taps) as tap, groups as (start, _):
                for whole in wholes.values():
                    builder.store(zeros(WHOLES), whole)
                left = builder.sub(pairs, start)
                count = builder.select(builder.icmp_signed("<", left, LONG(GROUP // 2)), left, LONG(GROUP // 2))
                step = builder.add(values[2], builder.mul(tap.index, dilation))
                numbers = [builder.add(step, LONG(row)) for row in range(rows)]
                inputs = [builder.gep(steps, [builder.add(builder.mul(each, pairs), start)]) for each in numbers]
                pair = builder.add(builder.mul(tap.index, pairs), start)
                with cgutils.for_range(builder, count) as each:
                    row_start = builder.mul(builder.add(pair, each.index), LONG(2 * BLOCK))
                    weights = {}
                    for vector in range(0, TILE_COLUMNS, LANES):
                        source = place(builder, block, builder.add(row_start, LONG(2 * vector)), stored)
                        loaded = builder.load(source, align=stored.element.width // 8)
                        loaded = loaded if stored == PAIRS else builder.sext(loaded, PAIRS)
                        weights[vector] = builder.bitcast(loaded, WHOLES)
                        prefetch(builder, source, PAIRS.count * stored.element.width // 8, AHEAD)
                    seen = [
                        spread(builder, builder.load(builder.gep(given, [each.index]), align=4), LANES)
                        for given in inputs
                    ]
                    for (row, vector), whole in wholes.items():
                        arguments = builder.load(whole), seen[row], weights[vector]
                        builder.store(call(builder, "llvm.x86.avx512.vpdpwssd.512", WHOLES, *arguments), whole)
                scale = [spread(builder, builder.load(builder.gep(scales.data, [each])), LANES) for each in numbers]
                for (row, vector), total in totals.items():
                    part = builder.sitofp(builder.load(wholes[row, vector]), VECTOR)
                    builder.store(fma(builder, part, scale[row], builder.load(total)), total)
            for (row, vector), total in totals.items():
                to = place(builder, sums.data, builder.add(values[7], LONG(row * BLOCK + vector)), VECTOR)
                builder.store(builder.load(total), to, align=4)
            return context.get_dummy_value()

        whole = types.intp
        return types.void(x, scales, whole, shape, weight, whole, sums, whole), build

    return sum_tile


_one, _two, _three, _four, _five, _six = (_summing(rows) for rows in range(1, TILE_ROWS + 1))


@in_order
def sum_steps(x, scales, first, shape, weight, at, size, sums):
    """Put a convolution of the quantized steps x [P + R, C], at a few of the R rows from `first`, into `sums`.

    `scales` [P + R] belongs to x; the other arguments are those of `sum_rows`. Returns the number of rows, which have
    BLOCK sums each.
    """
    left = x.shape[0] - (shape[0] - 1) * shape[1] - first
    tiles = (left + TILE_ROWS - 1) // TILE_ROWS
    count = (left + tiles - 1) // tiles  # the tiles have similar sizes
    for column in range(0, size, TILE_COLUMNS):
        begin = at + 2 * column
        if count == 6:
            _six(x, scales, first, shape, weight, begin, sums, column)
        elif count == 5:
            _five(x, scales, first, shape, weight, begin, sums, column)
        elif count == 4:
            _four(x, scales, first, shape, weight, begin, sums, column)
        elif count == 3:
            _three(x, scales, first, shape, weight, begin, sums, column)
        elif count == 2:
            _two(x, scales, first, shape, weight, begin, sums, column)
        else:
            _one(x, scales, first, shape, weight, begin, sums, column)
    return count
