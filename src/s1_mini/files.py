"""Give files their names, and take files away, while others may be looking at them.

Windows refuses both as long as a reader, a virus scanner or an indexer has the file open, which is a moment; so it is
asked again for a second. Elsewhere everything is done at once, or never.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

WAITS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)


@dataclass(frozen=True)
class Files:
    """How files are renamed and deleted on one system; `sleep` waits for others to let go."""

    is_windows: bool = os.name == "nt"
    sleep: Callable[[float], None] = time.sleep

    def replace(self, source: Path, target: Path) -> None:
        """Let `source` be `target`, instead of what was there. Raises `OSError`."""
        self._insist(lambda: source.replace(target))

    def rename(self, source: Path, target: Path) -> None:
        """Let the folder `source` be `target`, which is not there or, but for Windows, empty. Raises `OSError`."""
        self._insist(lambda: source.rename(target))

    def rename_to_new(self, source: Path, target: Path) -> None:
        """Let the file `source` be `target`; it may go on to be `source`, too.

        Raises `FileExistsError` if `target` is there, whoever was first, other processes too, or `OSError`.
        """
        try:
            os.link(source, target)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            if target.exists():
                raise FileExistsError(target) from None
            self.replace(source, target)

    def remove(self, path: Path) -> None:
        """Delete a file. Raises `FileNotFoundError` or another `OSError`."""
        self._insist(path.unlink)

    def sync_folder(self, folder: Path) -> None:
        """Have the names in a folder outlast a crash. Raises `OSError`."""
        if self.is_windows:  # where a folder cannot be opened, and renames are in its journal
            return
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _insist(self, work: Callable[[], object]) -> None:
        for wait_s in WAITS_S if self.is_windows else ():
            try:
                work()
            except PermissionError:
                self.sleep(wait_s)
            else:
                return
        work()


files = Files()
