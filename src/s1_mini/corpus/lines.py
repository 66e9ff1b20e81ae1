"""Files of texts, line by line: CSV, TSV, JSON lines, Parquet. A line that cannot be read is told, not raised.

Knows columns by their names, and nothing of what they mean.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from s1_mini.corpus.errors import CorpusError
from s1_mini.extras import require

DELIMITERS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson")
PARQUET = ".parquet"
SUFFIXES = (*DELIMITERS, *JSON_LINES, PARQUET)
MAX_LINE_BYTES = 4 * 2**20  # of JSON; a field of CSV has 131,072 characters at most
_BATCH_ROWS = 1024


@dataclass(frozen=True)
class Line:
    """One line of a file, or one row of a Parquet file, counted from 1; `reason` says why it could not be read."""

    number: int
    values: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""


def read_lines(path: Path, columns: Iterable[str] | None = None) -> Iterator[Line]:
    """Give all lines of a file but blank ones; of Parquet the named columns only, if any are named.

    Raises `CorpusError` if the file as a whole cannot be read.
    """
    with _readable(path):
        suffix = path.suffix.lower()
        if suffix == PARQUET:
            yield from _parquet(path, columns)
        elif suffix in JSON_LINES:
            with path.open("rb") as file:
                yield from _json_lines(file)
        else:
            with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
                yield from _csv(file, DELIMITERS[suffix], path)


def header_of(path: Path) -> list[str] | None:
    """Give the columns that a file's header names; None for JSON lines, which have none. Raises `CorpusError`."""
    suffix = path.suffix.lower()
    with _readable(path):
        if suffix in JSON_LINES:
            return None
        if suffix == PARQUET:
            return [str(name) for name in _open_parquet(path).schema_arrow.names]
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            return _csv_header(csv.reader(file, delimiter=DELIMITERS[suffix], strict=True), path)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # pyarrow's, too
        raise CorpusError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # pyarrow's ArrowInvalid
        raise CorpusError(f"{path} cannot be read: {str(error).partition('. ')[0]}") from None


def _open_parquet(path: Path) -> Any:
    require("corpus", f"reading {path.name}")
    from pyarrow.parquet import ParquetFile

    return ParquetFile(path)


def _parquet(path: Path, columns: Iterable[str] | None) -> Iterator[Line]:
    with _open_parquet(path) as file:
        wanted = None if columns is None else [name for name in columns if name in file.schema_arrow.names]
        number = 0
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=wanted):
            for values in batch.to_pylist():
                number += 1
                yield Line(number, values)


def _json_lines(file: IO[bytes]) -> Iterator[Line]:
    number = 0
    while text := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(text) > MAX_LINE_BYTES:
            while text and not text.endswith(b"\n"):
                text = file.readline(MAX_LINE_BYTES)
            yield Line(number, reason=f"has more than {MAX_LINE_BYTES:,} bytes, which is the most that is read")
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


def _csv(file: IO[str], delimiter: str, path: Path) -> Iterator[Line]:
    rows = csv.reader(file, delimiter=delimiter, strict=True)
    header = _csv_header(rows, path)
    while True:
        first = rows.line_num + 1
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield Line(first, reason=f"is not CSV up to line {rows.line_num}: {error}")
            continue
        if (wrong := _undecoded(row)) is not None:
            yield Line(first, reason=f"is not UTF-8: it has the byte 0x{wrong:02x}")
        elif len(row) == len(header):
            yield Line(first, dict(zip(header, row, strict=True)))
        elif row:
            yield Line(first, reason=f"has {len(row)} fields, and the header {len(header)}")


def _undecoded(row: list[str]) -> int | None:
    """Give the first byte that is no UTF-8, which `surrogateescape` made a half character; None if all are."""
    try:
        "".join(row).encode()
    except UnicodeEncodeError as error:
        return ord(error.object[error.start]) & 0xFF
    return None


def _csv_header(rows: Iterator[list[str]], path: Path) -> list[str]:
    try:
        header = next(rows, [])
    except csv.Error as error:
        raise CorpusError(f"{path} cannot be read: its header is not CSV: {error}") from None
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise CorpusError(f"{path} cannot be read: its header names {', '.join(map(repr, twice))} twice")
    return header
