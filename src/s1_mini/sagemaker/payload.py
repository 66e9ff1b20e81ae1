"""From the body of an invocation to checked requests: one JSON object, or one on each line.

Pure, knows no HTTP; nothing is ever unpickled. The handler calls it, and the server's routes do for JSON lines.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from s1_mini.audio.container import AudioFormat
from s1_mini.exceptions import ParameterError, S1MiniError
from s1_mini.server.errors import BodyError, ContentTypeError, from_validation
from s1_mini.types import ChunkProfile

JSON_TYPES = frozenset({"application/json", "text/json"})
JSON_LINES_TYPES = frozenset(
    {"application/jsonlines", "application/x-jsonlines", "application/jsonl", "application/x-ndjson"}
)
MAX_LINES = 1000


class SpeechRequest(BaseModel):
    """One text to be spoken, as JSON has it; `reference_audio` is base64 of any sound file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str
    voice: str | None = None
    reference_audio: str | None = None
    reference_text: str | None = None
    format: AudioFormat | None = None
    chunk_profile: ChunkProfile = "balanced"
    seed: int | None = None
    temperature: float = Field(0.8, allow_inf_nan=False)
    top_p: float = Field(0.8, allow_inf_nan=False)
    repetition_penalty: float = Field(1.1, allow_inf_nan=False)
    max_new_tokens: int = 1024

    def engine_arguments(self) -> dict[str, Any]:
        """Give the keywords of `ProductionTTSEngine.stream`. Raises `ParameterError` for audio that is not base64."""
        arguments = self.model_dump(exclude={"format", "reference_audio"})
        return arguments | {"reference_audio": decode_base64("reference_audio", self.reference_audio)}


class Payload(NamedTuple):
    """What a body held, in order: requests, or for a bad line what was wrong with it."""

    items: list[SpeechRequest | S1MiniError]
    is_lines: bool


def read_payload(body: bytes | bytearray | str | None, content_type: str | None) -> Payload:
    """Read a body. Raises `ContentTypeError`, `BodyError` or `RequestError`.

    A bad line of many is an item of its own: its neighbours are spoken all the same.
    """
    kind = (content_type or "application/json").partition(";")[0].strip().lower()
    if kind not in JSON_TYPES | JSON_LINES_TYPES:
        allowed = "application/json and application/jsonlines"
        raise ContentTypeError(f"Content-Type {kind[:100]!r} cannot be read here; allowed are {allowed}")
    if body is None or len(body) == 0:
        raise BodyError('the body is empty; send a JSON object such as {"text": "Good morning."}')
    data = body.encode() if isinstance(body, str) else bytes(body)
    if kind in JSON_TYPES:
        return Payload([read_request(data)], is_lines=False)
    return Payload([_read_line(line) for line in split_lines(data)], is_lines=True)


def split_lines(data: bytes) -> list[bytes]:
    """Split JSON lines; a last empty line is none. Raises `BodyError` for more than `MAX_LINES`."""
    count = data.count(b"\n") + (not data.endswith(b"\n"))
    if count > MAX_LINES:
        raise BodyError(f"the body holds {count} lines; at most {MAX_LINES} are allowed, send it in parts")
    lines = data.split(b"\n")
    return lines[:-1] if data.endswith(b"\n") else lines


def read_request(data: bytes) -> SpeechRequest:
    """Read one JSON object. Raises `BodyError`, or `RequestError` that names the field at fault."""
    try:
        return SpeechRequest.model_validate_json(data)
    except ValidationError as error:
        raise from_validation(error.errors(include_url=False)) from None


def decode_base64(field: str, text: str | None) -> bytes | None:
    """Decode base64, None to None. Raises `ParameterError`."""
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ParameterError(field, f"is not base64: {error}") from None


def _read_line(line: bytes) -> SpeechRequest | S1MiniError:
    try:
        return read_request(line)
    except S1MiniError as error:
        return error
