"""Whether and how `torch.compile` is used on this platform. A choice explains itself; a failure is loud and harmless.

`eager` and `off` both run functions as they are written; `eager` says that this platform or device gave the reason,
`off` that the user did.
"""

from __future__ import annotations

import importlib.util
import logging
import platform
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from s1_mini.config import CompileBackend, CompileSwitch
from s1_mini.types import Choice

logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])


def has_triton() -> bool:
    """Whether there is what inductor generates code with for a GPU."""
    return importlib.util.find_spec("triton") is not None


def choose_backend(
    switch: CompileSwitch,
    backend: CompileBackend,
    *,
    device: str,
    system: str | None = None,
    finds_triton: Callable[[], bool] = has_triton,
) -> Choice:
    """Choose `inductor`, `eager` or `off`, and say why.

    A named backend is obeyed; else inductor is taken on Linux with a GPU and Triton. On a CPU the switch is about
    numba (`ahead.py`).
    `system` is `platform.system()` unless given.
    """
    if switch == "false" or backend == "off":
        return Choice("off", "turned off by S1_MINI_COMPILE or S1_MINI_COMPILE_BACKEND")
    if backend != "auto":
        return Choice(backend, "named by S1_MINI_COMPILE_BACKEND")
    if device != "cuda":
        return Choice("eager", f"inductor does not pay on {device}; S1_MINI_COMPILE_BACKEND=inductor overrides")
    if (system or platform.system()) != "Linux":
        return Choice("eager", "only Linux has Triton, with which inductor generates code")
    if not finds_triton():
        return Choice("eager", "inductor needs Triton for a GPU; it is not installed")
    return Choice("inductor", "Linux with Triton for a GPU")


class Compiler:
    """Compiles functions by one choice. A function that fails to compile runs as written from then on."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice

    def __call__(self, function: Function) -> Function:
        """Return the function to call instead of `function`.

        Inductor, which takes seconds to import, is not touched before the first call: an engine whose steps are
        captured makes none.
        """
        if self.choice.value != "inductor":
            return function
        compiled: Callable[..., Any] | None = None

        def call(*arguments: Any) -> Any:
            nonlocal compiled
            if self.choice.value == "inductor":
                try:
                    compiled = compiled or torch.compile(function, backend="inductor")
                    return compiled(*arguments)
                except torch.OutOfMemoryError:
                    raise
                except (RuntimeError, ImportError, OSError) as error:
                    # Errors of the function itself come again, and are raised, from the call below.
                    self._fall_back(error)
            return function(*arguments)

        return call  # type: ignore[return-value]

    def _fall_back(self, error: Exception) -> None:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        self.choice = Choice("eager", f"inductor failed: {reason}")
        logger.warning("compilation failed, running eager: %s", reason)
