"""Kokoro-FastAPI's captions: `POST /dev/captioned_speech`, audio with the times of its words."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from s1_mini.server.bodies import JSON, LINES, read_json
from s1_mini.server.errors import InvalidError
from s1_mini.server.openapi import body_of, failures, inlined
from s1_mini.server.protocols.openai import OpenAISpeechBody
from s1_mini.server.speech import StreamedAnswer, Times, in_lines
from s1_mini.server.state import state_of
from s1_mini.types import Word

router = APIRouter(tags=["kokoro"])


class CaptionsBody(OpenAISpeechBody):
    """Body of `POST /dev/captioned_speech`. Fields without an equivalent here are ignored."""

    stream: bool = Field(True, description="Send JSON lines while audio is generated; false: one JSON object.")
    return_timestamps: bool = Field(
        True, description="Whether to return word times. If the model does not support them, send false."
    )


class Caption(BaseModel):
    """A word of the text, and when it is spoken, in seconds."""

    word: str
    start_time: float
    end_time: float


class CaptionedAudio(BaseModel):
    """Audio as base64, and the words whose times became known with this audio."""

    audio: str
    audio_format: str
    timestamps: list[Caption] | None = Field(description="Null if both `stream` and `return_timestamps` are false.")


CAPTIONS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A JSON object, or with `stream` one object per line",
        "content": {JSON: {"schema": inlined(CaptionedAudio.model_json_schema())}, LINES: {}},
    }
}


@router.post(
    "/dev/captioned_speech",
    response_class=Response,
    summary="Speak a text with the times of its words, as Kokoro-FastAPI does",
    responses=CAPTIONS | failures(404, 500, 504),
    openapi_extra=body_of(CaptionsBody),
)
async def create_captioned_speech(request: Request) -> Response:
    """Speak a text; each JSON object of the response has audio and word times."""
    body = await read_json(request, CaptionsBody)
    if body.return_timestamps and not state_of(request).engine.has_word_times:
        raise InvalidError("return_timestamps", "is not supported by this model, which reports no times; send false")
    speech = await body.speak(request, streams=body.stream, word_times=body.return_timestamps)
    kind = "audio/mpeg" if body.response_format == "mp3" else f"audio/{body.response_format}"
    if body.stream:
        return StreamedAnswer(in_lines(speech, partial(_line, kind=kind)), LINES, speech.headers)
    times = speech.take_times().words if body.return_timestamps else None
    content = await asyncio.to_thread(_encode, speech.content or b"", kind, times)
    return Response(content, media_type=JSON, headers=speech.headers)


def _line(piece: bytes, times: Times, kind: str) -> bytes:
    return _encode(piece, kind, times.words) + b"\n" if piece or times.words else b""


def _encode(audio: bytes, kind: str, words: Sequence[Word] | None) -> bytes:
    captions = None if words is None else [_caption(word) for word in words]
    coded = base64.b64encode(audio).decode()
    return CaptionedAudio(audio=coded, audio_format=kind, timestamps=captions).model_dump_json().encode()


def _caption(word: Word) -> Caption:
    return Caption(word=word.text, start_time=round(word.start_s, 3), end_time=round(word.end_s, 3))
