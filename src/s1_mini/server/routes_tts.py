"""`/v1/tts` and `/v1/tts/batch`: parse, speak, shape."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from s1_mini.exceptions import S1MiniError
from s1_mini.server.accounts import Resource
from s1_mini.server.answers import StreamedAnswer, answer, while_listened
from s1_mini.server.bodies import JSON, read_json, read_speech
from s1_mini.server.errors import InvalidError, code_of, from_validation, message_of, quoted
from s1_mini.server.openapi import SPEECH_ANSWER, body_of, failures
from s1_mini.server.record import record_of
from s1_mini.server.schemas import (
    BatchAnswer,
    BatchBody,
    BatchItem,
    BatchResult,
    SpeechBody,
    SpeechRequest,
    decode_base64,
)
from s1_mini.server.speech import speak

if TYPE_CHECKING:
    from s1_mini.server.record import RequestLog

router = APIRouter(tags=["speech"])


@router.post(
    "/v1/tts",
    response_class=Response,
    summary="Speak a text",
    responses=SPEECH_ANSWER | failures(404, 500, 504),
    openapi_extra=body_of(SpeechBody, form_files=("reference_audio",)),
)
async def speak_text(request: Request) -> Response:
    """Speak a text; the answer is the sound, whole, or with `stream` while it is made."""
    return await answer(request, await read_speech(request))


@router.post(
    "/v1/tts/batch",
    summary="Speak several texts",
    response_model=BatchAnswer,
    responses=failures(500, 504),
    openapi_extra=body_of(BatchBody),
)
async def speak_batch(request: Request) -> Response:
    """Speak several texts together; one that fails, fails alone, and `success` tells whether all succeeded."""
    body = await read_json(request, BatchBody)
    state, num_items = request.app.state, len(body.items)
    allowed = min(state.settings.max_batch_items, state.accounts.largest(Resource.REQUESTS))
    if num_items > allowed:
        raise InvalidError("items", f"has {num_items} texts; the limit is {allowed} per batch")
    if (refused := state.accounts.refusal(record_of(request).client, Resource.REQUESTS, num_items)) is not None:
        raise refused
    started = time.perf_counter()
    results = await while_listened(request.receive, _speak_all(request, body))
    success = all(result.success for result in results)
    told = BatchAnswer(success=success, results=[], total_time=round(time.perf_counter() - started, 3))
    return StreamedAnswer(_in_parts(told, results), JSON, {})


async def _in_parts(told: BatchAnswer, results: list[BatchResult]) -> AsyncIterator[bytes]:
    """Give the answer of a batch result by result: as one text it may have a hundred megabytes."""
    before, _, after = told.model_dump_json().partition("[]")
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
    """Speak one text of a batch; what fails becomes its result."""
    started, state = time.perf_counter(), request.app.state
    try:
        wanted = await asyncio.to_thread(_request_of, item, body)
        speech = await speak(state.engine, wanted, settings=state.settings, record=record)
        audio = await asyncio.to_thread(lambda: base64.b64encode(speech.content or b"").decode())
    except S1MiniError as error:
        elapsed = round(time.perf_counter() - started, 3)
        return BatchResult(success=False, generation_time=elapsed, error=message_of(error), error_code=code_of(error))
    return BatchResult(
        success=True,
        audio_base64=audio,
        generation_time=round(time.perf_counter() - started, 3),
        spoken_text=speech.spoken_text if wanted.return_spoken_text else None,
        warning=speech.warning,
    )


def _request_of(given: Any, body: BatchBody) -> SpeechRequest:
    """Check one item, as it came in the body. Raises `InvalidError`."""
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
