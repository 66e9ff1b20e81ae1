"""The audio of a request: joins its utterances into one stream, and estimates when the client runs out of audio.

Only one thread writes at a time: the thread that generates the next audio, or the thread that ends the request.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from s1_mini.alignment.head import AlignedFrames
from s1_mini.arrays import copy_bytes
from s1_mini.core.output_queue import OutputQueue
from s1_mini.core.stage import Spec
from s1_mini.types import JOINT_S, AudioChunk, FinishReason, Timing

NEVER = float("inf")
NOTHING = np.zeros(0, np.float32)
WINDOW_S = 30.0  # a stream with more unread audio is paused


class Joiner:
    """Joins waves [samples] of sentence pieces without clicks: pieces fade in and out, with pauses between them.

    Call `push` for each wave, `end_piece` after each piece except the last, and `finish` after the last piece. The
    output does not depend on how a piece is divided into waves. Only samples that may have to be faded out are held
    back. A pause is output with the first sample of the next piece, so that no pause follows the last piece, and an
    empty piece adds no pause.
    """

    def __init__(self, *, sample_rate: int, fade_ms: float = 5.0, pause_ms: float = 1000 * JOINT_S) -> None:
        self._ramp = _raised_cosine(round(sample_rate * fade_ms / 1000))
        self._num_paused = round(sample_rate * pause_ms / 1000)
        self._held = NOTHING  # the last samples of the piece, which may have to be faded out
        self._num_pushed = 0  # number of samples of the piece so far
        self._pause_is_due = False

    @property
    def num_before(self) -> int:
        """Number of samples of the pause that will precede the next samples."""
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
        copy_bytes(known[begins:], np.ascontiguousarray(wave, np.float32))
        ramp = self._ramp[self._num_pushed :][: len(wave)]
        known[begins : begins + len(ramp)] *= ramp
        self._num_pushed += len(wave)
        num_ready = max(pause, len(known) - len(self._ramp))
        self._held = known[num_ready:].copy()
        return known[:num_ready]

    def end_piece(self) -> np.ndarray:
        """Return the samples that were held back, faded out. A pause will precede the next piece."""
        tail: np.ndarray = self._held * self._ramp[: len(self._held)][::-1]
        self._pause_is_due = self._pause_is_due or self._num_pushed > 0
        self._held, self._num_pushed = NOTHING, 0
        return tail

    def finish(self) -> np.ndarray:
        """Return the samples that were held back, faded out. The next piece begins a new stream, without a pause."""
        tail = self.end_piece()
        self._pause_is_due = False
        return tail


@lru_cache
def _raised_cosine(num_samples: int) -> np.ndarray:
    """Return weights [num_samples] that rise from 0 to just below 1."""
    return (0.5 - 0.5 * np.cos(np.pi * np.arange(num_samples) / max(1, num_samples))).astype(np.float32)


class AudioOutput:
    """The audio stream of one request. All times are in seconds, from the same monotonic clock."""

    def __init__(self, queue: OutputQueue, *, sample_rate: int, arrived: float, is_streamed: bool = False) -> None:
        self.queue, self.is_streamed, self._arrived = queue, is_streamed, arrived
        self.first_sent: float | None = None
        self.sent_s = 0.0
        self.runs_dry = NEVER  # time when a client that plays the stream in real time has played all audio sent so far
        self.underruns = 0  # number of chunks that were sent after the client had played all earlier audio
        self._sample_rate, self._joiner = sample_rate, Joiner(sample_rate=sample_rate)
        self._num_sent = 0  # samples
        self._utterance = 0
        self._frames: AlignedFrames | None = None  # of the last chunk of the utterance
        self._bytes_per_s: float = NOTHING.itemsize * sample_rate
        self.set_window(WINDOW_S if is_streamed else NEVER)  # a whole response may be read only at its end

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
        """Send the audio of `items` items of the last stage's input, with their attention scores if given."""
        frames = None
        if scores is not None:
            start = self._num_sent + self._joiner.num_before if self._frames is None else self._frames.start
            frames = self._frames = AlignedFrames(scores, self._utterance, start)
        self._put(self._joiner.push(wave), items, now, frames)

    def end_utterance(self, now: float, *, was_cut: bool = False) -> None:
        """Send the audio that was held back. Another utterance follows."""
        self._put(self._joiner.end_piece(), 0, now, self._end_frames(was_cut=was_cut))

    def finish(self, reason: FinishReason, now: float, timing: Timing, *, was_cut: bool = False) -> None:
        wave = NOTHING if reason == "cancelled" else self._joiner.finish()
        self._count(wave, now)
        first_s = None if self.first_sent is None else self.first_sent - self._arrived
        timing = replace(timing, first_chunk_s=first_s)
        self.queue.put(AudioChunk(wave, self._sample_rate, 0, reason, timing), self._end_frames(was_cut=was_cut))

    def _end_frames(self, *, was_cut: bool) -> AlignedFrames | None:
        last, self._frames = self._frames, None
        self._utterance += 1
        return None if last is None else last._replace(scores=last.scores[:0], is_last=True, was_cut=was_cut)

    def _put(self, wave: np.ndarray, items: int, now: float, frames: AlignedFrames | None = None) -> None:
        self._count(wave, now)
        self.queue.put(AudioChunk(wave, self._sample_rate, items), frames)

    def _count(self, wave: np.ndarray, now: float) -> None:
        """Count sent audio, and update `runs_dry`. After an underrun, playback is assumed to resume now."""
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
    """The output of a request whose consumer gets a stage's items instead of audio; counts their seconds of speech."""

    def __init__(self, queue: OutputQueue, made: Spec, *, arrived: float, is_streamed: bool) -> None:
        super().__init__(queue, sample_rate=max(1, round(made.rate)), arrived=arrived, is_streamed=is_streamed)
        self._nothing = np.zeros((0, *made.shape), made.dtype)
        self._bytes_per_s = max(1.0, made.rate * np.dtype(made.dtype).itemsize * math.prod(made.shape))
        self.set_window(self.window_s)

    def push(self, wave: np.ndarray, items: int, now: float, scores: np.ndarray | None = None) -> None:  # noqa: ARG002
        """Send a copy of the stage's items, because the stage may reuse their memory."""
        self._put(np.array(wave), items, now)

    def finish(self, reason: FinishReason, now: float, timing: Timing, *, was_cut: bool = False) -> None:  # noqa: ARG002
        self.queue.put(AudioChunk(self._nothing, self._sample_rate, 0, reason))
