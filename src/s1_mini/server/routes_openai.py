"""`/v1/audio/speech` and `/v1/models`, as OpenAI's clients call them."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from s1_mini.exceptions import RequestError
from s1_mini.server import voices
from s1_mini.server.answers import StreamedAnswer, respond, while_listened
from s1_mini.server.bodies import read_json
from s1_mini.server.errors import renamed
from s1_mini.server.openapi import SPEECH_ANSWER, body_of, failures, with_events
from s1_mini.server.record import record_of
from s1_mini.server.schemas import OpenAISpeechBody, Sampling, SpeechRequest
from s1_mini.server.speech import Speech, speak

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
    work = speak(state.engine, wanted, settings=state.settings, record=record_of(request))
    try:
        speech = await while_listened(request.receive, work)
    except RequestError as error:
        raise renamed(error, {"text": "input"}) from None
    if body.stream_format == "sse":
        return StreamedAnswer(_events(speech), "text/event-stream", speech.headers)
    return respond(speech)


@router.get("/v1/models", summary="The one model", responses=failures(has_body=False))
async def list_models() -> dict[str, Any]:
    """List what `model` may be; whatever is said there, this one speaks."""
    return {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "s1_mini"}]}


def to_request(body: OpenAISpeechBody, engine: ProductionTTSEngine) -> SpeechRequest:
    """Translate; OpenAI's own names of voices mean the default, unless there is a voice of that name."""
    voice = body.voice.get("id") if isinstance(body.voice, dict) else body.voice
    if voice in voices.OPENAI_NAMES and voice not in engine.voice_names():
        voice = None
    return SpeechRequest(
        text=body.input,
        voice=voice,
        audio_format=body.response_format,
        streams=True,
        **{name: getattr(body, name) for name in Sampling.model_fields},
    )


async def _events(speech: Speech) -> AsyncIterator[bytes]:
    """Give the sound as server-sent events."""
    async with aclosing(speech.body) as body:  # type: ignore[type-var]
        async for piece in body:
            yield _event({"type": "speech.audio.delta", "audio": base64.b64encode(piece).decode()})
    yield _event({"type": "speech.audio.done", "usage": {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}})


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"
