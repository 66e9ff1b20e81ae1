"""Request bodies: JSON, MessagePack or a form with files, parsed into a validated model; large ones in a thread.

The module `limits` bounds the size and pace of bodies. This module limits the structure of JSON before it is parsed,
because a parser creates an object for every value and validation creates an error for every wrong value. Without this
limit, eight megabytes of `[1,1,…]` would take half a minute and five gigabytes of memory. Counting tokens takes
milliseconds, stops at the limit and lets other threads run.
"""

from __future__ import annotations

import asyncio
import codecs
import re
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from s1_mini.files import foreign_encoding
from s1_mini.server.errors import BodyError, ContentTypeError, InvalidError, validating
from s1_mini.server.schemas import SpeechBody, decode_base64, encode_base64
from s1_mini.server.state import ServerState, state_of

Model = TypeVar("Model", bound=BaseModel)
Speech = TypeVar("Speech", bound=SpeechBody)
Result = TypeVar("Result")

JSON, FORM = "application/json", "multipart/form-data"
MSGPACK = "application/msgpack"
LINES = "application/x-ndjson"  # JSON lines
JSON_TYPES = frozenset({JSON, "text/json"})
SMALL_BYTES = 64 * 1024  # larger bodies are parsed in a thread
# Allowed charsets of forms. Other codecs may take minutes for a megabyte, and Python caches every unknown name.
CHARSETS = frozenset({"utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin-1", "latin1"})
MAX_FIELDS = 32
MAX_FIELD_BYTES = 1024 * 1024  # limit for a form field that is not a file

MAX_MARKS = 2048  # maximum strings, colons, commas and opening brackets of one request; usual requests have far fewer
MARKS_PER_ITEM = 32  # additional marks allowed for each text of a batch
# Maximum backslashes; 32 texts of the default maximum length have fewer, even if every letter is written as \uXXXX.
MAX_ESCAPES = 2**20
# Maximum bytes between two marks outside of strings. Longer runs are invalid JSON, numbers that are slow to parse, or
# white space (which is valid, but refused too).
MAX_GAP = 4096

MAX_ENTRIES = 1024  # maximum entries of all lists and objects of a MessagePack body; a lexicon has up to 256
RECORDINGS = ("audio", "reference_audio")  # fields that are base64 in JSON and bytes in MessagePack

_MARK = re.compile(rb'["\[{,:]')
_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_WINDOW = 2**16  # bytes searched in one call, which holds the GIL


def content_type(request: Request) -> str:
    """Return the body's type without its parameters, in lower case; empty if there is none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_json(request: Request, model: type[Model], allowed: str = JSON) -> Model:
    """Read a JSON body.

    Raises `InvalidError`, `ClientGoneError` or a `ServerError`, such as `ContentTypeError`, which names the `allowed`
    types.
    """
    kind = content_type(request)
    if kind not in JSON_TYPES and not (kind.startswith("application/") and kind.endswith("+json")):
        raise unsupported_type(request, allowed)
    max_marks = MAX_MARKS + MARKS_PER_ITEM * state_of(request).settings.max_batch_items
    return await in_turn(state_of(request), parse_json, await request.body(), model, max_marks)


async def in_turn(
    state: ServerState, work: Callable[..., Result], data: bytes | str, *arguments: Any, small: int = SMALL_BYTES
) -> Result:
    """Return `work(data, *arguments)`. Data longer than `small` is processed in a thread.

    That happens to one large body at a time, because each holds the GIL for tens of milliseconds.
    """
    if len(data) <= small:
        return work(data, *arguments)
    async with state.large_bodies:
        return await asyncio.to_thread(work, data, *arguments)


def parse_json(body: bytes, model: type[Model], max_marks: int = MAX_MARKS) -> Model:
    """Parse JSON and validate it with a model. Raises `BodyError` or `InvalidError`."""
    body = body.removeprefix(codecs.BOM_UTF8)  # Windows PowerShell writes it
    if encoding := foreign_encoding(body[:4]):
        raise BodyError(f"the body is {encoding}; send JSON as UTF-8")
    check_structure(body, max_marks)
    with validating(model.model_fields):
        return model.model_validate_json(body, strict=True)


class _Values:
    """Hooks of msgpack's parser, which limit and check a body while it is parsed."""

    def __init__(self) -> None:
        self.num_entries = 0

    def as_list(self, entries: list[Any]) -> list[Any]:
        self.num_entries += 1 + len(entries)
        if self.num_entries > MAX_ENTRIES:
            raise BodyError(f"the body has more than {MAX_ENTRIES} entries of lists and objects")
        if any(isinstance(entry, bytes) for entry in entries):
            raise BodyError(f"the body has bytes in a list; only {' and '.join(RECORDINGS)} may be bytes")
        return entries

    def as_object(self, pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in self.as_list(pairs):
            if not isinstance(name, str):
                raise BodyError("the body has a name of a field that is bytes; send it as a string")
            if name in found:
                raise InvalidError(name, "was given more than once")
            if isinstance(value, bytes) and name not in RECORDINGS:
                raise InvalidError(name, f"is bytes; only {' and '.join(RECORDINGS)} may be bytes")
            found[name] = encode_base64(value) if isinstance(value, bytes) else value
        return found


def _refuse_extension(code: int, _data: bytes) -> None:
    raise BodyError(f"the body has the extension type {code}; extension types are not supported")


def parse_msgpack(body: bytes, model: type[Model]) -> Model:
    """Parse MessagePack and validate it like JSON. Raises `BodyError` or `InvalidError`."""
    import msgpack

    values, limits = _Values(), {"max_array_len": MAX_ENTRIES, "max_map_len": MAX_ENTRIES}
    hooks = {"object_pairs_hook": values.as_object, "list_hook": values.as_list, "ext_hook": _refuse_extension}
    try:
        data = msgpack.unpackb(body, **hooks, **limits)
    except msgpack.StackError:
        raise BodyError("the body is nested too deeply") from None
    except ValueError as error:
        raise BodyError(f"the body is not MessagePack: {str(error) or 'it has an unknown type'}") from None
    with validating(model.model_fields):
        return model.model_validate(data, strict=True)


class _InMemory(MultiPartParser):
    """Starlette's parser without spooling to disk, because the size of bodies is already limited."""

    spool_max_size = sys.maxsize


async def read_form(request: Request, model: type[Model], file_field: str) -> tuple[Model, bytes | None]:
    """Read a form whose field `file_field` is a file. Raises `InvalidError`, `ClientGoneError` or a `ServerError`."""
    fields: dict[str, str] = {}
    recording: bytes | None = None
    _check_charset(request)
    parser = _InMemory(
        request.headers, request.stream(), max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES
    )
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, UnicodeError) as error:
        reason = (
            error.message if isinstance(error, MultiPartException) else "its Content-Type or a field name is malformed"
        )
        raise BodyError(f"the form cannot be read: {reason}") from None
    try:
        for name, value in form.multi_items():
            if name in fields or (name == file_field and recording is not None):
                raise InvalidError(name, "was given more than once")
            if not isinstance(value, UploadFile):
                fields[name] = value
            elif name == file_field:
                recording = await value.read()
            else:
                raise InvalidError(name, f"is a file; only {file_field} may be a file")
    finally:
        await form.close()
    with validating(dict.fromkeys([*model.model_fields, file_field])):
        return model.model_validate(fields), recording


async def read_recording_form(request: Request, model: type[Model], file_field: str) -> tuple[Model, bytes]:
    """Read a form with the file `file_field`.

    Raises the errors of `read_form`, `ContentTypeError` for another type of body, and `InvalidError` without a file.
    """
    if content_type(request) != FORM:
        fields = ", ".join((*model.model_fields, f"file {file_field}"))
        raise unsupported_type(request, f"{FORM} with the fields {fields}")
    form, recording = await read_form(request, model, file_field)
    if recording is None:
        raise InvalidError(file_field, "is missing; send the recording as a file")
    return form, recording


async def read_speech(request: Request, model: type[Speech]) -> tuple[Speech, bytes | None]:
    """Return the body of a speech request, and its recording if any. Raises the errors of `read_form`."""
    if (kind := content_type(request)) == FORM:
        body, recording = await read_form(request, model, "reference_audio")
        if recording is not None and body.reference_audio is not None:
            raise InvalidError("reference_audio", "was given more than once")
    elif kind == MSGPACK:
        body, recording = await in_turn(state_of(request), parse_msgpack, await request.body(), model), None
    else:
        body, recording = await read_json(request, model, f"{JSON}, {MSGPACK} or {FORM}"), None
    if body.reference_audio is not None:
        recording = await in_turn(state_of(request), decode_base64, body.reference_audio)
    return body, recording


def _check_charset(request: Request) -> None:
    """Raise `ContentTypeError` if a form's charset is not in `CHARSETS`."""
    _, parameters = parse_options_header(request.headers.get("content-type"))
    given = parameters.get(b"charset", b"utf-8").decode("latin-1")
    if given.lower() not in CHARSETS:
        raise ContentTypeError(f"form charset {given[:40]!r} is not supported; send utf-8, us-ascii or latin-1")


def unsupported_type(request: Request, allowed: str) -> ContentTypeError:
    given = request.headers.get("content-type")
    quoted = f"Content-Type {given[:80]!r}" if given else "a body without Content-Type"
    return ContentTypeError(f"{quoted} is not supported; send {allowed}")


def check_structure(data: bytes, max_marks: int = MAX_MARKS) -> None:
    """Raise `BodyError` if `data` has too many backslashes or marks, or too many bytes between two marks.

    The limits are `MAX_ESCAPES`, `max_marks` and `MAX_GAP`. Strings may be of any length.
    """
    num_escapes = 0
    for start in range(0, len(data), _WINDOW):
        num_escapes += data.count(b"\\", start, start + _WINDOW)
        if num_escapes > MAX_ESCAPES:
            raise BodyError(f"the body has more than {MAX_ESCAPES} backslashes")
    position, count = 0, 0
    while (found := _MARK.search(data, position, position + MAX_GAP)) is not None:
        position = found.end()
        count += 1
        if count > max_marks:
            raise BodyError(
                f"the body has more than {max_marks} JSON tokens (strings, colons, commas, opening brackets); "
                "send fewer items at once"
            )
        if found.group() == b'"':
            position = _after_string(data, position)
    if len(data) - position > MAX_GAP:
        raise BodyError(f"the body has {MAX_GAP} bytes without a JSON token after byte {position}")


def _after_string(data: bytes, position: int) -> int:
    """Return the position after the string whose content begins at `position`; the end of `data` if unterminated."""
    end = data.find(b'"', position)
    if end > position and data[end - 1 : end] != b"\\":
        return end + 1
    while position < len(data):
        found = _STRING.match(data, position, position + _WINDOW)
        end = position if found is None else found.end()
        if data[end : end + 1] == b'"':
            return end + 1
        if end == position:  # a backslash at the end of the data
            break
        position = end
    return len(data)
