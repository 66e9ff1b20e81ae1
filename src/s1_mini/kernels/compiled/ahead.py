"""Compile functions in a process of its own, for others to load."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from s1_mini.kernels.compiled.build import cache_folder, make_folder

CLAIM = ".claim"  # ends the name of the file that is there while one process compiles for all others
RENEW_S = 5.0  # how often that process renews it


def marker(module: str, formats: Sequence[str]) -> Path:
    """Give the file that is there once a module's function is compiled for these formats of weights.

    What numba keeps is of one file, by its path and time: that of another installation is compiled anew. Raises
    `OSError` where no folder can be told.
    """
    spec = importlib.util.find_spec(module)
    assert spec is not None, f"there is no module {module}"
    assert spec.origin is not None, f"{module} is no file"
    source = Path(spec.origin)
    told = f"{source.resolve()} {source.stat().st_mtime_ns} {' '.join(formats)}"
    return cache_folder(source) / hashlib.sha256(told.encode()).hexdigest()[:16]


def is_kept(module: str, formats: Sequence[str]) -> bool:
    """Whether that file is there, in a folder that can be used."""
    try:
        done = marker(module, formats)
        make_folder(done.parent)
    except OSError:
        return False
    return done.exists()


def mark(module: str, formats: Sequence[str]) -> None:
    """Leave that file. Raises `OSError` where there is no place for it."""
    done = marker(module, formats)
    make_folder(done.parent)
    done.touch()


def main(parts: Sequence[tuple[str, Sequence[str]]]) -> int:
    """Compile, giving way to all else that computes, and leave the markers; the claims to do so go.

    `parts` are modules, each of which has a `compile_for(formats)`, with the formats of the weights.
    """
    if hasattr(os, "nice"):
        os.nice(19)
    with suppress(OSError):  # only Linux has it: where memory runs out, this process ends, and not the engine
        Path("/proc/self/oom_score_adj").write_text("1000")
    claims, done = [marker(*part).with_suffix(CLAIM) for part in parts], threading.Event()
    threading.Thread(target=_renew, args=(claims, done), daemon=True).start()
    try:
        for module, formats in parts:
            importlib.import_module(module).compile_for(formats)
            mark(module, formats)
    finally:
        done.set()
        for claim in claims:
            claim.unlink(missing_ok=True)
    return 0


def _renew(claims: Sequence[Path], done: threading.Event) -> None:
    while not done.wait(RENEW_S):
        for claim in claims:
            with suppress(OSError):
                os.utime(claim)
