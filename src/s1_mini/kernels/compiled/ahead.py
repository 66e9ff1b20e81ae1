"""Compile a function in a process of its own, for others to load."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

from s1_mini.kernels.compiled.build import cache_folder

CLAIM = ".claim"  # ends the name of the file that is there while one process compiles for all others


def marker(module: str, formats: Sequence[str]) -> Path:
    """Give the file that is there once a module's function is compiled for these formats of weights."""
    spec = importlib.util.find_spec(module)
    assert spec is not None, f"there is no module {module}"
    assert spec.origin is not None, f"{module} is no file"
    return cache_folder(Path(spec.origin)) / hashlib.sha256(" ".join(formats).encode()).hexdigest()[:16]


def mark(module: str, formats: Sequence[str]) -> None:
    """Leave that file. Raises `OSError` where there is no place for it."""
    done = marker(module, formats)
    done.parent.mkdir(parents=True, exist_ok=True)
    done.touch()


def main(arguments: Sequence[str]) -> int:
    """Compile, giving way to all else that computes, and leave the marker; the claim to do so goes.

    `arguments` are a module, which has a `compile_for(formats)`, and the formats of the weights.
    """
    module, *formats = arguments
    if hasattr(os, "nice"):
        os.nice(19)
    try:
        importlib.import_module(module).compile_for(formats)
        mark(module, formats)
    finally:
        marker(module, formats).with_suffix(CLAIM).unlink(missing_ok=True)
    return 0
