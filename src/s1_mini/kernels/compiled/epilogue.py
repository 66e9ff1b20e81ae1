"""`finish`, which turns sums into the outputs of a convolution, 16 numbers at a time."""

# ruff: noqa: ARG001 - the arguments of intrinsics are types, and `build` gets the values

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from s1_mini.kernels.compiled.emit import FLOAT, LONG, WHOLE, call, fma, intrinsic, place, spread

LANES = 16  # numbers in a vector register of AVX-512; LLVM splits the vectors for other processors
VECTOR, MASK = ir.VectorType(FLOAT, LANES), ir.VectorType(ir.IntType(1), LANES)


def _constant(value: float) -> Any:
    return ir.Constant(VECTOR, [value] * LANES)


def _load(builder: Any, pointer: Any, index: Any, mask: Any | None = None) -> Any:
    source = place(builder, pointer, index, VECTOR)
    if mask is None:
        return builder.load(source, align=4)
    return call(builder, "llvm.masked.load.v16f32.p0", VECTOR, source, WHOLE(4), mask, _constant(0.0))


def _store(builder: Any, vector: Any, pointer: Any, index: Any, mask: Any | None) -> None:
    to = place(builder, pointer, index, VECTOR)
    if mask is None:
        builder.store(vector, to, align=4)
    else:
        call(builder, "llvm.masked.store.v16f32.p0", ir.VoidType(), vector, to, WHOLE(4), mask)


def _snake(builder: Any, x: Any, alpha: Any, inverse: Any) -> Any:
    """Return x + sin²(αx) / β, for `inverse` 1 / β."""
    rest = builder.fmul(alpha, x)
    turns = builder.fmul(rest, _constant(0.3183098861837907))  # half turns, because sin² has period π
    turns = call(builder, "llvm.rint.v16f32", VECTOR, turns)
    for part in (3.140625, 9.67502593994140625e-4, 1.5099579909e-7):  # π
        rest = fma(builder, turns, _constant(-part), rest)
    square, total = builder.fmul(rest, rest), _constant(-2.5052108385e-8)
    for factor in (2.7557319224e-6, -1.9841269841e-4, 8.3333333333e-3, -1.6666666667e-1):  # Taylor series of the sine
        total = fma(builder, square, total, _constant(factor))
    wave = fma(builder, builder.fmul(rest, square), total, rest)
    return fma(builder, builder.fmul(wave, wave), inverse, x)


@intrinsic
def finish(_, sums, width, count, size, terms, skip, keeps, has_snake, out, at, outputs):
    """Put the outputs of `count` rows of `size` outputs each into `out`, the first at `at`, the next `outputs` later.

    A row of `sums` begins every `width` numbers. `terms` [4, BLOCK] has factor, offset, α and 1 / β of each output. The
    product of sum and factor, plus offset and `skip`, is put into `keeps` and, with Snake if `has_snake`, into `out`.
    `skip` and `keeps` are indexed as `out`, and may be empty. An output has the same bits in any row.
    """

    def build(context, builder, signature, values):
        sums, terms, skip, keeps, out = (
            context.make_array(signature.args[n])(context, builder, values[n]) for n in (0, 4, 5, 6, 8)
        )
        _, width, count, size, _, _, _, has_snake, _, at, outputs = values
        block = builder.extract_value(terms.shape, 1)
        skips, does_keep = (builder.icmp_signed(">", each.nitems, LONG(0)) for each in (skip, keeps))

        def emit(row, column, mask):
            index = builder.add(builder.add(at, builder.mul(row, outputs)), column)

            def term(number):
                return _load(builder, terms.data, builder.add(builder.mul(LONG(number), block), column))

            output = cgutils.alloca_once(builder, VECTOR)
            total = _load(builder, sums.data, builder.add(builder.mul(row, width), column))
            builder.store(fma(builder, total, term(0), term(1)), output)
            with builder.if_then(skips):
                added = _load(builder, skip.data, index, mask)
                builder.store(builder.fadd(builder.load(output), added), output)
            with builder.if_then(does_keep):
                _store(builder, builder.load(output), keeps.data, index, mask)
            with builder.if_then(has_snake):
                builder.store(_snake(builder, builder.load(output), term(2), term(3)), output)
            _store(builder, builder.load(output), out.data, index, mask)

        vectors = builder.sdiv(builder.add(size, LONG(LANES - 1)), LONG(LANES))
        with cgutils.for_range(builder, count) as row, cgutils.for_range(builder, vectors) as vector:
            column = builder.mul(vector.index, LONG(LANES))
            left = builder.sub(size, column)
            with builder.if_else(builder.icmp_signed(">=", left, LONG(LANES))) as (whole, partial):
                with whole:
                    emit(row.index, column, None)
                with partial:
                    numbers = ir.Constant(ir.VectorType(LONG, LANES), list(range(LANES)))
                    emit(row.index, column, builder.icmp_signed("<", numbers, spread(builder, left, LANES)))
        return context.get_dummy_value()

    whole = types.intp
    return types.void(sums, whole, whole, whole, terms, skip, keeps, types.boolean, out, whole, whole), build
