"""Compilation in a separate process, for others to load. Imports numba only to compile."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from filelock import FileLock


def main(parts: Sequence[tuple[str, Sequence[str], str]]) -> int:
    """Compile at low priority what no other process has compiled, and create the markers.

    `parts` are modules, each of which has a `compile_for(formats)`, with the formats of the weights and the marker.
    """
    if hasattr(os, "nice"):
        os.nice(19)
    with suppress(OSError):  # only Linux has it: the first process to be killed when memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000")
    for module, formats, marker in parts:
        with FileLock(f"{marker}.lock"):
            if not Path(marker).exists():
                importlib.import_module(module).compile_for(formats)
                Path(marker).touch()
    return 0
