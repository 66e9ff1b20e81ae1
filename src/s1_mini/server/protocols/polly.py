"""Amazon Polly's API: `POST /v1/speech` and, for requests that are signed for Polly, voices and lexicons.

The access key id of a signature counts as the API key; signatures are not verified.
"""

from __future__ import annotations

import asyncio
import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.routing import Match
from starlette.types import Scope

from s1_mini.alignment.subtitles import blank_markup
from s1_mini.exceptions import MarkupError, ParameterError, RequestError, TextTooLongError
from s1_mini.server.bodies import read_json
from s1_mini.server.errors import InvalidError, describe, message_of, quoted, renamed, retry_header, row_of
from s1_mini.server.lexicons import LEXICON_ERRORS, LexiconNotFoundError
from s1_mini.server.limits import access_key
from s1_mini.server.openapi import SPEECH_ANSWER, body_of, failures, with_types
from s1_mini.server.record import record_of
from s1_mini.server.routes import ready_engine
from s1_mini.server.schemas import SpeechRequest
from s1_mini.server.speech import Times, respond, speak_to_client
from s1_mini.server.state import state_of
from s1_mini.server.voice_names import POLLY_VOICES, own_voice
from s1_mini.text.split import sentence_spans
from s1_mini.text.structure import PARAGRAPH_BREAK
from s1_mini.types import AudioFormat, TTSRequest, VoiceInfo, Word

PATH = "/v1/speech"
_ENDING = re.compile(r"</?[ps](?:\s[^<>]*)?>")  # tags of SSML that end a sentence


class _Output(NamedTuple):
    audio_format: AudioFormat
    content_type: str
    rates: tuple[int, ...]
    default_rate: int | None = None  # None: the model's own


_RATES = (8000, 16000, 22050, 24000, 44100, 48000)
OUTPUTS = {
    "mp3": _Output("mp3", "audio/mpeg", _RATES),
    "ogg_opus": _Output("opus", "audio/ogg", (8000, 16000, 24000, 48000)),
    "pcm": _Output("pcm", "audio/pcm", _RATES, 16000),
    "mulaw": _Output("mulaw", "audio/mulaw", (8000,)),
    "alaw": _Output("alaw", "audio/alaw", (8000,)),
    "json": _Output("pcm", "application/x-json-stream", ()),  # speech marks; only the duration of the audio is used
}

LANGUAGES = {  # Polly's codes and names, by the accent in `POLLY_VOICES` and in descriptions of voices
    "American": ("en-US", "US English"),
    "British": ("en-GB", "British English"),
    "Australian": ("en-AU", "Australian English"),
    "Indian": ("en-IN", "Indian English"),
    "Irish": ("en-IE", "Irish English"),
    "New Zealand": ("en-NZ", "New Zealand English"),
    "Singaporean": ("en-SG", "Singaporean English"),
    "South African": ("en-ZA", "South African English"),
    "Welsh": ("en-GB-WLS", "Welsh English"),
}
GENDERS = {"man": "Male", "woman": "Female"}
ENGINES = ["standard", "neural", "long-form", "generative"]

# Names of Polly's errors by our status; other statuses are `ValidationException` below 500, else
# `ServiceFailureException`.
_STATUS_TYPES = {400: "SerializationException", 401: "UnrecognizedClientException", 415: "SerializationException"}
_STATUS_TYPES |= {429: "ThrottlingException", 503: "ServiceUnavailableException", 504: "ServiceUnavailableException"}
_FIELD_TYPES = {
    "SampleRate": "InvalidSampleRateException",
    "LanguageCode": "LanguageNotSupportedException",
}


class MarksNotSupportedForFormatError(InvalidError):
    """Speech marks are requested together with audio."""


class SsmlMarksNotSupportedForTextTypeError(InvalidError):
    """Speech marks of type ssml are requested for plain text."""


# Classes whose names are those of Polly's errors, except for the ending.
_NAMED = (*LEXICON_ERRORS, MarksNotSupportedForFormatError, SsmlMarksNotSupportedForTextTypeError)


def is_polly(path: str, headers: Headers) -> bool:
    """Return whether a request is from a Polly client and gets errors in Polly's shape."""
    return path == PATH or access_key(headers) is not None


def error_response(error: BaseException, request_id: str | None) -> JSONResponse:
    """Return an error as Polly does: its name in a header, `message` in the body, and the status that Polly uses."""
    status = row_of(error).status
    kind = _STATUS_TYPES.get(status, "ValidationException" if status < 500 else "ServiceFailureException")
    if isinstance(error, TextTooLongError):
        kind = "TextLengthExceededException"
    elif isinstance(error, _NAMED):
        kind = type(error).__name__.removesuffix("Error") + "Exception"
    elif isinstance(error, MarkupError):
        kind = "InvalidSsmlException"
    elif isinstance(error, RequestError):
        kind = _FIELD_TYPES.get(error.field, kind)
    status = {401: 403, 404: 400, 409: 400, 422: 400}.get(status, status)
    if isinstance(error, LexiconNotFoundError):
        status = 404
    headers = {"x-amzn-ErrorType": kind, "x-amzn-RequestId": request_id or ""} | retry_header(error)
    return JSONResponse({"message": message_of(error)} | describe(error, request_id), status, headers)


def output_of(name: str, sample_rate: str | None, mark_types: Sequence[str]) -> tuple[_Output, int | None]:
    """Return a format and its sample rate, None for the model's own. Raises `InvalidError`."""
    if name == "ogg_vorbis":
        raise InvalidError("OutputFormat", "ogg_vorbis is not supported; use ogg_opus, mp3, pcm, mulaw or alaw")
    output = OUTPUTS[name]
    if name == "json" and not mark_types:
        raise InvalidError("SpeechMarkTypes", "is missing; OutputFormat json needs sentence, ssml or word")
    if name != "json" and mark_types:
        reason = f"needs OutputFormat json, not {name}; request the audio separately"
        raise MarksNotSupportedForFormatError("SpeechMarkTypes", reason)
    for kind in mark_types:
        if kind not in ("sentence", "ssml", "word"):
            raise InvalidError("SpeechMarkTypes", f"{kind!r} is not supported; use sentence, ssml or word")
    if sample_rate is None or name == "json":  # Polly accepts a rate for json, where it has no effect
        return output, output.default_rate
    if sample_rate not in map(str, output.rates):
        allowed = ", ".join(map(str, output.rates))
        raise InvalidError("SampleRate", f"{quoted(sample_rate)} is not supported for {name}; use one of {allowed}")
    return output, int(sample_rate)


def speech_marks(text: str, text_type: str, mark_types: Sequence[str], times: Times, seconds: float) -> bytes:
    """Return Polly's speech marks: one JSON object per line, ordered by time, with byte offsets into `text`.

    A sentence starts at the time of its first word. If the checkpoint reports no word times, the start is estimated
    from the lengths of the sentences before. Raises `ParameterError` for word marks without word times.
    """
    words, is_ssml = times.words, text_type == "ssml"
    if "word" in mark_types and not words:
        raise ParameterError("SpeechMarkTypes", "this checkpoint reports no word times; request sentence only")
    offsets = [0, *accumulate(len(character.encode()) for character in text)]
    plain = blank_markup(_ENDING.sub(_paragraph, text), text_type, ()) if is_ssml else text
    marks = list(_sentence_marks(sentence_spans(plain), words, seconds)) if "sentence" in mark_types else []
    if "word" in mark_types:
        marks += [(word.start_s, "word", word.start, word.stop) for word in words]
    names = {(mark.start, mark.stop): mark.name for mark in times.marks} if "ssml" in mark_types else {}
    marks += [(mark.time_s, "ssml", mark.start, mark.stop) for mark in times.marks if names]
    lines = []
    for start_s, kind, start, stop in sorted(marks, key=lambda mark: (mark[0], mark[1])):  # sentence before word
        value = names[start, stop] if kind == "ssml" else plain[start:stop]
        value = " ".join(value.split()) if is_ssml else value
        mark = {"time": round(1000 * start_s), "type": kind, "start": offsets[start], "end": offsets[stop]}
        lines.append(json.dumps(mark | {"value": value}, ensure_ascii=False, separators=(",", ":")) + "\n")
    return "".join(lines).encode()


def _paragraph(found: re.Match[str]) -> str:
    return PARAGRAPH_BREAK.ljust(len(found.group()))


def _sentence_marks(
    spans: Sequence[tuple[int, int]], words: Sequence[Word], seconds: float
) -> Iterator[tuple[float, str, int, int]]:
    total, before = sum(stop - start for start, stop in spans), 0
    for start, stop in spans:
        first = bisect_left(words, start, key=lambda word: word.start)
        is_spoken = first < len(words) and words[first].start < stop
        start_s = words[first].start_s if is_spoken else seconds * before / total
        yield start_s, "sentence", start, stop
        before += stop - start


def describe_voices(voices: Sequence[VoiceInfo], language: str | None) -> dict[str, Any]:
    """Return the body of `DescribeVoices`: our voices and Polly's names, in `language` if it is not None."""
    described = [_described(voice.name, *_heard(voice.description)) for voice in voices]
    own = {voice.name for voice in voices}
    described += [_described(name, *traits) for name, traits in POLLY_VOICES.items() if name not in own]
    return {"Voices": [voice for voice in described if language in (None, voice["LanguageCode"])]}


def _heard(description: str) -> tuple[str, str]:
    """Return the gender and the accent in a description; empty strings for those that it lacks."""
    words = re.findall(r"\w+", description)
    return next((word for word in words if word in GENDERS), ""), next((w for w in words if w in LANGUAGES), "")


def _described(name: str, gender: str, accent: str) -> Mapping[str, Any]:
    code, language = LANGUAGES.get(accent, LANGUAGES["American"])
    known = {"Gender": GENDERS[gender]} if gender else {}
    title = name[:1].upper() + name[1:]
    return known | {
        "Id": name,
        "Name": title,
        "LanguageCode": code,
        "LanguageName": language,
        "SupportedEngines": ENGINES,
    }


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
def list_voices(request: Request) -> JSONResponse:
    """List the voices as Polly does."""
    voices = ready_engine(request).voices()
    headers = {"x-amzn-RequestId": record_of(request).id}
    return JSONResponse(describe_voices(voices, request.query_params.get("LanguageCode")), headers=headers)


@router.post(
    PATH,
    response_class=Response,
    summary="Speak a text, as Amazon Polly does",
    responses=with_types(SPEECH_ANSWER, *(output.content_type for output in OUTPUTS.values()))
    | failures(404, 500, 504),
    openapi_extra=body_of(PollyBody),
)
async def synthesize_speech(request: Request) -> Response:
    """Speak a text; the audio is sent while it is generated. `OutputFormat` json returns speech marks."""
    body, state = await read_json(request, PollyBody), state_of(request)
    with renamed(FIELDS):
        output, rate = output_of(body.OutputFormat, body.SampleRate, body.SpeechMarkTypes)
        kinds, has_marks = {*body.SpeechMarkTypes}, body.OutputFormat == "json"
        if body.TextType == "text" and "ssml" in kinds:
            reason = "ssml needs TextType ssml; plain text has no <mark>"
            raise SsmlMarksNotSupportedForTextTypeError("SpeechMarkTypes", reason)
        options: dict[str, Any] = {"sample_rate": rate, "voice": await own_voice(state, body.VoiceId, POLLY_VOICES)}
        if body.LexiconNames:
            options["lexicon"] = await asyncio.to_thread(state.lexicons.merged, body.LexiconNames)
        # marks of sentences are estimated if the checkpoint reports no times
        options["word_times"] = has_marks and (state.engine.has_word_times or kinds != {"sentence"})
        options |= {"text_type": body.TextType, "on_unsupported": "skip", "seed": SEED}
        speech_request = SpeechRequest(TTSRequest.of(body.Text, **options), output.audio_format, streams=not has_marks)
        speech = await speak_to_client(request, state.engine, speech_request)
        if has_marks:
            arguments = body.Text, body.TextType, body.SpeechMarkTypes, speech.take_times(), speech.audio_seconds
            response = Response(await asyncio.to_thread(speech_marks, *arguments))
        else:
            response = respond(speech)
    response.headers["Content-Type"] = output.content_type
    response.headers["x-amzn-RequestCharacters"] = str(len(body.Text))
    response.headers["x-amzn-RequestId"] = record_of(request).id
    return response
