"""Routes of ElevenLabs' API: `/v1/text-to-speech/{voice}`, whole or streamed, with or without character times."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal, NamedTuple, cast

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from s1_mini.server.bodies import JSON, read_json
from s1_mini.server.openapi import SPEECH_ANSWER, body_of, failures, inlined
from s1_mini.server.schemas import SKIP_BY_DEFAULT, Sampling, Text
from s1_mini.server.speech import AudioResponse, StreamedAnswer, respond, speak_to_client
from s1_mini.server.state import state_of
from s1_mini.server.voice_names import own_voice
from s1_mini.types import MAX_SPEED, MIN_SPEED, AudioFormat, OnUnsupported, Word

router = APIRouter(tags=["elevenlabs"])

PATH = "/v1/text-to-speech/{voice}"

# codec, sample rate and bit rate; the bit rate has no effect
_Mp3 = Literal["mp3_22050_32", "mp3_24000_48", "mp3_44100_32", "mp3_44100_64", "mp3_44100_96", "mp3_44100_128"]
_Pcm = Literal["pcm_8000", "pcm_16000", "pcm_22050", "pcm_24000", "pcm_32000", "pcm_44100", "pcm_48000"]
_Wav = Literal["wav_8000", "wav_16000", "wav_22050", "wav_24000", "wav_32000", "wav_44100", "wav_48000"]
_Opus = Literal["opus_48000_32", "opus_48000_64", "opus_48000_96", "opus_48000_128", "opus_48000_192"]
StreamedFormat = Literal[_Mp3, "mp3_44100_192", _Pcm, "ulaw_8000", "alaw_8000", _Opus]
WholeFormat = Literal[StreamedFormat, _Wav]
DEFAULT_FORMAT: StreamedFormat = "mp3_44100_128"
_FORMATS: dict[str, AudioFormat] = {"ulaw": "mulaw"}  # ElevenLabs' codec names that differ from ours

VoiceId = Annotated[
    str,
    Path(
        description="A name from GET /v1/voices, a name in S1_MINI_SERVER_VOICE_NAMES, or a voice name of OpenAI or "
        "Kokoro."
    ),
]
_FORMAT = Query(description="Codec, sample rate in Hz and bit rate; the bit rate has no effect.")
Whole = Annotated[WholeFormat, _FORMAT]
Streamed = Annotated[StreamedFormat, _FORMAT]


class VoiceSettings(BaseModel):
    """`voice_settings` of a request; only `speed` has an effect."""

    model_config = ConfigDict(extra="ignore")

    speed: float | None = Field(
        None, ge=MIN_SPEED, le=MAX_SPEED, description="2 is twice as fast; the pitch is unchanged."
    )


class ElevenLabsBody(Sampling):
    """Body of ElevenLabs' routes. Fields without an equivalent here are ignored."""

    model_config = ConfigDict(
        extra="ignore", json_schema_extra={"examples": [{"text": "Good morning.", "voice_settings": {"speed": 1.1}}]}
    )

    on_unsupported: OnUnsupported | None = SKIP_BY_DEFAULT
    text: Text
    model_id: str | None = Field(None, description="Ignored: the server has one checkpoint.")
    language_code: str | None = Field(None, description="Language tag, for models with a choice of languages.")
    voice_settings: VoiceSettings | None = None
    previous_text: str | None = Field(None, description="Ignored.")
    next_text: str | None = Field(None, description="Ignored.")


class CharacterTimes(BaseModel):
    """Characters of the text, and when each is spoken, in seconds."""

    characters: list[str]
    character_start_times_seconds: list[float]
    character_end_times_seconds: list[float]


class TimedAudio(BaseModel):
    """Audio, and the times of its characters (null if the checkpoint reports no times)."""

    audio_base64: str
    alignment: CharacterTimes | None
    normalized_alignment: CharacterTimes | None


TIMED: dict[int | str, dict[str, Any]] = {
    200: {"description": "JSON, or JSON lines", "content": {JSON: {"schema": inlined(TimedAudio.model_json_schema())}}}
}


def _answer(answer: dict[int | str, dict[str, Any]]) -> dict[str, Any]:
    """Return a route's part of the OpenAPI document."""
    responses = answer | failures(404, 500, 504)
    return {"response_class": Response, "responses": responses, "openapi_extra": body_of(ElevenLabsBody)}


@router.post(PATH, summary="Speak a text, as ElevenLabs' API does", **_answer(SPEECH_ANSWER))
async def convert(request: Request, voice: VoiceId, output_format: Whole = DEFAULT_FORMAT) -> Response:
    """Speak a text; the response is the whole audio."""
    speech, _ = await _speak(request, voice, output_format, streams=False)
    return respond(speech)


@router.post(f"{PATH}/stream", summary="Speak a text as a stream, as ElevenLabs' API does", **_answer(SPEECH_ANSWER))
async def stream(request: Request, voice: VoiceId, output_format: Streamed = DEFAULT_FORMAT) -> Response:
    """Speak a text; the response is sent while it is generated."""
    speech, _ = await _speak(request, voice, output_format, streams=True)
    return respond(speech)


@router.post(f"{PATH}/with-timestamps", summary="Speak a text with the times of its characters", **_answer(TIMED))
async def convert_with_timestamps(request: Request, voice: VoiceId, output_format: Whole = DEFAULT_FORMAT) -> Response:
    """Speak a text; the response is the whole audio as base64, with the times of its characters."""
    speech, alignment = await _speak(request, voice, output_format, streams=False)
    content = await asyncio.to_thread(
        _timed, speech.content or b"", alignment.add(speech.take_times().words) + alignment.finish()
    )
    return Response(content, media_type=JSON, headers=speech.headers)


@router.post(
    f"{PATH}/stream/with-timestamps",
    summary="Speak a text as a stream with the times of its characters",
    **_answer(TIMED),
)
async def stream_with_timestamps(
    request: Request, voice: VoiceId, output_format: Streamed = DEFAULT_FORMAT
) -> Response:
    """Speak a text; each line of the response is a JSON object with audio and the times of characters."""
    speech, alignment = await _speak(request, voice, output_format, streams=True)
    return StreamedAnswer(_timed_lines(speech, alignment), JSON, speech.headers)


async def _speak(request: Request, voice: str, output_format: str, *, streams: bool) -> tuple[AudioResponse, Alignment]:
    body, engine = await read_json(request, ElevenLabsBody), state_of(request).engine
    audio_format, rate = parse_format(output_format)
    speed = body.voice_settings and body.voice_settings.speed
    speech_request = body.build(
        body.text,
        audio_format,
        streams=streams,
        voice=await own_voice(state_of(request), voice),
        sample_rate=rate,
        speed=body.speed if speed is None else speed,
        language=body.language or body.language_code,
        word_times=engine.has_word_times,
    ).without_unsupported(engine.description)
    return await speak_to_client(request, engine, speech_request), Alignment(body.text)


async def _timed_lines(speech: AudioResponse, alignment: Alignment) -> AsyncIterator[bytes]:
    async with aclosing(speech.body) as body:  # type: ignore[type-var]
        async for piece in body:
            yield _timed(piece, alignment.add(speech.take_times().words)) + b"\n"
    if last := [*alignment.add(speech.take_times().words), *alignment.finish()]:
        yield _timed(b"", last) + b"\n"


def _timed(audio: bytes, characters: list[Character]) -> bytes:
    times = characters and CharacterTimes(
        characters=[each.text for each in characters],
        character_start_times_seconds=[round(each.start_s, 3) for each in characters],
        character_end_times_seconds=[round(each.end_s, 3) for each in characters],
    )
    coded = base64.b64encode(audio).decode()
    answer = TimedAudio(audio_base64=coded, alignment=times or None, normalized_alignment=times or None)
    return answer.model_dump_json().encode()


def parse_format(name: str) -> tuple[AudioFormat, int]:
    """Return our format and the sample rate in Hz for one of `WholeFormat`."""
    codec, rate, *_ = name.split("_")
    return _FORMATS.get(codec, cast("AudioFormat", codec)), int(rate)


class Character(NamedTuple):
    """A character of the text, and when it is spoken."""

    text: str
    start_s: float
    end_s: float


class Alignment:
    """Times of the characters of a text, interpolated linearly within words and between them."""

    def __init__(self, text: str, start_s: float = 0.0) -> None:
        """`start_s` is the start of the text's audio; it is added to all times."""
        self._text, self._offset_s = text, start_s
        self._position, self._end_s = 0, start_s  # where the previous word ends, in the text and in time

    def add(self, words: Sequence[Word]) -> list[Character]:
        """Return the characters from the end of the previous word to the end of the last of `words`."""
        characters = []
        for word in words:
            start_s, end_s = self._offset_s + word.start_s, self._offset_s + word.end_s
            characters += self._spread(word.start, start_s) + self._spread(word.stop, end_s)
        return characters

    def finish(self) -> list[Character]:
        """Return the characters after the last word, with duration 0; empty if no word had a time."""
        return self._spread(len(self._text), self._end_s) if self._position else []

    def _spread(self, stop: int, end_s: float) -> list[Character]:
        """Distribute the time until `end_s` among the characters before `stop`."""
        text, begin_s = self._text[self._position : stop], self._end_s
        if not text:
            self._end_s = max(end_s, begin_s)
            return []
        step_s = max(0.0, end_s - begin_s) / len(text)
        self._position, self._end_s = stop, begin_s + step_s * len(text)
        return [
            Character(each, begin_s + number * step_s, begin_s + (number + 1) * step_s)
            for number, each in enumerate(text)
        ]
