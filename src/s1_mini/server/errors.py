"""What a client is told when something fails: one table from exception to status, one JSON shape for all.

`{"error": {"code": "...", "message": "...", "field": "..." or null, "request_id": "..."}}`
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from reprlib import Repr
from typing import Any, NamedTuple

from starlette.responses import JSONResponse

from s1_mini.exceptions import (
    CapacityError,
    EngineError,
    EngineNotReadyError,
    GenerationError,
    QueueFullError,
    ReferenceAudioError,
    RequestError,
    RequestTimeoutError,
    S1MiniError,
    VoiceExistsError,
    VoiceFileError,
    VoiceNotFoundError,
    VoiceReadOnlyError,
    VoiceUnsupportedError,
)

MAX_MESSAGE = 600  # characters; what a client sent is quoted, but not at any length
MAX_FIELD = 100  # characters; a field that we do not know is named as the client named it
MAX_NAMED = 3  # further fields that one error names
SIMILAR = 0.8  # ratio of difflib from which a known field is suggested for an unknown one
UNSUPPORTED = {"speed": "not supported yet; leave it out, each voice has its own speed"}
INTERNAL_CODE = "internal_error"


class ServerError(S1MiniError):
    """Base of what goes wrong between a client and the engine."""

    code = "server_error"


class BodyError(ServerError):
    """The body cannot be read as what it says it is: broken JSON, broken multipart."""

    code = "body_invalid"


class BodyTooLargeError(ServerError):
    """The body, declared or sent, is over the limit."""

    code = "body_too_large"

    def __init__(self, allowed: int) -> None:
        super().__init__(f"the body is too large; at most {allowed} bytes are allowed (S1_MINI_SERVER_MAX_BODY_BYTES)")


class HttpError(ServerError):
    """What came is no HTTP/1.1 as it is read here."""

    code = "http_invalid"


class OriginError(ServerError):
    """A page of another site, or a name that is not this server's, asks."""

    code = "origin_not_allowed"


class HeadTooSlowError(ServerError):
    """The head of a request did not arrive in time."""

    code = "head_timeout"


class BodyTooSlowError(ServerError):
    """The body did not arrive in time."""

    code = "body_timeout"


class ContentTypeError(ServerError):
    """The body's type is none that this route reads."""

    code = "content_type_unsupported"


class NotAcceptableError(ServerError):
    """No type that the client accepts can be made."""

    code = "not_acceptable"


class IdleError(ServerError):
    """A connection lasted too long, or too long without a word."""

    code = "session_timeout"


class UnauthorizedError(ServerError):
    """The bearer key is missing or wrong."""

    code = "unauthorized"


class NotFoundError(ServerError):
    """There is no such path."""

    code = "not_found"


class MethodError(ServerError):
    """The path does not take this method."""

    code = "method_not_allowed"


class ConflictError(ServerError):
    """It is there already."""

    code = "conflict"


class StorageError(ServerError):
    """There is no room for it."""

    code = "insufficient_storage"


class TooManyRequestsError(ServerError):
    """One client has too many requests in flight."""

    code = "too_many_requests"


class BusyError(ServerError):
    """All clients together have too many requests in flight."""

    code = "server_busy"


class DrainingError(ServerError):
    """The server is going down and takes in nothing more."""

    code = "shutting_down"


class ReplicaLostError(ServerError):
    """The replica that was to answer has gone before it did."""

    code = "replica_lost"


class InvalidError(RequestError):
    """A field of the request is missing, unknown, of the wrong type or out of range."""


class ClientGoneError(Exception):
    """The client has closed the connection; there is nobody to answer."""


class Row(NamedTuple):
    """One line of the table."""

    status: int
    retry_after_s: int | None = None


# The nearest ancestor counts. A code always has the same status.
TABLE: Mapping[type[S1MiniError], Row] = {
    BodyError: Row(400),
    HttpError: Row(400),
    UnauthorizedError: Row(401),
    OriginError: Row(403),
    NotFoundError: Row(404),
    VoiceNotFoundError: Row(404),
    VoiceExistsError: Row(409),
    VoiceReadOnlyError: Row(409),
    VoiceFileError: Row(500),
    MethodError: Row(405),
    NotAcceptableError: Row(406),
    HeadTooSlowError: Row(408),
    BodyTooSlowError: Row(408),
    IdleError: Row(408),
    ConflictError: Row(409),
    BodyTooLargeError: Row(413),
    ContentTypeError: Row(415),
    RequestError: Row(422),
    ReferenceAudioError: Row(422),
    VoiceUnsupportedError: Row(422),
    CapacityError: Row(422),
    TooManyRequestsError: Row(429, 1),
    ReplicaLostError: Row(502, 1),
    BusyError: Row(503, 1),
    QueueFullError: Row(503, 1),  # or what the error says
    EngineNotReadyError: Row(503, 5),
    DrainingError: Row(503, 5),
    RequestTimeoutError: Row(504),
    StorageError: Row(507),
    GenerationError: Row(500),
    EngineError: Row(500),
    S1MiniError: Row(500),
}


def row_of(error: BaseException) -> Row:
    """Give the table's line for an exception; 500 for what is none of ours."""
    for kind in type(error).__mro__:
        if kind in TABLE:
            return TABLE[kind]
    return Row(500)


def code_of(error: BaseException) -> str:
    """Give the stable code of an exception."""
    return error.code if isinstance(error, S1MiniError) else INTERNAL_CODE


def message_of(error: BaseException) -> str:
    """Give the sentence for a client; nothing of what is none of ours, which may tell of paths and code."""
    if not isinstance(error, S1MiniError):
        return "the server failed on this request; it was logged under this request_id"
    return _cut(str(error), MAX_MESSAGE)


def renamed(error: RequestError, fields: Mapping[str, str]) -> RequestError:
    """Give the error by the name that its field has for the client, where `fields` has another than the engine's."""
    field = fields.get(error.field, error.field)
    return type(error)(field, str(error).removeprefix(f"{error.field}: "))


def describe(error: BaseException, request_id: str | None) -> dict[str, Any]:
    """Give the JSON shape of an error."""
    field = _cut(error.field, MAX_FIELD) if isinstance(error, RequestError) else None
    return {"error": {"code": code_of(error), "message": message_of(error), "field": field, "request_id": request_id}}


def error_response(error: BaseException, request_id: str | None) -> JSONResponse:
    """Answer with an error: status and headers by the table."""
    row = row_of(error)
    headers = {}
    retry_after_s = error.retry_after_s if isinstance(error, QueueFullError) else row.retry_after_s
    if retry_after_s is not None:
        headers["Retry-After"] = str(math.ceil(retry_after_s))
    if row.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if row.status in (408, 413):
        headers["Connection"] = "close"  # the rest of the body is not wanted
    return JSONResponse(describe(error, request_id), row.status, headers)


def misaddressed(method: str, path: str, allowed: str) -> ServerError:
    """Say that there is no such path or, if it takes other methods, which these are."""
    path = path[:100]
    if allowed:
        return MethodError(f"{method[:20]} is not for {path!r}; allowed: {allowed}")
    return NotFoundError(f"there is no {path!r} here; /docs lists what there is")


def from_validation(problems: Sequence[Any], known: Iterable[str] = ()) -> S1MiniError:
    """Return one error for pydantic's list of problems. `known` are the fields that the request may have.

    A field that is missing is reported last: an unknown one beside it is usually the same field, misspelt.
    """
    first, *others = sorted(problems, key=lambda problem: bool(problem["type"] == "missing"))
    if first["type"] == "json_invalid":
        return BodyError(f"the body is not JSON: {first.get('ctx', {}).get('error', first['msg'])}")
    field = _field_of(first)
    if first["type"] == "extra_forbidden":
        message = _unknown_field(field, tuple(known))
    elif first["type"] == "missing":
        message = "is missing"
    elif first["type"] == "union_tag_not_found":
        field, message = "type", "is missing"
    elif first["type"] == "union_tag_invalid":
        told = first["ctx"]
        field, message = "type", f"{quoted(told['tag'])} is not known; allowed are {told['expected_tags']}"
    else:
        message = f"{quoted(first.get('input'))}: {first['msg'][:1].lower()}{first['msg'][1:]}"
    named = dict.fromkeys(_cut(_field_of(problem), MAX_FIELD) for problem in others[:MAX_NAMED])
    more = f" (also wrong: {', '.join(named)}{', …' if len(others) > MAX_NAMED else ''})" if named else ""
    return InvalidError(_cut(field, MAX_FIELD), message + more)


def _field_of(problem: Any) -> str:
    return ".".join(str(part) for part in problem["loc"]) or "body"


def _unknown_field(field: str, known: Sequence[str]) -> str:
    """Return the message for an unknown field: the known one that it resembles, otherwise all of them."""
    if field in UNSUPPORTED:
        return UNSUPPORTED[field]
    spellings = {name.lower(): name for name in known}
    # Comparing a name of megabytes would take seconds.
    near = get_close_matches(field.lower(), spellings, n=1, cutoff=SIMILAR) if len(field) <= MAX_FIELD else []
    if near:
        return f"unknown field; did you mean {spellings[near[0]]}?"
    return "unknown field" + (f"; allowed are {', '.join(known)}" if known else "")


def quoted(value: Any) -> str:
    """Quote a client's value, of whatever size, in some eighty characters and at no cost."""
    return _SHORT.repr(value)


class _Short(Repr):
    """Python's short form of a value, in which null, true and false are called as in JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80
        self.maxlong = 40
        self.maxlevel = 2
        self.maxlist = self.maxdict = 3

    def repr_NoneType(self, value: None, level: int) -> str:  # noqa: ARG002, N802 - called by the type's name
        """Write null."""
        return "null"

    def repr_bool(self, value: bool, level: int) -> str:  # noqa: ARG002
        """Write true or false."""
        return str(value).lower()


_SHORT = _Short()


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
