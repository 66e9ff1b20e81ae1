"""The words of one request as its audio arrives: their times from attention, and their positions in the text."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from s1_mini.alignment.head import AlignedFrames, AlignmentHead
from s1_mini.alignment.times import Interval, LiveTimes, after_silences, find_sounds, find_spans, whole_times
from s1_mini.alignment.written import Group, Read, divide, find_groups, find_written, keys, without_signs
from s1_mini.types import Word

WINDOW_S = 4.0  # duration of the latest audio that is searched for silences


@dataclass(frozen=True)
class Aligner:
    """The facts of a checkpoint from which word times are computed."""

    head: AlignmentHead
    frame_s: float  # duration of a frame
    token_ends: Callable[[str], np.ndarray]  # ends of the tokens of a text, in bytes of UTF-8


class WordTimes:
    """Times of the words of one request, from its audio before any effect and the scores sent with that audio.

    With `is_live`, times depend neither on later audio nor on the division of the audio into chunks. Otherwise the
    words of an utterance are reported at its end, with times from all of its scores and audio.
    """

    def __init__(
        self,
        aligner: Aligner,
        text: str,
        pieces: Sequence[str],
        read: Read,
        sample_rate: int,
        *,
        prompts: Sequence[str],
        is_live: bool,
        speed: float = 1.0,
        shown: str | None = None,
    ) -> None:
        """`pieces` are the spoken texts of the utterances, and `read` returns the spoken form of parts of `text`.

        `prompts` are the same words as the model gets them: marks and spellings may differ. `shown` is `text` with tags
        replaced by white space and word joiners; its words are reported.
        """
        self._aligner, self._text, self._prompts, self._read = aligner, text, prompts, read
        self._sample_rate, self._is_live, self._speed = sample_rate, is_live, speed
        shown = text if shown is None else shown
        self._written = find_written(shown)
        each = [keys(piece) for piece in pieces]
        self._spoken = [key for piece in each for key in piece]
        self._firsts = np.concatenate(([0], np.cumsum([len(piece) for piece in each]))).tolist()
        self._groups = deque(find_groups(shown, self._written, self._spoken))
        self._times: dict[int, Interval] = {}  # of spoken words, in seconds of the request
        self._utterance = -1
        self._start = 0  # first sample of the utterance
        self._num_frames = self._num_timed = 0  # frames and words of the utterance so far
        self._live: LiveTimes | None = None
        self._scores: list[np.ndarray] = []
        self._audio: list[np.ndarray] = []

    def feed(self, frames: AlignedFrames | None, *, is_last: bool) -> tuple[Word, ...]:
        """Add the frames of a chunk; return the words whose times are now known."""
        if frames is not None:
            if frames.utterance != self._utterance and frames.scores:
                self._begin(frames)
            self._add(frames)
        return tuple(self._known(is_last=is_last))

    def _begin(self, frames: AlignedFrames) -> None:
        self._utterance, self._start, self._num_frames, self._num_timed = frames.utterance, frames.start, 0, 0
        prompt = self._prompts[frames.utterance]
        self._spans = find_spans(prompt, self._aligner.token_ends(prompt))
        self._scores, self._audio, self._live = [], [], None
        if self._is_live:
            self._live = LiveTimes(self._spans, frames.scores[0].shape[1], self._aligner.head, self._aligner.frame_s)

    def _add(self, frames: AlignedFrames) -> None:
        self._audio += frames.waves
        if self._live is not None:
            for scores in (each for several in frames.scores for each in several):
                self._num_frames += 1
                self._note(self._after_silences(self._live.push(scores)))
            if frames.is_last:
                duration_s = min(self._num_frames * self._aligner.frame_s, frames.stop / self._sample_rate)
                self._note(self._after_silences(self._live.finish(duration_s, was_cut=frames.was_cut)))
            return
        self._scores += frames.scores
        if frames.is_last:
            intervals = whole_times(
                np.concatenate(self._scores),
                self._spans,
                np.concatenate(self._audio),
                sample_rate=self._sample_rate,
                head=self._aligner.head,
                frame_s=self._aligner.frame_s,
                was_cut=frames.was_cut,
            )
            self._note(intervals)

    def _after_silences(self, intervals: Sequence[Interval]) -> list[Interval]:
        """Move starts to the ends of silences in the audio of the frames so far."""
        if not intervals:
            return []
        self._audio = [np.concatenate(self._audio)]
        stop = round(self._num_frames * self._aligner.frame_s * self._sample_rate)
        start = max(0, stop - round(WINDOW_S * self._sample_rate))
        offset_s = start / self._sample_rate
        sounds = [
            Interval(offset_s + start_s, offset_s + end_s)
            for start_s, end_s in find_sounds(self._audio[0][start:stop], self._sample_rate)
        ]
        return after_silences(intervals, sounds if start else [Interval(0.0, 0.0), *sounds])

    def _note(self, intervals: Sequence[Interval]) -> None:
        start_s = self._start / self._sample_rate
        for interval in intervals:
            number = self._firsts[self._utterance] + self._num_timed
            self._times[number] = Interval(start_s + interval.start_s, start_s + interval.end_s)
            self._num_timed += 1

    def _known(self, *, is_last: bool) -> list[Word]:
        """Return the next written words.

        All spoken words of a group need times. At the end of the request, or once later words have times, one word with
        a time is enough.
        """
        known: list[Word] = []
        while self._groups:
            group = self._groups[0]
            timed = [number for number in range(group.first_spoken, group.stop_spoken) if number in self._times]
            is_complete = len(timed) == group.stop_spoken - group.first_spoken
            if not is_complete and not is_last and not self._is_passed(group):
                break
            self._groups.popleft()
            if timed:
                parts = divide(group, self._text, self._written, self._spoken, self._read)
                known += [word for part in parts if (word := self._word(part)) is not None]
        return known

    def _is_passed(self, group: Group) -> bool:
        """Return whether later words have times already, so that this group gets no more: its utterance was cut."""
        return bool(self._times) and next(reversed(self._times)) >= group.stop_spoken

    def _word(self, group: Group) -> Word | None:
        numbers = [each for each in range(group.first_spoken, group.stop_spoken) if each in self._times]
        if not numbers:
            return None
        group = without_signs(group, self._text, self._written)
        start, stop = self._written[group.first].start, self._written[group.stop - 1].stop
        start_s, end_s = self._times[numbers[0]].start_s, self._times[numbers[-1]].end_s
        start_s, end_s = round(start_s / self._speed, 3), round(end_s / self._speed, 3)
        return Word(self._text[start:stop], start, stop, start_s, end_s)
