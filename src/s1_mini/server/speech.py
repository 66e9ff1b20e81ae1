"""The one way from a checked request to sound as bytes: whole or streamed, within its time, into its format.

The first byte exists only once the first sound does, so that whatever fails before it still has a status.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from s1_mini.audio.container import encode, media_type
from s1_mini.audio.stream_encoder import StreamEncoder, encodes_fast
from s1_mini.exceptions import GenerationError, RequestTimeoutError
from s1_mini.server.record import Record
from s1_mini.server.schemas import SpeechRequest
from s1_mini.types import AudioFormat

if TYPE_CHECKING:
    from s1_mini.engine import ProductionTTSEngine
    from s1_mini.server.settings import ServerSettings
    from s1_mini.types import AudioChunk


@dataclass(frozen=True)
class Speech:
    """An answer that is certain to begin: its type, its headers, and its bytes, all at once or as they are made.

    Whoever takes it iterates `body` to the end or closes it; closing cancels what is still to be said.
    """

    media_type: str
    headers: dict[str, str]
    sample_rate: int
    body: AsyncIterator[bytes]
    content: bytes | None = None  # the whole of it, if it is whole; `body` gives the same
    spoken_text: str | None = None
    warning: str | None = None  # what of the text is not spoken


async def speak(
    engine: ProductionTTSEngine, request: SpeechRequest, *, settings: ServerSettings, record: Record
) -> Speech:
    """Speak `request`; return once all of it is there, or for a stream the first of it.

    Raises the engine's errors, `VoiceNotFoundError`, and `RequestTimeoutError` if it takes longer than it may.
    What fails in a stream later is raised from `body`. Cancelling the caller cancels the request.
    """
    record.voice = (request.voice or ("reference" if request.reference_audio else "default"))[:64]
    record.audio_format, record.streams = request.audio_format, request.streams
    record.spoken = time.perf_counter()
    chunks = _noted(engine, request, record)
    deadline = asyncio.get_running_loop().time() + settings.request_timeout_s
    if request.streams:
        return await _stream(chunks, request.audio_format, deadline, settings)
    return await _whole(chunks, request.audio_format, deadline, settings, record)


async def _noted(engine: ProductionTTSEngine, request: SpeechRequest, record: Record) -> AsyncIterator[AudioChunk]:
    """Give the engine's chunks; note each in the record. Closing it cancels the request."""
    chunks = engine.stream_async(request.text, **request.arguments("ttfa" if request.streams else "throughput"))
    async with aclosing(chunks):  # type: ignore[type-var]
        async for chunk in chunks:
            record.hear(chunk.frames, len(chunk.wave) / chunk.sample_rate, chunk.timing)
            yield chunk


async def _whole(
    chunks: AsyncIterator[AudioChunk],
    audio_format: AudioFormat,
    deadline: float,
    settings: ServerSettings,
    record: Record,
) -> Speech:
    try:
        async with asyncio.timeout_at(deadline), aclosing(chunks):  # type: ignore[type-var]
            heard = [chunk async for chunk in chunks]
            if not heard:
                raise GenerationError("the model said nothing")
            rate = heard[-1].sample_rate
            content = await asyncio.to_thread(_encode_all, heard, rate, audio_format)
    except TimeoutError:
        raise _too_late("the whole answer", settings.request_timeout_s) from None
    headers = {
        "X-Sample-Rate": str(rate),
        "X-Audio-Seconds": f"{record.audio_s:.3f}",
        "X-Generation-Seconds": f"{record.generation_s:.3f}",
        "X-Finish-Reason": heard[-1].finish_reason or "stop",
    }
    return _told(Speech(type_of(audio_format, rate), headers, rate, _once(content), content), heard[0])


async def _stream(
    chunks: AsyncIterator[AudioChunk], audio_format: AudioFormat, deadline: float, settings: ServerSettings
) -> Speech:
    try:
        async with asyncio.timeout_at(deadline):
            first = await anext(chunks, None)
    except TimeoutError:
        raise _too_late("the first sound", settings.request_timeout_s) from None
    if first is None:
        raise GenerationError("the model said nothing")
    encoder = StreamEncoder(audio_format, first.sample_rate)
    try:
        begun = await _feed(encoder, first.wave)  # a model that says NaN has failed, and still has a status
    except BaseException:
        await cast("Any", chunks).aclose()
        raise
    ends = deadline - settings.request_timeout_s + settings.stream_timeout_s
    body = _rest(chunks, encoder, begun, ends, settings.stream_timeout_s)
    headers = {"X-Sample-Rate": str(first.sample_rate)}
    return _told(Speech(type_of(audio_format, first.sample_rate), headers, first.sample_rate, body), first)


def _told(speech: Speech, first: AudioChunk) -> Speech:
    """Add what the first chunk tells of the text."""
    headers = speech.headers | ({"X-Warning": first.warning} if first.warning else {})
    return replace(speech, headers=headers, spoken_text=first.spoken_text, warning=first.warning)


async def _rest(
    chunks: AsyncIterator[AudioChunk], encoder: StreamEncoder, begun: bytes, ends: float, allowed_s: float
) -> AsyncIterator[bytes]:
    """Give a stream's bytes from the first on."""
    loop = asyncio.get_running_loop()
    async with aclosing(chunks):  # type: ignore[type-var]
        if begun:
            yield begun
        while True:
            try:
                async with asyncio.timeout_at(ends):
                    chunk = await anext(chunks, None)
            except TimeoutError:
                raise _too_late("the stream", allowed_s) from None
            if chunk is None:
                break
            if loop.time() > ends:
                raise _too_late("the stream", allowed_s)
            if piece := await _feed(encoder, chunk.wave):
                yield piece
        if tail := await asyncio.to_thread(encoder.finish):
            yield tail


async def _feed(encoder: StreamEncoder, wave: np.ndarray) -> bytes:
    """Encode a chunk; in a thread where that takes long enough to be felt."""
    if encodes_fast(encoder.audio_format):
        return encoder.feed(wave)
    return await asyncio.to_thread(encoder.feed, wave)


def type_of(audio_format: AudioFormat, sample_rate: int) -> str:
    """Give the media type of an answer; that of bare samples says what they are."""
    kind = media_type(audio_format)
    return f"{kind};rate={sample_rate};channels=1" if audio_format == "pcm" else kind


def _encode_all(heard: list[AudioChunk], rate: int, audio_format: AudioFormat) -> bytes:
    return encode(np.concatenate([chunk.wave for chunk in heard]), rate, audio_format)


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


def _too_late(what: str, allowed_s: float) -> RequestTimeoutError:
    return RequestTimeoutError(f"{what} took longer than {allowed_s:g} s; shorten the text, or ask for a stream")
