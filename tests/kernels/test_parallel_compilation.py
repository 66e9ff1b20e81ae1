"""Kernels that are compiled in parallel: each once, by other threads, with the same results as otherwise."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_checks import on_gpu
from s1_mini.kernels import swiglu as module
from s1_mini.kernels.backend import CompiledInParallel, compile_in_parallel
from s1_mini.kernels.swiglu import swiglu


class JITFunction:
    """The part of Triton's class that compiles and launches."""

    def __init__(self) -> None:
        self.cache: dict[str, str] = {}
        self.compiled: list[tuple[str, threading.Thread]] = []
        self.launched: list[str] = []

    def run(self, key: str) -> None:
        kernel = self.cache.get(key) or self._do_compile(key, "signature", warmup=False)
        if kernel is not None:
            self.launched.append(kernel)

    def _do_compile(self, key: str, signature: str, *, warmup: bool) -> Any:
        assert signature == "signature"
        assert not warmup
        if key == "broken":
            raise RuntimeError("no such instruction")
        self.compiled.append((key, threading.current_thread()))
        self.cache[key] = key
        return key


class Kernel(CompiledInParallel, JITFunction): ...


def test_each_kernel_is_compiled_once_by_another_thread_before_the_block_ends() -> None:
    one, other = Kernel(), Kernel()
    with compile_in_parallel(2):
        for kernel in (one, other, one):
            for key in ("few rows", "many rows", "few rows"):
                kernel.run(key)

    for kernel in (one, other):
        assert sorted(key for key, _ in kernel.compiled) == ["few rows", "many rows"]
        assert threading.current_thread() not in {thread for _, thread in kernel.compiled}
        kernel.run("few rows")
        assert kernel.launched[-1] == "few rows"
        assert len(kernel.compiled) == 2


def test_a_kernel_is_not_launched_before_it_is_compiled() -> None:
    kernel, starts = Kernel(), threading.Event()
    compile_now = JITFunction._do_compile

    def wait_and_compile(*arguments: Any, **options: Any) -> Any:
        starts.wait()
        return compile_now(*arguments, **options)

    with pytest.MonkeyPatch.context() as patches, compile_in_parallel(1):
        patches.setattr(JITFunction, "_do_compile", wait_and_compile)
        kernel.run("rows")
        assert not kernel.launched
        starts.set()


def test_a_kernel_that_cannot_be_compiled_raises_its_error_when_it_is_called_after_the_block() -> None:
    kernel = Kernel()
    with compile_in_parallel(1):
        kernel.run("broken")

    with pytest.raises(RuntimeError, match="no such instruction"):
        kernel.run("broken")


def test_kernels_of_other_threads_are_compiled_and_launched_at_once() -> None:
    kernel = Kernel()
    thread = threading.Thread(target=kernel.run, args=["rows"])
    with compile_in_parallel(1):
        thread.start()
        thread.join()

    assert kernel.launched == ["rows"]
    assert kernel.compiled == [("rows", thread)]


def test_tensors_that_no_kernel_fills_are_zero() -> None:
    filled = torch.full((1000,), 7)
    del filled
    with compile_in_parallel(1):
        made = [torch.empty(1000), torch.empty_like(torch.ones(1000)), torch.ones(1).new_empty(1000)]

    assert not any(each.any() for each in made)


@on_gpu
def test_triton_launches_a_kernel_only_after_another_thread_has_compiled_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel: Any = module._swiglu_kernel
    kernel.device_caches.clear()
    x = torch.randn(3, 64, device="cuda")

    with compile_in_parallel(4):
        skipped = swiglu(x)
    assert not skipped.any()
    assert len(list(tmp_path.rglob("*.cubin"))) == 1

    gate, value = x.cpu().chunk(2, dim=-1)
    torch.testing.assert_close(swiglu(x).cpu(), torch.nn.functional.silu(gate) * value)
    assert len(list(tmp_path.rglob("*.cubin"))) == 1
