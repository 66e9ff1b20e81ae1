"""From a line's values to a text with all that decides its sound, or to a bad line with its reason."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from s1_mini.corpus.lines import Line
from s1_mini.exceptions import ParameterError, RequestError
from s1_mini.types import DEFAULT_SAMPLING, MAX_SEED, OnUnsupported, SamplingParams, check_on_unsupported

SAMPLING = ("temperature", "top_p", "top_k", "repetition_penalty", "max_new_tokens")
PARAMETERS = (*SAMPLING, "on_unsupported")
MAX_ID_LENGTH = 500


@dataclass(frozen=True)
class Columns:
    """The names of the columns that are used; None for what no column has."""

    text: str
    id: str | None = None
    voice: str | None = None
    seed: str | None = None
    parameters: str | None = None

    @property
    def names(self) -> list[str]:
        """All names that are used."""
        return [name for name in (self.text, self.id, self.voice, self.seed, self.parameters) if name is not None]


@dataclass(frozen=True)
class Defaults:
    """What holds for a text whose line does not say it; `seed` goes into the seeds that are made of ids."""

    voice: str | None = None
    seed: int = 0
    sampling: SamplingParams = DEFAULT_SAMPLING
    on_unsupported: OnUnsupported | None = None  # None: the engine's setting


@dataclass(frozen=True)
class Row:
    """One text to be spoken: the `number`-th of the corpus, from 0, and where it stands."""

    number: int
    file: str
    line: int
    id: str
    text: str
    voice: str | None
    sampling: SamplingParams
    on_unsupported: OnUnsupported | None = None


@dataclass(frozen=True)
class BadLine:
    """A line that cannot be spoken, and why."""

    number: int
    file: str
    line: int
    id: str | None
    reason: str


@dataclass(frozen=True)
class Shard:
    """Lines that are spoken and written together."""

    number: int
    lines: tuple[Row | BadLine, ...]


def check(line: Line, number: int, file: str, columns: Columns, defaults: Defaults) -> Row | BadLine:
    """Make a row of a line, or tell what is wrong with it."""
    identity: str | None = None
    if line.reason:
        return BadLine(number, file, line.number, None, line.reason)
    try:
        identity = id_of(line, number, columns)
        text = _value(line, columns.text)
        if text is None:
            raise ParameterError(columns.text, "is empty" if columns.text in line.values else "is missing")
        given = _parameters(line, columns, defaults)
        sampling = given.sampling
        if sampling.seed is None:
            sampling = replace(sampling, seed=seed_of(identity, defaults.seed))
        voice = voice_of(line, columns) or defaults.voice
    except RequestError as error:
        return BadLine(number, file, line.number, identity, str(error))
    return Row(number, file, line.number, identity, text, voice, sampling, given.on_unsupported)


def id_of(line: Line, number: int, columns: Columns) -> str:
    """Give the id of a line: its column's, or its number in the corpus. Raises `ParameterError`."""
    if columns.id is None:
        return str(number)
    value = _value(line, columns.id)
    if value is None:
        raise ParameterError(columns.id, "is missing")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ParameterError(columns.id, f"{value!r} is neither text nor a whole number")
    if len(str(value)) > MAX_ID_LENGTH or any("\ud800" <= letter <= "\udfff" for letter in str(value)):
        raise ParameterError(columns.id, f"is not UTF-8, or has more than {MAX_ID_LENGTH} characters")
    return str(value)


def seed_of(identity: str, seed: int) -> int:
    """Make a seed of an id: the same wherever and beside whatever the text is spoken."""
    digest = hashlib.blake2b(f"{seed} {identity}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) & MAX_SEED


def read_parameters(name: str, value: object, base: Defaults) -> Defaults:
    """Return `base` changed by an object of parameters, or JSON of one. Raises `ParameterError` with field `name`."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ParameterError(name, f"is not JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise ParameterError(name, f'is a {type(value).__name__}; give an object such as {{"temperature": 0.7}}')
    unknown = sorted(str(each) for each in value if each not in PARAMETERS)
    if unknown:
        raise ParameterError(name, f"knows no {', '.join(unknown)}; there are {', '.join(PARAMETERS)}")
    sampling = {each: _as_number(value[each]) for each in SAMPLING if value.get(each) is not None}
    on_unsupported = check_on_unsupported(value.get("on_unsupported")) or base.on_unsupported
    return replace(base, sampling=replace(base.sampling, **sampling), on_unsupported=on_unsupported)


def _parameters(line: Line, columns: Columns, defaults: Defaults) -> Defaults:
    given = _value(line, columns.parameters)
    if given is not None:
        defaults = read_parameters(str(columns.parameters), given, defaults)
    seed = _value(line, columns.seed)
    return defaults if seed is None else replace(defaults, sampling=replace(defaults.sampling, seed=_as_number(seed)))


def voice_of(line: Line, columns: Columns) -> str | None:
    """Give the voice that a line names, if it names one. Raises `ParameterError`."""
    voice = _value(line, columns.voice)
    if voice is None or isinstance(voice, str):
        return voice
    raise ParameterError(str(columns.voice), f"{voice!r} is not text")


def _value(line: Line, column: str | None) -> Any:
    """Give what a column says; None where it says nothing: a gap is "" in some tables, and no number in others."""
    value = None if column is None else line.values.get(column)
    return None if value == "" or (isinstance(value, float) and math.isnan(value)) else value


def _as_number(value: Any) -> Any:
    """Take 3.0 and "3" for 3: a table with gaps has floats only, CSV has text only."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,20}", value):
        return int(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value
