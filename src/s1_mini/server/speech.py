"""From a checked request to encoded audio: whole or streamed, within its time limit, charged to its client.

The first byte exists only once the first audio does, so that whatever fails before it still gets a status code.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import quote

import numpy as np

from s1_mini.audio.container import StreamEncoder, encode, encodes_fast, media_type
from s1_mini.exceptions import GenerationError, RequestTimeoutError
from s1_mini.server.accounts import Holding, Resource
from s1_mini.server.record import RequestLog
from s1_mini.server.schemas import SpeechRequest
from s1_mini.types import AudioFormat

if TYPE_CHECKING:
    from s1_mini.engine import ProductionTTSEngine
    from s1_mini.server.settings import ServerSettings
    from s1_mini.types import AudioChunk


class _Deadline(NamedTuple):
    """A time limit: the event loop's time at which it ends, and its length in seconds."""

    at: float
    allowed_s: float

    def error(self, what: str) -> RequestTimeoutError:
        return RequestTimeoutError(
            f"{what} took longer than {self.allowed_s:g} s; shorten the text, or ask for a stream"
        )


_HEADER_SAFE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")  # header values are ASCII, the rest is %-encoded


@dataclass(frozen=True)
class AudioResponse:
    """A response that is certain to begin: its type, headers and bytes, whole or as they are generated.

    The caller iterates `body` to its end or closes it, which cancels the rest, and calls `release` once it no longer
    keeps the audio; at the latest the end of the HTTP request does that.
    """

    media_type: str
    headers: dict[str, str]
    sample_rate: int
    body: AsyncIterator[bytes]
    holding: Holding  # what it is charged for
    content: bytes | None = None  # the whole of it, if it is whole; `body` gives the same
    spoken_text: str | None = None
    warning: str | None = None  # skipped characters, or a text in another language
    audio_seconds: float = 0.0  # of a whole answer
    finish_reason: str = "stop"

    def release(self) -> None:
        """Stop charging its client for it."""
        self.holding.release()


async def speak(
    engine: ProductionTTSEngine, request: SpeechRequest, *, settings: ServerSettings, record: RequestLog
) -> AudioResponse:
    """Speak `request`; return once all audio is there, or for a stream the first chunk.

    Raises the engine's errors, `VoiceNotFoundError`, `RequestTimeoutError`, and `BusyError` or `TooManyRequestsError`
    if its client holds too much. What fails later in a stream is raised from `body`. Cancelling the caller cancels the
    request.
    """
    speech = request.speech
    record.voice = (speech.voice or ("reference" if speech.references else "default"))[:64]
    record.audio_format, record.streams = request.audio_format, request.streams
    record.spoken = time.perf_counter()
    assert record.holding is not None
    holding = record.holding.part()
    with ExitStack() as cleanup:
        cleanup.callback(holding.release)
        holding.set(Resource.REQUESTS, 1)
        holding.set(Resource.BODY_BYTES, len(request.reference))
        chunks = _noted(engine, request, record, holding)
        now = asyncio.get_running_loop().time()
        first = _Deadline(now + settings.request_timeout_s, settings.request_timeout_s)
        if request.streams:
            end = _Deadline(now + settings.stream_timeout_s, settings.stream_timeout_s)
            answer = await _stream(chunks, request.audio_format, first, end, holding)
        else:
            answer = await _whole(chunks, request.audio_format, first, record, holding)
        cleanup.pop_all()
        return answer


async def _noted(
    engine: ProductionTTSEngine, request: SpeechRequest, record: RequestLog, holding: Holding
) -> AsyncIterator[AudioChunk]:
    """Yield the engine's chunks and note each in the record. Closing it cancels the request."""
    profile = request.speech.chunk_profile or ("ttfa" if request.streams else "throughput")
    flow = (record.client, record.id)  # clients take turns in the queue, and so do their requests
    chunks = engine.speak_async(replace(request.speech, chunk_profile=profile, flow=flow), streams=request.streams)

    def charge_unread() -> None:
        holding.set(Resource.AUDIO_BYTES, chunks.unread_bytes)

    if request.streams:  # a whole answer is taken as it is generated, and charged then
        record.charge_unread = charge_unread
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                record.hear(chunk.frames, len(chunk.wave) / chunk.sample_rate, chunk.timing)
                if request.streams and holding.get(Resource.AUDIO_BYTES):
                    charge_unread()
                yield chunk
    finally:
        record.charge_unread = None


async def _whole(
    chunks: AsyncIterator[AudioChunk],
    audio_format: AudioFormat,
    deadline: _Deadline,
    record: RequestLog,
    holding: Holding,
) -> AudioResponse:
    heard = []
    try:
        async with asyncio.timeout_at(deadline.at), aclosing(chunks):  # type: ignore[type-var]
            async for chunk in chunks:
                holding.add(Resource.AUDIO_BYTES, chunk.wave.nbytes)
                heard.append(chunk)
            if not heard:
                raise GenerationError("the model said nothing")
            holding.set(Resource.REQUESTS, 0)  # the engine is done with it
            rate = heard[-1].sample_rate
            content = await asyncio.to_thread(_encode_all, heard, rate, audio_format)
    except TimeoutError:
        raise deadline.error("the whole answer") from None
    seconds, reason = round(record.audio_s, 3), heard[-1].finish_reason or "stop"
    headers = {
        "X-Sample-Rate": str(rate),
        "X-Audio-Seconds": f"{seconds:.3f}",
        "X-Generation-Seconds": f"{record.generation_s:.3f}",
        "X-Finish-Reason": reason,
    }
    holding.set(Resource.AUDIO_BYTES, len(content), checked=False)
    speech = AudioResponse(type_of(audio_format, rate), headers, rate, _once(content), holding, content)
    return _told(replace(speech, audio_seconds=seconds, finish_reason=reason), heard[0])


async def _stream(
    chunks: AsyncIterator[AudioChunk],
    audio_format: AudioFormat,
    first_deadline: _Deadline,
    end_deadline: _Deadline,
    holding: Holding,
) -> AudioResponse:
    try:
        async with asyncio.timeout_at(first_deadline.at):
            first = await anext(chunks, None)
    except TimeoutError:
        raise first_deadline.error("the first sound") from None
    if first is None:
        raise GenerationError("the model said nothing")
    encoder = StreamEncoder(audio_format, first.sample_rate)
    async with AsyncExitStack() as cleanup:
        cleanup.push_async_callback(cast("Any", chunks).aclose)
        begun = await _feed(encoder, first.wave)  # NaN from the model still becomes an error status
        cleanup.pop_all()
    body = _rest(chunks, encoder, begun, end_deadline, holding)
    headers = {"X-Sample-Rate": str(first.sample_rate)}
    kind = type_of(audio_format, first.sample_rate)
    return _told(AudioResponse(kind, headers, first.sample_rate, body, holding), first)


def _told(speech: AudioResponse, first: AudioChunk) -> AudioResponse:
    """Add what the first chunk tells of the text."""
    headers = speech.headers | ({"X-Warning": quote(first.warning, safe=_HEADER_SAFE)} if first.warning else {})
    return replace(speech, headers=headers, spoken_text=first.spoken_text, warning=first.warning)


async def _rest(
    chunks: AsyncIterator[AudioChunk], encoder: StreamEncoder, begun: bytes, deadline: _Deadline, holding: Holding
) -> AsyncIterator[bytes]:
    """Yield a stream's bytes from the first on."""
    loop = asyncio.get_running_loop()
    async with aclosing(chunks), _released(holding):  # type: ignore[type-var]
        if begun:
            yield begun
        while True:
            try:
                async with asyncio.timeout_at(deadline.at):
                    chunk = await anext(chunks, None)
            except TimeoutError:
                raise deadline.error("the stream") from None
            if chunk is None:
                holding.set(Resource.REQUESTS, 0)
                break
            if loop.time() > deadline.at:
                raise deadline.error("the stream")
            if piece := await _feed(encoder, chunk.wave):
                yield piece
        if tail := await asyncio.to_thread(encoder.finish):
            yield tail


@asynccontextmanager
async def _released(holding: Holding) -> AsyncIterator[None]:
    try:
        yield
    finally:
        holding.release()


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
