"""The headers of an invocation: `Accept` chooses the form of the answer, the custom attributes carry pairs both ways.

SageMaker passes up to 1,024 visible ASCII characters of `X-Amzn-SageMaker-Custom-Attributes` through. Ours are
comma-separated `name=value` pairs: `route=/v1/audio/speech` in a request, `sample_rate=44100,format=pcm` in an answer.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from s1_mini.exceptions import ParameterError
from s1_mini.server.errors import NotAcceptableError, NotFoundError
from s1_mini.types import AudioFormat

ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"
JSON = "application/json"
JSON_LINES = "application/jsonlines"
JSON_LINES_TYPES = frozenset({JSON_LINES, "application/x-jsonlines", "application/jsonl", "application/x-ndjson"})
MAX_LENGTH = 1024  # characters of a header

_ANY = {"*/*", "audio/*"}
_JSON = {JSON, "application/*", *JSON_LINES_TYPES}
_AUDIO: dict[str, AudioFormat] = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/vnd.wave": "wav",
    "audio/flac": "flac",
    "audio/x-flac": "flac",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
    "audio/ogg": "ogg",
    "audio/opus": "opus",
    "audio/pcm": "pcm",
}
_VISIBLE = re.compile(r"[\x20-\x7e]*")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_ROUTE = re.compile(r"/[A-Za-z0-9_./-]*")


class AnswerForm(NamedTuple):
    """The audio format of an answer, and whether JSON carries it as base64."""

    audio_format: AudioFormat
    is_json: bool


def choose_form(accept: str | None, audio_format: AudioFormat | None = None) -> AnswerForm:
    """Return the first supported form of `accept`, by preference and then by order.

    `audio_format` is the request's own field: it holds where `accept` leaves the format open. Raises
    `NotAcceptableError` if no form is supported.
    """
    default: AudioFormat = audio_format or "wav"
    if not accept or not accept.strip():
        return AnswerForm(default, is_json=False)
    if len(accept) > MAX_LENGTH:
        raise NotAcceptableError(f"Accept is {len(accept)} characters long; at most {MAX_LENGTH} are allowed")
    for name in _by_preference(accept):
        if name in _ANY or name in _JSON:
            return AnswerForm(default, is_json=name in _JSON)
        if name in _AUDIO:
            return AnswerForm(_AUDIO[name], is_json=False)
    raise NotAcceptableError(f"Accept {accept!r} is not supported; allowed are {', '.join([*_AUDIO, JSON])}")


def _by_preference(accept: str) -> list[str]:
    ranked = []
    for item in accept.lower().split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        weight = next((_weight(part[2:]) for part in parameters if part.startswith("q=")), 1.0)
        if weight > 0:
            ranked.append((-weight, name))
    return [name for _, name in sorted(ranked, key=lambda pair: pair[0])]


def _weight(text: str) -> float:
    try:
        return min(1.0, max(0.0, float(text)))
    except ValueError:
        return 0.0


def read_attributes(header: str | None) -> dict[str, str]:
    """Return the pairs of a header; entries that are not `name=value` are ignored.

    Raises `ParameterError` for more than `MAX_LENGTH` characters, one that is not visible ASCII, or a repeated name.
    """
    if not header:
        return {}
    if len(header) > MAX_LENGTH:
        raise ParameterError(ATTRIBUTES, f"is {len(header)} characters long; at most {MAX_LENGTH} are allowed")
    if not _VISIBLE.fullmatch(header):
        raise ParameterError(ATTRIBUTES, "holds characters that are not visible ASCII")
    attributes: dict[str, str] = {}
    for item in re.split(r"[,\s]+", header):
        name, found, value = item.partition("=")
        if not found or not _NAME.fullmatch(name):
            continue
        if name in attributes:
            raise ParameterError(ATTRIBUTES, f"names {name} twice")
        attributes[name] = value
    return attributes


def read_route(header: str | None, routes: frozenset[str]) -> str | None:
    """Return the route in a header, if any. Raises `NotFoundError` unless it is one of `routes`."""
    route = read_attributes(header).get("route")
    if route is None:
        return None
    path = route if route.startswith("/") else f"/{route}"
    if not _ROUTE.fullmatch(path) or path not in routes:
        allowed = ", ".join(sorted(routes))
        raise NotFoundError(f"{ATTRIBUTES}: route={route[:100]!r} does not exist; allowed are {allowed}")
    return path
