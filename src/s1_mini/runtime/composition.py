"""Requests with markup: each part becomes a request to the engine; the audio of all parts is joined, with pauses.

Parts are submitted shortly before their turn: early enough for a stream without gaps, and late enough that a long text
does not fill the queue. This module does not import torch.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Self

import numpy as np

from s1_mini.config import EngineConfig
from s1_mini.core.output_queue import OutputIterator, OutputQueue
from s1_mini.core.speech import Joiner
from s1_mini.exceptions import NothingToSpeakError, ParameterError, QueueFullError, RequestTimeoutError, TextError
from s1_mini.families.base import Description
from s1_mini.text.form import NormalizedText, TextForm, unchecked
from s1_mini.text.lexicon import Lexicon, Lexicons
from s1_mini.text.markup import Mark, Markup, Segment, is_ssml, read_marked, read_ssml, read_text
from s1_mini.text.structure import stronger
from s1_mini.text.tidy import tidied
from s1_mini.text.xml_reader import error_at
from s1_mini.types import (
    MAX_GAIN_DB,
    MAX_SEED,
    MAX_SPEED,
    MIN_GAIN_DB,
    MIN_SPEED,
    AudioChunk,
    Division,
    FinishReason,
    Pauses,
    SpokenMark,
    Timing,
    TTSRequest,
    Word,
)
from s1_mini.voices.registry import VoiceRegistry

AHEAD = 2  # number of parts that are submitted in addition to the current part
RETRY_S = 0.05  # poll interval while the engine's queue is full
MAX_CHUNK_S = 1.0  # longer chunks, with pauses in them, are divided
NOTHING = np.zeros(0, np.float32)
_groups = itertools.count()


@dataclass(frozen=True)
class Part:
    """One request to the engine, and the pause before it; None: the silence stays as it is generated."""

    request: TTSRequest
    segment: Segment
    pause_s: float | None

    def place(self, word: Word, origin_s: float) -> Word:
        """Return a word of this part with its position in the request's text and its times in the request's audio."""
        return replace(
            word,
            start=self.segment.starts[word.start],
            stop=self.segment.stops[word.stop - 1],
            start_s=origin_s + word.start_s,
            end_s=origin_s + word.end_s,
        )


@dataclass(frozen=True)
class Plan:
    """The checked parts of a request with markup, and the pause after them."""

    parts: tuple[Part, ...]
    end_pause_s: float | None
    end_marks: tuple[Mark, ...]
    sample_rate: int
    spoken_text: str
    warning: str | None

    def with_warning(self, warning: str) -> Plan:
        return replace(self, warning=" ".join(filter(None, (self.warning, warning)))) if warning else self


@dataclass(frozen=True)
class Planner:
    """Checks the texts of requests, and divides those with markup into parts."""

    config: EngineConfig
    form: TextForm  # of the checkpoint
    description: Description
    voices: VoiceRegistry
    lexicons: Lexicons

    def is_plain(self, request: TTSRequest) -> bool:
        """Return whether a request, whose text may be a `TextStream`, cannot have markup or words of a lexicon."""
        is_text = request.text_type == "text" and not request.lexicon and not self.lexicons.of(self._voice(request))
        return is_text and not (self.config.accept_ssml and isinstance(request.text, str) and is_ssml(request.text))

    def form_in(self, language: str | None) -> TextForm:
        """Return the form of a request's text. Raises `ParameterError` for an unknown language."""
        return self.description.text_form(self.form, language)

    def script(self, request: TTSRequest, check: Callable[[], None] = unchecked) -> NormalizedText:
        """Return the spoken form of a text without markup; `check` and errors are those of `TextForm.script`."""
        config = self.config
        return self.form_in(request.language).script(
            request.text,
            config.max_text_length,
            choice=request.normalize or config.normalize,
            on_unsupported=request.on_unsupported or config.on_unsupported,
            continues=request.joined is not None and request.joined.continues,
            check=check,
        )

    def check_voice(self, request: TTSRequest) -> None:
        """Raise `VoiceError` if a request has no voice, and the checkpoint needs a voice but has no default voice."""
        is_without = request.voice is None and not request.references
        if self.description.needs_voice and is_without and not self.voices.library.default:
            self.description.check_voice(self.voices.names)

    def plan(self, request: TTSRequest, check: Callable[[], None] = unchecked) -> Plan | None:
        """Check the texts and voices of a request and return its parts; None if it has no markup.

        `check` is that of `script`. Raises `RequestError`.
        """
        if self.is_plain(request):
            return None
        if request.stream is not None:
            raise ParameterError("text", "is a TextStream, which cannot have markup or a lexicon; give a str")
        return self._plan(request, check)

    def _plan(self, request: TTSRequest, check: Callable[[], None]) -> Plan | None:
        max_length, description = self.config.max_text_length, self.description
        tidied(request.text, max_length)  # refuses a text that is too long before parsing it
        segments, ignored = self._read(request, self.form_in(request.language).language)
        if request.text_type == "text" and [segment.text for segment in segments] == [request.text]:
            return None
        if (length := sum(len(segment.text) for segment in segments)) > max_length:
            reason = f"has {length} characters after all replacements; the limit is {max_length}"
            raise TextError("text", f"{reason}. Split the text or raise S1_MINI_MAX_TEXT_LENGTH.")
        for name in dict.fromkeys((request.voice, *(segment.voice for segment in segments))):
            if name is not None:
                self.voices.info(name)  # raises an error for an unknown voice
        sample_rate, group = description.sample_rate, request.flow[1] or f"parts {next(_groups)}"
        grouped = replace(request, flow=(request.flow[0], group))
        parts: list[Part] = []
        no_transcript = description.voice.transcript_warning(reference.text for reference in request.references)
        spoken, warnings, pause_s = [], [ignored, no_transcript], None
        division: Division = "clause"
        marks: list[Mark] = []  # marks of segments that are only pauses
        for segment in segments:
            division, pause_s = stronger(division, segment.division), _sum(pause_s, segment.pause_before_s)
            more_s = segment.pause_before_s or 0.0
            marks = [mark._replace(position=0, pause_s=mark.pause_s + more_s) for mark in marks]
            marks += segment.marks
            script = self._script_of(segment, request, check)
            warnings.append(script.warning)
            if script.text:
                part_request = _request_for(grouped, segment, len(parts), sample_rate)
                before_s = _pause_before(request, pause_s, division, is_first=not parts)
                parts.append(Part(part_request, replace(segment, marks=tuple(marks)), before_s))
                spoken.append(script.text)
                pause_s, division, marks = None, "clause", []
        for part in parts:
            self.check_voice(part.request)
        if len(parts) > 1 and not description.splits:
            reason = "another part begins here, and this model would speak it in another voice; remove the pauses, "
            reason += "paragraphs and changes of speed or loudness"
            raise error_at(request.text, parts[1].segment.starts[0], reason)
        if not parts and not pause_s:
            raise NothingToSpeakError("text", "contains nothing to speak; send at least one letter, number or symbol")
        warning = " ".join(dict.fromkeys(filter(None, warnings))) or None
        end_marks = tuple(marks) if request.word_times else ()
        end_s = _pause_after(request, pause_s)
        return Plan(tuple(parts), end_s, end_marks, request.sample_rate or sample_rate, " ".join(spoken), warning)

    def _script_of(self, segment: Segment, request: TTSRequest, check: Callable[[], None]) -> NormalizedText:
        """Return the spoken form of a segment; empty if it is only a pause. Raises `TextError`."""
        if not segment.text:
            return NormalizedText("")
        try:
            # The lexicon was already applied to the segment.
            return self.script(replace(request, text=segment.text, lexicon={}), check)
        except NothingToSpeakError as error:
            return NormalizedText("", error.warning)
        except TextError as error:
            if request.text_type == "text":
                raise
            reason = f"in the part that begins here, {error.reason}"
            raise error_at(request.text, segment.starts[0], reason) from None

    def _read(self, request: TTSRequest, language: str | None) -> Markup:
        """Return the segments of a text. Names of voices in it are replaced by the engine's names (`voice_names`)."""

        def name_of(voice: str | None) -> str | None:
            return voice and request.voice_names.get(voice.lower(), voice)

        @cache
        def lexicon_of(voice: str | None) -> Lexicon:
            own = name_of(voice)
            return self.lexicons.of(self._voice(request) if own is None else self.voices.spelling(own)).merged(
                request.lexicon
            )

        if request.text_type == "marked":
            markup = read_marked(request.text, lexicon_of, {*self.voices.names, *request.voice_names})
        elif request.text_type == "ssml" or (self.config.accept_ssml and is_ssml(request.text)):
            markup = read_ssml(request.text, lexicon_of, language)
        else:
            markup = read_text(request.text, lexicon_of)
        segments = tuple(replace(segment, voice=name_of(segment.voice)) for segment in markup.segments)
        return markup._replace(segments=segments)

    def _voice(self, request: TTSRequest) -> str | None:
        """Return the voice whose lexicon applies: the stored name, None for the default, empty for a recording."""
        if request.references:
            return ""
        return request.voice and self.voices.spelling(request.voice)


def _sum(one: float | None, other: float | None) -> float | None:
    return one if other is None else (one or 0.0) + other


def _pause_before(request: TTSRequest, marked_s: float | None, division: Division, *, is_first: bool) -> float | None:
    """Return the pause before a part: what the markup asks for, or else what is usual."""
    if marked_s is not None:
        return marked_s
    if is_first:
        return request.outer_pauses[0]
    pauses = Pauses.of(request.pauses)
    return None if pauses is None else pauses.before(division)


def _pause_after(request: TTSRequest, marked_s: float | None) -> float | None:
    return request.outer_pauses[1] if marked_s is None else marked_s


def _request_for(request: TTSRequest, segment: Segment, number: int, sample_rate: int) -> TTSRequest:
    """Return the request for a segment. The first segment has the request's own seed, like a text without markup."""
    speed, gain_db = request.speed * segment.speed, request.gain_db + segment.gain_db
    place = partial(error_at, request.text, segment.starts[0])
    if not MIN_SPEED <= speed <= MAX_SPEED:
        raise place(f"the speed is {speed:g} here; use {MIN_SPEED:g} to {MAX_SPEED:g}")
    if not MIN_GAIN_DB <= gain_db <= MAX_GAIN_DB:
        raise place(f"the gain is {gain_db:g} dB here; use {MIN_GAIN_DB:g} to {MAX_GAIN_DB:g}")
    sampling = request.sampling
    if (seed := sampling.get("seed")) is not None:
        sampling = {**sampling, "seed": (seed + number * 0x9E3779B97F4A7C15) % (MAX_SEED + 1)}
    return replace(
        request,
        text=segment.text,
        text_type="text",
        lexicon={},
        sampling=sampling,
        speed=speed,
        gain_db=gain_db,
        joined=None if request.joined is None else replace(request.joined, division=None, is_last=True),
        sample_rate=request.sample_rate or sample_rate,  # explicit, because `reload` may load a model with another rate
        voice=segment.voice or request.voice,
        references=() if segment.voice else request.references,
    )


class Composition:
    """The audio of a plan for one consumer, with the interface of an `OutputQueue`."""

    def __init__(self, plan: Plan, submit: Callable[[TTSRequest], OutputQueue], deadline: float) -> None:
        self._plan, self._submit, self._deadline = plan, submit, deadline
        self._left = deque(plan.parts)  # parts that are not submitted yet
        self._submitted: deque[tuple[Part, OutputQueue]] = deque()  # the first element is the current part
        self._lock = threading.Lock()  # guards `_submitted`, which `close` reads from any thread
        self._closed = threading.Event()
        self._whole: bool | None = None  # `whole` for all parts; None: each part keeps its own value
        self._ready: deque[AudioChunk] = deque()
        self._details: dict[str, Any] = {"spoken_text": plan.spoken_text, "warning": plan.warning}
        self._joiner = Joiner(
            sample_rate=plan.sample_rate,
            pauses=[*([part.pause_s for part in plan.parts] or [None]), plan.end_pause_s],
            fades_cuts_only=True,
        )
        self._num_samples = 0  # number of samples so far
        self._marks: deque[Mark] | None = None  # marks of the current part that are not reached yet
        self._words: list[Word] = []  # words of the current part whose place is not known yet
        self._end_s = 0.0  # end of the current part's last word
        self._timing: Timing | None = None  # timing of the first part
        self._is_cut = self._is_over = False

    def begin(self) -> Self:
        """Submit the first parts. Raises the errors of `submit`."""
        self._submit_ahead()
        return self

    @property
    def whole(self) -> bool:
        """Whether the consumer is woken only at the end of a part."""
        return bool(self._whole)

    @whole.setter
    def whole(self, value: bool) -> None:
        self._whole = value
        for _, queue in self._submitted:
            queue.whole = value

    @property
    def unread_bytes(self) -> int:
        """Size of the audio that the consumer has not taken; readable from any thread."""
        with self._lock:
            return sum(queue.unread_bytes for _, queue in self._submitted)

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            queues = [queue for _, queue in self._submitted]
        for queue in queues:
            queue.close()

    def __iter__(self) -> OutputIterator:
        """Yield chunks as they arrive; raise the error of any part. Closing the iterator cancels all parts."""
        return OutputIterator(self)

    def wait(self) -> AudioChunk | None:
        """Wait for the next chunk and return it; return None after the last.

        Raises the error of any part, or `RequestTimeoutError` if the queue stays full until the deadline.
        """
        while not self._ready and not self._is_over:
            try:
                self._submit_ahead()
            except QueueFullError:
                self._check_deadline()
                self._closed.wait(RETRY_S)
                continue
            if not self._submitted:
                self._finish("cancelled" if self._left else "stop")
            elif (chunk := self._submitted[0][1].wait()) is not None:
                self._add(chunk)
        return self._ready.popleft() if self._ready else None

    async def __aiter__(self) -> AsyncIterator[AudioChunk]:
        try:
            while not self._is_over:
                if self._left:
                    try:
                        await asyncio.to_thread(self._submit_ahead)  # cancels a part that it submits after `close`
                    except QueueFullError:  # poll, because waiting in a thread would occupy a thread of the pool
                        self._check_deadline()
                        await asyncio.sleep(RETRY_S)
                        continue
                if not self._submitted:
                    self._finish("cancelled" if self._left else "stop")
                else:
                    async with aclosing(aiter(self._submitted[0][1])) as chunks:  # type: ignore[type-var]
                        async for chunk in chunks:
                            self._add(chunk)
                            while self._ready:
                                yield self._ready.popleft()
                while self._ready:
                    yield self._ready.popleft()
        finally:
            self.close()

    def _submit_ahead(self) -> None:
        """Submit the next parts. Raises `QueueFullError` if the queue is full and no submitted part is left to read."""
        while self._left and len(self._submitted) <= AHEAD and not self._closed.is_set():
            try:
                queue = self._submit(self._left[0].request)
            except QueueFullError:
                if self._submitted:
                    return
                raise
            with self._lock:
                self._submitted.append((self._left.popleft(), queue))
                if self._whole is not None:
                    queue.whole = self._whole
            if self._closed.is_set():
                queue.close()

    def _check_deadline(self) -> None:
        if time.monotonic() > self._deadline:
            raise RequestTimeoutError(
                "timed out because the queue was full when the next part of the text was due"
            ) from None

    def _add(self, chunk: AudioChunk) -> None:
        if chunk.finish_reason == "cancelled":
            self._finish("cancelled")
            return
        part, is_over = self._submitted[0][0], chunk.finish_reason is not None
        if self._marks is None:
            self._marks, self._end_s = deque(part.segment.marks if part.request.word_times else ()), 0.0
        audio = self._joiner.push(chunk.audio)
        if is_over:
            follows = self._left or len(self._submitted) > 1
            audio = np.concatenate((audio, self._joiner.end_piece() if follows else self._joiner.finish()))
        self._words += chunk.words
        words: tuple[Word, ...] = ()
        marks: tuple[SpokenMark, ...] = ()
        if is_over or self._joiner.is_placed:
            origin_s, new = self._joiner.place / self._plan.sample_rate, self._words
            marks, self._words = tuple(self._reached(new, origin_s, is_over=is_over)), []
            words = tuple(part.place(word, origin_s) for word in new)
        plain = replace(chunk, finish_reason=None, timing=None, spoken_text=None, warning=None)
        self._put(replace(plain, audio=audio, words=words, marks=marks))
        if not is_over:
            return
        self._marks = None
        self._timing = self._timing or chunk.timing
        self._is_cut |= chunk.finish_reason == "length"
        with self._lock:
            self._submitted.popleft()
        if not self._submitted and not self._left:
            self._finish("stop")

    def _reached(self, words: Sequence[Word], origin_s: float, *, is_over: bool) -> Iterator[SpokenMark]:
        """Yield the marks that words of the current part have reached; at the end of the part, all its other marks."""
        for word in words:
            while self._marks and self._marks[0].position <= word.start:
                yield _spoken(self._marks.popleft(), origin_s, word.start_s)
            self._end_s = word.end_s
        while self._marks and is_over:
            yield _spoken(self._marks.popleft(), origin_s, self._end_s)

    def _put(self, chunk: AudioChunk) -> None:
        """Add a chunk; the beginning of a long one, such as one with a pause, becomes chunks of their own."""
        most = round(MAX_CHUNK_S * self._plan.sample_rate)
        for start in range(0, len(chunk.audio) - most, most):
            self._append(AudioChunk(chunk.audio[start : start + most], self._plan.sample_rate, 0))
        rest = len(chunk.audio) - max(0, len(chunk.audio) - 1) // most * most
        self._append(replace(chunk, audio=chunk.audio[len(chunk.audio) - rest :]))

    def _append(self, chunk: AudioChunk) -> None:
        self._num_samples += len(chunk.audio)
        self._ready.append(replace(chunk, **self._details) if self._details else chunk)
        self._details = {}

    def _finish(self, reason: FinishReason) -> None:
        """Add the last chunk, and cancel all parts that have not ended."""
        audio = NOTHING
        if reason == "stop":
            audio = NOTHING if self._plan.parts else self._joiner.finish()
            reason = "length" if self._is_cut else "stop"
        timing, end_s = self._timing or Timing(), (self._num_samples + len(audio)) / self._plan.sample_rate
        marks = tuple(_spoken(mark, end_s, 0.0) for mark in self._plan.end_marks)
        self._put(AudioChunk(audio, self._plan.sample_rate, 0, reason, timing, marks=marks))
        self._is_over = True
        self.close()


def _spoken(mark: Mark, origin_s: float, time_s: float) -> SpokenMark:
    """Return a mark that is reached `time_s` after the part's audio begins, or in the pause before the part."""
    time_s = origin_s + (-mark.pause_s if mark.pause_s else time_s)
    return SpokenMark(mark.name, mark.start, mark.stop, round(max(0.0, time_s), 3))
