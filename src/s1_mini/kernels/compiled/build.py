"""How functions are compiled, and where what was compiled is kept for the next start.

Importing this imports numba, which takes half a second: it is imported when it is to be used.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
from numba import njit

config: Any = numba.config
CACHE_VARIABLE = "NUMBA_CACHE_DIR"  # numba's own; S1_MINI_COMPILE_CACHE_PATH sets it


def in_order(function: Any) -> Any:
    """Compile a function whose sums are made in the order that is written; a product and a sum may be one step."""
    return _compile(function, {"contract"})


def in_any_order(function: Any) -> Any:
    """Compile a function whose sums may be made in another order, the same for all rows of one length."""
    return _compile(function, {"contract", "reassoc", "nsz"})


def _compile(function: Any, freedoms: set[str]) -> Any:
    folder, config.CACHE_DIR = config.CACHE_DIR, str(cache_folder(Path(inspect.getfile(function))))
    try:
        return njit(cache=True, nogil=True, error_model="numpy", fastmath=freedoms)(function)
    except RuntimeError:  # there is no folder that could be written to
        return njit(nogil=True, error_model="numpy", fastmath=freedoms)(function)
    finally:
        config.CACHE_DIR = folder


def cache_folder(source: Path) -> Path:
    """Give the folder for what a source file and the kernels that it builds on become on this processor.

    numba looks at the file of a function alone, not at those of the functions that it calls.
    """
    sources = hashlib.sha256(source.read_bytes() + _shared())
    return root() / f"s1-mini-{sources.hexdigest()[:16]}"


def root() -> Path:
    """Give the folder that the variable names, else the user's own for what can be made again."""
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "s1_mini"


@lru_cache
def _shared() -> bytes:
    """Give all that the compiled code depends on beside a family's own file."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    processor = f"{llvmlite.binding.get_host_cpu_name()} {llvmlite.binding.get_host_cpu_features().flatten()}"
    return b"".join(file.read_bytes() for file in files) + f"{numba.__version__} {sys.version} {processor}".encode()
