"""Instructions that numba cannot express, for the intrinsics of the compiled kernels."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import extending
from numba.core import cgutils

BYTE, WHOLE, LONG, FLOAT = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
intrinsic: Any = extending.intrinsic


def call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Call an instruction of LLVM."""
    kind = ir.FunctionType(result, [each.type for each in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def fma(builder: Any, first: Any, second: Any, added: Any) -> Any:
    """Return first * second + added, for vectors of float32."""
    kind = first.type
    return call(builder, f"llvm.fmuladd.v{kind.count}f32", kind, first, second, added)


def spread(builder: Any, value: Any, lanes: int) -> Any:
    """Return a vector that repeats a number."""
    lane = builder.insert_element(ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined), value, WHOLE(0))
    return builder.shuffle_vector(lane, lane, ir.Constant(ir.VectorType(WHOLE, lanes), [0] * lanes))


def zeros(kind: Any) -> Any:
    return ir.Constant(kind, [0] * kind.count)


def place(builder: Any, pointer: Any, index: Any, kind: Any) -> Any:
    """Return the address of the vector of type `kind` that begins at `pointer[index]`."""
    return builder.bitcast(builder.gep(pointer, [index]), kind.as_pointer())


def prefetch(builder: Any, pointer: Any, num_bytes: int, ahead: int) -> None:
    """Begin to read the bytes that follow `ahead` bytes after a pointer; they may be outside the array."""
    first = builder.bitcast(pointer, BYTE.as_pointer())
    for line in range(0, num_bytes, 64):
        call(
            builder, "llvm.prefetch.p0", ir.VoidType(), builder.gep(first, [LONG(ahead + line)]), *map(WHOLE, (0, 3, 1))
        )
