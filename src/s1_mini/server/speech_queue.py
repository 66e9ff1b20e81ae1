"""The queue of a session: stretches of text, which are spoken, and messages to be sent between them.

Up to `MAX_AT_ONCE` tracks are spoken at the same time; the entries of one track are handled in order. A text that finds
no room in the engine or in the client's account waits, as long as another text of the session is spoken.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar, cast

from s1_mini.exceptions import MarkupError, NothingToSpeakError, QueueFullError, RequestError, TextError
from s1_mini.server.accounts import Resource
from s1_mini.server.errors import BusyError, TooManyRequestsError
from s1_mini.server.record import RequestLog
from s1_mini.server.schemas import SessionConfig, SpeechRequest
from s1_mini.server.speech import AudioResponse, Times, speak
from s1_mini.server.state import ServerState
from s1_mini.text.split import Stretches
from s1_mini.text_stream import TextStream
from s1_mini.types import Joined

MAX_ITEMS = 4096  # texts and messages in a queue; a text of 20,000 characters has about 300 sentences
MAX_AT_ONCE = 32  # tracks of a queue that are spoken at the same time
RETRY_S = 0.5  # seconds until there may be room, unless a text of the same queue ends before


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
    has_failed: bool = False  # an error has ended it, so that nothing more is spoken
    sent_s: float = 0.0  # seconds of audio that were sent
    runs_dry: float = 0.0  # when a client that plays the audio as it arrives has played all of it
    stream: TextStream | None = None  # the text that is being spoken while it arrives
    after: Track | None = None  # a track of the same queue that is spoken completely before this one

    def end_stream(self) -> None:
        """End the utterance that continues while text arrives, if there is one."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None


AnyTrack = TypeVar("AnyTrack", bound=Track)


@dataclass(eq=False)
class _Item:
    """An entry of the queue: a stretch of text to be spoken, or a message to be sent."""

    track: Track
    request: SpeechRequest | None = None  # None for a message
    work: Callable[[], Coroutine[Any, Any, None]] | None = None  # sends a message
    is_dropped: bool = False  # by `clear`, while it was handled

    @property
    def num_characters(self) -> int:
        return 0 if self.request is None else len(_text_of(self.request))


class Listener(ABC, Generic[AnyTrack]):
    """Sends the audio of a queue to a client."""

    @abstractmethod
    async def send_audio(self, track: AnyTrack, piece: bytes, times: Times) -> None:
        """Send audio, which may be empty at the end, and the times that became known with this audio."""

    async def start(self, track: AnyTrack, request: SpeechRequest, speech: AudioResponse) -> None:
        """Announce the audio of a stretch of text."""

    async def finish(self, track: AnyTrack, seconds: float) -> None:
        """Announce the end of the audio of a stretch of text."""

    async def reject(self, track: AnyTrack, text: str, error: RequestError) -> None:  # noqa: ARG002
        """Report an error in the markup of a stretch of text, so that the session continues; or raise the error."""
        raise error

    def give_up(self, track: AnyTrack, error: BaseException) -> Callable[[], Coroutine[Any, Any, None]]:  # noqa: ARG002
        """Return what reports an error that ends only this track, or raise the error, which ends the session."""
        raise error

    async def skip(self, error: NothingToSpeakError) -> None:
        """Handle a stretch of text that has nothing to speak."""


class SpeechQueue:
    """Speaks stretches of text: several tracks at once, and those of one track in order.

    `state` is the application's; `on_change` is called with whether anything is in the queue, whenever it has changed.
    """

    def __init__(
        self,
        state: ServerState,
        record: RequestLog,
        listener: Callable[[], Listener[Any]],
        on_change: Callable[[bool], None],
    ) -> None:
        self._state, self._record, self._listener, self._on_change = state, record, listener, on_change
        assert record.holding is not None
        self._holding = record.holding  # charged for the recordings of waiting stretches, each recording once
        self.recording: bytes | None = None  # to clone
        # of each track with any, including those that are being handled; the track that has waited longest is first
        self._items: dict[Track, deque[_Item]] = {}
        self._has_changed = asyncio.Event()  # an item was added or dropped, there may be room, or the queue was closed
        self._is_full = False  # a text was refused for lack of room, so texts are tried one at a time
        self._retry_at = 0.0  # when the next one is tried
        self.is_closed = False  # nothing more is added
        self.is_finished = asyncio.Event()  # everything was spoken
        self._working: dict[Track, asyncio.Future[bool]] = {}  # the work of the first item of a track
        self.failed: Track | None = None  # the track whose error has ended `run`
        self.num_waiting = 0  # characters in `_items`
        self.num_spoken = 0  # stretches of text
        self.last_moved = time.monotonic()  # when something was last spoken

    def __bool__(self) -> bool:
        return bool(self._items)

    def __contains__(self, track: Track) -> bool:
        return track in self._items

    @property
    def waits_for_text(self) -> bool:
        """Whether no text that is being spoken is complete."""
        requests = [self._items[track][0].request for track in self._working]
        streams = [None if request is None else request.speech.stream for request in requests]
        return bool(streams) and all(stream is not None and not stream.is_closed for stream in streams)

    def set_recording(self, recording: bytes | None) -> None:
        """Clone this recording from now on. Raises `BusyError` or `TooManyRequestsError`."""
        self.recording = recording
        self._count_recordings()

    def _count_recordings(self, *, checked: bool = True) -> None:
        """Charge the recordings that are still needed. Raises `BusyError` or `TooManyRequestsError`."""
        requests = [item.request for items in self._items.values() for item in items if item.request is not None]
        recordings = [self.recording or b"", *(request.reference for request in requests)]
        distinct = {id(recording): len(recording) for recording in recordings}
        for items in self._items.values():
            if (first := items[0].request) is not None:
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
        self._append(_Item(track, request))
        self.num_waiting += len(_text_of(request))

    def write(self, stream: TextStream, text: str) -> None:
        """Add text to a stream of this queue."""
        self.num_waiting += len(text)
        stream.write(text)

    def then(self, track: Track, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call `work` when everything that was added before is done, unless the track is cleared first.

        Raises `TextError` at the limit of `MAX_ITEMS`.
        """
        self._append(_Item(track, work=work))

    def _append(self, item: _Item) -> None:
        if sum(map(len, self._items.values())) >= MAX_ITEMS:
            reason = f"comes after {MAX_ITEMS} texts and flushes that are not spoken yet, which is the limit"
            raise TextError("text", f"{reason}; send them more slowly")
        self._items.setdefault(item.track, deque()).append(item)
        self._has_changed.set()
        self._on_change(True)

    def close(self) -> None:
        """End `run` when everything is spoken."""
        self.is_closed = True
        self._has_changed.set()

    async def clear(self, track: Track) -> None:
        """Drop the track's items, and stop its audio at once by cancelling the engine's request."""
        working, items = self._working.get(track), self._items.get(track, deque())
        while len(items) > (working is not None):
            self.num_waiting -= items.pop().num_characters
        if working is not None:
            items[0].is_dropped = True
            working.cancel()
            track.runs_dry = 0.0
            await asyncio.wait({working})
        elif self._items.pop(track, None):
            self._has_changed.set()
            self._on_change(bool(self._items))

    async def run(self) -> None:
        """Speak until the queue is closed and empty. Raises the errors of `speak` and of the listener."""
        changing: asyncio.Future[Any] | None = None
        try:
            while self._items or not self.is_closed:
                self._begin()
                changing = changing or asyncio.ensure_future(self._has_changed.wait())
                await asyncio.wait(
                    {changing, *self._working.values()},
                    timeout=max(0.0, self._retry_at - time.monotonic()) if self._is_full else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if changing.done():
                    changing = None
                    self._has_changed.clear()
                for track, working in [*self._working.items()]:
                    if working.done():
                        self._end(track, working)
        finally:
            rest = {*self._working.values(), *([changing] if changing else [])}
            for each in rest:
                each.cancel()
            if rest:
                await asyncio.wait(rest)
        self.is_finished.set()

    def _begin(self) -> None:
        """Begin the work on the first item of each track, unless it waits for room or for another track."""
        now, waits = time.monotonic(), False
        for track, items in self._items.items():
            if track in self._working or track.after in self._items:
                continue
            if items[0].request is not None:
                if len(self._working) >= MAX_AT_ONCE or (self._is_full and now < self._retry_at):
                    waits = True
                    continue
                self._retry_at = now + RETRY_S
            track.after = None
            self._working[track] = asyncio.ensure_future(self._work(items[0]))
        self._is_full = self._is_full and waits

    async def _work(self, item: _Item) -> bool:
        """Handle an item. Return False if its text was refused for lack of room, and has to wait for other tracks."""
        request = item.request
        try:
            if request is None:
                assert item.work is not None
                await item.work()
                return True
            try:
                speech = await speak(
                    self._state.engine, request, settings=self._state.settings, record=self._record, is_part=True
                )
            except (BusyError, QueueFullError, TooManyRequestsError):
                if len(self._working) == 1:
                    raise
                return False
            self._retry_at = 0.0
            self._has_changed.set()
            await self._say(item.track, request, speech)
        except NothingToSpeakError as error:
            await self._listener().skip(error)
        except RequestError as error:
            if request is None or (request.speech.text_type == "text" and not isinstance(error, MarkupError)):
                raise
            await self._listener().reject(item.track, request.speech.text, error)
        return True

    def _end(self, track: Track, working: asyncio.Future[bool]) -> None:
        """Remove the first item of a track, unless it was refused, or all if it failed. Raises errors of `give_up`."""
        del self._working[track]
        if not working.cancelled() and (error := working.exception()) is not None:
            self.failed = track
            report = self._listener().give_up(track, error)
            self.failed, track.has_failed = None, True
            self.num_waiting -= sum(each.num_characters for each in self._items[track])
            self._items[track] = deque([_Item(track, work=report)])
            return
        is_done = working.cancelled() or working.result()
        if not is_done and not self._items[track][0].is_dropped:
            self._is_full = True
            return
        self._retry_at = 0.0
        items = self._items.pop(track)
        item = items.popleft()
        if items:
            self._items[track] = items
        self.num_waiting -= item.num_characters
        if item.request is not None and track.stream is item.request.speech.stream:
            track.stream = None
        self._count_recordings(checked=False)  # until now, `speak` has charged the recording of this item
        self.last_moved = time.monotonic()
        self._on_change(bool(self._items))

    async def _say(self, track: Track, request: SpeechRequest, speech: AudioResponse) -> None:
        listener, said_s = self._listener(), 0.0
        try:
            async with aclosing(cast("Any", speech.body)) as body:
                said = replace(request.speech, text=_text_of(request))
                await listener.start(track, replace(request, speech=said), speech)
                async for piece in body:
                    self.last_moved = time.monotonic()
                    times = speech.take_times()
                    await listener.send_audio(track, piece, times)
                    track.sent_s += times.audio_s
                    track.runs_dry = max(track.runs_dry, self.last_moved) + times.audio_s
                    said_s += times.audio_s
                times = speech.take_times()
                if times.words or times.marks:  # at the end, after the last audio
                    await listener.send_audio(track, b"", times)
        finally:
            if (stream := request.speech.stream) is not None:
                self._record.characters += len(stream.text)
        self.num_spoken += 1
        await listener.finish(track, round(said_s, 3))
