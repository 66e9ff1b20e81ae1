"""The speech of a session: stretches of its text, spoken in order, and messages between them."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from starlette.datastructures import State

from s1_mini.exceptions import MarkupError, NothingToSpeakError, RequestError
from s1_mini.server.accounts import Metered, Resource
from s1_mini.server.record import RequestLog
from s1_mini.server.schemas import SessionConfig, SpeechRequest
from s1_mini.server.speech import AudioResponse, Times, speak


@dataclass(eq=False)
class Track:
    """A text that is spoken in order with one configuration."""

    config: SessionConfig
    rest: str = ""  # the beginning of a sentence, or of an SSML document
    voice: str = ""  # the mark of the voice that speaks, in a text with marks in brackets
    says: bool | None = None  # whether the text so far has anything to speak; None before any text
    sent_s: float = 0.0  # seconds of its audio that were sent


@dataclass(eq=False)
class _Item:
    """Something to be done in order: a stretch of whole sentences to be spoken, or a message to be sent after them."""

    track: Track
    work: Callable[[], Coroutine[Any, Any, None]]
    request: SpeechRequest | None = None  # of a stretch that `work` speaks

    @property
    def num_characters(self) -> int:
        return 0 if self.request is None else len(self.request.speech.text)


class Listener(ABC):
    """Sends what a queue speaks to a client."""

    @abstractmethod
    async def send_audio(self, track: Track, piece: bytes, times: Times) -> None:
        """Send audio, which may be empty at the end, and the times that became known with it."""

    async def start(self, track: Track, request: SpeechRequest, speech: AudioResponse) -> None:  # noqa: B027
        """Announce the audio of a stretch of text."""

    async def finish(self, track: Track, seconds: float) -> None:  # noqa: B027
        """Announce the end of the audio of a stretch of text."""

    async def reject(self, track: Track, text: str, error: RequestError) -> None:  # noqa: ARG002
        """Report an error in the markup of a stretch, after which the session goes on; or raise it."""
        raise error

    async def skip(self, error: NothingToSpeakError) -> None:  # noqa: B027
        """Note that a stretch of text has nothing to speak."""


class SpeechQueue:
    """Speaks the stretches of one session in order.

    `state` is the application's; `on_idle` is called when everything so far was spoken.
    """

    def __init__(
        self, state: State, record: RequestLog, listener: Callable[[], Listener], on_idle: Callable[[], None]
    ) -> None:
        self._state, self._record, self._listener, self._on_idle = state, record, listener, on_idle
        assert record.holding is not None
        self._holding = record.holding  # the recordings of all stretches that wait, each once
        self._recording: bytes | None = None
        self._items: deque[_Item] = deque()  # including the one that is being spoken
        self._has_changed = asyncio.Event()  # an item was added, or no more come
        self._is_closed = False
        self._speaking: asyncio.Future[None] | None = None  # the first of `_items`
        self.num_waiting = 0  # characters in `_items`
        self.num_spoken = 0  # stretches
        self.last_moved = time.monotonic()  # something was spoken
        self.runs_dry = 0.0  # when a client that plays the audio as it arrives has played all of it

    def __bool__(self) -> bool:
        return bool(self._items)

    @property
    def current(self) -> Track | None:
        """The track that is being spoken."""
        return self._items[0].track if self._items else None

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

    def forget(self) -> None:
        """Drop the recordings now: reference cycles keep this queue until the garbage collector runs."""
        self._items.clear()
        self._recording = None
        self._holding.set(Resource.BODY_BYTES, 0)

    def add(self, track: Track, text: str, options: dict[str, Any], *, continues: bool = False) -> None:
        """Speak a stretch of text; if it `continues`, it is the beginning of a sentence. Raises `ParameterError`."""
        config = track.config
        request = config.build(text, config.response_format, streams=True, reference_audio=self._recording, **options)
        request = replace(request, speech=replace(request.speech, continues=continues))
        self.num_waiting += len(text)
        self._append(_Item(track, partial(self._say, track, request), request))

    def then(self, track: Track, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call `work` after everything of the track that was added before, unless the track is cleared."""
        self._append(_Item(track, work))

    def _append(self, item: _Item) -> None:
        self._items.append(item)
        self._has_changed.set()

    def close(self) -> None:
        """End `run` when everything is spoken."""
        self._is_closed = True
        self._has_changed.set()

    async def clear(self, track: Track) -> None:
        """Drop what the track has not spoken, and stop its audio at once, which cancels the engine's request."""
        speaking = self._items[0] if self._speaking is not None else None
        for item in [item for item in self._items if item.track is track and item is not speaking]:
            self._items.remove(item)
            self.num_waiting -= item.num_characters
        if self._speaking is not None and speaking is not None and speaking.track is track:
            self._speaking.cancel()
            self.runs_dry = 0.0
            await asyncio.wait({self._speaking})

    async def run(self) -> None:
        """Speak until the queue is closed and empty. Raises `S1MiniError`."""
        while self._items or not self._is_closed:
            if not self._items:
                self._has_changed.clear()
                await self._has_changed.wait()
                continue
            work = Metered(self._items[0].work(), self._state.accounts, self._record.client)
            speaking = self._speaking = asyncio.ensure_future(work)
            try:
                await asyncio.wait({speaking})
                if not speaking.cancelled():  # by `clear`
                    speaking.result()
            except NothingToSpeakError as error:
                await self._listener().skip(error)
            except RequestError as error:
                request = self._items[0].request
                if request is None or (request.speech.text_type == "text" and not isinstance(error, MarkupError)):
                    raise
                await self._listener().reject(self._items[0].track, request.speech.text, error)
            finally:
                speaking.cancel()
                await asyncio.wait({speaking})
            self._speaking = None
            self.num_waiting -= self._items.popleft().num_characters
            self._count_recordings(checked=False)  # `speak` has charged this one until now
            self.last_moved = time.monotonic()
            if not self._items:
                self._on_idle()

    async def _say(self, track: Track, request: SpeechRequest) -> None:
        listener, record, before_s = self._listener(), self._record, self._record.audio_s
        speech = await speak(self._state.engine, request, settings=self._state.settings, record=record)
        try:
            async with aclosing(cast("Any", speech.body)) as body:
                await listener.start(track, request, speech)
                heard_s = before_s
                async for piece in body:
                    self.last_moved = time.monotonic()
                    generated_s = record.audio_s
                    await listener.send_audio(track, piece, speech.take_times())
                    track.sent_s += generated_s - heard_s
                    self.runs_dry = max(self.runs_dry, self.last_moved) + generated_s - heard_s
                    heard_s = generated_s
                times = speech.take_times()
                if times.words or times.marks:  # at the end, after the last audio
                    await listener.send_audio(track, b"", times)
        finally:
            speech.release()  # closing a body that has not begun releases nothing
        self.num_spoken += 1
        await listener.finish(track, round(record.audio_s - before_s, 3))
