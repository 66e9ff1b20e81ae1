"""The optional import of Triton, and the compilation and launch options of kernels.

On GPUs of compute capability 9 and above, a kernel is launched while the previous kernel still runs (programmatic
dependent launch): it prefetches its inputs, then waits for the end of the previous kernel with `wait_for_last`. Every
kernel launched in this way must call `wait_for_last`, because the next kernel relies on this wait. A kernel may begin
while several earlier kernels still run. Before its wait, a kernel may only read data that no kernel of its frame
writes: weights, and the state at the end of the previous frame. The first kernel of a frame is therefore never launched
early.

Floating-point sums depend on the order of their terms. Within `batch_invariance`, every kernel sums a row's numbers in
an order that depends neither on the number of rows nor on the row's place in the batch: sums are split in the same way
for every batch, and only the number of rows and outputs per program may vary.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

try:
    import triton
    import triton.language as tl
except ImportError:  # not on Windows, macOS and CPU builds
    triton = tl = None

HAS_TRITON = triton is not None
_uses_triton = HAS_TRITON
_is_batch_invariant: ContextVar[bool] = ContextVar("is_batch_invariant", default=False)
_compiler: ContextVar[_Compiler | None] = ContextVar("compiler", default=None)


def runs_triton(x: Tensor) -> bool:
    """Return whether a Triton kernel handles this tensor. Under torch.compile, inductor generates its own kernels."""
    return _uses_triton and x.is_cuda and not torch.compiler.is_compiling()


def leave_triton() -> None:
    """Use torch instead of Triton from now on, in all threads. For machines whose installed Triton does not work."""
    global _uses_triton  # noqa: PLW0603 - one switch per process
    _uses_triton = False


def current(device: torch.device) -> AbstractContextManager[object]:
    """Set this thread's current GPU: Triton launches kernels there, even if their tensors are on another device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def without_triton() -> Iterator[None]:
    """Use torch instead of Triton within this block, in all threads, to compute reference results for kernels."""
    global _uses_triton  # noqa: PLW0603 - one switch per process
    before, _uses_triton = _uses_triton, False
    try:
        yield
    finally:
        _uses_triton = before


def is_batch_invariant() -> bool:
    """Return whether a row's sums must not depend on the other rows."""
    return _is_batch_invariant.get()


@contextmanager
def batch_invariance(enabled: bool = True) -> Iterator[None]:
    """Run this thread's kernels in batch-invariant mode within this block, if `enabled`."""
    token = _is_batch_invariant.set(enabled)
    try:
        yield
    finally:
        _is_batch_invariant.reset(token)


@contextmanager
def compile_in_parallel(threads: int) -> Iterator[None]:
    """Compile, in other threads, all kernels that this thread calls in this block, and wait for them at its end.

    A call of a kernel that is not compiled yet only submits it to the compiler. Tensors that such a kernel should have
    filled are zero, so that they remain valid indices. Use this block only for calls whose results are not needed. A
    kernel that cannot be compiled raises its error when it is called after the block. Most of Triton's compiler runs
    without the GIL.
    """
    with ThreadPoolExecutor(threads, "s1_mini kernels") as pool, _Zeros():
        token = _compiler.set(_Compiler(pool))
        try:
            yield
        finally:
            _compiler.reset(token)


class _Compiler:
    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._submitted: set[Hashable] = set()

    def submit(self, key: Hashable, compile_kernel: Callable[[], object]) -> None:
        if key not in self._submitted:
            self._submitted.add(key)
            self._pool.submit(compile_kernel)


class _Zeros(TorchFunctionMode):
    """Fill new tensors with zeros."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _FILLED.get(func, func)(*args, **(kwargs or {}))


_FILLED: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.empty: torch.zeros,
    torch.empty_like: torch.zeros_like,
    Tensor.new_empty: Tensor.new_zeros,
}


class CompiledInParallel:
    """What a kernel adds to Triton's `JITFunction` for `compile_in_parallel`."""

    def _do_compile(self, key: str, *specialization: Any, **options: Any) -> Any:
        """Compile a specialization of the kernel, or return None, so that Triton does not launch it."""
        compile_now = partial(super()._do_compile, key, *specialization, **options)  # type: ignore[misc]
        compiler = _compiler.get()
        if compiler is None:
            return compile_now()
        compiler.submit((id(self), key), compile_now)
        return None


if HAS_TRITON:

    class _Kernel(CompiledInParallel, triton.JITFunction): ...


def jit(function: Any) -> Any:
    """Mark a Triton kernel; without Triton it is never called."""
    return jit_for_any()(function)


def jit_for_any(*names: str) -> Callable[[Any], Any]:
    """Mark a Triton kernel that is compiled once for all values of these arguments.

    By default, Triton compiles a kernel again for special values, such as 1.
    """
    if not HAS_TRITON:
        return lambda function: function
    make = triton.jit if triton.knobs.runtime.interpret else _Kernel
    return lambda function: make(function, do_not_specialize=names)


@lru_cache
def follows_early(device: torch.device) -> bool:
    """Return whether kernels on this device may start before the previous one has ended."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@lru_cache
def shared_memory(device: torch.device) -> int:
    """Return how many bytes of shared memory a program may use on this GPU."""
    # The attribute is missing in torch's type stubs.
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin  # type: ignore[attr-defined,unused-ignore]


def launch(x: Tensor) -> dict[str, Any]:
    """Return the launch options of a kernel that calls `wait_for_last`, for the device of x."""
    return {"EARLY": True, "launch_pdl": True} if follows_early(x.device) else {"EARLY": False}


@jit
def wait_for_last(EARLY: tl.constexpr):
    """Allow the next kernel to launch, then wait until the results of all earlier kernels can be read."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@jit
def dequantize(x, like, EARLY: tl.constexpr):
    """Convert int8 or fp8 to the dtype of `like`.

    Below capability 9, numbers are first converted to fp32, because Triton cannot convert fp8 to bf16 there.
    """
    if EARLY:
        return x.to(like.dtype)
    if x.dtype == like.dtype:
        return x
    return x.to(tl.float32).to(like.dtype)


@jit
def fetch_ahead(pointers):
    """Prefetch the cache lines at these addresses into the L2 cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [pointers.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
