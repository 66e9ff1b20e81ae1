"""`POST /invocations` and `GET /execution-parameters`.

The body is JSON, which needs no Content-Type, JSON lines or a form; `Accept` selects the format of the response; the
custom attributes may select another route. The header `X-Amzn-SageMaker-Session-Id` opens or names a session; closing
one also needs `"requestType": "CLOSE"` in the body. `GET /ping` and the bidirectional stream are routes of the server.

SageMaker passes on up to 1,024 visible ASCII characters of `X-Amzn-SageMaker-Custom-Attributes`. The container uses
comma-separated `name=value` pairs: `route=/v1/audio/speech` in a request, `sample_rate=44100,format=pcm` in a response.

Batch transform sends JSON lines. The response has one line for each line of the body, in the same order; an invalid
line gets an error object. The engine gets a few lines at a time, so that a long body needs little more memory than a
short one.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field, model_validator
from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from s1_mini.audio.container import SOURCE_TYPE, lack_of
from s1_mini.exceptions import ParameterError, QueueFullError, S1MiniError
from s1_mini.sagemaker import sessions
from s1_mini.sagemaker.state import container_of
from s1_mini.server.bodies import JSON, content_type, parse_json, read_speech
from s1_mini.server.errors import (
    BodyError,
    BusyError,
    InvalidError,
    NotAcceptableError,
    NotFoundError,
    TooManyRequestsError,
    describe,
    quoted,
)
from s1_mini.server.openapi import SPEECH_ANSWER, body_of, failures
from s1_mini.server.record import record_of
from s1_mini.server.schemas import Format, SpeechBody, SpeechRequest, Text
from s1_mini.server.speech import (
    AudioResponse,
    StreamedAnswer,
    respond,
    source_header,
    speak,
    speak_to_client,
    to_json,
    while_listened,
)
from s1_mini.server.state import state_of
from s1_mini.types import AudioFormat

if TYPE_CHECKING:
    from s1_mini.speech_engine import SpeechEngine

router = APIRouter(tags=["sagemaker"])

ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"  # the only response header that SageMaker passes on
DESCRIBED = {"sample_rate": "X-Sample-Rate", "digital_source_type": "X-Digital-Source-Type"}  # headers of all routes
TARGET_HEADER = "X-Amzn-SageMaker-Target-Model"
MAX_TRANSFORM_MB = 100  # limit of batch transform
MAX_LINES = 1000
MAX_TRIES = 30  # attempts per line while other requests keep the queue full
RETRY_S = 1.0
JSON_LINES = "application/jsonlines"
JSON_LINES_TYPES = frozenset({JSON_LINES, "application/x-jsonlines", "application/jsonl", "application/x-ndjson"})
MAX_HEADER = 1024  # characters of a header
# AWS's clients send no Content-Type unless the caller names one; the default serializer of the `sagemaker` SDK sends
# this one.
UNKNOWN_TYPES = frozenset({"", "application/octet-stream"})

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
    "audio/aac": "aac",
    "audio/ogg": "ogg",
    "audio/opus": "opus",
    "audio/pcm": "pcm",
}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_JSON_OBJECT = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*+\{")


class InferenceBody(SpeechBody):
    """The body of `/v1/tts`, or that of Hugging Face's containers: a text as `inputs`, and options in `parameters`."""

    @model_validator(mode="before")
    @classmethod
    def _without_parameters(cls, data: Any) -> Any:
        """Raises `InvalidError`."""
        if not isinstance(data, dict) or "inputs" not in data:
            return data
        options, text = data.get("parameters") or {}, data["inputs"]
        if not isinstance(text, str):
            raise InvalidError("inputs", f"{quoted(text)} is not a text; send several texts as JSON lines")
        if not isinstance(options, dict):
            raise InvalidError("parameters", f"{quoted(options)} is not an object such as {{'voice': 'clara'}}")
        others = {name: value for name, value in data.items() if name not in ("inputs", "parameters")}
        if repeated := ({"text"} & {*options, *others}) or options.keys() & others.keys():
            raise InvalidError(min(repeated), "was given more than once")
        return {"text": text, **options, **others}


class InvocationBody(InferenceBody):
    """Body of `POST /invocations`, which may also open or close a session."""

    text: Text | None = None  # type: ignore[assignment] # a session may be opened or closed without speaking
    format: Format | None = None  # type: ignore[assignment] # Accept may name it
    requestType: Literal["NEW_SESSION", "CLOSE"] | None = Field(  # noqa: N815 - the containers' common name
        None, description="Open or close a sticky session; CLOSE needs the header X-Amzn-SageMaker-Session-Id."
    )

    def to_request(self, recording: bytes | None = None) -> SpeechRequest:
        """Return the request. Raises `InvalidError`, also without a text, or `ParameterError`."""
        if self.text is None:
            raise InvalidError("text", "is missing")
        return super().to_request(recording)


ROUTE: dict[str, Any] = {  # a route of the application itself
    "methods": ["POST"],
    "response_class": Response,
    "summary": "Synthesize speech (SageMaker's InvokeEndpoint)",
    "responses": SPEECH_ANSWER | failures(404, 406, 500, 504),
    "openapi_extra": body_of(SpeechBody, form_files=("reference_audio",)),
    "tags": ["sagemaker"],
}


async def invoke(request: Request) -> Response:
    """Speak with the default model or the target model of the request, or call the route that its attributes name."""
    route = read_route(request.headers.get(ATTRIBUTES), routes_of(request))
    target = request.headers.get(TARGET_HEADER)
    if route is not None and route != "/invocations":
        if target is not None:
            raise InvalidError(TARGET_HEADER, f"cannot be combined with route={route}, which has one model")
        return Rerouted(await with_type(request), route)
    if target is not None:
        return await answer(request, container_of(request).hosted.find(target).engine)
    return await answer(request, state_of(request).engine)


@router.get("/execution-parameters", summary="Settings for SageMaker's batch transform")
async def execution_parameters(request: Request) -> dict[str, Any]:
    """Return how much batch transform should send at once."""
    state = state_of(request)
    return {
        "MaxConcurrentTransforms": state.engine.num_slots * (state.member.count if state.member else 1),
        "BatchStrategy": os.environ.get("SAGEMAKER_BATCH_STRATEGY") or "MULTI_RECORD",
        "MaxPayloadInMB": max(1, min(MAX_TRANSFORM_MB, state.settings.max_body_bytes // 2**20)),
    }


class Rerouted(Response):
    """The response of another route of the application."""

    def __init__(self, request: Request, route: str) -> None:
        super().__init__()
        self._request, self._route = request, route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - the request has one
        async def describe(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                found = [f"{name}={headers[key]}" for name, key in DESCRIBED.items() if key in headers]
                headers.update({ATTRIBUTES: ",".join(found)} if found else {})
            await send(message)

        target = {"path": self._route, "raw_path": self._route.encode(), "headers": self._request.scope["headers"]}
        await self._request.app.router({**scope, **target}, self._request.receive, describe)


def routes_of(request: Request) -> frozenset[str]:
    """Return the allowed values of `route=`: documented POST paths below /v1 without parameters, and /invocations."""
    paths: dict[str, Any] = request.app.openapi()["paths"]  # cached by the application
    found = {path for path, methods in paths.items() if path.startswith("/v1/") and "post" in methods}
    return frozenset({path for path in found if "{" not in path} | {"/invocations"})


async def with_type(request: Request) -> Request:
    """Return the request; a JSON object without a type, or with that of unknown bytes, gets the type of JSON.

    Raises the errors of reading the body.
    """
    if content_type(request) not in UNKNOWN_TYPES:
        return request
    body = await request.body()
    headers = request.scope["headers"]
    if _JSON_OBJECT.match(body):
        others = [pair for pair in headers if pair[0] != b"content-type"]
        headers = [*others, (b"content-type", JSON.encode())]
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:  # the body again, then the client's disconnect
        return messages.pop() if messages else await request.receive()

    return Request({**request.scope, "headers": headers}, receive)


async def answer(request: Request, engine: SpeechEngine) -> Response:
    read_attributes(request.headers.get(ATTRIBUTES))
    request = await with_type(request)
    session_id, known = request.headers.get(sessions.ID_HEADER), container_of(request).sessions
    if content_type(request) in JSON_LINES_TYPES:
        if session_id is not None:
            raise InvalidError(sessions.ID_HEADER, "is not supported with JSON lines; send one JSON object")
        label = source_header(engine.config.label_audio)
        label |= {ATTRIBUTES: f"digital_source_type={SOURCE_TYPE}"} if label else {}
        return StreamedAnswer(_speak_lines(request, engine, _split_lines(await request.body())), JSON_LINES, label)
    body, recording = await read_speech(request, InvocationBody)
    if sessions.NEW in (session_id, body.requestType):
        return await _open_session(request, engine, body, recording)
    session = None if session_id is None else known.get(session_id)
    if body.requestType == "CLOSE":
        if session is None:
            raise InvalidError("requestType", f"'CLOSE' requires the header {sessions.ID_HEADER}")
        known.close(session.id)
        return JSONResponse({"session_id": session.id}, headers={sessions.CLOSED_HEADER: session.id})
    speech_request = body.to_request(recording)
    return await _speak(
        request, engine, speech_request if session is None else session.complete(speech_request), body.format, {}
    )


async def _speak(
    request: Request,
    engine: SpeechEngine,
    speech_request: SpeechRequest,
    named: AudioFormat | None,
    headers: dict[str, str],
) -> Response:
    audio_format, is_json = choose_form(request.headers.get("accept"), named)
    if speech_request.speech.word_times and not is_json:
        raise InvalidError("word_times", f"needs Accept: {JSON}, because the times are returned with the audio as JSON")
    streams = speech_request.streams and not is_json and container_of(request).streams
    speech_request = replace(speech_request, audio_format=audio_format, streams=streams)
    speech = await speak_to_client(request, engine, speech_request)
    attributes = f"sample_rate={speech.sample_rate},format={audio_format},channels=1"
    if engine.config.label_audio:
        attributes += f",digital_source_type={SOURCE_TYPE}"
    speech = replace(speech, headers=speech.headers | headers | {ATTRIBUTES: attributes})
    if is_json:
        return Response(await to_json(speech, speech_request), media_type=JSON, headers=speech.headers)
    return respond(speech)


async def _open_session(
    request: Request, engine: SpeechEngine, body: InvocationBody, recording: bytes | None
) -> Response:
    """Open a session; speak the text, if any, as its first request."""
    client = record_of(request).client
    if body.voice is not None and recording is not None:
        raise InvalidError("voice", "cannot be combined with reference_audio; send one of them")
    if body.voice is not None:
        await asyncio.to_thread(engine.describe_voice, body.voice)  # raises for an unknown name
    if recording is not None:  # an unreadable recording must fail now, and the first text should not wait
        preparing = engine.prepare_reference_async(recording, body.reference_text or "", client=client)
        await while_listened(request.receive, preparing)
    known = container_of(request).sessions
    session = known.open(client, body.voice, recording, body.reference_text if recording is not None else None)
    headers = {sessions.NEW_HEADER: known.new_header(session)}
    if body.text is None:
        return JSONResponse({"session_id": session.id}, headers=headers)
    try:
        return await _speak(request, engine, body.to_request(recording), body.format, headers)
    except BaseException:  # a failed response does not return the id
        with suppress(sessions.SessionNotFoundError):  # evicted meanwhile
            known.close(session.id)
        raise


def _split_lines(data: bytes) -> list[bytes]:
    if not data:
        raise BodyError("the body is empty; send one JSON object per line")
    lines = data.removesuffix(b"\n")
    if (count := lines.count(b"\n") + 1) > MAX_LINES:
        raise BodyError(f"the body has {count} lines; the limit is {MAX_LINES}. Split it into several requests")
    return lines.split(b"\n")


async def _speak_lines(request: Request, engine: SpeechEngine, lines: list[bytes]) -> AsyncIterator[bytes]:
    """Yield one line of JSON for each of `lines`; closing the generator cancels unfinished lines."""
    at_once = 2 * engine.num_slots
    tasks: deque[asyncio.Task[tuple[bytes, AudioResponse | None]]] = deque()
    waiting = deque(lines)
    try:
        while waiting or tasks:
            while waiting and len(tasks) < at_once:
                tasks.append(asyncio.create_task(_answer_line(request, engine, waiting.popleft())))
            content, speech = await tasks[0]
            yield content
            tasks.popleft()
            if speech is not None:
                speech.holding.release()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _answer_line(request: Request, engine: SpeechEngine, line: bytes) -> tuple[bytes, AudioResponse | None]:
    try:
        speech_request = await asyncio.to_thread(
            lambda: replace(parse_json(line, InferenceBody).to_request(), streams=False)
        )
        speech = await _speak_patiently(request, engine, speech_request)
    except S1MiniError as error:
        return json.dumps(describe(error, record_of(request).id)).encode() + b"\n", None
    return await to_json(speech, speech_request) + b"\n", speech


async def _speak_patiently(request: Request, engine: SpeechEngine, speech_request: SpeechRequest) -> AudioResponse:
    """Speak one line; wait while the queue is full."""
    record = record_of(request)
    for _ in range(MAX_TRIES):
        own = record.for_part()
        try:
            speech = await speak(engine, speech_request, settings=state_of(request).settings, record=own)
        except (QueueFullError, BusyError, TooManyRequestsError) as error:
            if own.first_chunk is not None:
                raise  # the line's own audio exceeds the limit, so a retry would fail again
            full = error
            await asyncio.sleep(error.retry_after_s if isinstance(error, QueueFullError) else RETRY_S)
        else:
            record.voice, record.audio_format = own.voice, own.audio_format
            record.spoken = record.spoken or own.spoken
            record.characters += own.characters
            record.hear(own.frames, own.audio_s, own.timing)
            return speech
    raise full


def choose_form(accept: str | None, audio_format: AudioFormat | None = None) -> tuple[AudioFormat, bool]:
    """Return the audio format that `accept` prefers, and whether the response is JSON with the audio as base64.

    `audio_format` is the request's own field, which applies if `accept` leaves the format open. Raises
    `NotAcceptableError` if no format is supported or `accept` is too long.
    """
    default: AudioFormat = audio_format or "wav"
    if not accept or not accept.strip():
        return default, False
    if len(accept) > MAX_HEADER:
        raise NotAcceptableError(f"Accept has {len(accept)} characters; the limit is {MAX_HEADER}")
    lack = ""
    for name in _by_preference(accept):
        if name in _ANY or name in _JSON:
            return default, name in _JSON
        if (wanted := _AUDIO.get(name)) and not (lack := lack_of(wanted, _types_but(wanted))):
            return wanted, False
    reason = lack or f"use one of {', '.join(_types_but(None))}"
    raise NotAcceptableError(f"Accept {accept!r} is not supported; {reason}")


def _types_but(unwanted: AudioFormat | None) -> tuple[str, ...]:
    return (*(name for name, audio_format in _AUDIO.items() if audio_format != unwanted), JSON)


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

    Raises `ParameterError` for more than `MAX_HEADER` characters, for characters other than visible ASCII, and for a
    repeated name.
    """
    if not header:
        return {}
    if len(header) > MAX_HEADER:
        raise ParameterError(ATTRIBUTES, f"has {len(header)} characters; the limit is {MAX_HEADER}")
    if not (header.isascii() and header.isprintable()):
        raise ParameterError(ATTRIBUTES, "contains characters other than visible ASCII")
    attributes: dict[str, str] = {}
    for item in re.split(r"[,\s]+", header):
        name, found, value = item.partition("=")
        if not found or not _NAME.fullmatch(name):
            continue
        if name in attributes:
            raise ParameterError(ATTRIBUTES, f"contains {name} twice")
        attributes[name] = value
    return attributes


def read_route(header: str | None, routes: frozenset[str]) -> str | None:
    """Return the route in a header, if any. Raises `ParameterError`, or `NotFoundError` unless it is in `routes`."""
    route = read_attributes(header).get("route")
    if route is None:
        return None
    path = route if route.startswith("/") else f"/{route}"
    if path not in routes:
        allowed = ", ".join(sorted(routes))
        raise NotFoundError(f"{ATTRIBUTES}: route={route[:100]!r} does not exist; use one of {allowed}")
    return path
