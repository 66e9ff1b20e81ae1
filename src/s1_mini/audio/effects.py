"""Speed, gain and sample rate of a request's audio, applied to a stream. The output does not depend on the chunks."""

from __future__ import annotations

import numpy as np
import soxr

FRAME_S = 0.02  # output hop of the time stretch; windows overlap by half
SEARCH_S = 0.01  # how far a window may be moved to match the waveform before it
SEARCH_RATE = 12_000  # Hz; approximate rate of the samples from which the similarity of windows is computed
MAX_PEAK = 10 ** (-1 / 20)  # -1 dBTP, the limit of EBU R 128
BLOCK_S = 0.005  # look-ahead of the limiter
RELEASE = 10 ** (0.25 / 20)  # per block: 50 dB per second
OVERSAMPLING, TAPS = 4, 12  # true-peak meter: 4 × oversampling as in ITU-R BS.1770-4; filter samples on each side
NOTHING = np.zeros(0, np.float32)


class Effects:
    """Changes the speed, then the gain, then the rate of a float wave [samples] at `sample_rate` in Hz."""

    def __init__(self, sample_rate: int, *, speed: float, gain_db: float, output_rate: int | None) -> None:
        self.sample_rate = output_rate or sample_rate
        self._steps: list[Stretch | Limiter | Resampler] = []
        if speed != 1:
            self._steps.append(Stretch(sample_rate, speed))
        if gain_db:
            self._steps.append(Limiter(sample_rate, gain_db))
        if self.sample_rate != sample_rate:
            self._steps.append(Resampler(sample_rate, self.sample_rate))

    def feed(self, wave: np.ndarray, *, is_last: bool = False) -> np.ndarray:
        """Return the samples that can be played now, possibly none; all remaining ones with `is_last`."""
        for step in self._steps:
            wave = step.feed(wave, is_last=is_last)
        return wave


class Resampler:
    """Resamples with soxr at high quality."""

    def __init__(self, sample_rate: int, output_rate: int) -> None:
        self._stream = soxr.ResampleStream(sample_rate, output_rate, 1, dtype="float32")

    def feed(self, wave: np.ndarray, *, is_last: bool) -> np.ndarray:
        resampled: np.ndarray = self._stream.resample_chunk(wave.astype(np.float32, copy=False), last=is_last)
        return resampled


class Stretch:
    """Changes the speed and keeps the pitch: WSOLA (Verhelst and Roelands, ICASSP 1993).

    Windows of the input are overlapped at a fixed hop. Window k begins near k × hop × speed, at the place that best
    matches the continuation of the previous window.
    """

    def __init__(self, sample_rate: int, speed: float) -> None:
        self._speed, self._hop = speed, round(sample_rate * FRAME_S)
        self._search = round(sample_rate * SEARCH_S)
        self._stride = max(1, round(sample_rate / SEARCH_RATE))
        ramp = np.arange(self._hop, dtype=np.float32) / self._hop
        self._fade_in = (0.5 - 0.5 * np.cos(np.pi * ramp)).astype(np.float32)
        self._input, self._begins = NOTHING, 0  # kept input, and the index of its first sample
        self._num_fed = self._num_sent = self._windows = 0
        self._next = 0  # input position of the last window's natural continuation
        self._tail = NOTHING  # second half of the last window, before it is faded out

    def feed(self, wave: np.ndarray, *, is_last: bool) -> np.ndarray:
        self._num_fed += len(wave)
        self._input = np.concatenate((self._input, wave))
        length = round(self._num_fed / self._speed)  # length of the whole output, if this is the last wave
        if is_last:  # silence after the end completes the last windows
            self._input = np.concatenate((self._input, np.zeros(2 * (self._hop + self._search), np.float32)))
        parts: list[np.ndarray] = []
        while self._num_sent < length if is_last else self._can_go_on():
            parts.append(self._window())
            self._num_sent += len(parts[-1])
        output = np.concatenate(parts) if parts else NOTHING
        return output[: len(output) - max(0, self._num_sent - length)] if is_last else output

    def _place(self) -> int:
        return round(self._windows * self._hop * self._speed)

    def _can_go_on(self) -> bool:
        needed = max(self._place() + self._search, self._next) + 2 * self._hop
        return needed <= self._begins + len(self._input)

    def _window(self) -> np.ndarray:
        """Return the next hop of output."""
        hop, start = self._hop, self._start()
        window = self._cut(start, 2 * hop)
        tail = self._tail if self._windows else window[:hop]
        output: np.ndarray = tail + (window[:hop] - tail) * self._fade_in
        self._windows += 1
        self._tail, self._next = window[hop:], start + hop
        unused = min(self._next, self._place() - self._search) - self._begins
        if unused > 0:
            self._input, self._begins = self._input[unused:], self._begins + unused
        return output

    def _start(self) -> int:
        """Return the start of the window that best continues the last one."""
        low = max(self._begins, self._place() - self._search)
        if not self._windows:
            return 0
        target = self._tail[:: self._stride]
        room = self._cut(low, 2 * self._search + self._hop)[:: self._stride]
        similarity = np.correlate(room, target, "valid")
        energy = np.concatenate(([0.0], np.cumsum(np.square(room, dtype=np.float64))))
        power = energy[len(target) :] - energy[: len(energy) - len(target)]
        return low + self._stride * int(np.argmax(similarity / np.sqrt(power + 1e-9)))

    def _cut(self, start: int, count: int) -> np.ndarray:
        """Return `count` samples of the input, with silence after its end."""
        part = self._input[start - self._begins :][:count]
        return part if len(part) == count else np.concatenate((part, np.zeros(count - len(part), np.float32)))


class Limiter:
    """Multiplies by a gain. A gain above 0 dB is lowered where the true peak would exceed -1 dBTP.

    The gain changes linearly within a block. At both ends of the block, it is at most the gain that the block allows.
    """

    def __init__(self, sample_rate: int, gain_db: float) -> None:
        self._gain, self._block = 10 ** (gain_db / 20), round(sample_rate * BLOCK_S)
        self._input = NOTHING  # not yet sent
        self._context = np.zeros(TAPS, np.float32)  # samples before `_input`
        self._node = self._gain  # gain at the start of `_input`
        self._here: float | None = None  # gain that the first block of `_input` allows, once known
        self._ramp = np.arange(self._block, dtype=np.float32) / self._block

    def feed(self, wave: np.ndarray, *, is_last: bool) -> np.ndarray:
        if self._gain <= 1:
            return wave * np.float32(self._gain)
        self._input = np.concatenate((self._input, wave))
        size, length = self._block, len(self._input)
        if is_last:
            self._input = np.concatenate((self._input, np.zeros(2 * size + TAPS, np.float32)))
        parts: list[np.ndarray] = []
        while len(self._input) >= 2 * size + TAPS:
            known = np.concatenate((self._context, self._input[: 2 * size + TAPS]))
            here = self._allowed(known[: size + 2 * TAPS]) if self._here is None else self._here
            after = self._allowed(known[size:])
            begin, end = min(self._node, here), min(here, after, self._node * RELEASE)
            parts.append(self._input[:size] * (np.float32(begin) + np.float32(end - begin) * self._ramp))
            self._context, self._input = known[size : size + TAPS], self._input[size:]
            self._node, self._here = end, after
        output = np.concatenate(parts) if parts else NOTHING
        return output[:length] if is_last else output

    def _allowed(self, known: np.ndarray) -> float:
        """Return the gain that a block allows; `known` has `TAPS` additional samples on both sides."""
        between = np.lib.stride_tricks.sliding_window_view(known, 2 * TAPS + 1) @ INTERPOLATORS
        return min(self._gain, MAX_PEAK / max(float(np.abs(between).max()), 1e-9))


def _interpolators() -> np.ndarray:
    """Return windowed sinc filters [2 × TAPS + 1, OVERSAMPLING] that interpolate between two samples."""
    places = np.arange(-TAPS, TAPS + 1)[:, None] + np.arange(OVERSAMPLING) / OVERSAMPLING
    return (np.sinc(places) * np.cos(np.pi * places / (2 * TAPS + 2)) ** 2).astype(np.float32)


INTERPOLATORS = _interpolators()
