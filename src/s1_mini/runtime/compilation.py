"""Whether and how `torch.compile` is used on this platform. A choice explains itself; a failure is loud and harmless.

`eager` and `off` both run functions as they are written; `eager` says that this platform or device gave the reason,
`off` that the user did.
"""

from __future__ import annotations

import importlib.util
import logging
import platform
import shutil
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from s1_mini.config import CompileBackend, CompileSwitch
from s1_mini.types import Choice

logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])


def code_generator(device: str) -> str | None:
    """Name what inductor would generate code with for `device`, or None where it is missing."""
    if device == "cuda":
        return "Triton" if importlib.util.find_spec("triton") else None
    return next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)


def choose_backend(
    switch: CompileSwitch,
    backend: CompileBackend,
    *,
    device: str,
    system: str | None = None,
    find_generator: Callable[[str], str | None] = code_generator,
) -> Choice:
    """Choose `inductor`, `eager` or `off`, and say why.

    A named backend is obeyed, and so is a switch; `auto` takes inductor on Linux with a GPU and a code generator.
    `system` is `platform.system()` unless given.
    """
    if switch == "false" or backend == "off":
        return Choice("off", "turned off by S1_MINI_COMPILE or S1_MINI_COMPILE_BACKEND")
    if backend != "auto":
        return Choice(backend, "named by S1_MINI_COMPILE_BACKEND")
    return _choose_automatically(switch == "true", device, system or platform.system(), find_generator)


def _choose_automatically(
    asked_for: bool, device: str, system: str, find_generator: Callable[[str], str | None]
) -> Choice:
    if system != "Linux":
        return Choice("eager", f"{system} has no Triton; inductor is used on Linux")
    generator = find_generator(device)
    if generator is None:
        missing = "Triton" if device == "cuda" else "C++ compiler"
        return Choice("eager", f"inductor needs a {missing} for {device}; none is installed")
    if asked_for:
        return Choice("inductor", f"asked for by S1_MINI_COMPILE; code for {device} is generated with {generator}")
    if device != "cuda":
        return Choice("eager", f"on {device} compiling costs more time than it saves; S1_MINI_COMPILE=true overrides")
    return Choice("inductor", f"Linux with {generator} for {device}")


class Compiler:
    """Compiles functions by one choice. A function that fails to compile runs as written from then on."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice

    def __call__(self, function: Function) -> Function:
        """Give the function to call instead of `function`.

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
