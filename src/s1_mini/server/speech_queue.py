"""The queue of a session: stretches of text, which are spoken in order, and messages to be sent between them."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from s1_mini.exceptions import MarkupError, NothingToSpeakError, RequestError, TextError
from s1_mini.server.accounts import Resource
from s1_mini.server.record import RequestLog
from s1_mini.server.schemas import SessionConfig, SpeechRequest
from s1_mini.server.speech import AudioResponse, Times, speak
from s1_mini.server.state import ServerState
from s1_mini.text.split import Stretches
from s1_mini.text_stream import TextStream
from s1_mini.types import Joined

MAX_ITEMS = 4096  # texts and messages in a queue; a text of 20,000 characters has about 300 sentences


def _text_of(request: SpeechRequest) -> str:
    """Return a request's text, or the part that has arrived so far if more is to come."""
    speech = request.speech
    return speech.text if speech.stream is None else speech.stream.text


@dataclass(eq=False)
class Track:
    """A text that is spoken in order with one configuration."""

    config: SessionConfig
    rest: str = ""  # beginning of a sentence or SSML document whose end has not arrived
    num_seen: int = 0  # characters of `rest` that were looked at: they have no complete sentence
    voice: str = ""  # mark of the current voice, such as [clara], in a text with marks
    stretches: Stretches = field(default_factory=Stretches)  # what was spoken last
    says: bool = False  # whether any text had something to speak
    sent_s: float = 0.0  # seconds of audio that were sent
    stream: TextStream | None = None  # the text that is being spoken while it arrives

    def end_stream(self) -> None:
        """End the utterance that continues while text arrives, if there is one."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None


@dataclass(eq=False)
class _Item:
    """An entry of the queue: a stretch of text to be spoken, or a message to be sent."""

    track: Track
    work: Callable[[], Coroutine[Any, Any, None]]
    request: SpeechRequest | None = None  # None for a message

    @property
    def num_characters(self) -> int:
        return 0 if self.request is None else len(_text_of(self.request))


class Listener(ABC):
    """Sends the audio of a queue to a client."""

    @abstractmethod
    async def send_audio(self, track: Track, piece: bytes, times: Times) -> None:
        """Send audio, which may be empty at the end, and the times that became known with this audio."""

    async def start(self, track: Track, request: SpeechRequest, speech: AudioResponse) -> None:  # noqa: B027
        """Announce the audio of a stretch of text."""

    async def finish(self, track: Track, seconds: float) -> None:  # noqa: B027
        """Announce the end of the audio of a stretch of text."""

    async def reject(self, track: Track, text: str, error: RequestError) -> None:  # noqa: ARG002
        """Report an error in the markup of a stretch of text, so that the session continues; or raise the error."""
        raise error

    async def skip(self, error: NothingToSpeakError) -> None:  # noqa: B027
        """Handle a stretch of text that has nothing to speak."""


class SpeechQueue:
    """Speaks stretches of text in order.

    `state` is the application's; `on_change` is called with whether anything is in the queue, whenever it has changed.
    """

    def __init__(
        self,
        state: ServerState,
        record: RequestLog,
        listener: Callable[[], Listener],
        on_change: Callable[[bool], None],
    ) -> None:
        self._state, self._record, self._listener, self._on_change = state, record, listener, on_change
        assert record.holding is not None
        self._holding = record.holding  # charged for the recordings of waiting stretches, each recording once
        self.recording: bytes | None = None  # to clone
        self._items: deque[_Item] = deque()  # including the one that is being spoken
        self._has_changed = asyncio.Event()  # an item was added, or the queue was closed
        self.is_closed = False  # nothing more is added
        self.is_finished = asyncio.Event()  # everything was spoken
        self._speaking: asyncio.Future[None] | None = None  # the running work of the first of `_items`
        self.num_waiting = 0  # characters in `_items`
        self.num_spoken = 0  # stretches of text
        self.last_moved = time.monotonic()  # when something was last spoken
        self.runs_dry = 0.0  # when a client that plays the audio as it arrives has played all of it

    def __bool__(self) -> bool:
        return bool(self._items)

    @property
    def current(self) -> Track | None:
        """The track that is being spoken."""
        return self._items[0].track if self._items else None

    @property
    def waits_for_text(self) -> bool:
        """Whether the text that is being spoken is not complete."""
        request = self._items[0].request if self._items else None
        stream = None if request is None else request.speech.stream
        return stream is not None and not stream.is_closed

    def set_recording(self, recording: bytes | None) -> None:
        """Clone this recording from now on. Raises `BusyError` or `TooManyRequestsError`."""
        self.recording = recording
        self._count_recordings()

    def _count_recordings(self, *, checked: bool = True) -> None:
        """Charge the recordings that are still needed. Raises `BusyError` or `TooManyRequestsError`."""
        requests = [item.request for item in self._items if item.request is not None]
        recordings = [self.recording or b"", *(request.reference for request in requests)]
        distinct = {id(recording): len(recording) for recording in recordings}
        if self._items and (first := self._items[0].request) is not None:
            distinct.pop(id(first.reference), None)  # charged by `speak`
        self._holding.set(Resource.BODY_BYTES, sum(distinct.values()), checked=checked)

    def forget(self) -> None:
        """Drop the recordings now, because reference cycles keep this queue until the garbage collector runs."""
        self._items.clear()
        self.recording = None
        self._holding.set(Resource.BODY_BYTES, 0)

    def add(
        self,
        track: Track,
        text: str,
        options: dict[str, Any],
        *,
        joined: Joined | None = None,
        stream: TextStream | None = None,
    ) -> None:
        """Add a stretch of text, or a `stream` instead; `joined`: the stretch is a part of a longer text.

        Raises `ParameterError`, and `TextError` at the limit of `MAX_ITEMS`.
        """
        config = track.config
        request = config.build(text, config.response_format, streams=True, reference_audio=self.recording, **options)
        request = replace(request, speech=replace(request.speech, joined=joined, stream=stream))
        self._append(_Item(track, partial(self._say, track, request), request))
        self.num_waiting += len(_text_of(request))

    def write(self, stream: TextStream, text: str) -> None:
        """Add text to a stream of this queue."""
        self.num_waiting += len(text)
        stream.write(text)

    def then(self, track: Track, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call `work` when everything that was added before is done, unless the track is cleared first.

        Raises `TextError` at the limit of `MAX_ITEMS`.
        """
        self._append(_Item(track, work))

    def _append(self, item: _Item) -> None:
        if len(self._items) >= MAX_ITEMS:
            reason = f"comes after {MAX_ITEMS} texts and flushes that are not spoken yet, which is the limit"
            raise TextError("text", f"{reason}; send them more slowly")
        self._items.append(item)
        self._has_changed.set()
        self._on_change(True)

    def close(self) -> None:
        """End `run` when everything is spoken."""
        self.is_closed = True
        self._has_changed.set()

    async def clear(self, track: Track) -> None:
        """Drop the track's items, and stop its audio at once by cancelling the engine's request."""
        speaking = self._items[0] if self._speaking is not None else None
        kept: deque[_Item] = deque()
        for item in self._items:
            if item.track is track and item is not speaking:
                self.num_waiting -= item.num_characters
            else:
                kept.append(item)
        self._items = kept
        if self._speaking is not None and speaking is not None and speaking.track is track:
            self._speaking.cancel()
            self.runs_dry = 0.0
            await asyncio.wait({self._speaking})

    async def run(self) -> None:
        """Speak until the queue is closed and empty. Raises the errors of `speak` and of the listener."""
        while self._items or not self.is_closed:
            if not self._items:
                self._has_changed.clear()
                await self._has_changed.wait()
                continue
            speaking = self._speaking = asyncio.ensure_future(self._items[0].work())
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
            item = self._items.popleft()
            self.num_waiting -= item.num_characters
            if item.request is not None and item.track.stream is item.request.speech.stream:
                item.track.stream = None
            self._count_recordings(checked=False)  # until now, `speak` has charged the recording of this item
            self.last_moved = time.monotonic()
            self._on_change(bool(self._items))
        self.is_finished.set()

    async def _say(self, track: Track, request: SpeechRequest) -> None:
        listener, record, before_s = self._listener(), self._record, self._record.audio_s
        speech = await speak(self._state.engine, request, settings=self._state.settings, record=record)
        try:
            async with aclosing(cast("Any", speech.body)) as body:
                said = replace(request.speech, text=_text_of(request))
                await listener.start(track, replace(request, speech=said), speech)
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
            speech.release()  # needed because closing a body that has not begun releases nothing
        self.num_spoken += 1
        await listener.finish(track, round(record.audio_s - before_s, 3))
