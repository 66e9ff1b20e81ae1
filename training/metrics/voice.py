"""Whose voice is it: pitch and spectral envelope of one recording, independent of what is said in it.

Frames overlap: `WINDOW` samples every `HOP`. Only voiced frames are looked at: loud enough, and periodic.
Waves are mono, int16 or float in [-1, 1], at 16 kHz. Knows numpy only. `evaluate.py` calls it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RATE_HZ = 16_000
HOP = 160  # 10 ms
WINDOW = 640  # 40 ms: two periods of 50 Hz
MIN_F0_HZ, MAX_F0_HZ = 55.0, 420.0
MAX_APERIODICITY = 0.3  # of YIN's normalised difference: kal16, a diphone voice, lies above the usual 0.2
MIN_LOUDNESS = 0.1  # of the loud frames' root mean square: 20 dB below them a frame is a pause or a breath
FFT = 2048
NUM_BANDS = 40  # mel bands
BAND_LIMITS_HZ = (80.0, 7200.0)
NUM_CEPSTRA = 20  # of 40: what is finer is harmonics, thus pitch, not vocal tract


@dataclass(frozen=True)
class VoicePrint:
    """What a recording tells about its speaker."""

    median_f0_hz: float  # NaN if nothing in it is voiced
    envelope: Floats  # [NUM_BANDS] in dB about their mean; NaN if nothing is voiced

    @property
    def log_f0(self) -> float:
        """Natural logarithm of the median F0 in Hz: 0.1 apart are about 10 %."""
        return float(np.log(self.median_f0_hz))


def voice_print(wave_16k: NDArray[np.generic]) -> VoicePrint:
    """Measure median F0 in Hz and mean mel envelope in dB over the voiced frames of one recording."""
    wave = as_float(wave_16k)
    f0, voiced = track_f0(wave)
    if not voiced.any():
        return VoicePrint(float("nan"), np.full(NUM_BANDS, np.nan))
    return VoicePrint(float(np.median(f0[voiced])), _envelope(wave, voiced))


def median_f0(wave_16k: NDArray[np.generic]) -> float:
    """Measure the median fundamental frequency of the voiced frames in Hz; NaN if there are none."""
    return voice_print(wave_16k).median_f0_hz


def envelope_distance(one: VoicePrint, other: VoicePrint) -> float:
    """Root mean square difference of two envelopes in dB; NaN where one recording has no voice.

    Four flite voices x formant factors 0.92, 1, 1.09, six texts: one speaker 2.0 (median), two voices 5.0; a recording
    lies nearer to its own speaker's other text than to another voice's in 98 % of all triples.
    """
    return float(np.sqrt(np.mean((one.envelope - other.envelope) ** 2)))


def track_f0(wave: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Follow the fundamental frequency in Hz, frame by frame, and tell which frames are voiced.

    YIN (de Cheveigné and Kawahara, 2002, doi 10.1121/1.1458024): the first lag whose cumulative mean normalised
    difference falls below the threshold, refined by a parabola.
    """
    lags = np.arange(int(RATE_HZ / MAX_F0_HZ), int(RATE_HZ / MIN_F0_HZ) + 2)
    frames = _frames(wave, WINDOW + int(lags[-1]))  # a window, and the window that each lag compares it to
    difference = _difference(frames, int(lags[-1]))
    mean = np.cumsum(difference[:, 1:], axis=1) / np.arange(1, difference.shape[1])
    normalised = np.ones_like(difference)
    np.divide(difference[:, 1:], mean, out=normalised[:, 1:], where=mean > 0)

    best = _first_dip(normalised[:, lags]) + lags[0]
    rows = np.arange(len(frames))
    left, middle, right = (normalised[rows, np.clip(best + step, 0, lags[-1])] for step in (-1, 0, 1))
    curve = left - 2 * middle + right
    shift = np.divide(left - right, 2 * curve, out=np.zeros_like(curve), where=np.abs(curve) > 1e-9)
    loudness = np.sqrt(np.mean(frames[:, :WINDOW] ** 2, axis=1))
    loud = loudness > max(MIN_LOUDNESS * float(np.percentile(loudness, 95)), 1e-4)
    return RATE_HZ / (best + np.clip(shift, -0.5, 0.5)), loud & (middle < MAX_APERIODICITY)


def as_float(wave: NDArray[np.generic]) -> Floats:
    """Bring int16 samples to [-1, 1]; leave float ones."""
    scale = 32768.0 if np.issubdtype(wave.dtype, np.integer) else 1.0
    return wave.astype(np.float64) / scale


def _frames(wave: Floats, length: int) -> Floats:
    wave = np.pad(wave, (0, max(0, length - len(wave))))
    return np.lib.stride_tricks.sliding_window_view(wave, length)[::HOP]


def _difference(frames: Floats, max_lag: int) -> Floats:
    """Squared difference of each frame's first `WINDOW` samples to those `lag` later, for lags 0 to `max_lag`."""
    size = 2 ** int(np.ceil(np.log2(frames.shape[1] + WINDOW)))
    spectrum = np.fft.rfft(frames, size) * np.conj(np.fft.rfft(frames[:, :WINDOW], size))
    product = np.fft.irfft(spectrum, size)[:, : max_lag + 1]
    energy = np.cumsum(np.pad(frames**2, ((0, 0), (1, 0))), axis=1)
    power = energy[:, WINDOW : WINDOW + max_lag + 1] - energy[:, : max_lag + 1]
    return np.maximum(power[:, :1] + power - 2 * product, 0.0)


def _first_dip(normalised: Floats) -> NDArray[np.intp]:
    """Index of the first local minimum below the threshold, else of the deepest one."""
    below = normalised < MAX_APERIODICITY
    rising = np.diff(normalised, axis=1, append=np.inf) >= 0
    dips = below & rising
    chosen: NDArray[np.intp] = np.where(dips.any(axis=1), dips.argmax(axis=1), normalised.argmin(axis=1))
    return chosen


def _envelope(wave: Floats, voiced: NDArray[np.bool_]) -> Floats:
    frames = _frames(wave, WINDOW)[: len(voiced)][voiced]
    power = np.abs(np.fft.rfft(frames * np.hanning(WINDOW), FFT)) ** 2
    bands = power @ _mel_bands().T
    decibels = 10 * np.log10(bands + 1e-6 * bands.max())  # 60 dB below the loudest is nothing
    envelope: Floats = _smoother() @ decibels.mean(axis=0)
    return envelope


@cache
def _smoother() -> Floats:
    """Matrix [bands, bands] that keeps cepstral coefficients 1 to `NUM_CEPSTRA`: no level, no harmonics."""
    index = np.arange(NUM_BANDS)
    basis = np.cos(np.pi * np.arange(1, NUM_CEPSTRA + 1)[:, None] * (index + 0.5) / NUM_BANDS) * np.sqrt(2 / NUM_BANDS)
    smoother: Floats = basis.T @ basis
    return smoother


@cache
def _mel_bands() -> Floats:
    """Triangular filters [bands, bins] of equal area, evenly spaced in mel (O'Shaughnessy: 2595 log10(1 + f/700))."""
    low, high = (2595 * np.log10(1 + np.array(BAND_LIMITS_HZ) / 700)).tolist()
    edges = 700 * (10 ** (np.linspace(low, high, NUM_BANDS + 2) / 2595) - 1)
    bins = np.fft.rfftfreq(FFT, 1 / RATE_HZ)
    rise = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    filters = np.maximum(0.0, np.minimum(rise, fall))
    scaled: Floats = filters / filters.sum(axis=1, keepdims=True)
    return scaled
