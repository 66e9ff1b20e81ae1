"""The paths of SageMaker's runtime on this machine, so that a boto3 client can call the server like an endpoint.

Supports `invoke_endpoint`, `invoke_endpoint_with_response_stream` and `invoke_endpoint_async`. As in the real runtime,
a failure of the container becomes status 424 (`ModelError`) with the container's response as text, and the container
receives only the headers that SageMaker passes on. Signatures are not checked.

Response streams use AWS's event-stream framing. A message has this layout, with big-endian numbers::

    u32 total length | u32 length of headers | u32 crc32 of these 8 bytes
    headers: u8 length, name, u8 type (7: text), u16 length, value
    payload
    u32 crc32 of everything before
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import struct
import uuid
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Request, Response
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from s1_mini.exceptions import ConfigurationError, RequestTimeoutError, S1MiniError, StorageError
from s1_mini.sagemaker import sessions
from s1_mini.sagemaker.async_store import MAX_ASYNC_S, AsyncStore
from s1_mini.sagemaker.invocations import ATTRIBUTES
from s1_mini.sagemaker.settings import ContainerSettings
from s1_mini.sagemaker.state import container_of
from s1_mini.server.accounts import Resource
from s1_mini.server.errors import ClientGoneError, DrainingError, code_of, error_response, message_of
from s1_mini.server.record import record_of
from s1_mini.server.state import state_in, state_of

if TYPE_CHECKING:
    from fastapi import FastAPI

logger = logging.getLogger(__name__)

router = APIRouter(include_in_schema=False)

NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
INFERENCE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
VARIANT = "AllTraffic"
MAX_INLINE_BYTES = 128_000
DEFAULT_ASYNC_S = 900
OUTPUT, FAILURE = ".out", "-error.out"  # suffixes of the files of asynchronous responses
EVENT_STREAM = "application/vnd.amazon.eventstream"
MAX_PAYLOAD_BYTES = 16 * 2**20  # limit of AWS's strictest decoder; botocore's is 24 MiB

_HEADER = "x-amzn-sagemaker-"
_PLAIN = ("content-type", "content-length", "accept")  # the container also receives these
_BACK = (ATTRIBUTES, sessions.NEW_HEADER, sessions.CLOSED_HEADER, "Content-Type")

OnStart = Callable[[Headers], Awaitable[None]]
OnPiece = Callable[[bytes], Awaitable[None]]


class AsyncCall(NamedTuple):
    """An asynchronous invocation."""

    body: bytes | str  # the input, or its location
    inference_id: str
    allowed_s: float
    name: str  # unique name of the output, because clients may reuse an inference id


class AwsError(Exception):
    """An error response of the runtime: HTTP status, error type and message."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


def check_name(name: str) -> None:
    """Raise `ConfigurationError` for an endpoint name that SageMaker would reject."""
    if not NAME.fullmatch(name):
        raise ConfigurationError(
            f"endpoint name {name!r} is not valid; use 1 to 63 letters, digits and hyphens, with a letter or digit at "
            "both ends"
        )


class LocalEndpoint:
    """A local endpoint, with its accepted asynchronous invocations."""

    def __init__(self, name: str, app: FastAPI, settings: ContainerSettings, store: AsyncStore | None = None) -> None:
        check_name(name)
        self.name, self.app, self.settings, self.store = name, app, settings, store
        self._tasks: set[asyncio.Task[None]] = set()
        app.add_exception_handler(AwsError, _answer_error)

    def check_room(self) -> None:
        """Raise `AwsError` at the limit of asynchronous invocations."""
        if len(self._tasks) >= self.settings.max_async:
            message = f"the limit of {self.settings.max_async} asynchronous invocations is reached; try again later"
            raise AwsError(429, "ThrottlingException", message)

    def accept(self, store: AsyncStore, scope: Scope, call: AsyncCall) -> None:
        gate, holding = state_in(self.app).gate, scope["state"]["record"].holding
        holding.set(Resource.BODY_BYTES, len(call.body), checked=False)  # `max_async` bounds the number of invocations
        gate.enter()  # shutdown waits for the invocation

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            gate.leave()
            holding.release()
            if not task.cancelled() and (error := task.exception()) is not None:
                fields = {"inference_id": call.inference_id}
                logger.error(
                    "the response of an asynchronous invocation was lost", exc_info=error, extra={"fields": fields}
                )

        task = asyncio.create_task(self._answer(store, scope, call))
        self._tasks.add(task)
        task.add_done_callback(end)

    async def close(self) -> None:
        """Cancel unfinished invocations and write a failure for each."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, store: AsyncStore, scope: Scope, call: AsyncCall) -> None:
        try:
            body = call.body
            if isinstance(body, str):
                body = await asyncio.to_thread(store.read, body, self.settings.max_async_bytes)
                scope["state"]["record"].holding.set(Resource.BODY_BYTES, len(body))
            later = {**scope, "headers": [pair for pair in scope["headers"] if pair[0] != b"content-length"]}
            async with asyncio.timeout(call.allowed_s):
                answer = await call_container(self.app, later, _receive_of(body))
        except TimeoutError:
            answer = error_response(RequestTimeoutError(f"the invocation timed out after {call.allowed_s:g} s"), None)
        except asyncio.CancelledError:
            answer = error_response(DrainingError("the server shut down before it could respond"), None)
        except Exception as error:  # the error is written as the response
            if not isinstance(error, S1MiniError):
                logger.exception("an asynchronous invocation failed")
            answer = error_response(error, None)
        await asyncio.to_thread(_keep, store, call.name, answer)


async def _find_endpoint(name: str, request: Request) -> LocalEndpoint:
    endpoint = container_of(request).endpoint
    assert endpoint is not None  # otherwise these paths do not exist
    if name != endpoint.name:
        raise AwsError(
            400, "ValidationError", f"Endpoint {name[:63]!r} was not found; this server's is {endpoint.name!r}"
        )
    variant = request.headers.get(_HEADER + "target-variant", VARIANT)
    if variant != VARIANT:
        raise AwsError(400, "ValidationError", f"Variant {variant[:63]!r} was not found; the only one is {VARIANT!r}")
    return endpoint


Endpoint = Annotated[LocalEndpoint, Depends(_find_endpoint)]


async def call_container(
    app: FastAPI, scope: Scope, receive: Receive, on_start: OnStart | None = None, on_piece: OnPiece | None = None
) -> Response:
    """Call `/invocations` inside the middleware, which the outer request of `scope` has already passed.

    The pieces of a successful response are passed to `on_piece` as they arrive; everything else is in the returned
    response. An `S1MiniError` before the response begins becomes a response; all other errors are raised. (The ASGI
    transport of httpx2 cannot do this, because it collects every response and shares no state with the outer request.)
    """
    record, body = scope["state"]["record"], bytearray()
    answer: Response | None = None

    async def send(message: Message) -> None:
        nonlocal answer
        content = message.get("body", b"")
        if message["type"] == "http.response.start":
            answer = Response(status_code=message["status"])
            answer.raw_headers = list(message.get("headers", []))
            if on_start is not None and is_good(answer):
                await on_start(answer.headers)
        elif on_piece is not None and answer is not None and is_good(answer):
            if content:
                await on_piece(content)
        else:
            record.holding.add(Resource.AUDIO_BYTES, len(content))
            body.extend(content)

    target = {"method": "POST", "path": "/invocations", "raw_path": b"/invocations", "query_string": b""}
    inner: dict[str, Any] = {**scope, **target, "headers": _passed(scope["headers"])}
    try:
        async with AsyncExitStack() as stack:
            inner["fastapi_middleware_astack"] = stack  # FastAPI's own middleware would add it
            await app.router(inner, receive, send)
    except S1MiniError as error:
        if answer is not None:
            raise
        record.code = error.code
        return error_response(error, record.id)
    assert answer is not None
    answer.body = bytes(body)
    return answer


def is_good(answer: Response) -> bool:
    return 200 <= answer.status_code < 300


def _passed(raw: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers for the container; X-Amzn-SageMaker-Content-Type and -Accept get their standard names."""
    headers = {name: value for name, value in Headers(raw=raw).items() if name in _PLAIN or name.startswith(_HEADER)}
    for plain in ("content-type", "accept"):
        if (special := headers.pop(_HEADER + plain, None)) is not None:
            headers[plain] = special
    return Headers(headers).raw


def _receive_of(body: bytes) -> Receive:
    """Return the `receive` of a request with this body, whose client never disconnects."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    return receive


@router.post("/endpoints/{name}/invocations")
async def invoke_endpoint(endpoint: Endpoint, request: Request) -> Response:
    """Answer `InvokeEndpoint` with the container's complete response."""
    try:
        answer = await call_container(endpoint.app, request.scope, request.receive)
    except S1MiniError as error:
        answer = error_response(error, None)
    return Response(answer.body, headers=_returned(answer.headers)) if is_good(answer) else _model_error(answer)


@router.post("/endpoints/{name}/invocations-response-stream")
async def invoke_with_response_stream(_: Endpoint) -> Response:
    """Answer `InvokeEndpointWithResponseStream` with an event for each piece of the container's response."""
    return FramedAnswer()


@router.post("/endpoints/{name}/async-invocations")
async def invoke_endpoint_async(endpoint: Endpoint, request: Request) -> Response:
    """Answer `InvokeEndpointAsync` with 202 and the location of the output."""
    endpoint.check_room()
    store = endpoint.store
    if store is None:
        message = "this endpoint has no store for asynchronous invocations; start it with --async-store"
        raise AwsError(400, "ValidationError", message)
    call = await _read_async(request)
    record = record_of(request)
    own = record.for_part(state_of(request).accounts.hold(record.client))
    later = {**request.scope, "state": request.scope["state"] | {"record": own}}
    try:
        await asyncio.to_thread(store.reserve, call.name)
        endpoint.check_room()  # other invocations may have been accepted meanwhile
    except OSError as error:
        raise AwsError(503, "ServiceUnavailable", f"the store cannot be written: {error.strerror}") from None
    except AwsError:
        await asyncio.to_thread(store.release, call.name)
        raise
    endpoint.accept(store, later, call)
    headers = {
        "X-Amzn-SageMaker-OutputLocation": store.locate(call.name + OUTPUT),
        "X-Amzn-SageMaker-FailureLocation": store.locate(call.name + FAILURE),
    }
    return JSONResponse({"InferenceId": call.inference_id}, 202, headers)


class FramedAnswer(Response):
    """The container's response in event-stream framing; a failure before its first byte has its own status."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:

        async def start(container_headers: Headers) -> None:
            headers = _returned(container_headers)
            headers["X-Amzn-SageMaker-Content-Type"] = headers.pop("Content-Type", "application/octet-stream")
            headers["Content-Type"] = EVENT_STREAM
            await send({"type": "http.response.start", "status": 200, "headers": Headers(headers).raw})

        async def send_piece(piece: bytes) -> None:
            for frame in payload_parts(piece):
                await send({"type": "http.response.body", "body": frame, "more_body": True})

        end = b""
        try:
            answer = await call_container(scope["app"], scope, receive, start, send_piece)
        except ClientGoneError:
            raise
        except Exception as error:  # the stream has begun, so only an event can report the error
            if not isinstance(error, S1MiniError):
                logger.exception("a stream failed")
            scope["state"]["record"].code = code_of(error)
            end = model_stream_error(error)
        else:
            if not is_good(answer):
                await _model_error(answer)(scope, receive, send)
                return
        await send({"type": "http.response.body", "body": end, "more_body": False})


def encode_message(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Frame one message with text headers."""
    block = b""
    for name, value in headers.items():
        block += struct.pack("!B", len(name.encode())) + name.encode()
        block += struct.pack("!BH", 7, len(value.encode())) + value.encode()
    lengths = struct.pack("!II", 16 + len(block) + len(payload), len(block))
    message = lengths + struct.pack("!I", zlib.crc32(lengths)) + block + payload
    return message + struct.pack("!I", zlib.crc32(message))


def payload_parts(payload: bytes) -> Iterator[bytes]:
    """Frame `payload` as one or more `PayloadPart` events."""
    headers = {
        ":event-type": "PayloadPart",
        ":content-type": "application/octet-stream",
        ":message-type": "event",
    }
    for start in range(0, len(payload), MAX_PAYLOAD_BYTES):
        yield encode_message(headers, payload[start : start + MAX_PAYLOAD_BYTES])


def model_stream_error(error: Exception) -> bytes:
    """Frame the end of an interrupted response as a `ModelStreamError` exception."""
    code = "ModelInvocationTimeExceeded" if isinstance(error, RequestTimeoutError) else "StreamBroken"
    headers = {
        ":exception-type": "ModelStreamError",
        ":content-type": "application/json",
        ":message-type": "exception",
    }
    message = f"{code_of(error)}: {message_of(error)}"
    return encode_message(headers, json.dumps({"Message": message, "ErrorCode": code}).encode())


def _keep(store: AsyncStore, name: str, answer: Response) -> None:
    """Write a response; if this fails, write a failure to the reserved space."""
    kind = answer.headers.get("content-type", "application/octet-stream")
    try:
        store.write(name + (OUTPUT if is_good(answer) else FAILURE), bytes(answer.body), kind)
    except OSError as error:
        logger.warning("cannot write the response of an asynchronous invocation: %s", error)
        if is_good(answer):
            answer = error_response(StorageError(f"the response cannot be stored: {error.strerror}"), None)
        store.write_reserved(name, name + FAILURE, bytes(answer.body), answer.headers["content-type"])
    finally:
        store.release(name)


async def _read_async(request: Request) -> AsyncCall:
    """Read an asynchronous invocation. Raises `AwsError` if it is invalid."""
    inference_id = request.headers.get(_HEADER + "inference-id") or str(uuid.uuid4())
    allowed = request.headers.get(_HEADER + "invocationtimeoutseconds", str(DEFAULT_ASYNC_S))
    body, location = await request.body(), request.headers.get(_HEADER + "inputlocation")
    fault = None
    if not INFERENCE_ID.fullmatch(inference_id):
        fault = "InferenceId must have 1 to 64 letters, digits, - and _"
    elif not (re.fullmatch(r"[0-9]{1,4}", allowed) and 1 <= int(allowed) <= MAX_ASYNC_S):
        fault = f"InvocationTimeoutSeconds must be an integer from 1 to {MAX_ASYNC_S}"
    elif bool(body) == bool(location):
        fault = "send either InputLocation or Body"
    elif len(body) > MAX_INLINE_BYTES:
        fault = f"Body is {len(body)} bytes; the limit is {MAX_INLINE_BYTES}. Use InputLocation"
    if fault is not None:
        raise AwsError(400, "ValidationError", fault)
    return AsyncCall(location or body, inference_id, float(allowed), str(uuid.uuid4()))


def _returned(headers: Headers) -> dict[str, str]:
    passed = {name: headers[name] for name in _BACK if name in headers}
    return passed | {"x-Amzn-Invoked-Production-Variant": VARIANT}


def _model_error(answer: Response) -> Response:
    message = bytes(answer.body).decode(errors="replace")
    side = "server" if answer.status_code >= 500 else "client"
    content = {
        "Message": f"Received {side} error ({answer.status_code}) from {VARIANT} with message {message!r}.",
        "OriginalStatusCode": answer.status_code,
        "OriginalMessage": message,
        "LogStreamArn": "",
    }
    return JSONResponse(content, 424, {"x-amzn-errortype": "ModelError"})


async def _answer_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, AwsError)
    return JSONResponse({"Message": str(error)}, error.status, {"x-amzn-errortype": error.kind})
