"""The audio of a request: its utterances joined into one stream, and the duration that the client has yet to play.

Written by one thread at a time: the one that generates the next audio, or the one that ends the request.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from s1_mini.alignment.head import AlignedFrames
from s1_mini.core.output_queue import OutputQueue
from s1_mini.core.stage import Spec
from s1_mini.types import JOINT_S, AudioChunk, FinishReason, Timing

NEVER = float("inf")
NOTHING = np.zeros(0, np.float32)
WINDOW_S = 30.0  # with more unread audio, a stream is paused


class Joiner:
    """Joins waves [samples] of sentence pieces without clicks: each piece fades in and out, with a pause between.

    The output does not depend on how the waves are chunked; only samples that may be faded out are held back. Call
    `push` for each wave, `end_piece` after each piece, `finish` after the last. A pause is sent with the first sample
    of the next piece, so none follows the last piece or an empty one.
    """

    def __init__(self, *, sample_rate: int, fade_ms: float = 5.0, pause_ms: float = 1000 * JOINT_S) -> None:
        self._ramp = _raised_cosine(round(sample_rate * fade_ms / 1000))
        self._num_paused = round(sample_rate * pause_ms / 1000)
        self._held = NOTHING  # the last samples of the piece, faded in, not yet faded out
        self._num_pushed = 0  # samples of the piece
        self._pause_is_due = False

    @property
    def num_before(self) -> int:
        """Samples of the pause that will precede the next samples."""
        return self._num_paused if self._pause_is_due else 0

    def push(self, wave: np.ndarray) -> np.ndarray:
        """Add samples of the piece; return the samples that can be played now, possibly none."""
        if len(wave) == 0:
            return NOTHING
        pause = self.num_before
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
        """Return the samples held back, faded out; a pause will precede the next piece."""
        tail: np.ndarray = self._held * self._ramp[: len(self._held)][::-1]
        self._pause_is_due = self._pause_is_due or self._num_pushed > 0
        self._held, self._num_pushed = NOTHING, 0
        return tail

    def finish(self) -> np.ndarray:
        """Return the samples held back, faded out; a new stream may begin."""
        tail = self.end_piece()
        self._pause_is_due = False
        return tail


@lru_cache
def _raised_cosine(num_samples: int) -> np.ndarray:
    """Weights from 0 to just below 1, [num_samples]."""
    return (0.5 - 0.5 * np.cos(np.pi * np.arange(num_samples) / max(1, num_samples))).astype(np.float32)


class AudioOutput:
    """The audio stream of one request. Times are seconds of one monotonic clock."""

    def __init__(self, queue: OutputQueue, *, sample_rate: int, arrived: float, is_streamed: bool = False) -> None:
        self.queue, self.is_streamed, self._arrived = queue, is_streamed, arrived
        self.first_sent: float | None = None
        self.sent_s = 0.0
        self.runs_dry = NEVER  # when a client that plays a stream in real time has played everything
        self.underruns = 0  # chunks that arrived after the client had played everything before them
        self._sample_rate, self._joiner = sample_rate, Joiner(sample_rate=sample_rate)
        self._num_sent = 0  # samples
        self._utterance = 0
        self._frames: AlignedFrames | None = None  # the last ones of the utterance
        self._bytes_per_s: float = NOTHING.itemsize * sample_rate
        self.set_window(WINDOW_S if is_streamed else NEVER)  # a whole response is read at its end

    @property
    def is_awaited(self) -> bool:
        return self.is_streamed and self.first_sent is None

    def set_window(self, seconds: float) -> None:
        self.window_s = seconds
        self._window_bytes = seconds * self._bytes_per_s

    @property
    def unread_s(self) -> float:
        return self.queue.unread_bytes / self._bytes_per_s

    @property
    def is_full(self) -> bool:
        return self.queue.unread_bytes > self._window_bytes

    def push(self, wave: np.ndarray, items: int, now: float, scores: np.ndarray | None = None) -> None:
        """Send the audio of `items` items of the second-to-last stage, and their attention scores, if there are any."""
        frames = None
        if scores is not None:
            start = self._num_sent + self._joiner.num_before if self._frames is None else self._frames.start
            frames = self._frames = AlignedFrames(scores, self._utterance, start)
        self._put(self._joiner.push(wave), items, now, frames)

    def end_utterance(self, now: float, *, was_cut: bool = False) -> None:
        """Send the audio held back for joining; another utterance follows."""
        self._put(self._joiner.end_piece(), 0, now, self._end_frames(was_cut=was_cut))

    def finish(
        self,
        reason: FinishReason,
        now: float,
        *,
        queue_s: float | None,
        prefill_s: float | None,
        was_cut: bool = False,
    ) -> None:
        wave = NOTHING if reason == "cancelled" else self._joiner.finish()
        self._count(wave, now)
        first_s = None if self.first_sent is None else self.first_sent - self._arrived
        timing = Timing(queue_s, prefill_s, first_s)
        self.queue.put(AudioChunk(wave, self._sample_rate, 0, reason, timing), self._end_frames(was_cut=was_cut))

    def _end_frames(self, *, was_cut: bool) -> AlignedFrames | None:
        last, self._frames = self._frames, None
        self._utterance += 1
        return None if last is None else last._replace(scores=last.scores[:0], is_last=True, was_cut=was_cut)

    def _put(self, wave: np.ndarray, items: int, now: float, frames: AlignedFrames | None = None) -> None:
        self._count(wave, now)
        self.queue.put(AudioChunk(wave, self._sample_rate, items), frames)

    def _count(self, wave: np.ndarray, now: float) -> None:
        """Count audio; after an underrun, playback resumes now."""
        if not len(wave):
            return
        self._num_sent += len(wave)
        seconds = len(wave) / self._sample_rate
        if self.first_sent is None:
            self.first_sent = now
        elif now > self.runs_dry:
            self.underruns += 1
        self.sent_s += seconds
        if self.is_streamed:
            self.runs_dry = seconds + (now if self.runs_dry == NEVER else max(self.runs_dry, now))


class Outlet(AudioOutput):
    """Sends the items of a stage unchanged, and counts the seconds of speech that they stand for."""

    def __init__(self, queue: OutputQueue, made: Spec, *, arrived: float, is_streamed: bool) -> None:
        super().__init__(queue, sample_rate=max(1, round(made.rate)), arrived=arrived, is_streamed=is_streamed)
        self._nothing = np.zeros((0, *made.shape), made.dtype)
        self._bytes_per_s = max(1.0, made.rate * np.dtype(made.dtype).itemsize * math.prod(made.shape))
        self.set_window(self.window_s)

    def push(self, wave: np.ndarray, items: int, now: float, scores: np.ndarray | None = None) -> None:  # noqa: ARG002
        """Send a copy of a stage's output, because the stage may reuse the memory."""
        self._put(np.array(wave), items, now)

    def finish(
        self,
        reason: FinishReason,
        now: float,  # noqa: ARG002
        *,
        queue_s: float | None,  # noqa: ARG002
        prefill_s: float | None,  # noqa: ARG002
        was_cut: bool = False,  # noqa: ARG002
    ) -> None:
        self.queue.put(AudioChunk(self._nothing, self._sample_rate, 0, reason))
