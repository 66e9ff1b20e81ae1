"""Write an artifact in one of its two forms, each file hashed while it passes, the manifest last.

`archive` is one `.tar.gz` for `ModelDataUrl`, `prefix` a folder of plain files for an uncompressed `ModelDataSource`.
What fails leaves nothing behind, and nothing that exists is written over.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from s1_mini.exceptions import PackageError
from s1_mini.files import files
from s1_mini.packaging import manifest as manifest_file
from s1_mini.packaging.archive import ArchiveWriter
from s1_mini.packaging.manifest import Content, Manifest
from s1_mini.version import __version__
from s1_mini.weights.members import Chunk, Member, write_member
from s1_mini.weights.origin import Origin
from s1_mini.weights.write import new_directory

Progress = Callable[[int], None]  # is told how many bytes more are done


def write_archive(
    members: Iterable[Member], output: Path, *, origin: Origin | None = None, progress: Progress = lambda _: None
) -> Manifest:
    """Write a new `.tar.gz`, the same bytes for the same members. Raises `PackageError`."""
    contents: dict[str, Content] = {}
    with _new_file(output) as path, path.open("wb") as file, ArchiveWriter(file) as archive:
        for member in members:
            passing = _Passing(member.chunks(), progress)
            archive.add(member.name, member.size, passing, packs=member.packs)
            contents[member.name] = passing.content()
        manifest = _manifest(contents, origin)
        text = manifest.to_bytes()
        archive.add(manifest_file.NAME, len(text), [text], packs=True)
    return manifest


def write_prefix(
    members: Iterable[Member], output: Path, *, origin: Origin | None = None, progress: Progress = lambda _: None
) -> Manifest:
    """Write a new folder of plain files. Raises `PackageError`."""
    contents: dict[str, Content] = {}
    with new_directory(output) as folder:
        for member in members:
            passing = _Passing(member.chunks(), progress)
            write_member(folder, member, passing)
            contents[member.name] = passing.content()
        manifest = _manifest(contents, origin)
        (folder / manifest_file.NAME).write_bytes(manifest.to_bytes())
    return manifest


def _manifest(contents: dict[str, Content], origin: Origin | None) -> Manifest:
    return Manifest(__version__, torch.__version__.partition("+")[0], contents, origin)


class _Passing:
    """Chunks on their way into a file, hashed and counted."""

    def __init__(self, chunks: Iterable[Chunk], progress: Progress) -> None:
        self._chunks, self._progress = chunks, progress
        self._hash, self._size = hashlib.sha256(), 0

    def __iter__(self) -> Iterator[Chunk]:
        for chunk in self._chunks:
            self._hash.update(chunk)
            self._size += len(chunk)
            yield chunk
            self._progress(len(chunk))

    def content(self) -> Content:
        return Content(self._hash.hexdigest(), self._size)


@contextmanager
def _new_file(output: Path) -> Iterator[Path]:
    """Give a path to write to; it becomes `output` at the end, or vanishes if anything fails."""
    if output.exists():
        raise PackageError(f"{output} exists already; name a new file")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{output.name}-", dir=output.parent)
        os.close(handle)
    except OSError as error:
        raise PackageError(f"{output} cannot be written: {error.strerror}") from None
    path = Path(name)
    try:
        yield path
        path.chmod(0o644)  # made private by tempfile
        files.rename_to_new(path, output)
    except OSError as error:
        raise PackageError(f"{output} cannot be written: {error.strerror or error}") from None
    finally:
        path.unlink(missing_ok=True)
