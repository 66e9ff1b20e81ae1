"""Products of a few rows with packed weights, by one thread or by several that share the blocks of outputs.

Each output is summed in the order of its inputs, so its bits depend on neither the rows nor the threads.
Helper threads call `help_out` during a step, and the thread of the step calls `team_product`. They share a `team`, an
array that describes the current product. Blocks are claimed one by one, so a helper that does not run delays nothing
unless it has claimed a block. numba's own threads are not used, because its default ones allow only one caller.
Shapes: R rows, K inputs, N outputs.
"""

# ruff: noqa: ARG001 - the arguments of intrinsics are types, and `build` gets the values

from __future__ import annotations

import sys
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.np.numpy_support import carray

from s1_mini.kernels.compiled.build import in_order
from s1_mini.kernels.compiled.product import BLOCK

f32 = np.float32
intrinsic: Any = extending.intrinsic
AHEAD = 4096  # bytes; the processor's own prefetch stops at the end of a page, and is late after it

# Places in a team, on separate cache lines. A ticket has the product's number, the number of its blocks, and that of
# the next block to compute, in 32, 16 and 16 bits.
TICKET, DONE, ENDED, NUM_HELPERS, FIELDS, TEAM_SIZE = 0, 8, 16, 24, 25, 40


if sys.platform == "win32":  # a helper then keeps its core during a step

    @in_order
    def yield_core():
        """Do nothing."""

else:
    yield_core: Any = types.ExternalFunction("sched_yield", types.int32())


def dequantize(_weight):
    """Return a weight in float32. Only a name for numba, which compiles `_dequantize` in its place."""


@extending.overload(dequantize, inline="always")
def _dequantize(weight):
    if weight == numba.uint16:
        return lambda weight: np.uint32(np.uint32(weight) << np.uint32(16)).view(np.float32)
    return lambda weight: np.float32(weight)  # noqa: PLW0108 - numba inlines it


def _address(context, builder, kinds, values):
    """Return the address of a number of an array."""
    return builder.gep(context.make_array(kinds[0])(context, builder, values[0]).data, [values[1]])


@intrinsic
def _prefetch(_, array, index):
    """Begin to read a number of an array, which may be outside it."""

    def build(context, builder, signature, values):
        byte, whole = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, whole, whole, whole])
        address = builder.bitcast(_address(context, builder, signature.args, values), byte)
        builder.call(builder.module.declare_intrinsic("llvm.prefetch", [byte], kind), [address, *map(whole, (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.intp), build


@intrinsic
def _load(_, array, index):
    """Return a number of a team; later reads see what was written before it was stored."""

    def build(context, builder, signature, values):
        return builder.load_atomic(_address(context, builder, signature.args, values), "acquire", 8)

    return types.int64(array, types.intp), build


@intrinsic
def _store(_, array, index, value):
    """Store a number of a team after everything that was written before."""

    def build(context, builder, signature, values):
        builder.store_atomic(values[2], _address(context, builder, signature.args, values), "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.int64), build


@intrinsic
def _add(_, array, index, value):
    """Add to a number of a team."""

    def build(context, builder, signature, values):
        return builder.atomic_rmw("add", _address(context, builder, signature.args, values), values[2], "acq_rel")

    return types.int64(array, types.intp, types.int64), build


@intrinsic
def _replace(_, array, index, before, after):
    """Replace a number of a team if it is `before`; return whether it was."""

    def build(context, builder, signature, values):
        address = _address(context, builder, signature.args, values)
        return builder.extract_value(builder.cmpxchg(address, values[2], values[3], "acq_rel", "acquire"), 1)

    return types.boolean(array, types.intp, types.int64, types.int64), build


@intrinsic
def _pointer(_, address):
    def build(_context, builder, _signature, values):
        return builder.inttoptr(values[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), build


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
            _prefetch(weight, place)
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


@in_order
def team_product(x, weight, scale, bias, out, team):
    """Compute `product` with the helpers of a team; all arrays are contiguous."""
    count = (out.shape[1] + BLOCK - 1) // BLOCK
    if team[NUM_HELPERS] == 0 or count == 1:
        product(x, weight, scale, bias, out)
        return
    team[FIELDS], team[FIELDS + 1], team[FIELDS + 2] = x.ctypes.data, x.shape[0], x.shape[1]
    team[FIELDS + 3], team[FIELDS + 4] = weight.ctypes.data, weight.itemsize
    team[FIELDS + 5], team[FIELDS + 6] = scale.ctypes.data, bias.ctypes.data
    team[FIELDS + 7], team[FIELDS + 8] = out.ctypes.data, out.shape[1]
    _store(team, DONE, 0)
    _store(team, TICKET, ((_load(team, TICKET) >> 32) + 1) << 32 | count << 16)
    while True:
        ticket = _load(team, TICKET)
        if ticket & 0xFFFF == count:
            break
        if _replace(team, TICKET, ticket, ticket + 1):
            _block(x, weight, scale, bias, out, (ticket & 0xFFFF) * BLOCK)
            _add(team, DONE, 1)
    while _load(team, DONE) < count:  # blocks that helpers have claimed; one may wait for this core
        yield_core()


@in_order
def help_out(team, number):
    """Compute blocks of the team's products until step `number` has ended."""
    while _load(team, ENDED) < number:
        ticket = _load(team, TICKET)
        if ticket & 0xFFFF == (ticket >> 16) & 0xFFFF:
            yield_core()
            continue
        # If the fields belong to another product, the ticket has changed too, and is not replaced.
        x, rows, inputs = team[FIELDS], team[FIELDS + 1], team[FIELDS + 2]
        weight, size, scale, bias = team[FIELDS + 3], team[FIELDS + 4], team[FIELDS + 5], team[FIELDS + 6]
        out, outputs = team[FIELDS + 7], team[FIELDS + 8]
        if not _replace(team, TICKET, ticket, ticket + 1):
            continue
        first, shape = (ticket & 0xFFFF) * BLOCK, inputs * outputs
        rows_in = carray(_pointer(x), (rows, inputs), np.float32)
        rows_out = carray(_pointer(out), (rows, outputs), np.float32)
        scales = carray(_pointer(scale), (outputs,), np.float32)
        biases = carray(_pointer(bias), (outputs,), np.float32)
        if size == 1:
            _block(rows_in, carray(_pointer(weight), (shape,), np.int8), scales, biases, rows_out, first)
        elif size == 2:
            _block(rows_in, carray(_pointer(weight), (shape,), np.uint16), scales, biases, rows_out, first)
        else:
            _block(rows_in, carray(_pointer(weight), (shape,), np.float32), scales, biases, rows_out, first)
        _add(team, DONE, 1)
