"""OpenAI's routes for custom voices: `/v1/audio/voices` and `/v1/audio/voice_consents`."""

from __future__ import annotations

import asyncio
import re
import time
import unicodedata
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from s1_mini.audio.reference import read_recording
from s1_mini.exceptions import RequestError
from s1_mini.server.bodies import read_json, read_recording_form
from s1_mini.server.consents import Consent, Consents
from s1_mini.server.errors import InvalidError, quoted, renamed
from s1_mini.server.openapi import body_of, failures
from s1_mini.server.routes import ready_engine, register_voice
from s1_mini.server.speech import warning_header
from s1_mini.server.state import state_of

router = APIRouter(tags=["openai"])

MAX_ID = 64  # characters of a voice's name
VOICE_FIELDS = {"voice": "name", "reference_audio": "audio_sample", "reference_text": "text"}
_LANGUAGE = r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8}){0,3}$"

Label = Annotated[str, Field(min_length=1, max_length=200)]


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
    try:
        voice = await register_voice(request, _voice_id(form.name), recording, form.text, description)
    except RequestError as error:
        raise renamed(error, VOICE_FIELDS) from None
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
    try:
        read_recording(recording, state_of(request).engine.config.max_reference_bytes)
    except RequestError as error:
        raise renamed(error, {"reference_audio": "recording"}) from None
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
