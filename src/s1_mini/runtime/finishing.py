"""Turns the audio of a request, as the stages generate it, into what the consumer gets.

Word times and audio effects are computed here, when the consumer takes a chunk, and the parts of a text with markup are
joined, with their pauses and marks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from s1_mini.alignment.head import AlignedFrames
from s1_mini.audio.effects import Effects
from s1_mini.core.speech import Joiner
from s1_mini.runtime.planner import Part, Plan
from s1_mini.text.markup import Mark
from s1_mini.types import AudioChunk, SpokenMark, Timing, Word

MAX_CHUNK_S = 1.0  # longer chunks, with pauses in them, are divided
NOTHING = np.zeros(0, np.float32)


class WordSource(Protocol):
    """Computes word times from the attention scores of a part; see `alignment/words.py`."""

    def feed(self, frames: AlignedFrames | None, *, is_last: bool) -> tuple[Word, ...]:
        """Add the frames of a chunk; return the words whose times are now known."""


class PartFinish(NamedTuple):
    """What the audio of a part passes through: word times, if requested, and effects, if there are any."""

    words: WordSource | None = None
    effects: Effects | None = None

    def feed(self, chunk: AudioChunk, frames: AlignedFrames | None) -> AudioChunk:
        is_last = chunk.finish_reason is not None
        if self.words is not None:
            chunk = replace(chunk, words=self.words.feed(frames, is_last=is_last))
        if self.effects is None:
            return chunk
        audio = self.effects.feed(chunk.audio, is_last=is_last)
        return replace(chunk, audio=audio, sample_rate=self.effects.sample_rate)


class Finishing:
    """Finishes the audio of a text without markup: one part."""

    def __init__(self, part: PartFinish, spoken_text: str | None = None, warning: str | None = None) -> None:
        """`spoken_text` and `warning` are sent with the first chunk."""
        self._part, self._first = part, (spoken_text, warning)

    def feed(self, chunk: AudioChunk, frames: AlignedFrames | None) -> list[AudioChunk]:
        """Add the next chunk with its attention scores; return the chunks that are complete."""
        if chunk.finish_reason != "cancelled":
            chunk = self._part.feed(chunk, frames)
        return [self._with_details(chunk)]

    def _with_details(self, chunk: AudioChunk) -> AudioChunk:
        if self._first == (None, None):
            return chunk
        (spoken_text, warning), self._first = self._first, (None, None)
        return replace(chunk, spoken_text=spoken_text, warning=warning)


class MarkupFinishing(Finishing):
    """Finishes and joins the audio of the parts of a text with markup."""

    def __init__(self, plan: Plan, parts: Sequence[PartFinish], sample_rate: int, warning: str | None) -> None:
        """`sample_rate` is that of the finished audio, in Hz."""
        super().__init__(PartFinish(), plan.spoken_text, warning)
        self._plan, self._rate = plan, sample_rate
        self._left = deque(zip(plan.parts, parts, strict=True))  # the first one is the current part
        pauses = [*([part.pause_s for part in plan.parts] or [None]), plan.end_pause_s]
        self._joiner = Joiner(sample_rate=sample_rate, pauses=pauses, fades_cuts_only=True)
        self._num_samples = 0  # number of samples so far
        self._words: list[Word] = []  # words of the current part whose place is not known yet
        self._begin_part()

    def _begin_part(self) -> None:
        marks = self._left[0][0].segment.marks if self._left and self._left[0][0].segment is not None else ()
        has_times = bool(self._left) and self._left[0][0].request.word_times
        self._marks = deque(marks if has_times else ())  # marks of the part that are not reached yet
        self._end_s = 0.0  # end of the part's last word

    def feed(self, chunk: AudioChunk, frames: AlignedFrames | None) -> list[AudioChunk]:
        """Add the next chunk with its attention scores; return the chunks that are complete."""
        if chunk.finish_reason == "cancelled":
            return [self._with_details(chunk)]
        finished: list[AudioChunk] = []
        if self._left:
            part, finish = self._left[0]
            is_over = chunk.finish_reason is not None
            finished += self._joined(part, finish.feed(chunk, frames), is_over=is_over)
            if not is_over:
                return finished
            self._left.popleft()
            self._begin_part()
            if self._left:
                return finished
        return [*finished, *self._last(chunk)]

    def _joined(self, part: Part, chunk: AudioChunk, *, is_over: bool) -> Iterator[AudioChunk]:
        audio = self._joiner.push(chunk.audio)
        if is_over:
            follows = len(self._left) > 1
            audio = np.concatenate((audio, self._joiner.end_piece() if follows else self._joiner.finish()))
        self._words += chunk.words
        words: tuple[Word, ...] = ()
        marks: tuple[SpokenMark, ...] = ()
        if is_over or self._joiner.is_placed:
            origin_s, new = self._joiner.place / self._rate, self._words
            marks, self._words = tuple(self._reached(new, origin_s, is_over=is_over)), []
            words = tuple(part.place(word, origin_s) for word in new)
        plain = replace(chunk, finish_reason=None, timing=None, audio=audio, words=words, marks=marks)
        return self._divided(plain)

    def _reached(self, words: Sequence[Word], origin_s: float, *, is_over: bool) -> Iterator[SpokenMark]:
        """Yield the marks that words of the current part have reached; at the end of the part, all its other marks."""
        for word in words:
            while self._marks and self._marks[0].position <= word.start:
                yield _spoken(self._marks.popleft(), origin_s, word.start_s)
            self._end_s = word.end_s
        while self._marks and is_over:
            yield _spoken(self._marks.popleft(), origin_s, self._end_s)

    def _last(self, chunk: AudioChunk) -> Iterator[AudioChunk]:
        audio = NOTHING if self._plan.parts else self._joiner.finish()
        end_s = (self._num_samples + len(audio)) / self._rate
        marks = tuple(_spoken(mark, end_s, 0.0) for mark in self._plan.end_marks)
        timing = chunk.timing or Timing()
        return self._divided(AudioChunk(audio, self._rate, 0, chunk.finish_reason, timing, marks=marks))

    def _divided(self, chunk: AudioChunk) -> Iterator[AudioChunk]:
        """Yield a chunk; the beginning of a long one, such as one with a pause, becomes chunks of their own."""
        most = round(MAX_CHUNK_S * self._rate)
        self._num_samples += len(chunk.audio)
        for start in range(0, len(chunk.audio) - most, most):
            yield self._with_details(AudioChunk(chunk.audio[start : start + most], self._rate, 0))
        rest = len(chunk.audio) - max(0, len(chunk.audio) - 1) // most * most
        yield self._with_details(replace(chunk, audio=chunk.audio[len(chunk.audio) - rest :]))


def _spoken(mark: Mark, origin_s: float, time_s: float) -> SpokenMark:
    """Return a mark that is reached `time_s` after the part's audio begins, or in the pause before the part."""
    time_s = origin_s + (-mark.pause_s if mark.pause_s else time_s)
    return SpokenMark(mark.name, mark.start, mark.stop, round(max(0.0, time_s), 3))
