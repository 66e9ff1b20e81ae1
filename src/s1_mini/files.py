"""Open regular files only; rename and delete files that other processes may have open; temporary folders.

Windows refuses to rename or delete a file while a reader, a virus scanner or an indexer has it open, which is usually
brief. On Windows, both operations are therefore retried for about one second.
"""

from __future__ import annotations

import atexit
import codecs
import errno
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

WAITS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading. Raises `OSError`, also for a folder, a device or a FIFO, without waiting.

    Opening a FIFO waits for a writer, and some libraries hold the GIL meanwhile. The type is checked before opening,
    because opening a device may have effects, and again afterwards, because the file may have been replaced.
    """
    _check_regular(os.stat(path), path)
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 - Path.open has no opener; the caller closes it
    try:
        _check_regular(os.fstat(file.fileno()), path)
    except OSError:
        file.close()
        raise
    return file


def foreign_encoding(start: bytes) -> str:
    """Return "UTF-16" or "UTF-32" if a text begins as in that encoding, which Windows programs write; otherwise ""."""
    if start.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)) or b"\0\0" in start[:4]:
        return "UTF-32"
    return "UTF-16" if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in start[:2] else ""


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Read a regular file. Raises `OSError` as `open_regular` does, and with `EFBIG` for more than `max_bytes`."""
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes} bytes", str(path))
    return content


def name_of_open(file: BinaryIO) -> str:
    """Return a path to an open file that stays valid if the file is renamed or replaced, on systems with /dev/fd."""
    name = f"/dev/fd/{file.fileno()}"
    return name if os.path.exists(name) else file.name


_temporary: list[Path] = []


def temporary_folder(prefix: str) -> Path:
    """Create a folder that is deleted with the process. Raises `OSError`."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    _temporary.append(folder)
    return folder


@atexit.register
def delete_temporary_folders() -> None:
    """Delete the folders of `temporary_folder`. Must be called before `os._exit`, which does not call `atexit`."""
    while _temporary:
        shutil.rmtree(_temporary.pop(), ignore_errors=True)


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check_regular(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is a folder, a device or a pipe, not a regular file", str(path))


@dataclass(frozen=True)
class Files:
    """Rename and delete files as the operating system allows; `sleep` waits between retries."""

    is_windows: bool = os.name == "nt"
    sleep: Callable[[float], None] = time.sleep

    def replace(self, source: Path, target: Path) -> None:
        """Rename the file `source` to `target`, which is replaced. Raises `OSError`."""
        self._insist(lambda: source.replace(target))

    def rename(self, source: Path, target: Path) -> None:
        """Rename the folder `source` to `target`, which is missing or, except on Windows, empty. Raises `OSError`."""
        self._insist(lambda: source.rename(target))

    def rename_to_new(self, source: Path, target: Path) -> None:
        """Link the file `source` as `target`, or rename it on file systems without hard links.

        Raises `FileExistsError` if `target` exists, or another `OSError`. Without hard links, a `target` that another
        process creates at the same time may be replaced.
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

    def publish(self, path: Path, content: bytes, *, replace: bool = True) -> None:
        """Write a temporary file and rename it, so that readers see the old file, no file, or the complete new file.

        The same holds after a crash. Raises `OSError`; without `replace`, `FileExistsError` for an existing file.
        """
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".tmp", dir=path.parent)
        unfinished = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unfinished.chmod(0o644)
            if replace:
                self.replace(unfinished, path)
            else:
                self.rename_to_new(unfinished, path)
            self.sync_folder(path.parent)
        finally:
            unfinished.unlink(missing_ok=True)

    def sync_folder(self, folder: Path) -> None:
        """Write the names in a folder to disk, so that they survive a crash. Raises `OSError`."""
        if self.is_windows:  # Windows cannot open a folder; NTFS journals renames
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
