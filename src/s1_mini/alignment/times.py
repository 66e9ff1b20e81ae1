"""Times of the words of one utterance: live during its generation, or afterwards from the whole utterance.

During a pause, the head already attends to the next word. A word before a pause therefore ends when the head leaves the
word's last letter. In whole utterances, a word boundary near a silence is moved to the edges of the silence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from s1_mini.alignment.head import AlignmentHead
from s1_mini.alignment.path import LivePath, frames_spent

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
PAUSE_MARKS = frozenset(",.;:!?")
HOP_S, WINDOW_S = 0.005, 0.01
QUIET_DB = -38.0  # relative to the loudest window
SILENCE_S = 0.08  # shorter silences are parts of words
SOUND_S = 0.03  # shorter sounds are clicks
NEAR_S = 0.06  # a word boundary this close to a silence is moved to the silence's edges
BREATH_S = 0.3  # a sound this long after the estimated end of the last word is a breath
MIN_WORD_S = 0.01


class Span(NamedTuple):
    """The tokens of a word."""

    first: int
    last: int
    pauses: bool  # whether a punctuation mark follows


class Interval(NamedTuple):
    """Start and end of a word or a sound, in seconds from the start of the utterance, the request or the wave."""

    start_s: float
    end_s: float


def find_spans(text: str, token_ends: np.ndarray) -> list[Span]:
    """Return the tokens of each word (`WORD`) of a text; `token_ends` are the tokens' ends in bytes of UTF-8."""
    found = list(WORD.finditer(text))
    token_starts = np.concatenate(([0], token_ends[:-1]))
    spans = []
    for number, word in enumerate(found):
        start, stop = len(text[: word.start()].encode()), len(text[: word.end()].encode())
        after = text[word.end() : found[number + 1].start() if number + 1 < len(found) else len(text)]
        first = int(np.searchsorted(token_ends, start, side="right"))
        last = int(np.searchsorted(token_starts, stop, side="left")) - 1
        spans.append(Span(first, max(first, last), not PAUSE_MARKS.isdisjoint(after)))
    return spans


class LiveTimes:
    """Times of the words of an utterance while it is generated; they do not depend on later frames.

    A word is reported once the next one has begun.
    """

    def __init__(self, spans: Sequence[Span], num_tokens: int, head: AlignmentHead, frame_s: float) -> None:
        self._spans, self._head, self._frame_s = spans, head, frame_s
        self._path = LivePath(num_tokens)
        self._starts: list[float] = []
        self._num_reported = 0

    def push(self, scores: np.ndarray) -> list[Interval]:
        """Add the scores [N] of the next frame; return the words that can now be reported."""
        self._path.push(scores)
        while len(self._starts) < len(self._spans):
            first = self._spans[len(self._starts)].first
            if first and self._path.share_before(first) >= 0.5:
                break
            self._begin(first)
        return self._report(len(self._starts) - 1)

    def finish(self, duration_s: float, *, was_cut: bool) -> list[Interval]:
        """Return the remaining words at the end of the utterance; if it was cut, only those that have begun."""
        while not was_cut and len(self._starts) < len(self._spans):
            self._begin(self._spans[len(self._starts)].first)
        self._starts = [min(start, duration_s) for start in self._starts]
        return self._report(len(self._starts), duration_s)

    def _begin(self, first: int) -> None:
        start = float(self._path.spent[:first].sum()) * self._frame_s + self._head.shift_ms / 1000
        self._starts.append(max(start, self._starts[-1] if self._starts else 0.0))

    def _report(self, stop: int, duration_s: float = float("inf")) -> list[Interval]:
        intervals = [self._interval(number, duration_s) for number in range(self._num_reported, stop)]
        self._num_reported = max(self._num_reported, stop)
        return intervals

    def _interval(self, number: int, duration_s: float) -> Interval:
        start, span = self._starts[number], self._spans[number]
        has_next = number + 1 < len(self._starts)
        limit = self._starts[number + 1] if has_next else duration_s
        if has_next and not span.pauses:
            return Interval(start, limit)
        shift_ms = self._head.pause_shift_ms if has_next else self._head.end_shift_ms
        end = float(self._path.spent[: span.last + 1].sum()) * self._frame_s + shift_ms / 1000
        return Interval(start, min(max(start, end), limit))


def whole_times(
    scores: np.ndarray,
    spans: Sequence[Span],
    wave: np.ndarray,
    *,
    sample_rate: int,
    head: AlignmentHead,
    frame_s: float,
    was_cut: bool = False,
) -> list[Interval]:
    """Return the times of all words of an utterance from the scores [T, N] of its frames and its audio [samples].

    If the utterance was cut, words that have not begun are left out.
    """
    if not spans or not len(scores):
        return []
    spent, last = frames_spent(scores)
    before = np.concatenate(([0.0], np.cumsum(spent))) * frame_s
    if was_cut:
        reached = np.concatenate(([0.0], np.cumsum(last)))
        spans = [span for span in spans if reached[span.first] < 0.5]
    if not spans:
        return []
    count, duration_s = len(spans), len(wave) / sample_rate
    starts = np.maximum([before[span.first] + head.shift_ms / 1000 for span in spans], 0.0)
    ends = np.append(starts[1:], before[spans[-1].last + 1] + head.end_shift_ms / 1000)
    for number, span in enumerate(spans[:-1]):
        if span.pauses:
            ends[number] = before[span.last + 1] + head.pause_shift_ms / 1000
    sounds = find_sounds(wave, sample_rate)
    if sounds:
        starts[0] = sounds[0].start_s
    for sound, following in pairwise(sounds):
        low, high = sound.end_s - NEAR_S, following.start_s + NEAR_S
        near = [k for k in range(count - 1) if low < starts[k + 1] < high]
        near = near or [k for k in range(count - 1) if spans[k].pauses and low < ends[k] < high]
        if near:
            at = min(near, key=lambda k: abs(starts[k + 1] - sound.end_s))
            ends[at], starts[at + 1] = sound.end_s, following.start_s
    starts = np.minimum(np.maximum.accumulate(starts), duration_s)
    if sounds and not was_cut and not starts[-1] < ends[-1] < sounds[-1].end_s - BREATH_S:
        ends[-1] = sounds[-1].end_s
    ends[:-1] = np.minimum(ends[:-1], starts[1:])
    ends = np.minimum(np.maximum(ends, starts + MIN_WORD_S), duration_s)
    return [Interval(float(start), float(end)) for start, end in zip(starts, ends, strict=True)]


def after_silences(intervals: Sequence[Interval], sounds: Sequence[Interval]) -> list[Interval]:
    """Move the start of each word that begins in a silence, or shortly before one, to the end of the silence."""
    moved = []
    for word in intervals:
        silences = ((before.end_s - NEAR_S, after.start_s) for before, after in pairwise(sounds))
        end_s = next((end_s for start_s, end_s in silences if start_s < word.start_s < end_s), word.start_s)
        moved.append(Interval(min(end_s, word.end_s), word.end_s))
    return moved


def window_power(wave: np.ndarray, sample_rate: int) -> np.ndarray:
    """Return the power of a wave [samples] in windows at every `HOP_S`; empty if the wave is shorter than a window."""
    hop, window = max(1, round(sample_rate * HOP_S)), round(sample_rate * WINDOW_S)
    if len(wave) <= window:
        return np.zeros(0)
    frames = np.lib.stride_tricks.sliding_window_view(wave, window)[::hop]
    power: np.ndarray = np.square(frames, dtype=np.float64).mean(1)
    return power


def find_sounds(wave: np.ndarray, sample_rate: int) -> list[Interval]:
    """Return the parts of a wave [samples] between its silences, in seconds."""
    power = window_power(wave, sample_rate)
    if not power.max(initial=0) > 0:
        return []
    is_loud = power > power.max() * 10 ** (QUIET_DB / 10)
    edges = np.diff(np.concatenate(([0], is_loud.astype(int), [0])))
    sounds: list[list[int]] = []
    for start, stop in zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True):
        if sounds and (start - sounds[-1][1]) * HOP_S < SILENCE_S:
            sounds[-1][1] = stop
        else:
            sounds.append([start, stop])
    return [Interval(start * HOP_S, stop * HOP_S) for start, stop in sounds if (stop - start) * HOP_S >= SOUND_S]
