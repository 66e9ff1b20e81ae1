"""The paths of SageMaker's runtime on this machine, so that a boto3 client calls us as it would call an endpoint.

`invoke_endpoint`, `invoke_endpoint_with_response_stream` (event-stream framing, a failure midway as `ModelStreamError`)
and `invoke_endpoint_async`. As at the real runtime, a container's failure becomes status 424, `ModelError`, with what
the container said inside, and only the headers that SageMaker passes on reach the container. Signatures are not
checked.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from s1_mini.exceptions import ConfigurationError, RequestTimeoutError, S1MiniError
from s1_mini.sagemaker import sessions
from s1_mini.sagemaker.async_store import MAX_ASYNC_S, AsyncStore
from s1_mini.sagemaker.event_stream import MEDIA_TYPE, model_stream_error, payload_parts
from s1_mini.sagemaker.headers import ATTRIBUTES
from s1_mini.sagemaker.inner_call import Answer, InnerCall, of_bytes
from s1_mini.sagemaker.settings import ContainerSettings
from s1_mini.server.accounts import Resource
from s1_mini.server.errors import ClientGoneError, DrainingError, StorageError, code_of, describe, message_of, row_of
from s1_mini.server.record import record_of

if TYPE_CHECKING:
    from fastapi import FastAPI

logger = logging.getLogger(__name__)

router = APIRouter(include_in_schema=False)

NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
INFERENCE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
VARIANT = "AllTraffic"
MAX_INLINE_BYTES = 128_000
DEFAULT_ASYNC_S = 900
FULL = "too many invocations are waiting; try again"

_HEADER = "x-amzn-sagemaker-"
_BACK = {name.lower(): name for name in (ATTRIBUTES, sessions.NEW_HEADER, sessions.CLOSED_HEADER, "Content-Type")}


class AsyncCall(NamedTuple):
    """An asynchronous invocation: its input, or where that lies; its id; the seconds it may take; its output's name."""

    body: bytes | str
    inference_id: str
    allowed_s: float
    name: str  # of this invocation alone: clients may give several the same id


class LocalEndpoint:
    """One endpoint that exists on this machine only, and the asynchronous invocations it has accepted."""

    def __init__(self, name: str, app: FastAPI, settings: ContainerSettings, store: AsyncStore | None = None) -> None:
        if not NAME.fullmatch(name):
            raise ConfigurationError(f"endpoint {name!r}: 1 to 63 letters, digits and inner hyphens are allowed")
        self.name, self.app, self.settings, self.store = name, app, settings, store
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_full(self) -> bool:
        """Whether no more asynchronous invocation can be accepted."""
        return len(self._tasks) >= self.settings.max_async

    def accept(self, scope: Scope, call: AsyncCall) -> None:
        """Answer later."""
        gate = self.app.state.gate
        holding = scope["state"]["record"].holding
        holding.set(Resource.BODY_BYTES, len(call.body), checked=False)  # `max_async` bounds their number
        gate.enter()  # a server that shuts down waits for it
        task = asyncio.create_task(self._answer_later(scope, call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: gate.leave())
        task.add_done_callback(lambda _: holding.release())

    async def close(self) -> None:
        """Break off what is not answered yet; its failure is told in its place."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer_later(self, scope: Scope, call: AsyncCall) -> None:
        assert self.store is not None
        try:
            answer = await self._answer(self.store, scope, call)
        except asyncio.CancelledError:
            answer = _failed(DrainingError("the server went down before this was answered"))
        except Exception as error:
            logger.exception("an asynchronous invocation failed")
            answer = _failed(error)
        fields = {"inference_id": call.inference_id}
        try:
            await asyncio.to_thread(_keep, self.store, call.name, answer)
        except Exception:
            logger.exception("an asynchronous answer is lost", extra={"fields": fields})

    async def _answer(self, store: AsyncStore, scope: Scope, call: AsyncCall) -> Answer:
        try:
            body = call.body
            if isinstance(body, str):
                body = await asyncio.to_thread(store.read, body, self.settings.max_async_bytes)
                scope["state"]["record"].holding.set(Resource.BODY_BYTES, len(body))
            headers = [(name, value) for name, value in translated(scope) if name != "content-length"]
            inner = InnerCall(self.app, scope, headers)
            async with asyncio.timeout(call.allowed_s):
                await inner.run(of_bytes(body))
        except TimeoutError:
            return _failed(RequestTimeoutError(f"the invocation took longer than {call.allowed_s:g} s"))
        except S1MiniError as error:
            return _failed(error)
        return inner.answer


@router.post("/endpoints/{name}/invocations")
async def invoke_endpoint(name: str, request: Request) -> Response:
    """Answer `InvokeEndpoint`: the container's answer, once all of it is there."""
    endpoint = request.app.state.endpoint
    if name != endpoint.name:
        return _unknown(name)
    call = InnerCall(endpoint.app, request.scope, translated(request.scope))
    try:
        await call.run(request.receive)
    except S1MiniError as error:
        call.answer = _failed(error)
    if not call.answer.is_good:
        return _model_error(call.answer)
    headers = _returned(call.answer) | {"x-Amzn-Invoked-Production-Variant": VARIANT}
    return Response(bytes(call.answer.body), headers=headers)


@router.post("/endpoints/{name}/invocations-response-stream")
async def invoke_with_response_stream(name: str, request: Request) -> Response:
    """Answer `InvokeEndpointWithResponseStream`: the container's pieces as events, as they come."""
    if name != request.app.state.endpoint.name:
        return _unknown(name)
    return FramedAnswer(request)


@router.post("/endpoints/{name}/async-invocations")
async def invoke_endpoint_async(name: str, request: Request) -> Response:
    """Answer `InvokeEndpointAsync`: 202, and where the output will be."""
    endpoint = request.app.state.endpoint
    if name != endpoint.name:
        return _unknown(name)
    if endpoint.is_full:
        return _aws_error(429, "ThrottlingException", {"Message": FULL})
    call = await _read_async(request, endpoint.store)
    if isinstance(call, str):
        return _aws_error(400, "ValidationError", {"Message": call})
    holding = request.app.state.accounts.hold(record_of(request).client)
    record = record_of(request).for_part(holding)
    later = {**request.scope, "state": request.scope["state"] | {"record": record}}
    try:
        await asyncio.to_thread(endpoint.store.reserve, call.name)
    except OSError as error:
        return _aws_error(503, "ServiceUnavailable", {"Message": f"the store cannot be written: {error.strerror}"})
    if endpoint.is_full:  # others have come meanwhile
        await asyncio.to_thread(endpoint.store.release, call.name)
        return _aws_error(429, "ThrottlingException", {"Message": FULL})
    endpoint.accept(later, call)
    headers = {
        "X-Amzn-SageMaker-OutputLocation": endpoint.store.locate(output_name(call.name)),
        "X-Amzn-SageMaker-FailureLocation": endpoint.store.locate(failure_name(call.name)),
    }
    return JSONResponse({"InferenceId": call.inference_id}, 202, headers)


class FramedAnswer(Response):
    """The container's answer in event-stream framing; a failure before its first byte has a status of its own."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the container and frame what it says."""
        call = InnerCall(self._request.app, scope, translated(scope))

        async def start() -> None:
            headers = _returned(call.answer)
            headers["X-Amzn-SageMaker-Content-Type"] = headers.pop("Content-Type", "application/octet-stream")
            headers |= {"Content-Type": MEDIA_TYPE, "x-Amzn-Invoked-Production-Variant": VARIANT}
            raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": 200, "headers": raw})

        async def give(frame: bytes, *, is_last: bool = False) -> None:
            await send({"type": "http.response.body", "body": frame, "more_body": not is_last})

        async def give_piece(piece: bytes) -> None:
            for frame in payload_parts(piece):
                await give(frame)

        try:
            await call.run(receive, start, give_piece)
        except ClientGoneError:
            raise
        except Exception as error:
            if not isinstance(error, S1MiniError):
                logger.exception("a stream broke off")
            scope["state"]["record"].code = code_of(error)
            await give(_stream_error(error), is_last=True)
            return
        if call.answer.is_good:
            await give(b"", is_last=True)
        else:
            await _model_error(call.answer)(scope, receive, send)


def translated(scope: Scope) -> list[tuple[str, str]]:
    """Give the headers that the container gets: what has a name of its own at the runtime gets its plain name."""
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    for plain in ("content-type", "accept"):
        special = headers.pop(_HEADER + plain, None)
        if special is not None:
            headers[plain] = special
    return list(headers.items())


def output_name(name: str) -> str:
    """Give the file name of an asynchronous answer."""
    return f"{name}.out"


def failure_name(name: str) -> str:
    """Give the file name of an asynchronous failure."""
    return f"{name}-error.out"


def _keep(store: AsyncStore, name: str, answer: Answer) -> None:
    """Write an answer; one that cannot be written is told as a failure, for which there is room."""
    kind = answer.headers.get("content-type", "application/octet-stream")
    try:
        try:
            store.write((output_name if answer.is_good else failure_name)(name), bytes(answer.body), kind)
        except OSError as error:
            logger.warning("an asynchronous answer cannot be written: %s", error)
            lost = _failed(StorageError(f"the answer cannot be kept: {error.strerror}"))
            told = lost if answer.is_good else answer
            store.write_reserved(name, failure_name(name), bytes(told.body), told.headers["content-type"])
    finally:
        store.release(name)


async def _read_async(request: Request, store: AsyncStore | None) -> AsyncCall | str:
    """Read an asynchronous invocation; give a sentence if it cannot be one."""
    inference_id = request.headers.get(_HEADER + "inference-id") or str(uuid.uuid4())
    allowed = request.headers.get(_HEADER + "invocationtimeoutseconds", str(DEFAULT_ASYNC_S))
    body, location = await request.body(), request.headers.get(_HEADER + "inputlocation")
    complaint = None
    if store is None:
        complaint = "this endpoint has no store for asynchronous invocations; start it with --async-store"
    elif not INFERENCE_ID.fullmatch(inference_id):
        complaint = "InferenceId: 1 to 64 letters, digits, - and _ are allowed"
    elif not (re.fullmatch(r"[0-9]{1,4}", allowed) and 1 <= int(allowed) <= MAX_ASYNC_S):
        complaint = f"InvocationTimeoutSeconds: a whole number from 1 to {MAX_ASYNC_S} is needed"
    elif bool(body) == bool(location):
        complaint = "give either InputLocation or Body"
    elif len(body) > MAX_INLINE_BYTES:
        complaint = f"Body has {len(body)} bytes; at most {MAX_INLINE_BYTES} are allowed, use InputLocation"
    return complaint or AsyncCall(location or body, inference_id, float(allowed), str(uuid.uuid4()))


def _returned(answer: Answer) -> dict[str, str]:
    return {_BACK[name]: value for name, value in answer.headers.items() if name in _BACK}


def _failed(error: Exception) -> Answer:
    told = json.dumps(describe(error, None)).encode()
    return Answer(row_of(error).status, {"content-type": "application/json"}, bytearray(told))


def _stream_error(error: Exception) -> bytes:
    kind = "ModelInvocationTimeExceeded" if isinstance(error, RequestTimeoutError) else "StreamBroken"
    return model_stream_error(kind, f"{code_of(error)}: {message_of(error)}")


def _model_error(answer: Answer) -> Response:
    said = answer.body.decode(errors="replace")
    content = {
        "Message": f"Received client error ({answer.status}) from {VARIANT} with message {said!r}.",
        "OriginalStatusCode": answer.status,
        "OriginalMessage": said,
        "LogStreamArn": "",
    }
    return _aws_error(424, "ModelError", content)


def _unknown(name: str) -> Response:
    return _invalid(f"Endpoint {name[:63]!r} is not found on this machine")


def _invalid(message: str) -> Response:
    return _aws_error(400, "ValidationError", {"Message": message})


def _aws_error(status: int, kind: str, content: dict[str, Any]) -> Response:
    return JSONResponse(content, status, {"x-amzn-errortype": kind})
