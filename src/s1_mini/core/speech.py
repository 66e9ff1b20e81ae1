"""What a request gives: its utterances joined into one stream of sound, and how its listener fares.

The thread that makes its next sound writes to it, of which there is one at a time, and whoever ends the request.
"""

from __future__ import annotations

import math

import numpy as np

from s1_mini.audio.join import Joiner
from s1_mini.core.output_queue import OutputQueue
from s1_mini.core.stage import Spec
from s1_mini.types import AudioChunk, FinishReason, Timing

NEVER = float("inf")
NOTHING = np.zeros(0, np.float32)
WINDOW_S = 30.0  # unread audio of a stream from which its next utterances are not begun


class Speech:
    """The sound of one request on its way to a listener. Times are seconds of one monotonic clock."""

    def __init__(self, queue: OutputQueue, *, sample_rate: int, arrived: float, is_streamed: bool = False) -> None:
        self.queue, self.is_streamed, self._arrived = queue, is_streamed, arrived
        self.first_sent: float | None = None
        self.sent_s = 0.0
        self.runs_dry = NEVER  # when the listener will have heard all of it; never, if nobody listens
        self.underruns = 0  # chunks that came after the listener had heard all before them
        self._sample_rate, self._joiner = sample_rate, Joiner(sample_rate=sample_rate)
        self._bytes_per_s: float = NOTHING.itemsize * sample_rate
        self.set_window(WINDOW_S if is_streamed else NEVER)  # a whole response is read at its end

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for the first sound."""
        return self.is_streamed and self.first_sent is None

    def set_window(self, seconds: float) -> None:
        """Set how much audio may be unread before the request is paused."""
        self.window_s = seconds
        self._window_bytes = seconds * self._bytes_per_s

    @property
    def unread_s(self) -> float:
        """Seconds of audio that the consumer has not taken."""
        return self.queue.unread_bytes / self._bytes_per_s

    @property
    def is_full(self) -> bool:
        """Whether more than the window is unread."""
        return self.queue.unread_bytes > self._window_bytes

    def push(self, wave: np.ndarray, items: int, now: float) -> None:
        """Give out what `items` items of the last stage but one became."""
        self._put(self._joiner.push(wave), items, now)

    def end_utterance(self, now: float) -> None:
        """Give out what was held back; another utterance follows."""
        self._put(self._joiner.end_piece(), 0, now)

    def finish(self, reason: FinishReason, now: float, *, queue_s: float | None, prefill_s: float | None) -> None:
        """Give out the last chunk, with the reason of the end and where the first seconds went."""
        wave = NOTHING if reason == "cancelled" else self._joiner.finish()
        self._count(wave, now)
        first_s = None if self.first_sent is None else self.first_sent - self._arrived
        timing = Timing(queue_s, prefill_s, first_s)
        self.queue.put(AudioChunk(wave, self._sample_rate, 0, reason, timing))

    def _put(self, wave: np.ndarray, items: int, now: float) -> None:
        self._count(wave, now)
        self.queue.put(AudioChunk(wave, self._sample_rate, items))

    def _count(self, wave: np.ndarray, now: float) -> None:
        """Count sound; a listener who had run dry before it goes on with it now."""
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


class Outlet(Speech):
    """Gives out the items of a stage as they are, and counts the seconds of speech that they are."""

    def __init__(self, queue: OutputQueue, made: Spec, *, arrived: float, is_streamed: bool) -> None:
        super().__init__(queue, sample_rate=max(1, round(made.rate)), arrived=arrived, is_streamed=is_streamed)
        self._nothing = np.zeros((0, *made.shape), made.dtype)
        self._bytes_per_s = max(1.0, made.rate * np.dtype(made.dtype).itemsize * math.prod(made.shape))
        self.set_window(self.window_s)

    def push(self, wave: np.ndarray, items: int, now: float) -> None:
        """Give out what a stage made of so many items; it is copied, for the stage may use that memory again."""
        self._put(np.array(wave), items, now)

    def finish(self, reason: FinishReason, now: float, *, queue_s: float | None, prefill_s: float | None) -> None:  # noqa: ARG002
        """Give out the reason of the end."""
        self.queue.put(AudioChunk(self._nothing, self._sample_rate, 0, reason))
