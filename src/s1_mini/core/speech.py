"""The audio of a request: joins its utterances into one stream, and estimates when the client runs out of audio.

Only one thread writes at a time: the thread that generates the next audio, or the thread that ends the request.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from s1_mini.alignment.head import AlignedFrames
from s1_mini.arrays import copied, copy_bytes
from s1_mini.core.output_queue import OutputQueue
from s1_mini.core.stage import Spec
from s1_mini.types import JOINT_S, AudioChunk, FinishReason, Timing

NEVER = float("inf")
NOTHING = np.zeros(0, np.float32)
UNREAD_S = 30.0  # a stream with more unread audio is paused
WINDOW_S, QUIET = 0.01, 10 ** (-38 / 20)  # windows this much below the loudest one are silence
QUIET_LEVEL = 0.003  # level of silence at the beginning, -50 dBFS
RESERVE_S = 0.1  # silence that is left for the beginning of a piece


class Joiner:
    """Joins waves [samples] of pieces without clicks: pieces fade in and out, with pauses between them.

    Call `push` for each wave, `end_piece` after each piece except the last, and `finish` after the last piece. The
    output does not depend on how a piece is divided into waves. An empty piece adds no pause of its own.

    A pause is all silence from the end of the sound in one piece to the sound in the next piece: the silence of the
    pieces is shortened or extended. Windows of 10 ms that are 38 dB below the loudest one of the piece are silence. Of
    the silence after a sound, only what exceeds the pause is held back, until there is another sound.
    """

    def __init__(
        self,
        *,
        sample_rate: int,
        fade_ms: float = 5.0,
        pauses: Sequence[float | None] = (),
        fades_cuts_only: bool = False,
    ) -> None:
        """`pauses[n]` is the pause in seconds before piece n; the last one, that after the last piece.

        None, or no entry: the silence of the pieces stays as it is, and `JOINT_S` of silence is added between two.
        `fades_cuts_only`: pieces fade only where silence is cut off.
        """
        self._fades_all = not fades_cuts_only
        self._pauses = [None if seconds is None else round(seconds * sample_rate) for seconds in pauses]
        self._ramp = _raised_cosine(round(sample_rate * fade_ms / 1000))
        self._window = max(1, round(sample_rate * WINDOW_S))
        self._joint, self._reserve = round(sample_rate * JOINT_S), round(sample_rate * RESERVE_S)
        self._number = 0  # of the piece
        self._num_joined = 0  # number of samples that were returned
        self._before = self._pause(0)  # pause before the piece; None: it is not measured
        self._kept = 0  # samples of that pause that were returned already
        self._quiet = QUIET_LEVEL  # level of the silence at the beginning of the piece
        self._joins = False  # whether there was a piece before
        self.place = 0  # of the piece's first sample in the output, even if that sample is cut off; see `is_placed`
        self.stop = 0  # end of the piece, once it is finished; samples after it are cut off
        self._begin()

    def _begin(self) -> None:
        self.is_placed = False  # whether the place of the piece is known
        self._held = NOTHING  # the last samples of the piece, which may have to be faded out or cut off
        self._first = self._start = 0  # the first sample of the piece that is not cut off; that of `_held`
        self._num_measured = 0  # samples whose level is known
        self._onset, self._end = 0, 0  # begin and end of all sounds so far; the end is 0 without any
        self._loudest = 0.0  # level of the loudest window

    def push(self, wave: np.ndarray) -> np.ndarray:
        """Add samples of the piece; return the samples that can be played now, possibly none."""
        if len(wave) == 0:
            return NOTHING
        known = np.empty(len(self._held) + len(wave), np.float32)
        copy_bytes(known[: len(self._held)], self._held)
        copy_bytes(known[len(self._held) :], np.ascontiguousarray(wave, np.float32))
        self._held = known
        self._measure()
        if not self.is_placed and self._before is not None and not self._end:
            return NOTHING
        silence, after = self._silence(), self._pause(self._number + 1)
        allowed = None if after is None else after - self._reserved(after)
        return self._joined(silence, self._take(self._stop(allowed) - len(self._ramp)))

    def end_piece(self) -> np.ndarray:
        """Return the samples that were held back, faded out. Another piece follows."""
        pause = self._pause(self._number + 1)
        if self._is_empty:
            wave = NOTHING
            if pause is not None and self._before is not None:
                self._before = max(self._before, pause)
        else:
            wave = self._finish_piece(None if pause is None else pause - self._reserved(pause))
            self._before, self._quiet, self._joins = pause, self._loudest * QUIET, True
        self._number += 1
        self._begin()
        return wave

    def finish(self) -> np.ndarray:
        """Return the samples that were held back, faded out, and the silence at the end."""
        pause = self._pause(self._number + 1)
        wave = NOTHING if self._is_empty else self._finish_piece(pause)
        if pause is not None:
            wave = self._joined(wave, np.zeros(max(0, pause - self._kept), np.float32))
        self._number, self._before, self._kept, self._joins = self._number + 1, None, 0, False
        self._begin()
        return wave

    @property
    def _is_empty(self) -> bool:
        return not self._start and not len(self._held)

    def _pause(self, number: int) -> int | None:
        return self._pauses[number] if number < len(self._pauses) else None

    def _reserved(self, pause: int) -> int:
        """Return the samples of a pause that are left for the beginning of the next piece, where a sound may be low."""
        return min(self._reserve, pause // 2)

    def _measure(self, *, is_whole: bool = False) -> None:
        """Find the sounds in the samples so far, if they matter; in the last window only if the piece `is_whole`."""
        if self._pause(self._number + 1) is None and (self.is_placed or self._before is None):
            return
        num_known = self._start + len(self._held)
        num_windows = (num_known - self._num_measured) // self._window
        if num_windows:
            self._find_sounds(self._num_measured + num_windows * self._window, self._window)
        if is_whole and num_known > self._num_measured:
            self._find_sounds(num_known, num_known - self._num_measured)

    def _find_sounds(self, stop: int, window: int) -> None:
        known = self._held[self._num_measured - self._start : stop - self._start].reshape(-1, window)
        levels = np.sqrt(np.mean(np.square(known, dtype=np.float64), axis=1))
        loudest = np.maximum.accumulate(np.maximum(levels, self._loudest))
        is_loud = levels > loudest * QUIET
        if self._before is not None and not self._end:
            is_loud &= np.logical_or.accumulate(levels > self._quiet)
        loud = np.flatnonzero(is_loud)
        if len(loud):
            if not self._end:
                self._onset = self._num_measured + int(loud[0]) * window
            self._end = self._num_measured + (int(loud[-1]) + 1) * window
        self._loudest, self._num_measured = float(loudest[-1]), stop

    def _silence(self) -> np.ndarray:
        """Return the rest of the pause before the piece, and cut off the silence at its beginning; only once."""
        if self.is_placed:
            return NOTHING
        if self._before is None:
            missing = self._joint if self._joins else 0
        else:
            missing = max(0, self._before - self._kept)
            kept = min(self._onset, missing)
            missing, self._first = missing - kept, self._onset - kept
        self.is_placed, self.place = True, self._num_joined + missing - self._first
        self._held, self._start, self._kept = self._held[self._first :], self._first, 0
        return np.zeros(missing, np.float32)

    def _stop(self, allowed: int | None) -> int:
        """Return the end of the piece if no sound follows and this much silence is allowed after the last one."""
        if allowed is None:
            return self._start + len(self._held)
        return self._end + min(self._num_measured - self._end, allowed) if self._end else self._num_measured

    def _take(self, stop: int) -> np.ndarray:
        """Return the next samples of the piece, up to `stop`."""
        count = max(0, stop - self._start)
        wave, self._held = self._held[:count], copied(self._held[count:])
        if self._fades_all or self._first:
            ramp = self._ramp[self._start - self._first :][:count]
            wave[: len(ramp)] *= ramp
        self._start += count
        return wave

    def _finish_piece(self, allowed: int | None) -> np.ndarray:
        self._measure(is_whole=True)
        silence = self._silence()
        self.stop = self._stop(allowed)
        wave = self._take(self.stop)
        faded = min(len(wave), len(self._ramp)) if self._fades_all or len(self._held) else 0
        wave[len(wave) - faded :] *= self._ramp[:faded][::-1]
        self._kept = 0 if allowed is None or not self._end else self.stop - self._end
        return self._joined(silence, wave)

    def _joined(self, *waves: np.ndarray) -> np.ndarray:
        parts = [wave for wave in waves if len(wave)]
        self._num_joined += sum(map(len, parts))
        return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else NOTHING


@lru_cache
def _raised_cosine(num_samples: int) -> np.ndarray:
    """Return weights [num_samples] that rise from 0 to just below 1."""
    return (0.5 - 0.5 * np.cos(np.pi * np.arange(num_samples) / max(1, num_samples))).astype(np.float32)


class AudioOutput:
    """The audio stream of one request. All times are in seconds, from the same monotonic clock."""

    def __init__(
        self,
        queue: OutputQueue,
        *,
        sample_rate: int,
        arrived: float,
        is_streamed: bool = False,
    ) -> None:
        self.queue, self.is_streamed, self._arrived = queue, is_streamed, arrived
        self.first_sent: float | None = None
        self.sent_s = 0.0
        self.runs_dry = NEVER  # time when a client that plays the stream in real time has played all audio sent so far
        self.underruns = 0  # number of chunks that were sent after the client had played all earlier audio
        self._sample_rate, self._joiner = sample_rate, Joiner(sample_rate=sample_rate)
        self._pauses: deque[Sequence[float | None]] = deque()  # of the parts that follow
        self._utterance = 0
        self._scored: list[tuple[np.ndarray, np.ndarray]] = []  # scores with their waves that were not sent yet
        self._has_scores = False  # whether the utterance has scores
        self._bytes_per_s: float = NOTHING.itemsize * sample_rate
        # Unread audio at which the request is paused; a whole response may be read only at its end.
        self.window_s = UNREAD_S if is_streamed else NEVER

    def begin(self, pauses: Sequence[Sequence[float | None]]) -> None:
        """Set the pauses of each part: those of `Joiner`, one for each of its utterances, and one for its end."""
        self._pauses = deque(pauses)
        self._begin_part()

    def _begin_part(self) -> None:
        pauses = self._pauses.popleft() if self._pauses else ()
        self._joiner, self._utterance = Joiner(sample_rate=self._sample_rate, pauses=pauses), 0

    @property
    def is_awaited(self) -> bool:
        return self.is_streamed and self.first_sent is None

    @property
    def unread_s(self) -> float:
        return self.queue.unread_bytes / self._bytes_per_s

    @property
    def is_full(self) -> bool:
        return self.queue.unread_bytes > self.window_s * self._bytes_per_s

    def push(self, wave: np.ndarray, items: int, now: float, scores: np.ndarray | None = None) -> None:
        """Send the audio of `items` items of the last stage's input, with their attention scores if given."""
        ready = self._joiner.push(wave.reshape(-1))
        if scores is not None:
            self._has_scores = True
            self._scored.append((scores, np.array(wave, np.float32)))
        self._put(ready, items, now, self._frames() if self._joiner.is_placed else None)

    def end_utterance(self, now: float, *, was_cut: bool = False, ends_part: bool = False) -> None:
        """Send the audio that was held back. Another utterance follows; at the end of a part, in the next part.

        The last chunk of a part has a finish reason.
        """
        wave = self._joiner.finish() if ends_part else self._joiner.end_piece()
        frames = self._frames(is_last=True, was_cut=was_cut)
        self._count(wave, now)
        self.queue.put(AudioChunk(wave, self._sample_rate, 0, "stop" if ends_part else None), frames)
        if ends_part:
            self._begin_part()

    def finish(self, reason: FinishReason, now: float, timing: Timing, *, was_cut: bool = False) -> None:
        wave = NOTHING if reason == "cancelled" else self._joiner.finish()
        self._count(wave, now)
        first_s = None if self.first_sent is None else self.first_sent - self._arrived
        timing = replace(timing, first_chunk_s=first_s)
        frames = self._frames(is_last=True, was_cut=was_cut)
        self.queue.put(AudioChunk(wave, self._sample_rate, 0, reason, timing), frames)

    def _frames(self, *, is_last: bool = False, was_cut: bool = False) -> AlignedFrames | None:
        """Return the scores that were not sent before; at the end of an utterance with scores, also none."""
        utterance, scored, has_scores = self._utterance, self._scored, self._has_scores
        self._scored = []
        if is_last:
            self._utterance, self._has_scores = utterance + 1, False
        if not (scored or (is_last and has_scores)):
            return None
        scores, waves = zip(*scored, strict=True) if scored else ((), ())
        place, stop = self._joiner.place, self._joiner.stop if is_last else 0
        return AlignedFrames(scores, waves, utterance, place, stop, is_last=is_last, was_cut=was_cut)

    def _put(self, wave: np.ndarray, items: int, now: float, frames: AlignedFrames | None = None) -> None:
        self._count(wave, now)
        self.queue.put(AudioChunk(wave, self._sample_rate, items), frames)

    def _count(self, wave: np.ndarray, now: float) -> None:
        """Count sent audio, and update `runs_dry`. After an underrun, playback is assumed to resume now."""
        if not len(wave):
            return
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

    def push(self, wave: np.ndarray, items: int, now: float, scores: np.ndarray | None = None) -> None:  # noqa: ARG002
        """Send a copy of the stage's items, because the stage may reuse their memory."""
        self._put(np.array(wave), items, now)

    def finish(self, reason: FinishReason, now: float, timing: Timing, *, was_cut: bool = False) -> None:  # noqa: ARG002
        self.queue.put(AudioChunk(self._nothing, self._sample_rate, 0, reason))
