"""Our own routes that need the key: `/v1/tts` and `/v1/voices`."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from s1_mini.exceptions import S1MiniError
from s1_mini.server.accounts import Resource
from s1_mini.server.bodies import JSON, LINES, read_json, read_recording_form, read_speech
from s1_mini.server.errors import InvalidError, code_of, message_of, quoted, renamed, validating
from s1_mini.server.openapi import SPEECH_ANSWER, body_of, failures, with_types
from s1_mini.server.record import record_of
from s1_mini.server.schemas import (
    BatchAnswer,
    BatchBody,
    BatchItem,
    BatchResult,
    SpeechBody,
    SpeechRequest,
    VoiceAnswer,
    VoiceForm,
    VoicesAnswer,
    decode_base64,
)
from s1_mini.server.speech import (
    StreamedAnswer,
    json_lines,
    respond,
    source_header,
    speak,
    speak_to_client,
    to_json,
    warning_header,
    while_listened,
)
from s1_mini.server.state import state_of

if TYPE_CHECKING:
    from s1_mini.speech_engine import SpeechEngine
    from s1_mini.types import VoiceInfo

speech_router, voices_router = APIRouter(tags=["speech"]), APIRouter(tags=["voices"])
routers = (speech_router, voices_router)

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
    if "model" in request.headers and "stream" not in body.model_fields_set:
        body.stream = True  # Fish Audio's clients send this header, and expect that the audio is streamed
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
    return StreamedAnswer(_in_parts(answer, results), JSON, source_header(state.engine.config.label_audio))


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
        tasks = [group.create_task(_speak_item(request, item, body)) for item in body.items]
    return [task.result() for task in tasks]


async def _speak_item(request: Request, item: Any, body: BatchBody) -> BatchResult:
    """Return the result of one text of a batch, which may be an error."""
    started, state = time.perf_counter(), state_of(request)
    try:
        item_request = await asyncio.to_thread(_item_request, item, body)
        speech = await speak(state.engine, item_request, settings=state.settings, record=record_of(request))
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
    with validating(BatchItem.model_fields):
        item = BatchItem.model_validate(given, strict=True)
    recording = None if item.reference_audio is None else decode_base64(item.reference_audio)
    return body.build(
        item.text, body.format, voice=item.voice, reference_audio=recording, reference_text=item.reference_text
    )


# This route is a plain function, which runs in a thread: there may be a hundred thousand voices.
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
    with renamed(FORM_FIELDS):
        voice = await register_voice(request, form.name, recording, form.text, form.description, replace=form.replace)
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
