"""The input of a corpus: CSV, TSV, JSON lines or Parquet, local or on S3. All lines are checked before any is spoken.

Lines are numbered across all files, and this number determines the shard, so the same input gives the same shards in
every run. A line that cannot be read becomes a `BadLine`.
"""

from __future__ import annotations

import csv
import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Any

from s1_mini.aws.place import S3Place
from s1_mini.corpus.rows import BadLine, CorpusColumns, CorpusError, CorpusRow, Defaults, Line, Shard, check
from s1_mini.extras import require
from s1_mini.files import foreign_encoding

DELIMITERS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson")
PARQUET = ".parquet"
SUFFIXES = (*DELIMITERS, *JSON_LINES, PARQUET)
MAX_LINE_BYTES = 4 * 2**20  # limit for a line of JSON; Python's csv limits a field to 131,072 characters
PURPOSES = ("text", "id", "voice", "seed", "parameters")  # and the usual names of their columns
_BATCH_ROWS = 1024
_MAX_NAMED = 20  # columns in an error message


@dataclass(frozen=True)
class InputFile:
    """One file as it was when it was first read."""

    name: str
    path: Path
    sha256: str
    stamp: tuple[int, int]  # size in bytes, time of the last change


@dataclass(frozen=True)
class Source:
    """The texts of a corpus."""

    files: tuple[InputFile, ...]
    columns: CorpusColumns
    defaults: Defaults
    shard_size: int
    num_lines: int = 0
    voices: frozenset[str] = frozenset()  # named by lines or by the defaults

    @property
    def num_shards(self) -> int:
        return -(-self.num_lines // self.shard_size)

    def rows(self) -> Iterator[CorpusRow | BadLine]:
        number = count()
        for file in self.files:
            for line in read_lines(file.path, self.columns.names):
                yield check(line, next(number), file.name, self.columns, self.defaults)

    def shards(self) -> Iterator[Shard]:
        """Yield all lines in shards. Raises the errors of `read_lines`, and `CorpusError` if a file has changed."""
        rows = self.rows()
        for number in count():
            lines = tuple(islice(rows, self.shard_size))
            for file in self.files:
                if _stamp(file.path) != file.stamp:
                    raise CorpusError(
                        f"{file.name} changed during the run; choose a new output and run the command again"
                    )
            if not lines:
                return
            yield Shard(number, lines)

    def describe(self) -> dict[str, Any]:
        """Return what identifies the texts: names and hashes of the files, but not their folder, which may change."""
        return {"files": {file.name: file.sha256 for file in self.files}, "lines": self.num_lines}


@contextmanager
def open_source(place: str, columns: Mapping[str, str | None], defaults: Defaults, shard_size: int) -> Iterator[Source]:
    """Open and check a file, a folder, or an object or a prefix of S3.

    `columns` maps each of `PURPOSES` to a column; None selects the column of the same name, if it exists,
    and "" selects no column.
    Raises `CorpusError` for a place without texts, an unreadable file, a missing column or a repeated id, and
    `ConfigurationError` for an invalid S3 location or a missing package.
    """
    with tempfile.TemporaryDirectory(prefix="s1-mini-corpus-") as folder:
        paths = _download(S3Place.parse(place), Path(folder)) if place.startswith("s3://") else _find(Path(place))
        files = tuple(InputFile(path.name, path, sha256_of(path), _stamp(path)) for path in paths)
        source = _check_lines(Source(files, _choose(columns, files), defaults, shard_size))
        if not source.num_lines:
            raise CorpusError(f"{place} has no text: all lines are blank")
        yield source


def _find(path: Path) -> list[Path]:
    if not path.exists():
        raise CorpusError(f"{path} does not exist; give a file that ends in {', '.join(SUFFIXES)}, or a folder of them")
    found = sorted(one for one in path.iterdir() if _is_read(one.name) and one.is_file()) if path.is_dir() else [path]
    if not found or not all(_is_read(one.name) for one in found):
        raise CorpusError(
            f"{path} is not a supported file or a folder of such files; names must end in {', '.join(SUFFIXES)}"
        )
    return found


def _is_read(name: str) -> bool:
    return Path(name).suffix.lower() in SUFFIXES and not name.startswith((".", "_"))


def _download(place: S3Place, folder: Path) -> list[Path]:
    """Download an object, or all objects directly below a prefix."""
    from s1_mini.aws.clients import Clients
    from s1_mini.aws.failures import About, explained

    def list_keys(prefix: str) -> list[str]:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=place.bucket, Prefix=prefix, Delimiter="/")
        return [one["Key"] for page in pages for one in page.get("Contents", [])]

    about = About(doing=f"{place} cannot be read", bucket=place.bucket, needs="s3:GetObject, s3:ListBucket")
    with explained(about, CorpusError):
        client = Clients()["s3"]
        is_file = _is_read(place.key.rpartition("/")[2])
        keys = [place.key] if is_file and place.key in list_keys(place.key) else list_keys(place.join(""))
        chosen = sorted(key for key in keys if _is_read(key.rpartition("/")[2]))
        if not chosen:
            problem = "does not exist" if is_file else f"has no object whose name ends in {', '.join(SUFFIXES)}"
            raise CorpusError(f"{place} {problem}")
        paths = [folder / key.rpartition("/")[2] for key in chosen]
        for key, path in zip(chosen, paths, strict=True):
            client.download_file(place.bucket, key, str(path))
        return paths


def _choose(named_columns: Mapping[str, str | None], files: tuple[InputFile, ...]) -> CorpusColumns:
    """Return the columns to use. Raises the errors of `read_lines`, and `CorpusError` for a missing column."""
    names: dict[str, Any] = {}
    found = [(file, _columns_of(file.path)) for file in files]
    for purpose in PURPOSES:
        requested, name = named_columns.get(purpose), named_columns.get(purpose) or purpose
        for file, columns in found:
            if (purpose == "text" or requested) and name not in columns:
                known = ", ".join(columns[:_MAX_NAMED]) + (", …" if len(columns) > _MAX_NAMED else "")
                raise CorpusError(
                    f"{file.name} has no column {name!r}; its columns are {known or 'none'}; choose one with "
                    f"--{purpose}-column"
                )
        is_used = purpose == "text" or (requested != "" and any(name in columns for _, columns in found))
        names[purpose] = name if is_used else None
    return CorpusColumns(**names)


def _check_lines(source: Source) -> Source:
    """Count the lines and collect the voices that they name. Raises `CorpusError` for a repeated id."""
    seen, num_lines = set[bytes](), 0
    voices = {source.defaults.voice} if source.defaults.voice else set[str]()
    for num_lines, row in enumerate(source.rows(), 1):  # noqa: B007 - the last value is used
        if isinstance(row, CorpusRow) and row.voice is not None:
            voices.add(row.voice)
        if source.columns.id is not None and row.id is not None:
            key = hashlib.blake2b(row.id.encode(), digest_size=16).digest()
            if key in seen:
                first = next(other for other in source.rows() if other.id == row.id)
                raise CorpusError(
                    f"id {row.id!r} occurs twice, in line {first.line} of {first.file} and line {row.line} "
                    f'of {row.file}; make ids unique, or number the lines instead with --id-column ""'
                )
            seen.add(key)
    return replace(source, num_lines=num_lines, voices=frozenset(voices))


def sha256_of(path: Path) -> str:
    """Return the hash of a file. Raises `CorpusError` if it cannot be read."""
    with _readable(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stamp(path: Path) -> tuple[int, int]:
    with _readable(path):
        status = path.stat()
        return status.st_size, status.st_mtime_ns


def read_lines(path: Path, columns: Iterable[str]) -> Iterator[Line]:
    """Yield all lines of a file except blank ones; rows of Parquet have only `columns`.

    Raises `CorpusError` if the file as a whole cannot be read, and `ConfigurationError` if a package is missing.
    """
    with _readable(path):
        if _kind(path) == PARQUET:
            yield from _parquet(path, columns)
        elif _kind(path) in JSON_LINES:
            yield from _json_lines(path)
        else:
            yield from _csv(path)


def _columns_of(path: Path) -> list[str]:
    with _readable(path):
        if _kind(path) == PARQUET:
            return [str(name) for name in _open_parquet(path).schema_arrow.names]
        if _kind(path) in JSON_LINES:
            return list(dict.fromkeys(key for line in _json_lines(path) for key in line.values))
        with _open_csv(path) as (header, _):
            return header


def _kind(path: Path) -> str:
    return path.suffix.lower()


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # also pyarrow's
        raise CorpusError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # pyarrow's ArrowInvalid
        raise CorpusError(f"{path} cannot be read: {str(error).partition('. ')[0]}") from None


def _open_parquet(path: Path) -> Any:
    require("corpus", f"reading {path.name}")
    from pyarrow.parquet import ParquetFile

    return ParquetFile(path)


def _parquet(path: Path, columns: Iterable[str]) -> Iterator[Line]:
    with _open_parquet(path) as file:
        present, number = [name for name in columns if name in file.schema_arrow.names], count(1)
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=present):
            for values in batch.to_pylist():
                yield Line(next(number), values)


def _check_encoding(path: Path) -> None:
    with path.open("rb") as file:
        if encoding := foreign_encoding(file.read(4)):
            raise CorpusError(f"{path} is {encoding}; save it as UTF-8")


def _json_lines(path: Path) -> Iterator[Line]:
    _check_encoding(path)
    with path.open("rb") as file:
        for number in count(1):
            text = file.readline(MAX_LINE_BYTES + 1)
            if not text:
                return
            if len(text) > MAX_LINE_BYTES:
                while text and not text.endswith(b"\n"):
                    text = file.readline(MAX_LINE_BYTES)
                yield Line(number, reason=f"is longer than {MAX_LINE_BYTES:,} bytes")
            elif text.strip():
                yield _json_line(number, text)


def _json_line(number: int, text: bytes) -> Line:
    try:
        values = json.loads(text.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        return Line(number, reason=f"is not UTF-8: {error.reason} at byte {error.start}")
    except (ValueError, RecursionError) as error:
        return Line(number, reason=f"is not JSON: {error}")
    if not isinstance(values, dict):
        return Line(number, reason=f"holds a JSON {type(values).__name__}, not an object")
    return Line(number, values)


@contextmanager
def _open_csv(path: Path) -> Iterator[tuple[list[str], Any]]:
    """Yield the header and a reader of the lines after it."""
    _check_encoding(path)
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        rows = csv.reader(file, delimiter=DELIMITERS[_kind(path)], strict=True)
        try:
            header = next(rows, [])
        except csv.Error as error:
            raise CorpusError(f"{path} cannot be read: its header is not CSV: {error}") from None
        twice = sorted({name for name in header if header.count(name) > 1})
        if twice:
            raise CorpusError(f"{path} cannot be read: its header repeats {', '.join(map(repr, twice))}")
        yield header, rows


def _csv(path: Path) -> Iterator[Line]:
    with _open_csv(path) as (header, rows):
        while True:
            first = rows.line_num + 1
            try:
                row = next(rows, None)
            except csv.Error as error:
                yield Line(first, reason=f"is not valid CSV (read as far as line {rows.line_num}): {error}")
                continue
            if row is None:
                return
            if (wrong := _undecoded(row)) is not None:
                yield Line(first, reason=f"is not UTF-8: it has the byte 0x{wrong:02x}")
            elif len(row) == len(header):
                yield Line(first, dict(zip(header, row, strict=True)))
            elif row:
                yield Line(first, reason=f"has {len(row)} fields, but the header has {len(header)}")


def _undecoded(row: list[str]) -> int | None:
    """Return the first byte that is not UTF-8, which `surrogateescape` turned into a surrogate, or None."""
    try:
        "".join(row).encode()
    except UnicodeEncodeError as error:
        return ord(error.object[error.start]) & 0xFF
    return None
