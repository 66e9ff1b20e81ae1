"""`/v1/audio/…` and `/v1/models`, as OpenAI's clients call them, and those that imitate OpenAI's."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from s1_mini.exceptions import RequestError
from s1_mini.server import voices
from s1_mini.server.answers import StreamedAnswer, respond, while_listened
from s1_mini.server.bodies import read_json
from s1_mini.server.errors import NotFoundError, renamed
from s1_mini.server.openapi import SPEECH_ANSWER, body_of, failures, with_events
from s1_mini.server.record import RequestLog, record_of
from s1_mini.server.schemas import (
    AudioModels,
    AudioVoices,
    Named,
    OpenAIModel,
    OpenAIModels,
    OpenAISpeechBody,
    SpeechRequest,
)
from s1_mini.server.speech import AudioResponse, speak

if TYPE_CHECKING:
    from s1_mini.engine import ProductionTTSEngine

router = APIRouter(tags=["openai"])

MODEL = "s1-mini"


@router.post(
    "/v1/audio/speech",
    response_class=Response,
    summary="Speak a text, as OpenAI's API does",
    responses=with_events(SPEECH_ANSWER) | failures(404, 500, 504),
    openapi_extra=body_of(OpenAISpeechBody),
)
async def create_speech(request: Request) -> Response:
    """Speak a text while it is sent, in the format that was asked for."""
    body = await read_json(request, OpenAISpeechBody)
    state = request.app.state
    wanted = to_request(body, state.engine)
    record = record_of(request)
    work = speak(state.engine, wanted, settings=state.settings, record=record)
    try:
        speech = await while_listened(request.receive, work)
    except RequestError as error:
        raise renamed(error, {"text": "input"}) from None
    if body.stream_format == "sse":
        count = partial(state.engine.count_tokens, normalize=body.normalize, on_unsupported=body.on_unsupported)
        num_read = await asyncio.to_thread(count, body.input)
        told = {"spoken_text": speech.spoken_text} if body.return_spoken_text else {}
        return StreamedAnswer(_events(speech, num_read, record, told), "text/event-stream", speech.headers)
    return respond(speech)


@router.get("/v1/models", summary="The one model", responses=failures(has_body=False))
async def list_models() -> OpenAIModels:
    """List what `model` may be; whatever is said there, this one speaks."""
    return OpenAIModels(data=[OpenAIModel(id=MODEL)])


@router.get("/v1/models/{model}", summary="The same, by its name", responses=failures(404, has_body=False))
async def describe_model(model: str) -> OpenAIModel:
    """Tell of the one model."""
    if model != MODEL:
        raise NotFoundError(f"there is no model {model[:128]!r} here; there is {MODEL!r}")
    return OpenAIModel(id=MODEL)


@router.get("/v1/audio/models", summary="The one model, in short", responses=failures(has_body=False))
async def list_audio_models() -> AudioModels:
    """List the models that speak, as clients of Kokoro-FastAPI and the like ask for them."""
    return AudioModels(models=[Named(id=MODEL, name=MODEL)])


@router.get("/v1/audio/voices", summary="All voices, in short", responses=failures(503, has_body=False))
async def list_audio_voices(request: Request) -> AudioVoices:
    """List the names of all voices, as clients of Kokoro-FastAPI and the like ask for them."""
    told = await asyncio.to_thread(voices.describe_all, request.app.state.engine, request.app.state.member)
    return AudioVoices(voices=[Named(id=voice.name, name=voice.name) for voice in told.voices])


def to_request(body: OpenAISpeechBody, engine: ProductionTTSEngine) -> SpeechRequest:
    """Translate; OpenAI's own names of voices mean the default, unless there is a voice of that name."""
    voice = body.voice
    if voice in voices.OPENAI_NAMES and voice not in engine.voice_names():
        voice = None
    return body.build(body.input, body.response_format, streams=True, voice=voice)


async def _events(
    speech: AudioResponse, num_read: int, record: RequestLog, told: dict[str, Any]
) -> AsyncIterator[bytes]:
    """Give the sound as server-sent events; the last tells the tokens that were read and the frames that were made."""
    async with aclosing(speech.body) as body:  # type: ignore[type-var]
        async for piece in body:
            yield _event({"type": "speech.audio.delta", "audio": base64.b64encode(piece).decode()})
    usage = {"input_tokens": num_read, "output_tokens": record.frames, "total_tokens": num_read + record.frames}
    yield _event({"type": "speech.audio.done", "usage": usage} | told)


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"
