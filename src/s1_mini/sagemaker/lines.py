"""JSON lines, as batch transform sends and wants them: as many answers as lines, in their order, audio as base64.

Lines are spoken some at a time, and answered as they are done, so that a long body costs no more memory than a short
one. What is wrong with a line is its own answer.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from s1_mini.exceptions import QueueFullError, S1MiniError
from s1_mini.sagemaker.payload import Asked, read_line
from s1_mini.server.errors import BusyError, TooManyRequestsError, describe
from s1_mini.server.record import Record
from s1_mini.server.speech import Speech, speak

if TYPE_CHECKING:
    from s1_mini.engine import ProductionTTSEngine
    from s1_mini.server.settings import ServerSettings

MAX_TRIES = 30  # while other requests keep the queue full
RETRY_S = 1.0


async def speak_lines(
    engine: ProductionTTSEngine, lines: list[bytes], *, settings: ServerSettings, record: Record
) -> AsyncIterator[bytes]:
    """Give one line of JSON for each of `lines`; closing it cancels what is still spoken."""
    at_once = 2 * engine.num_slots
    tasks: deque[asyncio.Task[tuple[bytes, Speech | None]]] = deque()
    waiting = deque(lines)
    try:
        while waiting or tasks:
            while waiting and len(tasks) < at_once:
                tasks.append(asyncio.create_task(_answer(engine, waiting.popleft(), settings, record)))
            answer, speech = await tasks[0]
            yield answer
            tasks.popleft()
            if speech is not None:
                speech.release()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def audio_object(speech: Speech, audio_format: str, *, tells_text: bool = False) -> dict[str, Any]:
    """Give a whole answer as JSON carries it, with what was spoken if that was asked for."""
    content = speech.content
    assert content is not None
    return {
        "audio": await asyncio.to_thread(lambda: base64.b64encode(content).decode()),
        "format": audio_format,
        "sample_rate": speech.sample_rate,
        "audio_seconds": float(speech.headers["X-Audio-Seconds"]),
        "finish_reason": speech.headers["X-Finish-Reason"],
        **({"spoken_text": speech.spoken_text} if tells_text else {}),
        **({"warning": speech.warning} if speech.warning else {}),
    }


async def _answer(
    engine: ProductionTTSEngine, line: bytes, settings: ServerSettings, record: Record
) -> tuple[bytes, Speech | None]:
    speech = None
    try:
        asked = await asyncio.to_thread(read_line, line)
        if isinstance(asked, S1MiniError):
            raise asked
        speech = await _speak(engine, asked, settings, record)
        answer = await audio_object(speech, asked.request.audio_format, tells_text=asked.request.return_spoken_text)
    except S1MiniError as error:
        answer = describe(error, record.id)
    return json.dumps(answer).encode() + b"\n", speech


async def _speak(engine: ProductionTTSEngine, asked: Asked, settings: ServerSettings, record: Record) -> Speech:
    """Speak one line, whole; wait while the queue is full."""
    request = replace(asked.request, streams=False)
    for _ in range(MAX_TRIES):
        own = record.for_part()
        try:
            speech = await speak(engine, request, settings=settings, record=own)
        except (QueueFullError, BusyError, TooManyRequestsError) as error:
            if own.first_chunk is not None:
                raise  # its audio was too much: it would be so again
            full = error
            await asyncio.sleep(error.retry_after_s if isinstance(error, QueueFullError) else RETRY_S)
        else:
            record.voice, record.audio_format = own.voice, own.audio_format
            record.spoken = record.spoken or own.spoken
            record.hear(own.frames, own.audio_s, own.timing)
            return speech
    raise full
