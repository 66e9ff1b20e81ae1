"""From an `Accept` header to the form of an answer: which audio format, bare or as base64 in JSON.

Pure; the handler, the invocations and the local endpoint agree through it.
"""

from __future__ import annotations

from typing import NamedTuple

from s1_mini.audio.container import media_type
from s1_mini.server.errors import NotAcceptableError
from s1_mini.types import AudioFormat

JSON = "application/json"
JSON_LINES = "application/jsonlines"
MAX_ACCEPT_LENGTH = 1024

_ANY = {"*/*", "audio/*"}
_JSON = {JSON, "application/*", JSON_LINES, "application/x-jsonlines", "application/jsonl", "application/x-ndjson"}
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


class Answer(NamedTuple):
    """The form of an answer: the format of its audio, and whether JSON carries it as base64."""

    audio_format: AudioFormat
    is_json: bool

    @property
    def media_type(self) -> str:
        """The answer's content type."""
        return JSON if self.is_json else media_type(self.audio_format)


def choose_answer(accept: str | None, audio_format: AudioFormat | None = None) -> Answer:
    """Choose the first form, by preference and then by order, that `accept` names and we can give.

    `audio_format` is what the request itself asks for: it holds where `accept` leaves it open. Raises
    `NotAcceptableError` if nothing fits.
    """
    wanted: AudioFormat = audio_format or "wav"
    if not accept or not accept.strip():
        return Answer(wanted, is_json=False)
    if len(accept) > MAX_ACCEPT_LENGTH:
        raise NotAcceptableError(f"Accept is {len(accept)} characters long; at most {MAX_ACCEPT_LENGTH} are allowed")
    for name in _by_preference(accept):
        if name in _ANY:
            return Answer(wanted, is_json=False)
        if name in _JSON:
            return Answer(wanted, is_json=True)
        if name in _AUDIO:
            return Answer(_AUDIO[name], is_json=False)
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
