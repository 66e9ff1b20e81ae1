"""The files that a checkpoint or an artifact is written of: each by its path, its size, and how its bytes are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from s1_mini.exceptions import CheckpointFileError

Chunk = bytes | memoryview

_COPY_BYTES = 2**20


@dataclass(frozen=True)
class Member:
    """One file; `packs` if deflating makes it smaller."""

    name: str
    size: int
    chunks: Callable[[], Iterator[Chunk]]
    packs: bool = False


def copied(path: Path, name: str) -> Member:
    """Let a file be a member. Raises `CheckpointFileError` if it is not there, or is a link or a device."""
    if path.is_symlink() and not path.exists():
        raise CheckpointFileError(f"{path} is a link to nowhere")
    if not path.is_file():
        raise CheckpointFileError(f"{path} is missing" if not path.exists() else f"{path} is no file")
    return Member(name, path.stat().st_size, partial(_read, path), packs=path.suffix not in {".safetensors", ".so"})


def written(name: str, text: str) -> Member:
    """Let a text be a member."""
    content = text.encode()
    return Member(name, len(content), lambda: iter([content]), packs=True)


def write_member(folder: Path, member: Member, chunks: Iterable[Chunk] | None = None) -> None:
    """Write a member into a folder, from `chunks` if somebody looks at them on their way."""
    path = folder / member.name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.writelines(member.chunks() if chunks is None else chunks)


def _read(path: Path) -> Iterator[Chunk]:
    with path.open("rb") as file:
        while chunk := file.read(_COPY_BYTES):
            yield chunk
