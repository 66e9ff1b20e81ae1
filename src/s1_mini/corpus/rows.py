"""The texts of a corpus with everything that determines their audio, and the lines that cannot be spoken."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from s1_mini.exceptions import ParameterError, RequestError, S1MiniError
from s1_mini.types import MAX_SEED, REQUEST_OPTIONS, SharedOptions, TTSRequest

PARAMETERS = {
    option.name: option
    for option in REQUEST_OPTIONS
    if option.name not in ("voice", "seed", "chunk_profile", "word_times", "text_type")
}
MAX_ID_LENGTH = 500


class CorpusError(S1MiniError, code="corpus_invalid"):
    """The input cannot be read, the output cannot be continued, a voice is not encoded, or the workers are lost."""


@dataclass(frozen=True)
class CorpusColumns:
    """The names of the columns in use; None for a purpose without a column."""

    text: str
    id: str | None = None
    voice: str | None = None
    seed: str | None = None
    parameters: str | None = None

    @property
    def names(self) -> list[str]:
        """All names in use."""
        return [name for name in (self.text, self.id, self.voice, self.seed, self.parameters) if name is not None]


@dataclass(frozen=True)
class Defaults:
    """Values for lines that do not set them; `seed` is mixed into the seeds derived from ids."""

    voice: str | None = None
    seed: int = 0
    options: SharedOptions = field(default_factory=SharedOptions)  # only names in `PARAMETERS`


@dataclass(frozen=True)
class Line:
    """One line of a file, or one row of a Parquet file, counted from 1; `reason` says why it could not be read."""

    number: int
    values: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class CorpusRow:
    """One text: its number in the corpus, counted from 0, and its location in the input."""

    number: int
    file: str
    line: int
    id: str
    text: str
    voice: str | None
    options: SharedOptions  # only names in `PARAMETERS`, and the seed


@dataclass(frozen=True)
class BadLine:
    """A line that cannot be spoken, and the reason."""

    number: int
    file: str
    line: int
    id: str | None
    reason: str


@dataclass(frozen=True)
class Shard:
    """The lines that are spoken and written together."""

    number: int
    lines: tuple[CorpusRow | BadLine, ...]


def check(line: Line, number: int, file: str, columns: CorpusColumns, defaults: Defaults) -> CorpusRow | BadLine:
    """Convert a line to a row, or to a `BadLine` with the reason."""
    identity: str | None = None
    if line.reason:
        return BadLine(number, file, line.number, None, line.reason)
    try:
        identity = _id_of(line, number, columns.id)
        text = _value(line, columns.text)
        if text is None:
            raise ParameterError(columns.text, "is empty" if columns.text in line.values else "is missing")
        if (given := _value(line, columns.parameters)) is not None:
            defaults = read_parameters(str(columns.parameters), given, defaults)
        seed = _value(line, columns.seed)
        given = seed_of(identity, defaults.seed) if seed is None else _as_number(seed)
        options = _checked({**defaults.options, "seed": given})
        voice = _value(line, columns.voice)
        if voice is not None and not isinstance(voice, str):
            raise ParameterError(str(columns.voice), f"{voice!r} is not text")
    except RequestError as error:
        return BadLine(number, file, line.number, identity, str(error))
    return CorpusRow(number, file, line.number, identity, text, voice or defaults.voice, options)


def _id_of(line: Line, number: int, column: str | None) -> str:
    if column is None:
        return str(number)
    value = _value(line, column)
    if value is None:
        raise ParameterError(column, "is missing")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ParameterError(column, f"{value!r} is neither text nor a whole number")
    identity = str(value)
    if len(identity) > MAX_ID_LENGTH or identity != identity.encode(errors="ignore").decode():
        raise ParameterError(column, f"is not UTF-8, or has more than {MAX_ID_LENGTH} characters")
    return identity


def seed_of(identity: str, seed: int) -> int:
    """Derive a text's seed from its id and the corpus's `seed` only, not from the machine or neighbouring texts."""
    digest = hashlib.blake2b(f"{seed} {identity}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) & MAX_SEED


def read_parameters(name: str, value: object, base: Defaults) -> Defaults:
    """Return `base` with the parameters in `value`, a mapping or a JSON object.

    Raises `ParameterError`, which names `name`, or the parameter whose value is invalid.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ParameterError(name, f"is not JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise ParameterError(name, f'is a {type(value).__name__}; give an object such as {{"temperature": 0.7}}')
    unknown = sorted(str(each) for each in value if each not in PARAMETERS)
    if unknown:
        raise ParameterError(name, f"unknown parameter {', '.join(unknown)}; available: {', '.join(PARAMETERS)}")
    given = {
        each: _as_number(found) if PARAMETERS[each].kind in (int, float) else found
        for each, found in value.items()
        if found is not None
    }
    return replace(base, options=_checked({**base.options, **given}))


def _checked(options: Mapping[str, Any]) -> SharedOptions:
    """Return the options of a request. Raises `ParameterError` for a bad value."""
    checked = cast("SharedOptions", options)
    TTSRequest.of("", **checked)
    return checked


def _value(line: Line, column: str | None) -> Any:
    """Return the value of a column, or None if it is missing ("" in some tables and NaN in others)."""
    value = None if column is None else line.values.get(column)
    return None if value == "" or (isinstance(value, float) and math.isnan(value)) else value


def _as_number(value: Any) -> Any:
    """Convert 3.0 and "3" to 3: a column with missing values has floats, and CSV has text."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,20}", value):
        return int(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value
