"""WebSocket sessions: text arrives in pieces, and its audio is sent while more text arrives.

For every kind of client, `Session` cuts the text into sentences and enforces the limits, and `SpeechQueue` speaks the
sentences. A `Protocol` handles the messages of one kind of client: our own (`websocket.py`), ElevenLabs'
(`elevenlabs_socket.py`) or Deepgram's (`deepgram.py`).
"""

from __future__ import annotations

import asyncio
import json
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from fastapi import WebSocket, WebSocketDisconnect
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.websockets import WebSocketState

from s1_mini.exceptions import ParameterError, S1MiniError, TextError
from s1_mini.server.bodies import SMALL_BYTES, check_structure, in_turn
from s1_mini.server.errors import (
    BodyError,
    BusyError,
    ClientGoneError,
    DrainingError,
    IdleError,
    code_of,
    describe,
    from_validation,
    row_of,
)
from s1_mini.server.record import record_of
from s1_mini.server.schemas import SessionConfig, StartOptions
from s1_mini.server.speech_queue import Listener, SpeechQueue, Track
from s1_mini.server.state import state_of
from s1_mini.server.voice_names import names_in_markup, own_voice
from s1_mini.text.markup import begins_ssml, cut_documents, last_voice, may_begin_ssml, may_end_document
from s1_mini.text.split import UNREAD_S, EarlyStart, Stretches, cut_arriving, ends_sentence, is_due
from s1_mini.text.tidy import is_speakable
from s1_mini.text_stream import BackgroundTextStream
from s1_mini.types import AudioFormat

Options = TypeVar("Options", bound=BaseModel)
Cut = TypeVar("Cut", str, list[str])

SMALL_TEXT = 2000  # texts up to this many characters are split in the event loop; longer ones take milliseconds
LEAD_S = 0.3  # the beginning of a sentence is spoken this many seconds before the client runs out of audio
POLL_S = 0.25  # interval at which a session checks its time limits, eviction and shutdown of the server


class Protocol(Listener):
    """The messages of one kind of client."""

    messages: TypeAdapter[Any]
    tags: Mapping[str, type[BaseModel]] = {}  # models by their `type`, if `messages` is a union of them

    def __init__(self, session: Session) -> None:
        self.session = session
        self.idle_s: float = session.state.settings.websocket_idle_s  # maximum seconds without a message or audio
        self.options: dict[str, Any] = {}  # for every request, in addition to the track's configuration

    @abstractmethod
    async def act(self, message: Any) -> None:
        """Handle a message."""

    async def end(self) -> None:
        """Announce that everything was spoken. Raises `S1MiniError`."""

    def error(self, description: dict[str, Any], close_code: int) -> dict[str, Any]:  # noqa: ARG002
        """Return the message for an error that ends the session."""
        return {"type": "error"} | description


def read_options(socket: WebSocket, model: type[Options]) -> Options:
    """Return the query parameters of a client. Raises `InvalidError`."""
    try:
        return model.model_validate(dict(socket.query_params))
    except ValidationError as error:
        raise from_validation(error.errors(include_url=False)) from None


async def config_of(
    socket: WebSocket, start: StartOptions, voice: str | None, audio_format: AudioFormat, rate: int | None
) -> SessionConfig:
    """Return the configuration of a client that names its voice in the URL. Raises the errors of `describe_voice`."""
    state = state_of(socket)
    name = await own_voice(state, voice)
    if name is not None:
        await asyncio.to_thread(state.engine.describe_voice, name)
    options = start.model_dump(include=set(StartOptions.model_fields))
    return SessionConfig(type="session.config", voice=name, response_format=audio_format, sample_rate=rate, **options)


async def converse(socket: WebSocket, protocol: Callable[[Session], Protocol]) -> None:
    """Run a session with a client. Raises `BusyError`, or `ClientGoneError` if the client disconnects."""
    session, pool, record = Session(socket, protocol), state_of(socket).websockets, record_of(socket)
    if not pool.add(session, record.client):
        raise BusyError("All WebSocket sessions are in use. Retry in one second.")
    try:
        await socket.accept()
        await session.run()
    finally:
        pool.remove(session)


class Session:
    """One WebSocket session.

    A session is idle while nothing waits to be spoken. A session, usually an idle one, may be evicted to make room for
    a new one (`IdlePool`).
    """

    def __init__(self, socket: WebSocket, protocol: Callable[[Session], Protocol]) -> None:
        self._socket, self.state = socket, state_of(socket)
        self.record = record_of(socket)
        self._is_evicted = False
        self.is_ending = False  # no more text comes
        self._is_finished = asyncio.Event()  # everything was spoken
        self._last_message = time.monotonic()
        self.queue = SpeechQueue(self.state, self.record, lambda: self.protocol, self._go_idle)
        self._arriving: Track | None = None  # the track that got text last
        self._last_text = self._last_message
        self._has_moved = asyncio.Event()  # text arrived, all text was spoken, or no more text comes
        self.protocol = protocol(self)

    async def run(self) -> None:
        """Read messages and speak until the session ends; send errors to the client. Raises `ClientGoneError`."""
        works = (self._read(), self._speak(), self._start_early())
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            await asyncio.gather(*tasks)
            await self.protocol.end()
            await self._socket.close()
        except (ClientGoneError, WebSocketDisconnect):
            raise ClientGoneError from None
        except S1MiniError as error:
            await self._fail(error)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.queue.forget()

    def evict(self) -> None:
        self._is_evicted = True

    async def _fail(self, error: S1MiniError) -> None:
        self.record.code = code_of(error)
        status = row_of(error).status
        close_code = 1013 if status in (429, 503) else 1011 if status >= 500 else 1008
        with suppress(WebSocketDisconnect, RuntimeError):
            await self.send(self.protocol.error(describe(error, self.record.id), close_code))
            await self._socket.close(close_code)

    async def _read(self) -> None:
        """Handle messages until everything is spoken."""
        ends = time.monotonic() + self.state.settings.max_websocket_s
        receiving: asyncio.Future[Any] | None = None
        finishing = asyncio.ensure_future(self._is_finished.wait())
        try:
            while True:
                receiving = receiving or asyncio.ensure_future(self._socket.receive())
                await asyncio.wait({receiving, finishing}, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
                if finishing.done():
                    return
                if receiving.done():
                    self._last_message = time.monotonic()
                self._check_limits(ends)
                if not receiving.done():
                    continue
                message, receiving = receiving.result(), None
                if message["type"] == "websocket.disconnect":
                    raise ClientGoneError
                await self._take(message)
        finally:
            finishing.cancel()
            if receiving is not None:
                receiving.cancel()

    def _check_limits(self, ends: float) -> None:
        settings, now = self.state.settings, time.monotonic()
        if now > ends:
            raise IdleError(f"the session reached its limit of {settings.max_websocket_s:g} s")
        if self._is_evicted:
            raise BusyError(
                "All sessions are in use, and a new one took the place of this session. Reconnect to continue."
            )
        if self.is_ending:
            return
        if self.state.gate.is_draining:
            raise DrainingError("the server is shutting down; reconnect")
        is_idle = not self.queue or self.queue.waits_for_text
        if is_idle and now - max(self._last_message, self.queue.last_moved) > self.protocol.idle_s:
            raise IdleError(f"no message arrived for {self.protocol.idle_s:g} s")

    async def _take(self, message: dict[str, Any]) -> None:
        """Handle one message. An invalid message raises an error, or is ignored once the text is complete."""
        text = message.get("text")
        try:
            if text is None:
                raise BodyError("binary messages are not accepted; send JSON as text")
            is_large = len(text) > SMALL_BYTES
            parsed = await in_turn(self.state, _parse, text, self.protocol) if is_large else _parse(text, self.protocol)
        except S1MiniError:
            if self.is_ending:
                return
            raise
        await self.protocol.act(parsed)

    async def add(self, track: Track, text: str) -> None:
        """Add text, and speak its complete sentences.

        Raises `TextError` if the text is too far ahead of the audio, and `ParameterError` as `check` does.
        """
        # Refuse text that is too far ahead instead of leaving it unread, because a session that does not read notices
        # no disconnect and no pong.
        allowed = self.state.engine.config.max_text_length
        is_ssml, splits = track.stream is None and self._is_ssml(track, track.rest + text), self._splits
        streams = not is_ssml and self._streams_text(track.config)
        is_held = is_ssml or streams or not splits
        ahead = self.queue.num_waiting + len(text) + (len(track.rest) if is_held else 0)
        if ahead > allowed and track.stream is not None:
            raise TextError(
                "text",
                f"has {ahead} characters in unfinished utterances; the limit is {allowed}; send shorter texts",
            )
        if ahead > allowed:
            raise TextError(
                "text",
                f"is {ahead} characters ahead of the audio; at most {allowed} are allowed; send text more slowly",
            )
        track.says = bool(track.says)
        if streams:
            self._write(track, text)
            return
        if not text:
            return
        before, track.rest = track.rest, track.rest + text
        if is_ssml and may_end_document(before, text):
            documents, track.rest = await self._cut(track, cut_documents)
            track.num_seen = 0
            for document in documents:
                self._put(track, document, is_alone=True)
                await asyncio.sleep(0)  # a message may hold a thousand documents
        elif not is_ssml and splits and is_due(track.rest, track.num_seen):
            self._put_sentences(track, *await self._cut(track, cut_arriving))
        self._arriving, self._last_text = track, time.monotonic()
        self._has_moved.set()

    async def _cut(self, track: Track, cut: Callable[[str], tuple[Cut, str]]) -> tuple[Cut, str]:
        """Return what is complete of the track's text, and the rest; cut long texts in a thread."""
        text, track.rest = track.rest, ""
        return cut(text) if len(text) <= SMALL_TEXT else await in_turn(self.state, cut, text)

    def _put_sentences(self, track: Track, whole: str, rest: str) -> None:
        track.rest, track.num_seen = rest, len(rest)
        self._put(track, whole)

    @property
    def _splits(self) -> bool:
        """Whether sentences may be spoken one by one; otherwise a text is spoken as a whole when it is complete."""
        return self.state.engine.description.splits

    def _is_ssml(self, track: Track, text: str) -> bool:
        """Return whether a text is SSML, of which only complete documents are spoken."""
        is_accepted = track.config.text_type == "text" and self.state.engine.config.accept_ssml
        return track.config.text_type == "ssml" or (is_accepted and begins_ssml(text))

    def check(self, config: SessionConfig, recording: bytes | None) -> None:
        """Raise `ParameterError` for options that the model does not support; `recording` is the config's reference."""
        description = self.state.engine.description
        description.check(config.build("", config.response_format, reference_audio=recording).speech)
        if self._streams_text(config):
            description.check_text_stream("start_at", "'word'")
            if config.word_times:
                raise ParameterError("word_times", "is not supported with start_at 'word'; omit one of them")

    def _streams_text(self, config: SessionConfig) -> bool:
        return config.text_type == "text" and config.streams_text(self.state.settings)

    def _write(self, track: Track, text: str) -> None:
        """Write text to the track's utterance, which continues while text arrives; begin it if necessary."""
        if track.stream is None:
            track.rest += text
            if not is_speakable(text) or (self.state.engine.config.accept_ssml and may_begin_ssml(track.rest)):
                return
            self.check(track.config, self.queue.recording)
            text, track.rest, track.says = track.rest, "", True
            track.stream = BackgroundTextStream()
            options = self.protocol.options | {"word_times": False}  # word times need the whole text
            self.queue.add(track, "", options, stream=track.stream)
            self.state.websockets.mark_busy(self)
        self.queue.write(track.stream, text)

    def end_stream(self, track: Track) -> None:
        """End the utterance that continues while text arrives, if there is one."""
        if track.stream is not None:
            track.stream.close()
            track.stream = None

    async def _start_early(self) -> None:
        """Speak beginnings of sentences before the rest arrives, by the rules of `EarlyStart`, if audio runs out."""
        while not self.is_ending:
            self._has_moved.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._begin_sentence()):
                    await self._has_moved.wait()

    def _begin_sentence(self) -> float | None:
        """Speak the beginning of the arriving sentence if it is due.

        Return the seconds until the next check; None to check when text arrives or was spoken.
        """
        track, now = self._arriving, time.monotonic()
        if track is None or not track.rest or not self._splits or self._streams_text(track.config):
            return None
        if self._is_ssml(track, track.rest):
            return None
        if track.num_seen < len(track.rest):
            if (left_s := self._last_text + UNREAD_S - now) > 0:
                return left_s
            self._put_sentences(track, *cut_arriving(track.rest))
        start = track.config.early_start(self.state.settings)
        if self.queue or start == EarlyStart() or track.config.text_type != "text":
            return None
        if (left_s := self.queue.runs_dry - LEAD_S - now) > 0:
            return left_s
        left_s = self._last_text + start.pause_s - now
        piece, rest = start.cut(track.rest, has_paused=start.pause_s > 0 and left_s <= 0)
        if piece:
            track.rest, track.num_seen = rest, len(rest)
            self._put(track, piece, continues=not ends_sentence(piece))
        return left_s if left_s > 0 and not piece else None

    def flush(self, track: Track, *, is_last: bool = False) -> None:
        """Speak the unfinished sentence too. `is_last`: the text is complete, and is refused if it says nothing."""
        self.end_stream(track)
        text, track.rest, track.num_seen = track.rest, "", 0
        is_alone = self._is_ssml(track, text) or not self._splits
        self._put(track, text, is_last=is_last, is_flushed=True, is_alone=is_alone)

    def _put(
        self,
        track: Track,
        text: str,
        *,
        is_last: bool = False,
        is_flushed: bool = False,
        is_alone: bool = False,
        continues: bool = False,
    ) -> None:
        """Speak a stretch of text, which continues the audio before and, unless it is flushed, goes on in the next one.

        A stretch that `is_alone` does neither.
        """
        if is_speakable(text):
            track.says = True
        elif not is_last or track.says is not False:
            track.stretches.skip(text)
            return  # only a complete text without anything to speak goes to the engine, which refuses it
        joined = None if is_alone else track.stretches.join(text, continues=continues, is_last=is_flushed)
        if track.config.text_type == "marked":
            voices, text = names_in_markup(self.state), track.voice + text
            track.voice = "" if (voice := last_voice(text, voices)) is None else f"[{voice}] "
        self.queue.add(track, text.strip(), self.protocol.options, joined=joined)
        self.state.websockets.mark_busy(self)

    async def clear(self, track: Track) -> None:
        """Drop the text of the track that is not spoken yet, and stop its audio at once."""
        track.stream, track.rest, track.num_seen, track.voice, track.stretches = None, "", 0, "", Stretches()
        await self.queue.clear(track)

    def end(self) -> None:
        """Close the session when everything is spoken."""
        self.is_ending = True
        self.queue.close()
        self._has_moved.set()

    def _go_idle(self) -> None:
        self.state.websockets.mark_idle(self)
        self._has_moved.set()

    async def _speak(self) -> None:
        await self.queue.run()
        self._is_finished.set()

    async def send(self, content: dict[str, Any]) -> None:
        if self._socket.application_state is WebSocketState.CONNECTED:
            await self._socket.send_text(json.dumps(content))

    async def send_bytes(self, content: bytes) -> None:
        await self._socket.send_bytes(content)


def _parse(text: str, protocol: Protocol) -> Any:
    """Return a message. Raises `BodyError` or `InvalidError`."""
    text = text.removeprefix("\ufeff")  # a byte order mark
    try:
        check_structure(text.encode(errors="surrogatepass"))
        return protocol.messages.validate_json(text, strict=True)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        kind = protocol.tags.get(str(problems[0]["loc"][0])) if problems[0]["loc"] else None
        if protocol.tags:
            for each in problems:
                each["loc"] = each["loc"][1:]  # the first part is the message's type
        raise from_validation(problems, kind.model_fields if kind else ()) from None
