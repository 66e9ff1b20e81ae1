"""Helpers for kernel tests: random tensors on a GPU, kernels next to plain references, and tolerances."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # for Triton's interpreter
INTERPRETED = HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"
needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
needs_kernels = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cpu" and not INTERPRETED, reason="needs an NVIDIA GPU, or Triton's interpreter"),
]


def on_gpu(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that needs a GPU."""
    for mark in needs_gpu:
        test = mark(test)
    return test


dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(sum(shape))
    return torch.randn(*shape, device=DEVICE, generator=generator).to(dtype)


def by_both(
    monkeypatch: pytest.MonkeyPatch, modules: ModuleType | Sequence[ModuleType], call: Callable[[], Any]
) -> tuple[Any, Any]:
    """Return the output of these modules' kernels, and of their references."""
    ours = call()
    with monkeypatch.context() as patch:
        for module in [modules] if isinstance(modules, ModuleType) else modules:
            patch.setattr(module, "runs_triton", lambda _: False)
        return ours, call()


def assert_close(ours: Tensor, theirs: Tensor, dtype: torch.dtype) -> None:
    bound = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(ours.float(), theirs.float(), atol=bound, rtol=bound)


def assert_near(ours: Tensor, theirs: Tensor, dtype: torch.dtype) -> None:
    """Compare with a tolerance relative to the largest value, as suits long sums."""
    bound = theirs.float().abs().max() * (1e-5 if dtype == torch.float32 else 2**-6)
    assert (ours.float() - theirs.float()).abs().max() <= bound
