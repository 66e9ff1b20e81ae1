"""From the body of an invocation to checked requests: one JSON object, or one on each line.

Pure, knows no HTTP; nothing is ever unpickled. The handler and the invocations call it.
"""

from __future__ import annotations

from typing import NamedTuple

from s1_mini.exceptions import S1MiniError
from s1_mini.server.bodies import is_json, parse_json
from s1_mini.server.errors import BodyError, ContentTypeError
from s1_mini.server.schemas import SpeechBody, SpeechRequest
from s1_mini.types import AudioFormat

JSON_LINES_TYPES = frozenset(
    {"application/jsonlines", "application/x-jsonlines", "application/jsonl", "application/x-ndjson"}
)
MAX_LINES = 1000


class Asked(NamedTuple):
    """One request, and the audio format if it names one."""

    request: SpeechRequest
    audio_format: AudioFormat | None


class Payload(NamedTuple):
    """What a body held, in order: requests, or for a bad line what was wrong with it."""

    items: list[Asked | S1MiniError]
    is_lines: bool


def kind_of(content_type: str | None) -> str:
    """Give a content type without its parameters, in lower case; JSON if there is none."""
    return (content_type or "application/json").partition(";")[0].strip().lower()


def read_payload(body: bytes | bytearray | str | None, content_type: str | None) -> Payload:
    """Read a body. Raises `ContentTypeError`, `BodyError` or `RequestError`.

    A bad line of many is an item of its own: its neighbours are spoken all the same.
    """
    kind = kind_of(content_type)
    if not is_json(kind) and kind not in JSON_LINES_TYPES:
        allowed = "application/json and application/jsonlines"
        raise ContentTypeError(f"Content-Type {kind[:100]!r} cannot be read here; allowed are {allowed}")
    if body is None or len(body) == 0:
        raise BodyError('the body is empty; send a JSON object such as {"text": "Good morning."}')
    data = body.encode() if isinstance(body, str) else bytes(body)
    if is_json(kind):
        return Payload([read_request(data)], is_lines=False)
    return Payload([read_line(line) for line in split_lines(data)], is_lines=True)


def split_lines(data: bytes) -> list[bytes]:
    """Split JSON lines; what follows the last line's end is none if it is empty. Raises `BodyError` for too many."""
    count = data.count(b"\n") + (not data.endswith(b"\n"))
    if count > MAX_LINES:
        raise BodyError(f"the body holds {count} lines; at most {MAX_LINES} are allowed, send it in parts")
    lines = data.split(b"\n")
    return lines[:-1] if data.endswith(b"\n") else lines


def read_request(data: bytes) -> Asked:
    """Read one JSON object. Raises `BodyError`, or `RequestError` that names the field at fault."""
    body = parse_json(data, SpeechBody)
    return Asked(body.to_request(), body.format if "format" in body.model_fields_set else None)


def read_line(line: bytes) -> Asked | S1MiniError:
    """Read one JSON object; give what is wrong with it instead of raising."""
    try:
        return read_request(line)
    except S1MiniError as error:
        return error
