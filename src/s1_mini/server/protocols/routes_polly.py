"""Amazon Polly's routes: `POST /v1/speech` and, for requests that are signed for Polly, voices and lexicons.

The access key id of a signature counts as the API key; signatures are not verified.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.routing import Match
from starlette.types import Scope

from s1_mini.exceptions import RequestError
from s1_mini.server.bodies import read_json
from s1_mini.server.errors import renamed
from s1_mini.server.limits import access_key
from s1_mini.server.openapi import SPEECH_ANSWER, body_of, failures, with_types
from s1_mini.server.protocols import polly
from s1_mini.server.record import record_of
from s1_mini.server.routes import ready_engine
from s1_mini.server.schemas import SpeechRequest
from s1_mini.server.speech import AudioResponse, respond, speak_to_client
from s1_mini.server.state import state_of
from s1_mini.server.voice_names import POLLY_VOICES, own_voice
from s1_mini.types import TTSRequest

FIELDS = {
    "text": "Text",
    "voice": "VoiceId",
    "sample_rate": "SampleRate",
    "text_type": "TextType",
    "word_times": "SpeechMarkTypes",
    "lexicon": "LexiconNames",
}
SEED = 0  # fixed, because clients request audio and its speech marks separately, and both need the same audio


class PollyBody(BaseModel):
    """Body of `POST /v1/speech`; other fields are ignored."""

    model_config = ConfigDict(
        extra="ignore",
        json_schema_extra={"examples": [{"Text": "Good morning.", "VoiceId": "Joanna", "OutputFormat": "mp3"}]},
    )

    Text: str = Field(description="Text to speak.", json_schema_extra={"minLength": 1})
    VoiceId: str = Field(description="A voice of GET /v1/voices; Polly's English names stand for similar voices.")
    OutputFormat: Literal["json", "mp3", "ogg_opus", "ogg_vorbis", "pcm", "mulaw", "alaw"]
    TextType: Literal["text", "ssml"] = "text"
    SampleRate: str | None = Field(
        None, description="In Hz. Default: 16000 for pcm, 8000 for mulaw and alaw, otherwise the model's."
    )
    SpeechMarkTypes: list[Literal["sentence", "ssml", "viseme", "word"]] = Field([], max_length=4)
    LexiconNames: list[str] = Field([], max_length=5, description="Uploaded lexicons; earlier ones take precedence.")
    Engine: str | None = Field(None, description="Ignored.")
    LanguageCode: str | None = Field(None, description="Ignored.")


class LexiconBody(BaseModel):
    """Body of `PUT /v1/lexicons/{name}`."""

    Content: str


class PollyRoute(APIRoute):
    """A route only for requests that are signed for Polly; other requests go to the next route with this path."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] == "http" and access_key(Headers(scope=scope)) is None:
            return Match.NONE, {}
        return super().matches(scope)


router, signed_router = APIRouter(tags=["polly"]), APIRouter(route_class=PollyRoute, include_in_schema=False)
routers = (router, signed_router)  # before the other routers, whose `GET /v1/voices` accepts every request


@signed_router.put("/v1/lexicons/{name}")
async def put_lexicon(request: Request, name: str) -> dict[str, Any]:
    """Store a lexicon."""
    body = await read_json(request, LexiconBody)
    await asyncio.to_thread(state_of(request).lexicons.put, name, body.Content)
    return {}


@signed_router.get("/v1/lexicons/{name}")
def get_lexicon(request: Request, name: str) -> dict[str, Any]:
    """Return a lexicon and its attributes."""
    lexicons = state_of(request).lexicons
    document = {"Name": name, "Content": lexicons.get(name)}
    return {"Lexicon": document, "LexiconAttributes": lexicons.describe(name)}


@signed_router.get("/v1/lexicons")
def list_lexicons(request: Request) -> dict[str, Any]:
    """List the lexicons with their attributes."""
    described = state_of(request).lexicons.describe_all()
    return {"Lexicons": [{"Name": name, "Attributes": attributes} for name, attributes in described.items()]}


@signed_router.delete("/v1/lexicons/{name}")
def delete_lexicon(request: Request, name: str) -> dict[str, Any]:
    """Delete a lexicon."""
    state_of(request).lexicons.delete(name)
    return {}


@signed_router.get("/v1/voices")
def describe_voices(request: Request) -> JSONResponse:
    """List the voices as Polly does."""
    voices = ready_engine(request).voices()
    headers = {"x-amzn-RequestId": record_of(request).id}
    return JSONResponse(polly.describe_voices(voices, request.query_params.get("LanguageCode")), headers=headers)


@router.post(
    polly.PATH,
    response_class=Response,
    summary="Speak a text, as Amazon Polly does",
    responses=with_types(SPEECH_ANSWER, *(output.content_type for output in polly.OUTPUTS.values()))
    | failures(404, 500, 504),
    openapi_extra=body_of(PollyBody),
)
async def synthesize_speech(request: Request) -> Response:
    """Speak a text; the audio is sent while it is generated. `OutputFormat` json returns speech marks."""
    body, state = await read_json(request, PollyBody), state_of(request)
    try:
        output, rate = polly.output_of(body.OutputFormat, body.SampleRate, body.SpeechMarkTypes)
        options = _text_type(body) | {"sample_rate": rate, "voice": await own_voice(state, body.VoiceId, POLLY_VOICES)}
        if body.LexiconNames:
            options["lexicon"] = await asyncio.to_thread(state.lexicons.merged, body.LexiconNames)
        tts_request = TTSRequest.of(body.Text, on_unsupported="skip", seed=SEED, **options)
        if body.OutputFormat == "json":
            speech = await _marked(request, body, tts_request)
            found, seconds = speech.take_times(), speech.audio_seconds
            arguments = body.Text, body.TextType, body.SpeechMarkTypes, found, seconds
            response = Response(await asyncio.to_thread(polly.speech_marks, *arguments))
        else:
            speech_request = SpeechRequest(tts_request, output.audio_format, streams=True)
            response = respond(await speak_to_client(request, state.engine, speech_request))
    except RequestError as error:
        raise renamed(error, FIELDS) from None
    response.headers["Content-Type"] = output.content_type
    response.headers["x-amzn-RequestCharacters"] = str(len(body.Text))
    response.headers["x-amzn-RequestId"] = record_of(request).id
    return response


def _text_type(body: PollyBody) -> dict[str, Any]:
    """Return the options for `TextType`. Raises `InvalidError`."""
    if body.TextType == "text" and "ssml" in body.SpeechMarkTypes:
        reason = "ssml needs TextType ssml; plain text has no <mark>"
        raise polly.SsmlMarksNotSupportedForTextTypeError("SpeechMarkTypes", reason)
    return {"text_type": body.TextType}


async def _marked(request: Request, body: PollyBody, tts_request: TTSRequest) -> AudioResponse:
    """Speak with word times, or without if the checkpoint reports none and only sentence marks are requested."""
    engine = state_of(request).engine
    try:
        timed = replace(tts_request, word_times=True)
        return await speak_to_client(request, engine, SpeechRequest(timed, "pcm"))
    except RequestError as error:
        if error.field != "word_times" or {"word", "ssml"} & set(body.SpeechMarkTypes):
            raise
    return await speak_to_client(request, engine, SpeechRequest(tts_request, "pcm"))
