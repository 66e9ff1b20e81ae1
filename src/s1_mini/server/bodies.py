"""A request's body into a checked model: JSON, or a form with files; large ones in a thread.

Sizes and pace are limited before (`limits`); here it is about what the bytes say.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import State, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from s1_mini.server.errors import BodyError, ContentTypeError, InvalidError, from_validation
from s1_mini.server.schemas import SpeechBody, SpeechRequest
from s1_mini.server.structure import MARKS_PER_ITEM, MAX_MARKS, check_structure

Model = TypeVar("Model", bound=BaseModel)
Result = TypeVar("Result")

JSON, FORM = "application/json", "multipart/form-data"
JSON_TYPES = frozenset({JSON, "text/json"})
SMALL_BYTES = 64 * 1024  # parsed at once; more takes a thread
# Charsets of a form. Some of Python's take minutes for a megabyte, and it remembers every unknown name it looks up.
CHARSETS = frozenset({"utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin-1", "latin1"})
MAX_FIELDS = 32
MAX_FIELD_BYTES = 1024 * 1024  # of a form's field that is no file


def content_type(request: Request) -> str:
    """Give the body's type without its parameters, in lower case; empty if none is said."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_json(kind: str) -> bool:
    """Tell whether a content type says JSON."""
    return kind in JSON_TYPES or (kind.startswith("application/") and kind.endswith("+json"))


async def read_json(request: Request, model: type[Model]) -> Model:
    """Read a JSON body. Raises `ContentTypeError`, `BodyError` or `InvalidError`."""
    if not is_json(content_type(request)):
        raise ContentTypeError(f"{said(request)} is not read here; send {JSON}")
    body = await request.body()
    max_marks = MAX_MARKS + MARKS_PER_ITEM * request.app.state.settings.max_batch_items
    if len(body) <= SMALL_BYTES:
        return parse_json(body, model, max_marks)
    return await in_turn(request.app.state, parse_json, body, model, max_marks)


async def in_turn(state: State, work: Callable[..., Result], *arguments: Any) -> Result:
    """Do work on a large body in a thread, one body after the other: it holds the interpreter for tens of ms."""
    async with state.large_bodies:
        return await asyncio.to_thread(work, *arguments)


def parse_json(body: bytes, model: type[Model], max_marks: int = MAX_MARKS) -> Model:
    """Check JSON against a model. Raises `BodyError` or `InvalidError`."""
    check_structure(body, max_marks)
    try:
        return model.model_validate_json(body, strict=True)
    except ValidationError as error:
        raise from_validation(error.errors(include_url=False), model.model_fields) from None


class _InMemory(MultiPartParser):
    """Starlette's, which writes nothing to the disk: how large bodies may be is limited before."""

    spool_max_size = sys.maxsize


async def read_form(request: Request, model: type[Model], file_field: str) -> tuple[Model, bytes | None]:
    """Read a form whose field `file_field` is a file. Raises `ContentTypeError`, `BodyError` or `InvalidError`."""
    fields: dict[str, str] = {}
    recording: bytes | None = None
    _check_charset(request)
    parser = _InMemory(
        request.headers, request.stream(), max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES
    )
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, UnicodeError) as error:
        reason = error.message if isinstance(error, MultiPartException) else "its type or a name cannot be read"
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
                raise InvalidError(name, f"is a file; only {file_field} may be one")
    finally:
        await form.close()
    try:
        return model.model_validate(fields), recording
    except ValidationError as error:
        known = dict.fromkeys([*model.model_fields, file_field])
        raise from_validation(error.errors(include_url=False), known) from None


async def read_speech(request: Request) -> SpeechRequest:
    """Read the body of a request to speak, JSON or form."""
    kind = content_type(request)
    if kind == FORM:
        body, recording = await read_form(request, SpeechBody, "reference_audio")
        if recording is not None and body.reference_audio is not None:
            raise InvalidError("reference_audio", "was given more than once")
    elif is_json(kind):
        body, recording = await read_json(request, SpeechBody), None
    else:
        raise ContentTypeError(f"{said(request)} is not read here; send {JSON} or {FORM}")
    if body.reference_audio is not None and len(body.reference_audio) > SMALL_BYTES:
        return await in_turn(request.app.state, body.to_request, recording)
    return body.to_request(recording)


def _check_charset(request: Request) -> None:
    """Raise `ContentTypeError` for a form of another charset than `CHARSETS`."""
    _, parameters = parse_options_header(request.headers.get("content-type"))
    given = parameters.get(b"charset", b"utf-8").decode("latin-1")
    if given.lower() not in CHARSETS:
        raise ContentTypeError(f"form charset {given[:40]!r} is not supported; send utf-8, us-ascii or latin-1")


def said(request: Request) -> str:
    """Return the body's content type as an error quotes it."""
    given = request.headers.get("content-type")
    return f"Content-Type {given[:80]!r}" if given else "a body without Content-Type"
