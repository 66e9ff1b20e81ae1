"""OpenAI's API: `/v1/audio/speech`, `/v1/models`, and custom voices: `/v1/audio/voices`, `/v1/audio/voice_consents`.

`GET /v1/audio/voices` and `/v1/audio/models` are for clients of Kokoro-FastAPI, such as Open WebUI.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
import unicodedata
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from s1_mini.audio.reference import read_recording
from s1_mini.server.bodies import JSON, read_json, read_recording_form
from s1_mini.server.consents import Consent, Consents
from s1_mini.server.errors import InvalidError, NotFoundError, quoted, renamed
from s1_mini.server.openapi import SPEECH_ANSWER, body_of, failures, with_types
from s1_mini.server.record import RequestLog, record_of
from s1_mini.server.routes import ready_engine, register_voice
from s1_mini.server.schemas import SKIP_BY_DEFAULT, Sampling, Strict, Text, VoiceName, encodable
from s1_mini.server.speech import AudioResponse, StreamedAnswer, Times, in_lines, respond, speak_body, warning_header
from s1_mini.server.state import state_of
from s1_mini.types import OnUnsupported

router = APIRouter(tags=["openai"])

MODEL = "s1-mini"
PCM_RATE = 24_000  # Hz; assumed by OpenAI's clients, because pcm has no header
MAX_ID = 64  # characters of a voice's name
VOICE_FIELDS = {"voice": "name", "reference_audio": "audio_sample", "reference_text": "text"}
_Format = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
_LANGUAGE = r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8}){0,3}$"

Label = Annotated[str, Field(min_length=1, max_length=200)]


class OpenAIVoice(Strict):
    """A voice as an object, as OpenAI's API also allows."""

    id: VoiceName


def _voice_name(value: Any) -> Any:
    """Return the name of `{"id": name}`."""
    name = value["id"] if isinstance(value, dict) and set(value) == {"id"} else value
    if name is None or isinstance(name, str):
        return name
    raise PydanticCustomError("voice", 'send the name of a voice, or {"id": name}')


class OpenAISpeechBody(Sampling):
    """Body of `POST /v1/audio/speech`, as sent by clients of OpenAI and of compatible servers.

    Fields that only those servers know are ignored. Users of OpenAI's client pass fields that only this server knows
    in `extra_body`.
    """

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={"examples": [{"model": "s1-mini", "input": "Good morning.", "voice": "default"}]},
    )

    on_unsupported: OnUnsupported | None = SKIP_BY_DEFAULT
    model: str = Field("s1-mini", max_length=128, description="Ignored: the server has one checkpoint.")
    input: Text
    voice: Annotated[
        VoiceName | None, BeforeValidator(_voice_name, json_schema_input_type=VoiceName | OpenAIVoice | None)
    ] = Field(None, description="A voice of GET /v1/voices; OpenAI's names stand for similar voices.")
    response_format: Annotated[_Format, encodable(_Format)] = "mp3"
    stream_format: Literal["audio", "sse"] = "audio"
    stream: bool | None = Field(None, description="false: send the whole audio, with its length, when it is complete.")

    async def speak(self, request: Request, **options: Any) -> AudioResponse:
        """Speak the input. Raises the errors of `speak_body`."""
        rate = self.sample_rate or (PCM_RATE if self.response_format == "pcm" else None)
        more: dict[str, Any] = {"voice": self.voice, "sample_rate": rate} | options
        with renamed({"text": "input"}):
            return await speak_body(request, self, self.input, self.response_format, **more)


class OpenAIModel(BaseModel):
    """A model in OpenAI's format."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "s1_mini"


class OpenAIModels(BaseModel):
    """Answer of `GET /v1/models`."""

    object: Literal["list"] = "list"
    data: list[OpenAIModel]


class Named(BaseModel):
    """An item with an `id`."""

    id: str
    name: str


class AudioVoices(BaseModel):
    """Answer of `GET /v1/audio/voices`."""

    voices: list[Named]


class AudioModels(BaseModel):
    """Answer of `GET /v1/audio/models`."""

    models: list[Named]


@router.post(
    "/v1/audio/speech",
    response_class=Response,
    summary="Speak a text, as OpenAI's API does",
    responses=with_types(SPEECH_ANSWER, "text/event-stream") | failures(404, 500, 504, is_openai=True),
    openapi_extra=body_of(OpenAISpeechBody),
)
async def create_speech(request: Request) -> Response:
    """Speak a text; the response is sent while it is generated, unless `stream` is false."""
    body, engine = await read_json(request, OpenAISpeechBody), state_of(request).engine
    speech = await body.speak(request, streams=body.stream is not False)
    if body.stream_format == "audio":
        return respond(speech)
    num_read = 0  # tokens; stays 0 for a text that consists of pauses
    if speech.spoken_text:
        count = partial(engine.count_tokens, normalize="off", on_unsupported="skip")  # the text is already normalized
        try:
            num_read = await asyncio.to_thread(count, speech.spoken_text)
        except BaseException:
            await cast("Any", speech.body).aclose()
            raise
    more = {"spoken_text": speech.spoken_text} if body.return_spoken_text else {}
    return StreamedAnswer(_events(speech, num_read, record_of(request), more), "text/event-stream", speech.headers)


def _events(speech: AudioResponse, num_read: int, record: RequestLog, more: dict[str, Any]) -> AsyncIterator[bytes]:
    """Return audio as server-sent events; the last one has the numbers of tokens and frames."""

    def event(piece: bytes, _: Times) -> bytes:
        usage = {"input_tokens": num_read, "output_tokens": record.frames, "total_tokens": num_read + record.frames}
        content = {"type": "speech.audio.delta", "audio": base64.b64encode(piece).decode()}
        last = {"type": "speech.audio.done", "usage": usage} | more
        return b"data: " + json.dumps(content if piece else last).encode() + b"\n\n"

    return in_lines(speech, event)


@router.get("/v1/models", summary="The one model", responses=failures(has_body=False))
async def list_models() -> OpenAIModels:
    """List the one model, which is used whatever `model` a request names."""
    return OpenAIModels(data=[OpenAIModel(id=MODEL)])


@router.get("/v1/models/{model}", summary="The one model, by name", responses=failures(404, has_body=False))
async def describe_model(model: str) -> OpenAIModel:
    """Return the model."""
    if model != MODEL:
        raise NotFoundError(f"unknown model {model[:128]!r}; the only model is {MODEL!r}")
    return OpenAIModel(id=MODEL)


@router.get("/v1/audio/models", summary="The one model, in short", responses=failures(has_body=False))
async def list_audio_models() -> AudioModels:
    """List the models by `id` and `name`."""
    return AudioModels(models=[Named(id=MODEL, name=MODEL)])


@router.get(
    "/v1/audio/voices",
    summary="All voices, in short",
    response_model=AudioVoices,
    responses=failures(503, has_body=False),
)
def list_audio_voices(request: Request) -> Response:
    """List the voices by `id` and `name`."""
    named = [Named(id=voice.name, name=voice.name) for voice in state_of(request).engine.voices()]
    return Response(AudioVoices(voices=named).model_dump_json(), media_type=JSON)


class ConsentForm(BaseModel):
    """The fields of `POST /v1/audio/voice_consents` besides the file `recording`; others are ignored."""

    model_config = ConfigDict(extra="ignore")

    name: Label
    language: str = Field(description="Tag of the language, such as en-US.", pattern=_LANGUAGE)


class ConsentUpdate(BaseModel):
    """Body of `POST /v1/audio/voice_consents/{consent_id}`."""

    model_config = ConfigDict(extra="ignore")

    name: Label


class ConsentAnswer(Consent):
    """A consent in OpenAI's format."""

    object: Literal["audio.voice_consent"] = "audio.voice_consent"


class ConsentsAnswer(BaseModel):
    """A page of consents, oldest first."""

    object: Literal["list"] = "list"
    data: list[ConsentAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedConsent(BaseModel):
    """Answer to the deletion of a consent."""

    id: str
    deleted: Literal[True] = True
    object: Literal["audio.voice_consent"] = "audio.voice_consent"


class CustomVoiceForm(BaseModel):
    """The fields of `POST /v1/audio/voices` besides the file `audio_sample`; others are ignored."""

    model_config = ConfigDict(extra="ignore")

    name: Label = Field(description="The voice's id is derived from this name: lowercase letters, digits, - and _.")
    consent: str = Field(description="The id of a consent.", min_length=1)
    type: Literal["audio_sample"] = "audio_sample"
    text: str = Field("", description="Not in OpenAI's API: the transcript of the sample, which most models need.")


class CustomVoice(BaseModel):
    """A voice in OpenAI's format."""

    id: str = Field(description="The voice's name in requests.")
    created_at: int
    name: str
    object: Literal["audio.voice"] = "audio.voice"
    type: Literal["audio_sample"] = "audio_sample"


class DeletedVoice(BaseModel):
    """Answer to the deletion of a voice."""

    id: str
    deleted: Literal[True] = True
    object: Literal["audio.voice.deleted"] = "audio.voice.deleted"


@router.post(
    "/v1/audio/voices",
    summary="Add a voice, as OpenAI's API does",
    responses=failures(404, 409, 500, is_openai=True),
    openapi_extra=body_of(CustomVoiceForm, form_files=("audio_sample",), is_json=False),
)
async def create_voice(request: Request, response: Response) -> CustomVoice:
    """Add a recording as a named voice, with the consent of its speaker."""
    form, recording = await read_recording_form(request, CustomVoiceForm, "audio_sample")
    consent = await asyncio.to_thread(_consents(request).get, form.consent)
    description = f"{form.name} (consent {consent.id})"
    with renamed(VOICE_FIELDS):
        voice = await register_voice(request, _voice_id(form.name), recording, form.text, description)
    response.headers.update(warning_header(voice.warning))
    return CustomVoice(id=voice.name, created_at=int(time.time()), name=form.name)


@router.delete(
    "/v1/audio/voices/{voice_id}",
    summary="Delete a voice, as OpenAI's API does",
    responses=failures(404, 409, 503, has_body=False),
)
async def delete_custom_voice(request: Request, voice_id: str) -> DeletedVoice:
    """Delete an added voice; its consent stays."""
    await asyncio.to_thread(ready_engine(request).delete_voice, voice_id)
    return DeletedVoice(id=voice_id)


@router.post(
    "/v1/audio/voice_consents",
    summary="Add a consent",
    responses=failures(507, is_openai=True),
    openapi_extra=body_of(ConsentForm, form_files=("recording",), is_json=False),
)
async def create_consent(request: Request) -> ConsentAnswer:
    """Store a speaker's consent. Only the recording's size is checked; the recording is neither decoded nor kept."""
    form, recording = await read_recording_form(request, ConsentForm, "recording")
    with renamed({"reference_audio": "recording"}):
        read_recording(recording, state_of(request).engine.config.max_reference_bytes)
    return _answer(await asyncio.to_thread(_consents(request).add, form.name, form.language))


@router.get("/v1/audio/voice_consents", summary="All consents", responses=failures(400, has_body=False))
async def list_consents(
    request: Request, after: str | None = None, limit: Annotated[int, Query(ge=1, le=100)] = 20
) -> ConsentsAnswer:
    """List consents, oldest first; `after` is the last id of the previous page."""
    found, has_more = await asyncio.to_thread(_consents(request).page, after, limit)
    ends: list[Any] = [found[0].id, found[-1].id] if found else [None, None]
    return ConsentsAnswer(data=[_answer(each) for each in found], first_id=ends[0], last_id=ends[1], has_more=has_more)


@router.get("/v1/audio/voice_consents/{consent_id}", summary="One consent", responses=failures(404, has_body=False))
async def describe_consent(request: Request, consent_id: str) -> ConsentAnswer:
    """Return one consent."""
    return _answer(await asyncio.to_thread(_consents(request).get, consent_id))


@router.post(
    "/v1/audio/voice_consents/{consent_id}",
    summary="Rename a consent",
    responses=failures(404, 507, is_openai=True),
    openapi_extra=body_of(ConsentUpdate),
)
async def rename_consent(request: Request, consent_id: str) -> ConsentAnswer:
    """Rename a consent."""
    body = await read_json(request, ConsentUpdate)
    return _answer(await asyncio.to_thread(_consents(request).rename, consent_id, body.name))


@router.delete(
    "/v1/audio/voice_consents/{consent_id}", summary="Delete a consent", responses=failures(404, 507, has_body=False)
)
async def delete_consent(request: Request, consent_id: str) -> DeletedConsent:
    """Delete a consent; voices that were added with it stay."""
    await asyncio.to_thread(_consents(request).delete, consent_id)
    return DeletedConsent(id=consent_id)


def _consents(request: Request) -> Consents:
    return state_of(request).consents


def _answer(consent: Consent) -> ConsentAnswer:
    return ConsentAnswer(**consent.model_dump())


def _voice_id(name: str) -> str:
    """Return a valid voice name: "José's voice" is jose-s-voice. Raises `InvalidError` if nothing is left."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    found = re.sub(r"[^a-z0-9_]+", "-", plain).strip("-_")[:MAX_ID]
    if not found:
        raise InvalidError("name", f"{quoted(name)} has no letter a-z and no digit, so no voice id can be made from it")
    return found
