"""Error responses: the status of each exception, and one JSON shape for all.

`{"error": {"code": "...", "message": "...", "field": "..." or null, "request_id": "..."}}`
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from reprlib import Repr
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import Scope

from s1_mini.exceptions import (
    CapacityError,
    EngineNotReadyError,
    QueueFullError,
    RequestError,
    RequestTimeoutError,
    S1MiniError,
    StorageError,
    TextIdleError,
    VoiceExistsError,
    VoiceFileError,
    VoiceNotFoundError,
    VoiceReadOnlyError,
)

MAX_MESSAGE = 600  # characters; messages quote text from clients
MAX_FIELD = 100  # characters; the name of an unknown field comes from the client
MAX_NAMED = 3  # further wrong fields named in one error
SIMILAR = 0.8  # minimum ratio of difflib to suggest a known field for an unknown one
INTERNAL_CODE = "internal_error"
OPENAI_PATHS = ("/v1/audio/", "/v1/models")
ELEVENLABS_KEY = "xi-api-key"  # header with the API key


class ErrorKind(NamedTuple):
    """The response to an error."""

    status: int
    retry_after_s: int | None = None


class ServerError(S1MiniError, code="server_error"):
    """Base of the server's own errors, each with its code and status."""

    row = ErrorKind(500)

    def __init_subclass__(cls, code: str = "", status: int = 0, retry_after_s: int | None = None) -> None:
        super().__init_subclass__(code)
        cls.row = ErrorKind(status, retry_after_s) if status else cls.row


class BodyError(ServerError, code="body_invalid", status=400):
    """Malformed body: broken JSON or multipart."""


class HttpError(ServerError, code="http_invalid", status=400):
    """Malformed HTTP request."""


class UnauthorizedError(ServerError, code="unauthorized", status=401):
    """Missing or wrong API key."""


class OriginError(ServerError, code="origin_not_allowed", status=403):
    """The request comes from a page of another site, or its Host is not a name of this server."""


class NotFoundError(ServerError, code="not_found", status=404):
    """Unknown path, model, session or consent."""


class MethodError(ServerError, code="method_not_allowed", status=405):
    """Known path, but not for this method."""

    def __init__(self, message: str, allowed: str) -> None:
        super().__init__(message)
        self.allowed = allowed


class NotAcceptableError(ServerError, code="not_acceptable", status=406):
    """No media type in Accept is supported."""


class HeadTooSlowError(ServerError, code="head_timeout", status=408):
    """The head of a request did not arrive in time."""


class BodyTooSlowError(ServerError, code="body_timeout", status=408):
    """The body did not arrive in time."""


class IdleError(ServerError, code="session_timeout", status=408):
    """A session lasted too long, or was idle for too long."""


class ConflictError(ServerError, code="conflict", status=409):
    """The resource already exists."""


class BodyTooLargeError(ServerError, code="body_too_large", status=413):
    """The body, as declared or as sent, is over the limit."""

    def __init__(self, allowed: int, variable: str = "S1_MINI_SERVER_MAX_BODY_BYTES") -> None:
        super().__init__(f"the body is too large; at most {allowed} bytes are allowed ({variable})")


class ContentTypeError(ServerError, code="content_type_unsupported", status=415):
    """The route does not support this content type."""


class TooManyRequestsError(ServerError, code="too_many_requests", status=429, retry_after_s=1):
    """One client holds or uses more than its share."""


class ReplicaLostError(ServerError, code="replica_lost", status=502, retry_after_s=1):
    """The replica died before it responded."""


class BusyError(ServerError, code="server_busy", status=503, retry_after_s=1):
    """The server has too few resources left for the request."""


class DrainingError(ServerError, code="shutting_down", status=503, retry_after_s=5):
    """The server is shutting down."""


class InvalidError(RequestError):
    """A field of the request is missing, unknown, of the wrong type or out of range."""


class ClientGoneError(Exception):
    """The client closed the connection."""


# Status of the package's errors. A class that is not listed has the status of its nearest listed ancestor, or 500.
# All errors with the same code have the same status.
TABLE: Mapping[type[BaseException], ErrorKind] = {
    VoiceNotFoundError: ErrorKind(404),
    VoiceExistsError: ErrorKind(409),
    VoiceReadOnlyError: ErrorKind(409),
    VoiceFileError: ErrorKind(500),
    RequestError: ErrorKind(422),
    CapacityError: ErrorKind(422),
    QueueFullError: ErrorKind(503, 1),  # the error's own `retry_after_s` takes precedence
    EngineNotReadyError: ErrorKind(503, 5),
    RequestTimeoutError: ErrorKind(504),
    TextIdleError: ErrorKind(408),
    StorageError: ErrorKind(507),
}


def row_of(error: BaseException) -> ErrorKind:
    """Return the status of an exception, and when to retry; 500 for exceptions of other packages."""
    if isinstance(error, ServerError):
        return error.row
    return next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), ErrorKind(500))


def code_of(error: BaseException) -> str:
    return error.code if isinstance(error, S1MiniError) else INTERNAL_CODE


def message_of(error: BaseException) -> str:
    """Return the message for a client; a general one for exceptions of other packages, which may contain paths."""
    if not isinstance(error, S1MiniError):
        return "the server failed on this request; the error was logged with this request_id"
    return _cut(str(error), MAX_MESSAGE)


@contextmanager
def renamed(fields: Mapping[str, str]) -> Iterator[None]:
    """Rename the field of an error in the block for the client; `fields` maps the engine's names to the client's."""
    try:
        yield
    except RequestError as error:
        raise type(error)(fields.get(error.field, error.field), error.reason) from None


def describe(error: BaseException, request_id: str | None) -> dict[str, Any]:
    field = _cut(error.field, MAX_FIELD) if isinstance(error, RequestError) else None
    return {"error": {"code": code_of(error), "message": message_of(error), "field": field, "request_id": request_id}}


def detail_kind(scope: Scope) -> Literal["deepgram", "elevenlabs", "kokoro", "openai"] | None:
    """Return the service whose clients send this request and expect errors of another form or status."""
    if scope["path"].startswith(("/v1/text-to-speech/", "/v2/voices")) or ELEVENLABS_KEY in Headers(scope=scope):
        return "elevenlabs"
    if scope["type"] == "http" and scope["path"].startswith(OPENAI_PATHS):
        return "openai"
    if scope["path"] == "/v2/speak":
        return "deepgram"
    return "kokoro" if scope["path"].startswith("/dev/") else None


def retry_header(error: BaseException) -> dict[str, str]:
    """Return `Retry-After` for a temporary error."""
    retry_after_s = error.retry_after_s if isinstance(error, QueueFullError) else row_of(error).retry_after_s
    return {} if retry_after_s is None else {"Retry-After": str(math.ceil(retry_after_s))}


def error_response(error: BaseException, request_id: str | None, detail: str | None = None) -> JSONResponse:
    """Return the HTTP response for an error; `detail` is the result of `detail_kind`."""
    row = row_of(error)
    headers = retry_header(error)
    if isinstance(error, UnauthorizedError):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, MethodError):
        headers["Allow"] = error.allowed
    if row.status in (408, 413):
        headers["Connection"] = "close"  # the rest of the body is not read
    content = describe(error, request_id)
    code, message = content["error"]["code"], content["error"]["message"]
    kind = "invalid_request_error" if row.status < 500 else "server_error"
    status = row.status
    if detail == "elevenlabs":
        content["detail"] = {"status": code, "message": message}
    elif detail == "kokoro":
        content["detail"] = {"error": code, "message": message, "type": kind}
    elif detail == "deepgram":
        content |= {"err_code": code, "err_msg": message, "request_id": request_id}
        status = 400 if status == 422 else status
    elif detail == "openai":
        content["error"] |= {"type": kind, "param": content["error"]["field"]}
        # OpenAI answers 400 to a wrong field, and programs for it catch `openai.BadRequestError`.
        status = 400 if status == 422 else status
    return JSONResponse(content, status, headers)


def misaddressed(method: str, path: str, allowed: str) -> ServerError:
    """Return the error for an unknown path or, if `allowed` names methods, for a known path with another method."""
    if allowed:
        return MethodError(f"{method[:20]} is not allowed for {path[:100]!r}; use {allowed}", allowed)
    return NotFoundError(f"unknown path {path[:100]!r}; /docs lists all routes")


@contextmanager
def validating(known: Iterable[str] = ()) -> Iterator[None]:
    """Raise `from_validation` in place of pydantic's error in the block."""
    try:
        yield
    except ValidationError as error:
        raise from_validation(error.errors(include_url=False), known) from None


def from_validation(problems: Sequence[Any], known: Iterable[str] = ()) -> S1MiniError:
    """Return one error for pydantic's list of problems. `known` are the fields that the request may have.

    Missing fields are reported last, because an unknown field is often a misspelling of the missing one.
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
        context = first["ctx"]
        field, message = "type", f"{quoted(context['tag'])} is not known; use one of {context['expected_tags']}"
    else:
        message = f"{quoted(first.get('input'))}: {first['msg'][:1].lower()}{first['msg'][1:]}"
    named = dict.fromkeys(_cut(_field_of(problem), MAX_FIELD) for problem in others[:MAX_NAMED])
    more = f" (also wrong: {', '.join(named)}{', …' if len(others) > MAX_NAMED else ''})" if named else ""
    return InvalidError(_cut(field, MAX_FIELD), message + more)


def _field_of(problem: Any) -> str:
    return ".".join(str(part) for part in problem["loc"]) or "body"


def _unknown_field(field: str, known: Sequence[str]) -> str:
    """Return the message for an unknown field, with the most similar known field or else all of them."""
    spellings = {name.lower(): name for name in known}
    # Comparing a name of megabytes would take seconds.
    near = get_close_matches(field.lower(), spellings, n=1, cutoff=SIMILAR) if len(field) <= MAX_FIELD else []
    if near:
        return f"unknown field; did you mean {spellings[near[0]]}?"
    return "unknown field" + (f"; use one of {', '.join(known)}" if known else "")


def quoted(value: Any) -> str:
    """Quote a client's value, shortened: at most 80 characters of each string, three entries of each list or object."""
    return _SHORT.repr(value)


class _Short(Repr):
    """Shortened repr of a value, with null, true and false as in JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80
        self.maxlong = 40
        self.maxlevel = 2
        self.maxlist = self.maxdict = 3

    def repr_NoneType(self, value: None, level: int) -> str:  # noqa: ARG002, N802 - called by the type's name
        return "null"

    def repr_bool(self, value: bool, level: int) -> str:  # noqa: ARG002
        return str(value).lower()


_SHORT = _Short()


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
