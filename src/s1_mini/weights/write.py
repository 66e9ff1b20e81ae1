"""Write the files of checkpoints and artifacts. torch is imported only to write tensors."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s1_mini.exceptions import CheckpointFileError, PackageError
from s1_mini.files import files

if TYPE_CHECKING:
    from torch import Tensor

Chunk = bytes | memoryview

_COPY_BYTES = 2**20


@dataclass(frozen=True)
class ArchiveEntry:
    """A file to write into a checkpoint or an artifact."""

    name: str  # path in the checkpoint or artifact
    size: int  # bytes
    chunks: Callable[[], Iterator[Chunk]]  # returns the content


def copied(path: Path, name: str) -> ArchiveEntry:
    """Return an entry with the content of a file. Raises `CheckpointFileError` if `path` is not a file."""
    if not path.is_file():
        fault = "is not a file" if path.exists() else "is a broken link" if path.is_symlink() else "is missing"
        raise CheckpointFileError(f"{path} {fault}")
    return ArchiveEntry(name, path.stat().st_size, partial(_read, path))


def voice_file(name: str, tensors: Mapping[str, Tensor]) -> ArchiveEntry:
    """Return an entry with a voice's tensors and one metadata key, because several keys would be in random order."""
    from safetensors.torch import save

    content = save(dict(tensors), metadata={"text": ""})
    return ArchiveEntry(name, len(content), lambda: iter([content]))


def written(name: str, text: str) -> ArchiveEntry:
    content = text.encode()
    return ArchiveEntry(name, len(content), lambda: iter([content]))


def write_member(folder: Path, member: ArchiveEntry, chunks: Iterable[Chunk] | None = None) -> None:
    """Write an entry into a folder; `chunks`, if given, replace the entry's own content."""
    path = folder / member.name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.writelines(member.chunks() if chunks is None else chunks)


def _read(path: Path) -> Iterator[Chunk]:
    with path.open("rb") as file:
        while chunk := file.read(_COPY_BYTES):
            yield chunk


def check_new_directory(directory: Path) -> None:
    """Raise `CheckpointFileError` if `directory` exists and is not empty."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise CheckpointFileError(f"{directory} already exists; choose a new directory, or delete it")


def check_new_file(path: Path) -> None:
    """Raise `PackageError` if `path` exists."""
    if path.exists():
        raise PackageError(f"{path} already exists; name a new file, or delete it")


@contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """Yield a temporary folder to write into. It is renamed to `directory` at the end, or removed if anything fails.

    Raises `CheckpointFileError` if `directory` exists and is not empty, or cannot be written.
    """
    check_new_directory(directory)
    prefix, parent = f".{directory.name}-", directory.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise CheckpointFileError(f"{directory} cannot be written: {error.strerror}") from None
    try:
        with temporary as name:
            target = Path(name)
            yield target
            for path in (target, *target.rglob("*")):  # tempfile and safetensors create private files
                path.chmod(0o755 if path.is_dir() else 0o644)
            if directory.exists():
                directory.rmdir()
            files.rename(target, directory)
    except OSError as error:
        raise CheckpointFileError(f"{directory} cannot be written: {error}") from None


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write an indented JSON object, with the same bytes on every system."""
    path.write_bytes((json.dumps(value, indent=2) + "\n").encode())


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a `.pth` file if `path` has that suffix, otherwise to a `.safetensors` file."""
    import torch
    from safetensors.torch import save_file

    if path.suffix == ".pth":
        torch.save(dict(tensors), path)
    else:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
