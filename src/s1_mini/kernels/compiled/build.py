"""Compile functions with numba, and manage the cache of compiled code.

Importing this module imports numba, which takes half a second, so import it only when needed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numba
from numba import njit
from numba.core.registry import cpu_target

config: Any = numba.config
CACHE_VARIABLE = "NUMBA_CACHE_DIR"  # numba's variable; S1_MINI_COMPILE_CACHE_PATH sets it
FOLDER = re.compile(r"s1-mini-[0-9a-f]{16}")
UNUSED_S = 30 * 86_400.0
# Triple, processor and features that numba compiles for; NUMBA_ENABLE_AVX=0, for example, excludes some of the host's
TARGET: tuple[str, str, str] = cpu_target.target_context.codegen().magic_tuple()
FEATURES = frozenset(TARGET[2].split(","))  # "+NAME" or "-NAME" each
REMEDY = "set S1_MINI_COMPILE_CACHE_PATH to a folder that only this user can write to"


def in_order(function: Any) -> Any:
    """Compile a function whose sums keep the order of the source; a product and a sum may be fused."""
    return _compile(function, {"contract"})


def in_any_order(function: Any) -> Any:
    """Compile a function whose sums may be reordered, in the same way for all rows of one length."""
    return _compile(function, {"contract", "reassoc", "nsz"})


def _compile(function: Any, freedoms: set[str]) -> Any:
    before = config.CACHE_DIR
    try:
        folder = cache_folder(Path(inspect.getfile(function)))
        make_folder(folder)
        with suppress(OSError):
            os.utime(folder)  # `remove_unused` reads the time of last use
        config.CACHE_DIR = str(folder)
        return njit(cache=True, nogil=True, error_model="numpy", fastmath=freedoms)(function)
    except (OSError, RuntimeError):  # no usable folder
        return njit(nogil=True, error_model="numpy", fastmath=freedoms)(function)
    finally:
        config.CACHE_DIR = before


def cache_folder(source: Path) -> Path:
    """Return the cache folder of a source file. Its name is a hash of everything that the compiled code depends on.

    The hash is needed because numba only checks the file of a function, not the files of the functions that it calls.
    Raises `OSError` if no folder is configured and the user has no home.
    """
    sources = hashlib.sha256(source.read_bytes() + _shared())
    return root() / f"s1-mini-{sources.hexdigest()[:16]}"


def make_folder(folder: Path) -> None:
    """Create a cache folder that only this user can write to, because its content is executed.

    Raises `OSError`, with the remedy, if the folder cannot be created or another user may have written to it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(folder, error) from None
    if hasattr(os, "geteuid"):  # on Windows, folders inherit the permissions of the user's profile
        found = folder.stat()
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
            raise PermissionError(f"other users can write to {folder}, whose contents are executed; {REMEDY}")


def unusable(folder: Path, error: OSError) -> OSError:
    """Return the error, with the folder and the remedy."""
    return OSError(f"the compile cache {folder} cannot be used ({error.strerror or error}); {REMEDY}")


def marker(module: str, formats: Sequence[str]) -> Path:
    """Return the path of the file that marks a module as compiled for these formats of weights.

    Like the names in numba's cache, the file's name depends on the path and the modification time of the module's file.
    Raises `OSError` if no cache folder can be used.
    """
    spec = importlib.util.find_spec(module)
    assert spec is not None, f"module {module} does not exist"
    assert spec.origin is not None, f"{module} is not a file"
    source = Path(spec.origin)
    name = f"{source.resolve()} {source.stat().st_mtime_ns} {' '.join(formats)}"
    folder = cache_folder(source)
    make_folder(folder)
    return folder / hashlib.sha256(name.encode()).hexdigest()[:16]


def remove_unused() -> None:
    """Remove this user's cache folders that have been unused for 30 days.

    Several processes may call this at once. A process that begins to use a folder while it is removed compiles again.
    """
    folders: list[Path] = []
    with suppress(OSError):
        folders = [path for path in root().iterdir() if FOLDER.fullmatch(path.name) and not path.is_symlink()]
    for folder in folders:
        with suppress(OSError):  # another process has removed it
            found = folder.stat()
            is_own = not hasattr(os, "geteuid") or found.st_uid == os.geteuid()
            if is_own and time.time() - found.st_mtime > UNUSED_S:
                shutil.rmtree(folder, ignore_errors=True)  # does nothing if the path is a file


def root() -> Path:
    """Return the configured folder, or `s1_mini` in the user's cache directory.

    Raises `OSError` if no folder is configured and the user has no home.
    """
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named)
    try:
        return _user_cache() / "s1_mini"
    except RuntimeError:
        raise FileNotFoundError(f"this user has no home directory for the compile cache; {REMEDY}") from None


def _user_cache() -> Path:
    """Return the user's cache directory. Raises `RuntimeError` without a home."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base)


@lru_cache
def _shared() -> bytes:
    """Return what all compiled code depends on: this package's files, numba, Python and numba's target."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return b"".join(file.read_bytes() for file in files) + f"{numba.__version__} {sys.version} {TARGET}".encode()
