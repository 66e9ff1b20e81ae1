"""Find a checkpoint's attention head that follows the spoken text, and its shifts, without a speech recognizer.

Shapes: T frames, H heads, N tokens.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from s1_mini.alignment.head import MAX_SHIFT_MS, UNREAD, AlignmentHead
from s1_mini.alignment.path import FREE, MAX_ADVANCE, SKIP_COST, frames_spent
from s1_mini.alignment.times import HOP_S, WINDOW_S, Span, find_sounds, window_power

LAST_S = 0.5  # end of an utterance, in which a head must have reached the last word
NEAR_PAUSE_S = (
    0.3  # maximum distance between the estimated end of a word and the pause at the punctuation mark after it
)
LAGS_S = np.arange(-0.2, 0.6, HOP_S)
SONORANTS = frozenset("aeiouylmnrw")
# Delay from a sonorant letter's time, corrected by the head's shift, to the energy of its sound. It is the mean of 41,
# 50 and 39 ms, measured with heads 2, 0 and 6 of the built-in voice's layer 3, whose shifts are known; any eight of the
# 24 utterances measured give the same delay within 6 ms (2026-11-26).
SONORANT_LAG_S = 0.043
MIN_CORRELATION = 0.2  # of sonorant letters and energy; the built-in voice's heads have 0.4 to 0.5


class Measures(NamedTuple):
    """How well a head follows the text, each from 0 to 1."""

    # Mean share of the head's attention on its best monotonic path over the text, in the frames after the whole text
    # was read. In earlier frames, a head that always attends to the newest position also follows such a path, although
    # it does not follow the speech.
    share: float
    coverage: float  # share of the words that contain the strongest token of at least one frame
    monotony: float  # share of frames whose strongest token is not before that of the previous frame
    ending: float  # whether the strongest token of a frame near the end is in the last word or after it

    @property
    def faults(self) -> list[str]:
        """The measures that are too small for word times."""
        return [name for name, value in self._asdict().items() if value < getattr(REQUIRED, name)]


REQUIRED = Measures(share=0.3, coverage=0.8, monotony=0.9, ending=0.75)


@dataclass(frozen=True)
class Followed:
    """One utterance, and the scores of a head that follows its text."""

    text: str
    spans: Sequence[Span]
    token_ends: np.ndarray  # [N] in bytes of UTF-8
    scores: np.ndarray  # [T, N]
    audio: np.ndarray  # [samples]
    sample_rate: int
    frame_s: float

    @property
    def before(self) -> np.ndarray:
        """Seconds spent before each token and before the end, [N + 1]."""
        return np.concatenate(([0.0], np.cumsum(frames_spent(self.scores)[0]))) * self.frame_s


def measure(scores: np.ndarray, spans: Sequence[Span], frame_s: float, *, was_cut: bool = False) -> np.ndarray:
    """Return `Measures` of each head [H, 4] in one utterance; scores [T, H, N] are logarithms of attention.

    In an utterance that was cut before its end, `ending` is 0.
    """
    on_path = np.take_along_axis(scores, best_paths(scores)[..., None], axis=2)[..., 0]
    has_read, strongest = scores[:, 0, -1] > UNREAD, scores.argmax(2)
    share = np.exp(on_path[has_read]).sum(0) / max(1, has_read.sum())
    reached = [((strongest >= span.first) & (strongest <= span.last)).any(0) for span in spans]
    is_forward = np.diff(strongest, axis=0, prepend=0) >= 0
    ends = (strongest[-max(1, round(LAST_S / frame_s)) :] >= spans[-1].first).any(0) & (not was_cut)
    return np.stack((share, np.mean(reached, axis=0), is_forward.mean(0), ends), axis=1)


def best_paths(scores: np.ndarray) -> np.ndarray:
    """Return the token of each frame [T, H] on the best path (`path.py`) of each head; scores are [T, H, N]."""
    num_frames, num_heads, num_tokens = scores.shape
    state = np.where(np.arange(num_tokens) < FREE, scores[0], -np.inf)
    advances = np.zeros(scores.shape, np.int8)
    for frame in range(1, num_frames):
        best = state.copy()
        for advance in range(1, min(MAX_ADVANCE, num_tokens - 1) + 1):
            moved = state[:, :-advance] - SKIP_COST * (advance - 1)
            is_better = moved > best[:, advance:]
            best[:, advance:][is_better] = moved[is_better]
            advances[frame, :, advance:][is_better] = advance
        state = best + scores[frame]
    missing = np.maximum(0, num_tokens - FREE - np.arange(num_tokens))
    token, heads = (state - SKIP_COST * missing).argmax(1), np.arange(num_heads)
    path = np.empty((num_frames, num_heads), np.int64)
    for frame in range(num_frames - 1, -1, -1):
        path[frame] = token
        token = token - advances[frame, heads, token]
    return path


def find_shifts(layer: int, head: int, utterances: Sequence[Followed]) -> AlignmentHead:
    """Return a head with its shifts: `shift_ms` from the lag of sonorants' energy, the other two from silences.

    `shift_ms` is 0 if energy does not follow the text's letters, as in scripts other than Latin.
    """
    curve = np.mean([_correlations(each) for each in utterances], axis=0)
    shift_s = float(LAGS_S[curve.argmax()]) - SONORANT_LAG_S if curve.max() >= MIN_CORRELATION else 0.0
    pauses, ends = [], []
    for each in utterances:
        before, sounds = each.before, find_sounds(each.audio, each.sample_rate)
        left = np.array([before[span.last + 1] for span in each.spans[:-1] if span.pauses])
        for sound, _ in pairwise(sounds):
            apart = sound.end_s - left - shift_s
            if len(left) and np.abs(apart).min() < NEAR_PAUSE_S:
                pauses.append(shift_s + apart[np.abs(apart).argmin()])
        ends += [sounds[-1].end_s - before[each.spans[-1].last + 1]] if sounds else []
    pause_s = float(np.median(pauses)) if pauses else shift_s
    end_s = float(np.median(ends)) if ends else pause_s
    return AlignmentHead(layer, head, *map(whole_ms, (shift_s, pause_s, end_s)))


def whole_ms(shift_s: float) -> int:
    """Return a shift in whole milliseconds, within the bounds of `AlignmentHead`."""
    return min(max(round(1000 * shift_s), -MAX_SHIFT_MS), MAX_SHIFT_MS)


def _correlations(each: Followed) -> np.ndarray:
    """Return the correlation of energy with sonorant letters for each of `LAGS_S`."""
    power = window_power(each.audio, each.sample_rate)
    energy = np.log(power + 1e-3 * power.max(initial=0) + 1e-20)
    centre_s = np.arange(len(power)) * HOP_S + WINDOW_S / 2
    plain = [unicodedata.normalize("NFD", letter)[0].lower() in SONORANTS for letter in each.text]
    starts = np.cumsum([0, *(len(letter.encode()) for letter in each.text)])
    letter_s = np.interp(starts, [0, *each.token_ends], each.before)
    found = []
    for lag_s in LAGS_S:
        letter = np.searchsorted(letter_s, centre_s - lag_s, side="right") - 1
        inside = (letter >= 0) & (letter < len(plain))
        pair = np.array(plain, float)[letter[inside]], energy[inside]
        found.append(np.corrcoef(*pair)[0, 1] if all(len(part) > 1 and part.std() > 0 for part in pair) else 0.0)
    return np.array(found)
