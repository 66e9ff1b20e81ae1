"""Joins the waves of successive sentence pieces into one stream: each piece fades in and out, a pause between.

Works on samples as they come and holds back only what the next fade-out may need. Knows no text and no format.
The engine owns one `Joiner` per request.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

NOTHING = np.zeros(0, np.float32)


class Joiner:
    """One stream of float32 waves [samples] without clicks, however the waves are chunked on the way in.

    `push` sound as it is made, `end_piece` after each piece, `finish` after the last (with or without its own
    `end_piece`). The pause before a piece is given out with its first sample, so none follows the last piece and
    none stands for an empty one. After `finish` a new stream may begin.
    """

    def __init__(self, *, sample_rate: int, fade_ms: float = 5.0, pause_ms: float = 120.0) -> None:
        self._ramp = _raised_cosine(round(sample_rate * fade_ms / 1000))
        self._num_paused = round(sample_rate * pause_ms / 1000)
        self._held = NOTHING  # the last samples of the piece, faded in, not yet faded out
        self._num_pushed = 0  # samples of the piece
        self._pause_is_due = False

    def push(self, wave: np.ndarray) -> np.ndarray:
        """Take the next samples of the piece; return what may be played now, perhaps nothing."""
        if len(wave) == 0:
            return NOTHING
        pause = self._num_paused if self._pause_is_due else 0
        self._pause_is_due = False

        begins = pause + len(self._held)
        known = np.empty(begins + len(wave), np.float32)
        known[:pause] = 0.0
        known[pause:begins] = self._held
        known[begins:] = wave
        ramp = self._ramp[self._num_pushed :][: len(wave)]
        known[begins : begins + len(ramp)] *= ramp
        self._num_pushed += len(wave)
        num_ready = max(pause, len(known) - len(self._ramp))
        self._held = known[num_ready:].copy()
        return known[:num_ready]

    def end_piece(self) -> np.ndarray:
        """End the piece; return its held-back samples, faded out. A pause will precede the next piece."""
        tail: np.ndarray = self._held * self._ramp[: len(self._held)][::-1]
        self._pause_is_due = self._pause_is_due or self._num_pushed > 0
        self._held, self._num_pushed = NOTHING, 0
        return tail

    def finish(self) -> np.ndarray:
        """End the stream; return the samples still held back, faded out. No pause follows."""
        tail = self.end_piece()
        self._pause_is_due = False
        return tail


@lru_cache
def _raised_cosine(num_samples: int) -> np.ndarray:
    """Weights from 0 to just below 1, [num_samples]."""
    return (0.5 - 0.5 * np.cos(np.pi * np.arange(num_samples) / max(1, num_samples))).astype(np.float32)
