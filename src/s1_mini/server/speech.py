"""Turns a validated request into an HTTP response: audio, whole or streamed, with a time limit, charged to the client.

The response begins only when the first audio exists, so that earlier failures still get an error status. A client that
disconnects cancels its request, both during generation and while the response is sent.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack, aclosing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote
from weakref import ref

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from s1_mini.audio.container import (
    RAW,
    SOURCE_TYPE,
    StreamEncoder,
    encode,
    encodes_fast,
    keeps_rate,
    media_type,
    rate_in,
)
from s1_mini.exceptions import CapacityError, GenerationError, RequestTimeoutError, S1MiniError
from s1_mini.server.accounts import Holding, Resource
from s1_mini.server.errors import ClientGoneError
from s1_mini.server.record import RequestLog, record_of
from s1_mini.server.schemas import Sampling, SpeechRequest
from s1_mini.server.state import state_of
from s1_mini.server.voice_names import own_voice, with_voice_names

if TYPE_CHECKING:
    from s1_mini.core.output_queue import Output
    from s1_mini.server.settings import ServerSettings
    from s1_mini.server.signing import Signer
    from s1_mini.speech_engine import SpeechEngine
    from s1_mini.types import AudioChunk, AudioFormat, SpokenMark, Word

T = TypeVar("T")

_HEADER_SAFE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")  # header values are ASCII, the rest is %-encoded


class _Deadline(NamedTuple):
    at: float  # time of the event loop
    allowed_s: float

    @classmethod
    def after(cls, seconds: float) -> _Deadline:
        return cls(asyncio.get_running_loop().time() + seconds, seconds)

    def error(self, what: str, way_out: str = "shorten the text") -> RequestTimeoutError:
        return RequestTimeoutError(f"{what} took longer than {self.allowed_s:g} s; {way_out}")


@dataclass
class Times:
    """When the words of a text are spoken and the marks of its SSML are reached, and the duration of the audio."""

    words: list[Word] = field(default_factory=list)
    marks: list[SpokenMark] = field(default_factory=list)
    audio_s: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the words and the marks."""
        return {name: [asdict(each) for each in getattr(self, name)] for name in ("words", "marks")}


@dataclass(frozen=True)
class AudioResponse:
    """A response whose first audio exists.

    The caller iterates `body` to its end, or closes it to cancel the rest. The client is charged for `content` until
    the HTTP request ends, or the caller releases `holding`.
    """

    media_type: str
    headers: dict[str, str]
    sample_rate: int
    body: AsyncIterator[bytes]
    holding: Holding  # resources charged to the client
    spoken_text: str | None
    warning: str | None  # skipped characters, a text in another language, or a bad reference
    content: bytes | None = None  # all bytes, if not streamed; `body` yields the same
    audio_seconds: float = 0.0  # duration; set for responses that are not streamed
    finish_reason: str = "stop"
    times: Times = field(default_factory=Times)  # known times that `take_times` has not returned yet

    def take_times(self) -> Times:
        """Return the words and marks whose times became known since the last call, and the seconds of new audio."""
        taken = replace(self.times)
        self.times.words, self.times.marks, self.times.audio_s = [], [], 0.0
        return taken


async def speak_to_client(request: Request, engine: SpeechEngine, speech: SpeechRequest) -> AudioResponse:
    """Speak for an HTTP request. Raises the errors of `speak`, and `ClientGoneError` if the client disconnects."""
    work = speak(engine, speech, settings=state_of(request).settings, record=record_of(request))
    return await while_listened(request.receive, work)


async def speak_body(
    request: Request, body: Sampling, text: str, audio_format: AudioFormat, *, voice: str | None, **options: Any
) -> AudioResponse:
    """Speak `text` for a client of another service, with the options of `body` and those given here.

    Options that the model does not support cause a warning. Raises the errors of `speak_to_client`.
    """
    state = state_of(request)
    name = await own_voice(state, voice)
    speech = body.build(text, audio_format, voice=name, **options).without_unsupported(state.engine.description)
    return await speak_to_client(request, state.engine, speech)


async def speak(
    engine: SpeechEngine,
    request: SpeechRequest,
    *,
    settings: ServerSettings,
    record: RequestLog,
    is_part: bool = False,
) -> AudioResponse:
    """Speak `request`; return when all audio exists or, for a stream, the first chunk.

    `is_part`: the client joins the audio with that of other requests. FFmpeg skips the first frame after tags in the
    middle of an mp3, so it has none.

    Raises `S1MiniError`: the engine's errors, `RequestTimeoutError`, and `BusyError` or `TooManyRequestsError` if the
    client holds too much. Later errors of a stream are raised from `body`. Cancelling the caller cancels the request.
    """
    request = replace(request, speech=await with_voice_names(engine, settings, request.speech))
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
        is_labelled = engine.config.label_audio and not (is_part and request.audio_format == "mp3")
        chunks = _ChargedChunks(engine, request, record, holding, signer=settings.signer(), is_labelled=is_labelled)
        waits = speech.stream is not None  # text still arrives; the session and the engine limit the time
        deadline = _Deadline.after(inf if waits else settings.request_timeout_s)
        if request.streams:
            end = _Deadline.after(inf if waits else settings.stream_timeout_s)
            response = await _stream(chunks, request, deadline, end)
        else:
            response = await _whole(chunks, request, deadline)
        cleanup.pop_all()
    return response


class _ChargedChunks(AsyncIterator["AudioChunk"]):
    """The engine's chunks; records their figures and times, and charges the client for audio that it has not taken."""

    def __init__(
        self,
        engine: SpeechEngine,
        request: SpeechRequest,
        record: RequestLog,
        holding: Holding,
        *,
        signer: Signer | None,
        is_labelled: bool,
    ) -> None:
        speech = request.speech
        profile = speech.chunk_profile or ("ttfa" if request.streams else "throughput")
        flow = (record.client, record.id)  # in the queue, clients take turns, and so do the requests of one client
        as_int16 = keeps_rate(request.audio_format)
        adapts = request.streams and speech.chunk_profile is None
        self._trace = trace = None if record.trace is None else record.trace.speak(request)
        on_end = None if trace is None else trace.report
        speech = replace(speech, chunk_profile=profile, adapts_chunks=adapts, flow=flow, on_end=on_end)
        try:
            self._output = engine.submit(speech, streams=request.streams, as_int16=as_int16)
        except S1MiniError as error:
            if trace is not None:
                trace.refuse(error.code)
            raise
        self._uncounted = len(speech.text)  # counted with the first audio: a refused text may be sent again
        self._output.queue.whole = False  # clients are charged for each chunk, also of complete HTTP responses
        self.record, self.holding, self.times, self._streams = record, holding, Times(), request.streams
        self.signer, self.is_labelled = signer, is_labelled
        self._must_end = speech.stream is not None and not speech.sampling.get("max_new_tokens")
        self._is_cut = False  # the text has ended because a slot was full
        self._expiry: asyncio.TimerHandle | None = None
        self._charge = partial(_charge_unread, holding, self._output)
        if request.streams:  # `_whole` reads audio as it is generated, and charges it itself
            record.unread.add(self._charge)

    def end_at(self, deadline: _Deadline) -> None:
        """Raise an error from the next chunk once the deadline has passed."""
        if deadline.at < inf:
            # Weak: an output that is dropped, such as by a client that leaves, cancels its request at once.
            self._expiry = asyncio.get_running_loop().call_at(deadline.at, _expire, ref(self._output), deadline)

    async def __anext__(self) -> AudioChunk:
        if self._is_cut:
            raise CapacityError(
                "the speech takes more frames than a slot has, so the end of the text was not spoken; send "
                "less text as one utterance or raise S1_MINI_MAX_COLUMNS"
            )
        try:
            chunk = await anext(self._output)
        except BaseException:
            self._end()
            raise
        seconds = len(chunk.audio) / chunk.sample_rate
        self.record.hear(chunk.frames, seconds, chunk.timing)
        self.record.characters, self._uncounted = self.record.characters + self._uncounted, 0
        self.times.audio_s += seconds
        if chunk.words or chunk.marks:
            self.times.words.extend(chunk.words)
            self.times.marks.extend(chunk.marks)
        if self._streams and self.holding.get(Resource.AUDIO_BYTES):
            self._charge()
        self._is_cut = self._must_end and chunk.finish_reason == "length"
        return chunk

    async def aclose(self) -> None:
        """Cancel the request if it has not ended."""
        self._end()
        self._output.close()
        if self._trace is not None:
            self._trace.close()

    async def encode(self, work: Callable[..., bytes], *arguments: Any, is_fast: bool = False) -> bytes:
        """Call an encoder, in a thread unless it `is_fast`, and note the time that it takes."""
        started = time.monotonic()
        content = work(*arguments) if is_fast else await asyncio.to_thread(work, *arguments)
        if self._trace is not None:
            self._trace.note_encoding(started)
        return content

    def _end(self) -> None:
        self.record.unread.discard(self._charge)
        if self._expiry is not None:
            self._expiry.cancel()


def _charge_unread(holding: Holding, output: Output) -> None:
    holding.set(Resource.AUDIO_BYTES, output.unread_bytes)


def _expire(output: ref[Output], deadline: _Deadline) -> None:
    if (listened := output()) is not None:
        listened.fail(deadline.error("the stream"))


async def _whole(chunks: _ChargedChunks, request: SpeechRequest, deadline: _Deadline) -> AudioResponse:
    received, record, holding = [], chunks.record, chunks.holding
    try:
        async with asyncio.timeout_at(deadline.at), aclosing(chunks):
            async for chunk in chunks:
                holding.add(Resource.AUDIO_BYTES, chunk.audio.nbytes)
                received.append(chunk)
            if not received:
                raise GenerationError("the model generated no audio")
            holding.set(Resource.REQUESTS, 0)  # the engine has finished the request
            content = await chunks.encode(_encode_all, chunks, received, request.audio_format)
    except TimeoutError:
        raise deadline.error("the whole response", "shorten the text, or request a stream") from None
    holding.set(Resource.AUDIO_BYTES, len(content), checked=False)
    seconds, reason = round(record.audio_s, 3), received[-1].finish_reason or "stop"
    response = _response(
        chunks, request, received[0], _once(content), content=content, audio_seconds=seconds, finish_reason=reason
    )
    response.headers["X-Audio-Seconds"] = f"{seconds:.3f}"
    response.headers["X-Generation-Seconds"] = f"{record.generation_s:.3f}"
    response.headers["X-Finish-Reason"] = reason
    return response


async def _stream(
    chunks: _ChargedChunks, request: SpeechRequest, first_deadline: _Deadline, end_deadline: _Deadline
) -> AudioResponse:
    async with AsyncExitStack() as cleanup:
        cleanup.push_async_callback(chunks.aclose)
        try:
            async with asyncio.timeout_at(first_deadline.at):
                first = await anext(chunks, None)
        except TimeoutError:
            raise first_deadline.error("the first audio", "try again later") from None
        if first is None:
            raise GenerationError("the model generated no audio")
        encoder = StreamEncoder(request.audio_format, first.sample_rate, is_labelled=chunks.is_labelled)
        body = _Encoded(chunks, encoder)
        await body.begin(first)  # before the status is sent: NaN from the model must become an error
        cleanup.pop_all()
    chunks.end_at(end_deadline)
    return _response(chunks, request, first, body)


def _response(
    chunks: _ChargedChunks, request: SpeechRequest, first: AudioChunk, body: AsyncIterator[bytes], **whole: Any
) -> AudioResponse:
    kind, rate = media_type(request.audio_format), rate_in(request.audio_format, first.sample_rate)
    if request.audio_format in RAW:
        kind += f";rate={rate};channels=1"
    warning = " ".join(filter(None, (request.warning, first.warning))) or None
    length = {"X-Characters": str(len(request.speech.text))}
    headers = {"X-Sample-Rate": str(rate), **length, **source_header(chunks.is_labelled), **warning_header(warning)}
    return AudioResponse(
        kind, headers, rate, body, chunks.holding, first.spoken_text, warning, times=chunks.times, **whole
    )


def source_header(is_labelled: bool) -> dict[str, str]:
    """Return the header of responses with synthetic audio, which is the only label of formats without a comment."""
    return {"X-Digital-Source-Type": SOURCE_TYPE} if is_labelled else {}


def warning_header(warning: str | None) -> dict[str, str]:
    return {"X-Warning": quote(warning, safe=_HEADER_SAFE)} if warning else {}


class _Encoded(AsyncIterator[bytes]):
    """The encoded chunks of a stream."""

    def __init__(self, chunks: _ChargedChunks, encoder: StreamEncoder) -> None:
        self._chunks, self._encoder, self._is_fast = chunks, encoder, encodes_fast(encoder.audio_format)
        self._begun, self._is_over = b"", False

    async def begin(self, first: AudioChunk) -> None:
        """Encode the first chunk."""
        self._begun = await self._chunks.encode(self._encoder.feed, first.audio, is_fast=self._is_fast)

    async def __anext__(self) -> bytes:
        piece, self._begun = self._begun, b""
        try:
            while not (piece or self._is_over):
                if (chunk := await anext(self._chunks, None)) is not None:
                    piece = await self._chunks.encode(self._encoder.feed, chunk.audio, is_fast=self._is_fast)
                else:
                    self._is_over = True
                    self._chunks.holding.set(Resource.REQUESTS, 0)
                    piece = await self._chunks.encode(self._encoder.finish)
        except BaseException:
            await self.aclose()
            raise
        if not piece:
            await self.aclose()
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """Cancel the request if it has not ended. An async generator that has not begun would not do it."""
        self._is_over = True
        await self._chunks.aclose()
        self._chunks.holding.release()


def _encode_all(chunks: _ChargedChunks, received: list[AudioChunk], audio_format: AudioFormat) -> bytes:
    """Encode all chunks as one file and, if the server has a certificate, sign it."""
    wave = np.concatenate([chunk.audio for chunk in received])
    content = encode(wave, received[0].sample_rate, audio_format, is_labelled=chunks.is_labelled)
    return content if chunks.signer is None else chunks.signer.sign(content, audio_format)


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def to_json(speech: AudioResponse, request: SpeechRequest) -> bytes:
    """Encode a complete response as JSON: the audio as base64 and, if requested, the spoken text and word times."""
    content, times = speech.content, speech.take_times()
    assert content is not None

    def encode() -> bytes:
        answer = {
            "audio": base64.b64encode(content).decode(),
            "format": request.audio_format,
            "sample_rate": speech.sample_rate,
            "audio_seconds": speech.audio_seconds,
            "finish_reason": speech.finish_reason,
            **({"spoken_text": speech.spoken_text} if request.return_spoken_text else {}),
            **(times.as_json() if request.speech.word_times else {}),
            **({"warning": speech.warning} if speech.warning else {}),
        }
        return json.dumps(answer).encode()

    return await asyncio.to_thread(encode)


async def in_lines(speech: AudioResponse, line: Callable[[bytes, Times], bytes]) -> AsyncIterator[bytes]:
    """Yield what `line` makes of each piece of a stream and the times known with it, and at last of no audio."""
    async with aclosing(speech.body) as body:  # type: ignore[type-var]
        async for piece in body:
            yield line(piece, speech.take_times())
    if last := line(b"", speech.take_times()):
        yield last


def json_lines(speech: AudioResponse, request: SpeechRequest) -> AsyncIterator[bytes]:
    """Return a stream as JSON lines: audio as base64, and the words and marks whose times became known with it.

    The last line may have no audio. The first one also has the format, and the spoken text if requested.
    """
    head: dict[str, Any] = {"format": request.audio_format, "sample_rate": speech.sample_rate}
    head |= {"spoken_text": speech.spoken_text} if request.return_spoken_text else {}
    head |= {"warning": speech.warning} if speech.warning else {}

    def line(piece: bytes, times: Times) -> bytes:
        nonlocal head
        if not (piece or times.words or times.marks):
            return b""
        content = {"audio": base64.b64encode(piece).decode()} | times.as_json() | head
        head = {}
        return json.dumps(content).encode() + b"\n"

    return in_lines(speech, line)


def respond(speech: AudioResponse) -> Response:
    if speech.content is not None:
        return Response(speech.content, media_type=speech.media_type, headers=speech.headers)
    return StreamedAnswer(speech.body, speech.media_type, speech.headers)


class StreamedAnswer(Response):
    """A body that is sent as it is generated. If it fails, the connection is closed without the final chunk.

    An HTTP/1.0 client behind the proxy of several replicas gets the whole body with its length, because the proxy would
    end an interrupted stream in the same way as a complete one.
    """

    def __init__(self, body: AsyncIterator[bytes], media_type: str, headers: dict[str, str]) -> None:
        super().__init__(media_type=media_type, headers=headers)
        del self.headers["content-length"]
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the body. Raises the body's error, or `ClientGoneError` if the client disconnects."""
        if scope["http_version"] == "1.0" and scope["app"].state.member is not None:
            content = await while_listened(receive, self._collect(scope["state"]["record"].holding))
            await Response(content, self.status_code, dict(self.headers))(scope, receive, send)
            return
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}

        async def deliver() -> None:
            async with aclosing(self._body) as body:  # type: ignore[type-var]
                await send(start)
                async for piece in body:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        await while_listened(receive, deliver())

    async def _collect(self, holding: Holding) -> bytes:
        content = bytearray()
        async with aclosing(self._body) as body:  # type: ignore[type-var]
            async for piece in body:
                holding.add(Resource.AUDIO_BYTES, len(piece))
                content += piece
        return bytes(content)


async def while_listened(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, or cancel it and raise `ClientGoneError` once the client disconnects.

    The request's body must have been read.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
        del working, leaving  # the traceback of an error of `work` refers to this frame


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
