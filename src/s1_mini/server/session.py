"""WebSocket sessions: text arrives in pieces, and its audio is sent while more text arrives.

`Session` cuts text into sentences, speaks them in order and enforces the limits, for all protocols. A `Protocol` is the
messages of one kind of client: our own (`websocket.py`), ElevenLabs' (`elevenlabs_socket.py`), Deepgram's
(`deepgram.py`).
"""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from fastapi import WebSocket, WebSocketDisconnect
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.websockets import WebSocketState

from s1_mini.exceptions import NothingToSpeakError, S1MiniError, TextError
from s1_mini.server.accounts import Metered, Resource
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
from s1_mini.server.schemas import SessionConfig, SpeechRequest
from s1_mini.server.speech import AudioResponse, speak
from s1_mini.server.voice_names import own_voice
from s1_mini.text.split import cut_arriving
from s1_mini.text.tidy import is_speakable
from s1_mini.types import AudioFormat, Word

Options = TypeVar("Options", bound=BaseModel)

SMALL_TEXT = 2000  # characters, split in the event loop; longer texts take milliseconds
POLL_S = 0.25  # how often a session looks at the clock, and whether it was evicted or the server shuts down


@dataclass(eq=False)
class Track:
    """A text that is spoken in order with one configuration."""

    config: SessionConfig
    rest: str = ""  # the beginning of a sentence
    says: bool | None = None  # whether the text so far has anything to speak; None before any text


@dataclass(eq=False)
class _Item:
    """Something to be done in order: a stretch of whole sentences to be spoken, or a message to be sent after them."""

    track: Track
    work: Callable[[], Coroutine[Any, Any, None]]
    request: SpeechRequest | None = None  # of a stretch that `work` speaks

    @property
    def num_characters(self) -> int:
        return 0 if self.request is None else len(self.request.speech.text)


class Protocol(ABC):
    """The messages of one kind of client."""

    messages: TypeAdapter[Any]
    tags: Mapping[str, type[BaseModel]] = {}  # models by their `type`, if `messages` is a union of them

    def __init__(self, session: Session) -> None:
        self.session = session
        self.idle_s: float = session.state.settings.websocket_idle_s  # without a message, while nothing is spoken
        self.options: dict[str, Any] = {}  # of every request, besides those of the track's configuration

    @abstractmethod
    async def act(self, message: Any) -> None:
        """Act on a message."""

    @abstractmethod
    async def send_audio(self, track: Track, piece: bytes, words: list[Word]) -> None:
        """Send audio, and the words whose times became known with it."""

    async def start(self, track: Track, request: SpeechRequest, speech: AudioResponse) -> None:  # noqa: B027
        """Announce the audio of a stretch of text."""

    async def finish(self, track: Track, seconds: float) -> None:  # noqa: B027
        """Announce the end of the audio of a stretch of text."""

    async def skip(self, error: NothingToSpeakError) -> None:  # noqa: B027
        """Note that a stretch of text has nothing to speak."""

    async def end(self) -> None:  # noqa: B027
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


async def config_of(socket: WebSocket, voice: str | None, audio_format: AudioFormat, rate: int | None) -> SessionConfig:
    """Return the configuration of a client that names its voice in the address. Raises `VoiceNotFoundError`."""
    state = socket.app.state
    name = await own_voice(state, voice)
    if name is not None:
        await asyncio.to_thread(state.engine.describe_voice, name)
    return SessionConfig(type="session.config", voice=name, response_format=audio_format, sample_rate=rate)


async def converse(socket: WebSocket, protocol: Callable[[Session], Protocol]) -> None:
    """Run a session with a client. Raises `BusyError`."""
    session, pool, record = Session(socket, protocol), socket.app.state.websockets, record_of(socket)
    if not pool.add(session, record.client):
        raise BusyError("All WebSocket sessions are in use. Retry in one second.")
    try:
        await socket.accept()
        await session.run()
    finally:
        pool.remove(session)


class Session:
    """One WebSocket session: a reader that cuts text into sentences, and a speaker that generates them in order.

    It is idle while nothing waits to be spoken; an idle session may be evicted to make room for a new one.
    """

    def __init__(self, socket: WebSocket, protocol: Callable[[Session], Protocol]) -> None:
        self._socket, self.state = socket, socket.app.state
        self.record = record_of(socket)
        self._is_evicted = False
        self.is_ending = False  # no more text comes
        self._is_finished = asyncio.Event()  # everything was spoken
        assert self.record.holding is not None
        self._holding = self.record.holding  # the recordings of all sentences that wait, each once
        self._recording: bytes | None = None
        self._items: deque[_Item] = deque()  # including the one that is being spoken
        self._has_changed = asyncio.Event()  # an item was added, or no more text comes
        self._speaking: asyncio.Future[None] | None = None  # the first of `_items`
        self._num_waiting = 0  # characters in `_items`
        self.num_spoken = 0  # stretches
        self.sent_s = 0.0  # seconds of audio that were sent
        self._last_moved = time.monotonic()  # a message came, or something was spoken
        self.protocol = protocol(self)

    async def run(self) -> None:
        """Read and speak until both have ended, or one has failed."""
        tasks = [asyncio.ensure_future(self._metered(work)) for work in (self._read(), self._speak())]
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
            self._forget()

    def _metered(self, work: Coroutine[Any, Any, None]) -> Metered[None]:
        return Metered(work, self.state.accounts, self.record.client)

    def _forget(self) -> None:
        """Drop the recordings now: reference cycles keep this session until the garbage collector runs."""
        self._items.clear()
        self._recording = None
        self._holding.set(Resource.BODY_BYTES, 0)

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
        """Take messages until the text is done, then until all of it is spoken."""
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
                    self._last_moved = time.monotonic()
                self._check_limits(ends)
                if not receiving.done():
                    continue
                message, receiving = receiving.result(), None
                if message["type"] == "websocket.disconnect":
                    raise ClientGoneError
                await self._take(message)
                if delay_s := self.state.accounts.delay_s(self.record.client):
                    await asyncio.sleep(delay_s)
        finally:
            finishing.cancel()
            if receiving is not None:
                receiving.cancel()

    def _check_limits(self, ends: float) -> None:
        """Raise the reason why the session must end now, if there is one."""
        settings, now = self.state.settings, time.monotonic()
        if now > ends:
            raise IdleError(f"the session reached its limit of {settings.max_websocket_s:g} s")
        if self._is_evicted:
            raise BusyError("The session was idle and made room for a new one. Reconnect to continue.")
        if self.is_ending:
            return
        if self.state.gate.is_draining:
            raise DrainingError("the server is shutting down; reconnect")
        if not self._items and now - self._last_moved > self.protocol.idle_s:
            raise IdleError(f"no message arrived for {self.protocol.idle_s:g} s")

    async def _take(self, message: dict[str, Any]) -> None:
        """Act on one message; an invalid one is an error unless the text is complete."""
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

    def set_recording(self, recording: bytes | None) -> None:
        """Clone this recording from now on. Raises `BusyError` or `TooManyRequestsError`."""
        self._recording = recording
        self._count_recordings()

    def _count_recordings(self, *, checked: bool = True) -> None:
        """Charge the recordings that are still needed. Raises `BusyError` or `TooManyRequestsError`."""
        requests = [item.request for item in self._items if item.request is not None]
        recordings = [self._recording or b"", *(request.reference for request in requests)]
        distinct = {id(recording): len(recording) for recording in recordings}
        if self._items and (first := self._items[0].request) is not None:
            distinct.pop(id(first.reference), None)  # charged by `speak`
        self._holding.set(Resource.BODY_BYTES, sum(distinct.values()), checked=checked)

    async def add(self, track: Track, text: str) -> None:
        """Add text, and speak the sentences that are whole. Raises `TextError`."""
        # refused, since a client that is not read from cannot disconnect or answer a ping
        allowed = self.state.engine.config.max_text_length
        ahead = self._num_waiting + len(text)
        if ahead > allowed:
            raise TextError("text", f"is {ahead} characters ahead of the audio; at most {allowed} are allowed")
        track.says = bool(track.says)
        text = track.rest + text
        if len(text) <= SMALL_TEXT:
            whole, track.rest = cut_arriving(text)
        else:
            whole, track.rest = await in_turn(self.state, cut_arriving, text)
        self._put(track, whole)

    def flush(self, track: Track, *, is_last: bool = False) -> None:
        """Speak also the sentence that has begun. `is_last` refuses a text that has nothing to speak."""
        text, track.rest = track.rest, ""
        self._put(track, text, is_last=is_last)

    def _put(self, track: Track, text: str, *, is_last: bool = False) -> None:
        if is_speakable(text):
            track.says = True
        elif not is_last or track.says is not False:
            return  # but a text without anything to speak from beginning to end goes to the engine, which refuses it
        config, options = track.config, self.protocol.options
        request = config.build(text, config.response_format, streams=True, reference_audio=self._recording, **options)
        self._num_waiting += len(text)
        self._append(_Item(track, partial(self._say, track, request), request))
        self.state.websockets.mark_busy(self)

    def then(self, track: Track, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call `work` after everything of the track that was added before, unless the track is cleared."""
        self._append(_Item(track, work))

    def _append(self, item: _Item) -> None:
        self._items.append(item)
        self._has_changed.set()

    def end(self) -> None:
        """Close the session when everything is spoken."""
        self.is_ending = True
        self._has_changed.set()

    async def clear(self, track: Track) -> None:
        """Drop what the track has not spoken, and stop its audio at once, which cancels the engine's request."""
        track.rest = ""
        speaking = self._items[0] if self._speaking is not None else None
        for item in [item for item in self._items if item.track is track and item is not speaking]:
            self._items.remove(item)
            self._num_waiting -= item.num_characters
        if self._speaking is not None and speaking is not None and speaking.track is track:
            self._speaking.cancel()
            await asyncio.wait({self._speaking})

    @property
    def current(self) -> Track | None:
        """The track that is being spoken."""
        return self._items[0].track if self._items else None

    async def _speak(self) -> None:
        while self._items or not self.is_ending:
            if not self._items:
                self._has_changed.clear()
                await self._has_changed.wait()
                continue
            speaking = self._speaking = asyncio.ensure_future(self._metered(self._items[0].work()))
            try:
                await asyncio.wait({speaking})
                if not speaking.cancelled():  # by `clear`
                    speaking.result()
            except NothingToSpeakError as error:
                await self.protocol.skip(error)
            finally:
                speaking.cancel()
                await asyncio.wait({speaking})
            self._speaking = None
            self._num_waiting -= self._items.popleft().num_characters
            self._count_recordings(checked=False)  # `speak` has charged this one until now
            if not self._items:
                self.state.websockets.mark_idle(self)
            self._last_moved = time.monotonic()
        self._is_finished.set()

    async def _say(self, track: Track, request: SpeechRequest) -> None:
        state, before_s = self.state, self.record.audio_s
        speech = await speak(state.engine, request, settings=state.settings, record=self.record)
        try:
            async with aclosing(cast("Any", speech.body)) as body:
                await self.protocol.start(track, request, speech)
                heard_s = before_s
                async for piece in body:
                    self._last_moved = time.monotonic()
                    generated_s = self.record.audio_s
                    await self.protocol.send_audio(track, piece, speech.take_words())
                    self.sent_s += generated_s - heard_s
                    heard_s = generated_s
        finally:
            speech.release()  # closing a body that has not begun releases nothing
        self.num_spoken += 1
        await self.protocol.finish(track, round(self.record.audio_s - before_s, 3))

    async def send(self, content: dict[str, Any]) -> None:
        if self._socket.application_state is WebSocketState.CONNECTED:
            await self._socket.send_text(json.dumps(content))

    async def send_bytes(self, content: bytes) -> None:
        await self._socket.send_bytes(content)


def _parse(text: str, protocol: Protocol) -> Any:
    """Return a message. Raises `BodyError` or `InvalidError`."""
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
