"""Text that arrives in pieces: it is cut into stretches, which a queue speaks while more text arrives."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from s1_mini.exceptions import ParameterError, TextError
from s1_mini.server.bodies import in_turn
from s1_mini.server.record import RequestLog
from s1_mini.server.schemas import SessionConfig
from s1_mini.server.speech_queue import Listener, SpeechQueue, Track
from s1_mini.server.state import ServerState
from s1_mini.server.voice_names import names_in_markup
from s1_mini.text.markup import begins_ssml, cut_documents, last_voice, may_begin_ssml, may_end_document
from s1_mini.text.split import UNREAD_S, EarlyStart, Stretches, cut_arriving, ends_sentence, is_due
from s1_mini.text.tidy import is_speakable
from s1_mini.text_stream import BackgroundTextStream
from s1_mini.types import Joined

Cut = TypeVar("Cut")

SMALL_TEXT = 2000  # texts up to this many characters are cut in the event loop; longer ones take milliseconds
LEAD_S = 0.3  # the beginning of a sentence is spoken this many seconds before the client runs out of audio


class TextInput:
    """The texts of one client, each on a track.

    `on_change` is called with whether something waits to be spoken, whenever that may have changed. Text that comes too
    far ahead of the audio is an error or, with `waits`, is taken once there is room.
    """

    def __init__(
        self,
        state: ServerState,
        record: RequestLog,
        listener: Callable[[], Listener[Any]],
        on_change: Callable[[bool], None] = lambda _: None,
        *,
        waits: bool = False,
    ) -> None:
        self._state, self._on_change, self._waits = state, on_change, waits
        self.queue = SpeechQueue(state, record, listener, self._move)
        self.options: dict[str, Any] = {}  # for every request, in addition to the track's configuration
        self._arriving: Track | None = None  # the track that got text last
        self._last_text = 0.0
        self._has_moved = asyncio.Event()  # text arrived, some text was spoken, or no more text comes

    async def run(self, *works: Coroutine[Any, Any, None]) -> None:
        """Speak until the input is closed and everything is spoken, while `works` add the text. Raises their errors."""
        tasks = [asyncio.ensure_future(work) for work in (*works, self.queue.run(), self._start_early())]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def add(self, track: Track, text: str) -> None:
        """Add text, and speak what is complete.

        Raises `TextError` if the text is too far ahead of the audio, and `ParameterError` as `check` does.
        """
        if not text:
            return
        allowed = self._state.engine.config.max_text_length
        while (ahead := self.queue.num_waiting + len(track.rest) + len(text)) > allowed:
            if track.stream is not None:
                reason = f"has {ahead} characters in unfinished utterances; the limit is {allowed}; send shorter texts"
                raise TextError("text", reason)
            # By default, text is refused instead of left unread, because a session that does not read notices no
            # disconnect and no pong.
            if not (self._waits and self.queue):
                reason = f"is {ahead} characters ahead of the audio; at most {allowed} are allowed"
                raise TextError("text", f"{reason}; send text more slowly")
            self._has_moved.clear()
            await self._has_moved.wait()
        if self._arriving is not None and self._arriving is not track:
            self._look_at(self._arriving)
        await self._way(track, text).add(track, text)
        self._arriving, self._last_text = track, time.monotonic()
        self._has_moved.set()

    def _look_at(self, track: Track) -> None:
        """Speak the complete sentences of a track that were not looked at yet."""
        if track.num_seen < len(track.rest) and isinstance(way := self._way(track), _Sentences):
            way.put(track, *cut_arriving(track.rest))

    def flush(self, track: Track) -> None:
        """Speak the unfinished text too."""
        self._way(track).flush(track)

    async def clear(self, track: Track) -> None:
        """Drop the text of the track that is not spoken yet, and stop its audio at once."""
        self.forget(track)
        await self.queue.clear(track)

    def forget(self, track: Track) -> None:
        """Drop the beginning of a sentence or of an utterance whose rest has not arrived."""
        track.stream, track.rest, track.num_seen, track.voice, track.stretches = None, "", 0, "", Stretches()

    def close(self) -> None:
        """End `run` when everything is spoken."""
        self.queue.close()
        self._has_moved.set()

    def check(self, config: SessionConfig, recording: bytes | None) -> None:
        """Raise `ParameterError` for options that the model does not support; `recording` is the config's reference."""
        description = self._state.engine.description
        description.check(config.build("", config.response_format, reference_audio=recording).speech)
        if self._continues(config):
            description.check_text_stream("start_at", "'word'")
            if config.word_times:
                raise ParameterError("word_times", "is not supported with start_at 'word'; omit one of them")

    def _continues(self, config: SessionConfig) -> bool:
        return config.text_type == "text" and config.streams_text(self._state.settings)

    @property
    def accepts_ssml(self) -> bool:
        """Whether a text that begins as SSML does is SSML."""
        return self._state.engine.config.accept_ssml

    def _way(self, track: Track, text: str = "") -> _Way:
        """Return how the track's text is handled once `text` is added."""
        kind = track.config.text_type
        if track.stream is not None:
            return _Continuous(self)
        if kind == "ssml" or (kind == "text" and self.accepts_ssml and begins_ssml(track.rest + text)):
            return _Documents(self)
        if self._continues(track.config):
            return _Continuous(self)
        return _Sentences(self) if self._state.engine.description.splits else _Whole(self)

    async def cut(self, cut: Callable[[str], Cut], text: str) -> Cut:
        """Return `cut(text)`; for a long text, it runs in a thread."""
        return await in_turn(self._state, cut, text, small=SMALL_TEXT)

    def speak(self, track: Track, text: str, joined: Joined | None = None) -> None:
        """Speak a stretch of text; `joined`: how it continues the audio before it."""
        if track.has_failed:  # while the text was cut
            return
        track.says = True
        if track.config.text_type == "marked":
            voices, text = names_in_markup(self._state), track.voice + text
            track.voice = "" if (voice := last_voice(text, voices)) is None else f"[{voice}] "
        self.queue.add(track, text.strip(), self.options, joined=joined)

    async def _start_early(self) -> None:
        """Speak sentences whose end was not seen yet, and beginnings by the rules of `EarlyStart` if audio runs out."""
        while not self.queue.is_closed:
            self._has_moved.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._begin_sentence()):
                    await self._has_moved.wait()

    def _begin_sentence(self) -> float | None:
        """Speak complete sentences and the beginning of the arriving one if they are due.

        Return the seconds until the next check; None to check when text arrives or was spoken.
        """
        track, now = self._arriving, time.monotonic()
        if track is None or not track.rest or not isinstance(way := self._way(track), _Sentences):
            return None
        if track.num_seen < len(track.rest):
            if (left_s := self._last_text + UNREAD_S - now) > 0:
                return left_s
            self._look_at(track)
        start = track.config.early_start(self._state.settings)
        if track in self.queue or start == EarlyStart() or track.config.text_type != "text":
            return None
        if (left_s := track.runs_dry - LEAD_S - now) > 0:
            return left_s
        left_s = self._last_text + start.pause_s - now
        piece, rest = start.cut(track.rest, has_paused=start.pause_s > 0 and left_s <= 0)
        if piece:
            way.put(track, piece, rest, continues=not ends_sentence(piece))
        return left_s if left_s > 0 and not piece else None

    def _move(self, is_busy: bool) -> None:
        self._on_change(is_busy)
        self._has_moved.set()


class _Way(ABC):
    """A way of handling text that arrives: `track.rest` is what has arrived and is not spoken yet."""

    def __init__(self, text_input: TextInput) -> None:
        self._input = text_input

    @abstractmethod
    async def add(self, track: Track, text: str) -> None:
        """Add text, and speak what is complete."""

    def flush(self, track: Track) -> None:
        """Speak the rest."""
        self._speak(track, self._take(track))

    def _take(self, track: Track) -> str:
        """Return the rest and remove it, so that nothing else speaks it meanwhile."""
        text, track.rest, track.num_seen = track.rest, "", 0
        return text

    def _speak(self, track: Track, text: str) -> None:
        if is_speakable(text):
            self._input.speak(track, text)


class _Documents(_Way):
    """SSML: complete documents are spoken one by one."""

    async def add(self, track: Track, text: str) -> None:
        before, track.rest = track.rest, track.rest + text
        if not may_end_document(before, text):
            return
        documents, track.rest = await self._input.cut(cut_documents, self._take(track))
        for document in documents:
            self._speak(track, document)
            await asyncio.sleep(0)  # a message may hold a thousand documents


class _Whole(_Way):
    """The text of a model that speaks each text as a whole."""

    async def add(self, track: Track, text: str) -> None:
        track.rest += text


class _Sentences(_Way):
    """Complete sentences are spoken as parts of one text."""

    async def add(self, track: Track, text: str) -> None:
        track.rest += text
        if is_due(track.rest, track.num_seen):
            self.put(track, *await self._input.cut(cut_arriving, self._take(track)))

    def flush(self, track: Track) -> None:
        self.put(track, track.rest, "", is_last=True)

    def put(self, track: Track, text: str, rest: str, *, continues: bool = False, is_last: bool = False) -> None:
        """Speak a part of the text; `rest` was looked at, and has no complete sentence."""
        track.rest, track.num_seen = rest, len(rest)
        if is_speakable(text):
            self._input.speak(track, text, track.stretches.join(text, continues=continues, is_last=is_last))
        else:
            track.stretches.skip(text)


class _Continuous(_Way):
    """One utterance, which continues while text arrives."""

    async def add(self, track: Track, text: str) -> None:
        queue = self._input.queue
        if track.stream is None:
            before, track.rest = track.rest, track.rest + text
            if self._input.accepts_ssml and may_begin_ssml(track.rest):
                return
            if not (is_speakable(text) or is_speakable(before.lstrip()[:16])):  # `before` may begin as SSML does
                return
            self._input.check(track.config, queue.recording)
            text, track.says, track.stream = self._take(track), True, BackgroundTextStream()
            options = self._input.options | {"word_times": False}  # word times need the whole text
            queue.add(track, "", options, stream=track.stream)
        queue.write(track.stream, text)

    def flush(self, track: Track) -> None:
        track.end_stream()
        super().flush(track)
