"""Entry point of a separate process that compiles for other processes. numba is imported only if there is work."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from filelock import FileLock


def main(parts: Sequence[tuple[str, Sequence[str], str]]) -> int:
    """Compile the parts that no other process has compiled, at low priority, and create their marker files.

    Each part consists of a module with `compile_for(formats)`, the formats of its weights, and the path of a marker
    file, which exists once the module is compiled for these formats.
    """
    if hasattr(os, "nice"):
        os.nice(19)
    with suppress(OSError):  # Linux only: let the kernel kill this process first when memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000")
    for module, formats, marker in parts:
        try:
            with FileLock(f"{marker}.lock"):
                if not Path(marker).exists():
                    importlib.import_module(module).compile_for(formats)
                    Path(marker).touch()
        except OSError as error:  # such as a full disk
            from s1_mini.kernels.compiled.build import unusable

            raise unusable(Path(marker).parent, error) from None
    return 0
