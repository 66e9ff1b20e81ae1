"""Routes that need the key: `/v1/tts`, `/v1/audio` and `/v1/models` of OpenAI's API, `/v1/voices`.

`/v1/audio/voices` and `/v1/audio/models` are for clients of Kokoro-FastAPI, such as Open WebUI.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from s1_mini.exceptions import RequestError, S1MiniError
from s1_mini.server.accounts import Resource
from s1_mini.server.bodies import JSON, LINES, read_json, read_recording_form, read_speech
from s1_mini.server.errors import InvalidError, NotFoundError, code_of, from_validation, message_of, quoted, renamed
from s1_mini.server.openapi import SPEECH_ANSWER, body_of, failures, with_types
from s1_mini.server.record import RequestLog, record_of
from s1_mini.server.schemas import (
    AudioModels,
    AudioVoices,
    BatchAnswer,
    BatchBody,
    BatchItem,
    BatchResult,
    Named,
    OpenAIModel,
    OpenAIModels,
    OpenAISpeechBody,
    SpeechBody,
    SpeechRequest,
    VoiceAnswer,
    VoiceForm,
    VoicesAnswer,
    decode_base64,
)
from s1_mini.server.speech import (
    AudioResponse,
    StreamedAnswer,
    json_lines,
    respond,
    speak,
    speak_to_client,
    to_json,
    warning_header,
    while_listened,
)
from s1_mini.server.state import state_of
from s1_mini.server.voice_names import own_voice

if TYPE_CHECKING:
    from s1_mini.speech_engine import SpeechEngine
    from s1_mini.types import VoiceInfo

speech_router, openai_router, voices_router = (APIRouter(tags=[tag]) for tag in ("speech", "openai", "voices"))
routers = (speech_router, openai_router, voices_router)

MODEL = "s1-mini"
OPENAI_PCM_RATE = 24_000  # Hz; assumed by OpenAI's clients, because pcm has no header
FORM_FIELDS = {"voice": "name", "reference_audio": "audio", "reference_text": "text"}  # engine's name: form's name


@speech_router.post(
    "/v1/tts",
    response_class=Response,
    summary="Speak a text",
    responses=with_types(SPEECH_ANSWER, JSON, LINES) | failures(404, 500, 504),
    openapi_extra=body_of(SpeechBody, form_files=("reference_audio",)),
)
async def speak_text(request: Request) -> Response:
    """Speak a text. The response is the whole audio, or with `stream` the audio as it is generated.

    With `word_times`, it is JSON that contains the audio.
    """
    body, recording = await read_speech(request, SpeechBody)
    speech_request = body.to_request(recording)
    speech = await speak_to_client(request, state_of(request).engine, speech_request)
    if not body.word_times:
        return respond(speech)
    if speech.content is None:
        return StreamedAnswer(json_lines(speech, speech_request), LINES, speech.headers)
    return Response(await to_json(speech, speech_request), media_type=JSON, headers=speech.headers)


@speech_router.post(
    "/v1/tts/batch",
    summary="Speak several texts",
    response_model=BatchAnswer,
    responses=failures(500, 504),
    openapi_extra=body_of(BatchBody),
)
async def speak_batch(request: Request) -> Response:
    """Speak several texts together. An error affects only its own text; `success` is true if all texts succeeded."""
    body = await read_json(request, BatchBody)
    state, num_items = state_of(request), len(body.items)
    allowed = min(state.settings.max_batch_items, state.accounts.largest(Resource.REQUESTS))
    if num_items > allowed:
        raise InvalidError("items", f"has {num_items} texts; the limit is {allowed} per batch")
    if (refused := state.accounts.refusal(record_of(request).client, Resource.REQUESTS, num_items)) is not None:
        raise refused
    started = time.perf_counter()
    results = await while_listened(request.receive, _speak_all(request, body))
    success = all(result.success for result in results)
    answer = BatchAnswer(success=success, results=[], total_time=round(time.perf_counter() - started, 3))
    return StreamedAnswer(_in_parts(answer, results), JSON, {})


async def _in_parts(answer: BatchAnswer, results: list[BatchResult]) -> AsyncIterator[bytes]:
    """Yield a batch's response result by result, because the whole response may have a hundred megabytes."""
    before, _, after = answer.model_dump_json().partition("[]")
    yield f"{before}[".encode()
    for number, result in enumerate(results):
        content = await asyncio.to_thread(result.content)
        yield b"," + content if number else content
    yield f"]{after}".encode()


async def _speak_all(request: Request, body: BatchBody) -> list[BatchResult]:
    async with asyncio.TaskGroup() as group:
        record = record_of(request)
        tasks = [group.create_task(_speak_item(request, item, body, record)) for item in body.items]
    return [task.result() for task in tasks]


async def _speak_item(request: Request, item: Any, body: BatchBody, record: RequestLog) -> BatchResult:
    """Return the result of one text of a batch, which may be an error."""
    started, state = time.perf_counter(), state_of(request)
    try:
        item_request = await asyncio.to_thread(_item_request, item, body)
        speech = await speak(state.engine, item_request, settings=state.settings, record=record)
        audio = await asyncio.to_thread(lambda: base64.b64encode(speech.content or b"").decode())
    except S1MiniError as error:
        elapsed = round(time.perf_counter() - started, 3)
        return BatchResult(success=False, generation_time=elapsed, error=message_of(error), error_code=code_of(error))
    times = speech.take_times() if body.word_times else None
    return BatchResult(
        success=True,
        audio_base64=audio,
        generation_time=round(time.perf_counter() - started, 3),
        spoken_text=speech.spoken_text if item_request.return_spoken_text else None,
        words=times and times.words,
        marks=times and times.marks,
        warning=speech.warning,
    )


def _item_request(given: Any, body: BatchBody) -> SpeechRequest:
    """Validate one item of a batch. Raises `InvalidError` or `ParameterError`."""
    if not isinstance(given, dict):
        raise InvalidError("items", f'{quoted(given)} is not an object; send one such as {{"text": "Good morning."}}')
    try:
        item = BatchItem.model_validate(given, strict=True)
    except ValidationError as error:
        raise from_validation(error.errors(include_url=False), BatchItem.model_fields) from None
    recording = None if item.reference_audio is None else decode_base64(item.reference_audio)
    return body.build(
        item.text, body.format, voice=item.voice, reference_audio=recording, reference_text=item.reference_text
    )


@openai_router.post(
    "/v1/audio/speech",
    response_class=Response,
    summary="Speak a text, as OpenAI's API does",
    responses=with_types(SPEECH_ANSWER, "text/event-stream") | failures(404, 500, 504, is_openai=True),
    openapi_extra=body_of(OpenAISpeechBody),
)
async def create_speech(request: Request) -> Response:
    """Speak a text; the response is sent while it is generated, unless `stream` is false."""
    body, engine = await read_json(request, OpenAISpeechBody), state_of(request).engine
    voice = await own_voice(state_of(request), body.voice)
    try:
        rate = body.sample_rate or (OPENAI_PCM_RATE if body.response_format == "pcm" else None)
        streams = body.stream is not False
        speech_request = body.build(body.input, body.response_format, streams=streams, voice=voice, sample_rate=rate)
        speech = await speak_to_client(request, engine, speech_request.without_unsupported(engine.description))
    except RequestError as error:
        raise renamed(error, {"text": "input"}) from None
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


async def _events(
    speech: AudioResponse, num_read: int, record: RequestLog, more: dict[str, Any]
) -> AsyncIterator[bytes]:
    """Yield audio as server-sent events; the last one has the numbers of tokens and frames."""

    def event(content: dict[str, Any]) -> bytes:
        return b"data: " + json.dumps(content).encode() + b"\n\n"

    async with aclosing(speech.body) as body:  # type: ignore[type-var]
        async for piece in body:
            yield event({"type": "speech.audio.delta", "audio": base64.b64encode(piece).decode()})
    usage = {"input_tokens": num_read, "output_tokens": record.frames, "total_tokens": num_read + record.frames}
    yield event({"type": "speech.audio.done", "usage": usage} | more)


@openai_router.get("/v1/models", summary="The one model", responses=failures(has_body=False))
async def list_models() -> OpenAIModels:
    """List the one model, which is used whatever `model` a request names."""
    return OpenAIModels(data=[OpenAIModel(id=MODEL)])


@openai_router.get("/v1/models/{model}", summary="The one model, by name", responses=failures(404, has_body=False))
async def describe_model(model: str) -> OpenAIModel:
    """Return the model."""
    if model != MODEL:
        raise NotFoundError(f"unknown model {model[:128]!r}; the only model is {MODEL!r}")
    return OpenAIModel(id=MODEL)


@openai_router.get("/v1/audio/models", summary="The one model, in short", responses=failures(has_body=False))
async def list_audio_models() -> AudioModels:
    """List the models by `id` and `name`."""
    return AudioModels(models=[Named(id=MODEL, name=MODEL)])


# The routes that list voices are plain functions, which run in a thread: there may be a hundred thousand voices.
@openai_router.get(
    "/v1/audio/voices",
    summary="All voices, in short",
    response_model=AudioVoices,
    responses=failures(503, has_body=False),
)
def list_audio_voices(request: Request) -> Response:
    """List the voices by `id` and `name`."""
    named = [Named(id=voice.name, name=voice.name) for voice in state_of(request).engine.voices()]
    return Response(AudioVoices(voices=named).model_dump_json(), media_type=JSON)


@voices_router.get(
    "/v1/voices", summary="All voices", response_model=VoicesAnswer, responses=failures(503, has_body=False)
)
def list_voices(request: Request) -> Response:
    """List the checkpoint's voices and those that were added."""
    engine, member = ready_engine(request), state_of(request).member
    voices = list(map(VoiceAnswer.of, engine.voices()))
    keeps_added = engine.config.voices_path is not None and (member is None or member.keeps_voices)
    return Response(VoicesAnswer(voices=voices, keeps_added=keeps_added).model_dump_json(), media_type=JSON)


@voices_router.get("/v1/voices/{name}", summary="One voice", responses=failures(404, 500, 503, has_body=False))
async def describe_voice(request: Request, name: str) -> VoiceAnswer:
    """Return one voice."""
    return VoiceAnswer.of(await asyncio.to_thread(ready_engine(request).describe_voice, name))


@voices_router.post(
    "/v1/voices",
    status_code=201,
    summary="Add a voice",
    responses=failures(409, 500, 507),
    openapi_extra=body_of(VoiceForm, form_files=("audio",), is_json=False),
)
async def add_voice(request: Request, response: Response) -> VoiceAnswer:
    """Add a recording as a named voice. The header `X-Warning` names faults of the recording."""
    form, recording = await read_recording_form(request, VoiceForm, "audio")
    try:
        voice = await register_voice(request, form.name, recording, form.text, form.description, replace=form.replace)
    except RequestError as error:
        raise renamed(error, FORM_FIELDS) from None
    response.headers.update(warning_header(voice.warning))
    return VoiceAnswer.of(voice)


async def register_voice(
    request: Request, name: str, recording: bytes, transcript: str, description: str, *, replace: bool = False
) -> VoiceInfo:
    """Add a voice for a request's client.

    Raises the errors of `ready_engine` and `ProductionTTSEngine.add_voice`, and `ClientGoneError` if the client
    disconnects.
    """
    client = record_of(request).client
    adding = ready_engine(request).add_voice_async(
        name, recording, transcript, description=description, replace=replace, client=client
    )
    return await while_listened(request.receive, adding)


@voices_router.delete(
    "/v1/voices/{name}",
    status_code=204,
    summary="Delete a voice",
    responses=failures(404, 409, 503, 507, has_body=False),
)
async def delete_voice(request: Request, name: str) -> Response:
    """Delete an added voice; a voice of the checkpoint cannot be deleted."""
    await asyncio.to_thread(ready_engine(request).delete_voice, name)
    return Response(status_code=204)


def ready_engine(request: Request) -> SpeechEngine:
    """Return the engine. Raises `EngineNotReadyError` or `DrainingError`."""
    state = state_of(request)
    if (refused := state.gate.refusal()) is not None:
        raise refused
    return state.engine
