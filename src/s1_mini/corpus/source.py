"""The input of a corpus: files of this machine or of S3, read once to know them and once more to speak them.

Lines are numbered over all files, and shards cut by that number, so the same input gives the same shards at every run.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s1_mini.aws.place import S3Place
from s1_mini.corpus.errors import CorpusError
from s1_mini.corpus.lines import SUFFIXES, Line, header_of, read_lines
from s1_mini.corpus.rows import BadLine, Columns, Defaults, Row, Shard, check, id_of, voice_of
from s1_mini.exceptions import ParameterError

USUAL = ("text", "id", "voice", "seed", "parameters")
_MAX_NAMED = 20  # columns in a sentence


@dataclass(frozen=True)
class InputFile:
    """One file as it was when it was looked through."""

    name: str
    path: Path
    sha256: str
    stamp: tuple[int, int]  # size in bytes, time of the last change


@dataclass(frozen=True)
class Source:
    """The texts of a corpus."""

    files: tuple[InputFile, ...]
    columns: Columns
    defaults: Defaults
    shard_size: int
    num_lines: int
    voices: frozenset[str] = frozenset()  # that lines or the defaults name

    @property
    def num_shards(self) -> int:
        """Shards that the lines make."""
        return -(-self.num_lines // self.shard_size)

    def shards(self) -> Iterator[Shard]:
        """Give all lines in shards. Raises `CorpusError` if a file has changed meanwhile."""
        number, lines = 0, list[Row | BadLine]()
        for file, line in _all_lines(self.files, self.columns.names):
            lines.append(check(line, number, file.name, self.columns, self.defaults))
            number += 1
            if number % self.shard_size == 0:
                self._check_files()
                yield Shard(number // self.shard_size - 1, tuple(lines))
                lines = []
        self._check_files()
        if lines:
            yield Shard(number // self.shard_size, tuple(lines))

    def _check_files(self) -> None:
        for file in self.files:
            if _stamp(file.path) != file.stamp:
                raise CorpusError(f"{file.name} has changed while it was spoken; name a new output, and run this again")


@contextmanager
def open_source(place: str, asked: Mapping[str, str | None], defaults: Defaults, shard_size: int) -> Iterator[Source]:
    """Look through a file, a folder, or an object or a prefix of S3.

    `asked` names columns by what they are for (`USUAL`): None is the usual name if it is there, "" is no column.
    Raises `CorpusError` for what cannot be read, a column that is not there, an id that is there twice.
    """
    with tempfile.TemporaryDirectory(prefix="s1-mini-corpus-") as folder:
        paths = _download(S3Place.parse(place), Path(folder)) if place.startswith("s3://") else _find(Path(place))
        files = tuple(InputFile(path.name, path, sha256_of(path), _stamp(path)) for path in paths)
        columns = _choose(asked, files)
        num_lines, voices = _look_through(files, columns)
        if not num_lines:
            raise CorpusError(f"{place} holds no text: all of it is blank")
        voices |= {defaults.voice} if defaults.voice else set()
        yield Source(files, columns, defaults, shard_size, num_lines, frozenset(voices))


def _all_lines(files: tuple[InputFile, ...], columns: list[str]) -> Iterator[tuple[InputFile, Line]]:
    for file in files:
        for line in read_lines(file.path, columns):
            yield file, line


def _find(path: Path) -> list[Path]:
    if not path.exists():
        raise CorpusError(f"{path} is not there; name a file that ends in {', '.join(SUFFIXES)}, or a folder of them")
    found = sorted(one for one in path.iterdir() if _is_read(one.name) and one.is_file()) if path.is_dir() else [path]
    if not found or not all(_is_read(one.name) for one in found):
        raise CorpusError(f"{path} is no file that is read, nor a folder of such; it must end in {', '.join(SUFFIXES)}")
    return found


def _is_read(name: str) -> bool:
    return Path(name).suffix.lower() in SUFFIXES and not name.startswith((".", "_"))


def _download(place: S3Place, folder: Path) -> list[Path]:
    """Bring an object, or those directly below a prefix, to this machine."""
    from s1_mini.aws.clients import Clients
    from s1_mini.aws.failures import About, explained

    about = About(doing=f"{place} cannot be read", bucket=place.bucket, needs="s3:GetObject, s3:ListBucket")
    with explained(about, CorpusError):
        client = Clients()["s3"]
        is_file = _is_read(place.key.rpartition("/")[2])
        keys = [place.key] if is_file and _is_there(client, place) else _below(client, place)
        wanted = sorted(key for key in keys if _is_read(key.rpartition("/")[2]))
        if not wanted:
            told = "is not there" if is_file else f"holds no object that ends in {', '.join(SUFFIXES)}"
            raise CorpusError(f"{place} {told}")
        paths = [folder / key.rpartition("/")[2] for key in wanted]
        for key, path in zip(wanted, paths, strict=True):
            client.download_file(place.bucket, key, str(path))
        return paths


def _is_there(client: Any, place: S3Place) -> bool:
    from s1_mini.aws.failures import is_missing

    try:
        client.head_object(Bucket=place.bucket, Key=place.key)
    except client.exceptions.ClientError as error:
        if is_missing(error):
            return False
        raise
    return True


def _below(client: Any, place: S3Place) -> list[str]:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=place.bucket, Prefix=place.join(""), Delimiter="/")
    return [one["Key"] for page in pages for one in page.get("Contents", [])]


def _choose(asked: Mapping[str, str | None], files: tuple[InputFile, ...]) -> Columns:
    """Find the columns that are to be used, where all files are sure to have them."""
    names: dict[str, Any] = {}
    found = [(file, header if (header := header_of(file.path)) is not None else _keys(file)) for file in files]
    for purpose in USUAL:
        name = asked.get(purpose)
        for file, columns in found:
            wanted = purpose == "text" or bool(name)
            if wanted and (name or purpose) not in columns:
                told = ", ".join(columns[:_MAX_NAMED]) + (", …" if len(columns) > _MAX_NAMED else "")
                raise CorpusError(
                    f"{file.name} has no column {name or purpose!r}: there are {told or 'none'}; "
                    f"name one with --{purpose}-column"
                )
        is_there = any((name or purpose) in columns for _, columns in found)
        names[purpose] = (name or purpose) if is_there and (name != "" or purpose == "text") else None
    return Columns(**names)


def _keys(file: InputFile) -> list[str]:
    """Give the keys of all lines of a file of JSON lines, in the order in which they come."""
    keys: dict[str, None] = {}
    for line in read_lines(file.path):
        keys.update(dict.fromkeys(line.values))
    return list(keys)


def _look_through(files: tuple[InputFile, ...], columns: Columns) -> tuple[int, set[str]]:
    """Count the lines, and find the voices that they name. Raises `CorpusError` if an id is there twice."""
    number, seen, voices = 0, set[bytes](), set[str]()
    wanted = [name for name in (columns.id, columns.voice) if name is not None]
    for file, line in _all_lines(files, wanted or [columns.text]):
        if (voice := _try(voice_of, line, columns)) is not None:
            voices.add(voice)
        if columns.id is not None and not line.reason:
            identity = _try(id_of, line, number, columns)
            key = hashlib.blake2b((identity or "").encode(), digest_size=16).digest()
            if identity is not None and key in seen:
                first, before = _first_with(identity, files, columns)
                raise CorpusError(
                    f"id {identity!r} is there twice, in line {before.number} of {first.name} and line {line.number} "
                    f'of {file.name}; make ids unique, or number the lines instead with --id-column ""'
                )
            seen.add(key)
        number += 1
    return number, voices


def _try(read: Callable[..., str | None], *arguments: Any) -> str | None:
    try:
        return read(*arguments)
    except ParameterError:
        return None  # a bad line, which is told later


def _first_with(identity: str, files: tuple[InputFile, ...], columns: Columns) -> tuple[InputFile, Line]:
    return next(
        (file, line)
        for number, (file, line) in enumerate(_all_lines(files, columns.names))
        if not line.reason and _try(id_of, line, number, columns) == identity
    )


def sha256_of(path: Path) -> str:
    """Hash a file. Raises `CorpusError` if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror}") from None


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror}") from None
    return status.st_size, status.st_mtime_ns


def describe_source(source: Source) -> dict[str, Any]:
    """Tell what decides which texts there are, by value and not by place: moved files are the same input."""
    return {"files": {file.name: file.sha256 for file in source.files}, "lines": source.num_lines}
