"""`POST /invocations`: what SageMaker hands to the container, in all its forms, and `GET /execution-parameters`.

JSON, JSON lines or a form come in; `Accept` chooses what goes out; the custom attributes may choose another route; the
session headers open, use and close sessions. `GET /ping` is the server's own, and the bidirectional stream too.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from s1_mini.sagemaker import sessions
from s1_mini.sagemaker.accept import JSON_LINES, Answer, choose_answer
from s1_mini.sagemaker.attributes import HEADER, read_attributes, read_route, write_attributes
from s1_mini.sagemaker.lines import audio_object, speak_lines
from s1_mini.sagemaker.payload import JSON_LINES_TYPES, kind_of, split_lines
from s1_mini.server.answers import StreamedAnswer, respond, while_listened
from s1_mini.server.bodies import FORM, content_type, in_turn, read_form, read_json
from s1_mini.server.errors import BodyError, InvalidError
from s1_mini.server.openapi import SPEECH_ANSWER, body_of, failures
from s1_mini.server.record import record_of
from s1_mini.server.schemas import (
    Base64Audio,
    Format,
    Sampling,
    SpeechBody,
    SpeechRequest,
    Text,
    VoiceName,
    decode_base64,
)
from s1_mini.server.speech import Speech, speak
from s1_mini.types import AudioFormat, ChunkProfile

if TYPE_CHECKING:
    from s1_mini.engine import ProductionTTSEngine

router = APIRouter(tags=["sagemaker"])

TARGET_HEADER = "X-Amzn-SageMaker-Target-Model"
MAX_TRANSFORM_MB = 100  # what batch transform allows


class InvocationBody(Sampling):
    """Body of `POST /invocations`: that of `/v1/tts`, and what opens or closes a session."""

    text: Text | None = None  # a session may be opened or closed without speaking
    voice: VoiceName | None = None
    reference_audio: Base64Audio | None = None
    reference_text: str | None = None
    format: Format | None = None  # else what Accept says
    stream: bool = False
    chunk_profile: ChunkProfile | None = None
    requestType: Literal["NEW_SESSION", "CLOSE"] | None = Field(  # noqa: N815 - the containers' common name
        None, description="With the header X-Amzn-SageMaker-Session-Id."
    )


@router.post(
    "/invocations",
    response_class=Response,
    summary="Speak, as SageMaker asks for it",
    responses=SPEECH_ANSWER | failures(404, 406, 500, 504),
    openapi_extra=body_of(SpeechBody, form_files=("reference_audio",)),
)
async def invoke(request: Request) -> Response:
    """Speak, with the loaded model that is named if one is, or hand the request to the route of its attributes."""
    route = read_route(request.headers.get(HEADER), routes_of(request))
    target = request.headers.get(TARGET_HEADER)
    if route is not None and route != "/invocations":
        if target is not None:
            raise InvalidError(TARGET_HEADER, f"cannot be given beside route={route}, which has one model")
        return Rerouted(request, route)
    if target is not None:
        return await answer(request, request.app.state.hosted.find(target).engine)
    return await answer(request, request.app.state.engine)


@router.get("/execution-parameters", summary="How batch transform should send")
async def execution_parameters(request: Request) -> dict[str, Any]:
    """Tell batch transform how much to send at once."""
    state = request.app.state
    return {
        "MaxConcurrentTransforms": state.engine.num_slots * (state.member.count if state.member else 1),
        "BatchStrategy": os.environ.get("SAGEMAKER_BATCH_STRATEGY") or "MULTI_RECORD",
        "MaxPayloadInMB": max(1, min(MAX_TRANSFORM_MB, state.settings.max_body_bytes // 2**20)),
    }


class Rerouted(Response):
    """An answer that another route of the application gives."""

    def __init__(self, request: Request, route: str) -> None:
        super().__init__()
        self._router, self._route = request.app.router, route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the other route answer."""
        await self._router({**scope, "path": self._route, "raw_path": self._route.encode()}, receive, send)


def routes_of(request: Request) -> frozenset[str]:
    """Give what `route=` may name: every public path below /v1 that takes a POST, and /invocations itself."""
    paths: dict[str, Any] = request.app.openapi()["paths"]  # kept by the application once it is made
    found = {path for path, methods in paths.items() if path.startswith("/v1/") and "post" in methods}
    return frozenset({path for path in found if "{" not in path} | {"/invocations"})


async def answer(request: Request, engine: ProductionTTSEngine) -> Response:
    """Answer one invocation with the voice of `engine`."""
    read_attributes(request.headers.get(HEADER))
    session_id = request.headers.get(sessions.ID_HEADER)
    if kind_of(content_type(request)) in JSON_LINES_TYPES:
        return await _answer_lines(request, engine, session_id)
    body, recording = await _read(request)
    if sessions.NEW in (session_id, body.requestType):
        return await _open_session(request, engine, body, recording)
    known = None if session_id is None else request.app.state.sessions.get(session_id)
    if body.requestType == "CLOSE":
        return _close_session(request, known)
    wanted = _to_request(body, recording)
    return await _speak(request, engine, wanted if known is None else known.complete(wanted), body.format, {})


async def _answer_lines(request: Request, engine: ProductionTTSEngine, session_id: str | None) -> Response:
    if session_id is not None:
        raise InvalidError(sessions.ID_HEADER, "has no meaning with JSON lines; send one JSON object")
    body = await request.body()
    if not body:
        raise BodyError("the body is empty; send a JSON object on each line")
    settings, record = request.app.state.settings, record_of(request)
    answers = speak_lines(engine, split_lines(body), settings=settings, record=record)
    return StreamedAnswer(answers, JSON_LINES, {})


async def _read(request: Request) -> tuple[InvocationBody, bytes | None]:
    if content_type(request) == FORM:
        body, recording = await read_form(request, InvocationBody, "reference_audio")
        if recording is not None and body.reference_audio is not None:
            raise InvalidError("reference_audio", "was given more than once")
    else:
        body, recording = await read_json(request, InvocationBody), None
    if body.reference_audio is not None:
        recording = await in_turn(request.app.state, decode_base64, body.reference_audio)
    return body, recording


def _to_request(body: InvocationBody, recording: bytes | None) -> SpeechRequest:
    if body.text is None:
        raise InvalidError("text", "is missing")
    return SpeechRequest(
        text=body.text,
        voice=body.voice,
        reference_audio=recording,
        reference_text=body.reference_text,
        streams=body.stream,
        chunk_profile=body.chunk_profile,
        **{name: getattr(body, name) for name in Sampling.model_fields},
    )


async def _speak(
    request: Request,
    engine: ProductionTTSEngine,
    wanted: SpeechRequest,
    named: AudioFormat | None,
    headers: dict[str, str],
) -> Response:
    form = choose_answer(request.headers.get("accept"), named)
    wanted = replace(wanted, audio_format=form.audio_format, streams=wanted.streams and not form.is_json)
    work = speak(engine, wanted, settings=request.app.state.settings, record=record_of(request))
    speech = await while_listened(request.receive, work)
    attributes = write_attributes(sample_rate=speech.sample_rate, format=form.audio_format, channels=1)
    speech = replace(speech, headers=speech.headers | headers | {HEADER: attributes})
    return await _shape(speech, form, tells_text=wanted.return_spoken_text)


async def _shape(speech: Speech, form: Answer, *, tells_text: bool) -> Response:
    if not form.is_json:
        return respond(speech)
    told = await audio_object(speech, form.audio_format, tells_text=tells_text)
    content = await asyncio.to_thread(lambda: json.dumps(told).encode())
    return Response(content, media_type=form.media_type, headers=speech.headers)


async def _open_session(
    request: Request, engine: ProductionTTSEngine, body: InvocationBody, recording: bytes | None
) -> Response:
    """Begin a session; with a text, speak it as the first of the session."""
    if body.voice is not None and recording is not None:
        raise InvalidError("voice", "was given beside reference_audio; give one of them")
    if body.voice is not None:
        await asyncio.to_thread(engine.describe_voice, body.voice)  # a name that is none is told now
    if recording is not None:  # one that is none is told now, and the session's first words need not wait for it
        preparing = engine.prepare_reference_async(
            recording, body.reference_text or "", client=record_of(request).client
        )
        await while_listened(request.receive, preparing)
    known = request.app.state.sessions
    session = known.open(
        record_of(request).client, body.voice, recording, body.reference_text if recording is not None else None
    )
    headers = {sessions.NEW_HEADER: known.new_header(session)}
    if body.text is None:
        return JSONResponse({"session_id": session.id}, headers=headers)
    try:
        return await _speak(request, engine, _to_request(body, recording), body.format, headers)
    except BaseException:
        with suppress(sessions.SessionNotFoundError):  # evicted meanwhile
            known.close(session.id)  # its id is told with a good answer only
        raise


def _close_session(request: Request, session: sessions.Session | None) -> Response:
    if session is None:
        raise InvalidError("requestType", f"'CLOSE' needs the header {sessions.ID_HEADER}")
    request.app.state.sessions.close(session.id)
    return JSONResponse({"session_id": session.id}, headers={sessions.CLOSED_HEADER: session.id})
