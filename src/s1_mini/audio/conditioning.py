"""Prepare a reference recording for the encoder: remove rumble and hum, shorten silences, set the level.

A model imitates everything in a recording: noise below the speech becomes part of the voice, and long silences become
pauses or garbled words. A recording without these faults is returned as it is, to the bit.
All levels in dB are relative to the speech of the recording.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import soxr

from s1_mini.audio.reference import SILENCE
from s1_mini.exceptions import ReferenceAudioError

VERSION = 1  # part of the key of cached encodings; increase it with every change of the results

# Silence. Levels are measured in frames.
FRAME_S = 0.02
LOUD_S = 0.3  # the level of speech is reached in frames of this length in total; a click is shorter
SILENT_DB = -40.0  # frames below are silence; so are frames within the margin above the noise
NOISE_MARGIN_DB, MAX_NOISE_DB = 8.0, -10.0
NOISE_SHARE = 0.1  # of the frames have only noise
JOINS_S, MIN_SOUND_S = 0.2, 0.1  # sounds closer than the first are one; one in silence is a click below the second
MAX_END_S, KEPT_END_S = 0.8, 0.3  # longer silence at an end is cut to the second length
MAX_PAUSE_S, KEPT_PAUSE_S = 1.2, 0.7  # longer silence between sounds is cut to the second length
FADE_S = 0.01

# Rumble and hum, found in the recording at a lower rate.
LOW_RATE = 2_000  # Hz
PAD_S = 0.25
STOP_HZ, PASS_HZ = 50.0, 70.0  # rumble, with the offset, is below the first; no voice is below the second
MAX_RUMBLE_DB = -44.0  # clean speech has -45 to -55
MAINS_HZ, MAX_HUM_HZ = (50.0, 60.0), 900.0
HUM_WINDOW_S = 0.8  # in which amplitude and phase of a line of hum are constant
MAX_HUM_DB, LOUDEST_HUM_DB = -45.0, -6.0  # a louder tone is what was recorded
STEADY = 0.5  # a line of hum has this share of its median amplitude nearly always
NEARLY_ALWAYS = 85  # per cent of the time

MIN_LEVEL, MAX_LEVEL, LEVEL = 0.02, 0.4, 0.1  # RMS of speech; a level outside the first two is set to the third
MAX_GAIN = 100.0  # 40 dB; more would only raise noise

NEAR_PEAK, MAX_NEAR_PEAK = 0.85, 0.03  # clipped speech has more than this share of its samples near the peak
WARN_REMOVED_S, WARN_REMOVED = 1.0, 0.2  # seconds and share of the recording


class Conditioned(NamedTuple):
    """A recording for the encoder, and a warning for the client, which may be empty."""

    wave: np.ndarray
    warning: str


def condition(wave: np.ndarray, sample_rate: int) -> Conditioned:
    """Condition a float32 wave [samples] of at least half a second of speech, at `sample_rate` in Hz.

    Raises `ReferenceAudioError` if only an offset or rumble was recorded.
    """
    warnings = []
    sizes = np.abs(_speech(wave - wave.mean(), sample_rate))
    if np.mean(sizes > NEAR_PEAK * sizes.max()) > MAX_NEAR_PEAK:
        warnings.append("The reference is clipped, which distorts the voice; record it again at a lower level.")
    rumble, hum = _rumble_and_hum(wave, sample_rate)
    clean = wave - rumble if hum is None else wave - rumble - hum
    spans = _kept(clean, sample_rate)
    kept = _joined(clean, spans, sample_rate)
    level = _rms(_speech(kept, sample_rate))
    low_levels = np.sqrt(np.mean(np.square(_frames(_joined(rumble, spans, sample_rate), sample_rate)), axis=1))
    if hum is None and np.median(low_levels) < level * 10 ** (MAX_RUMBLE_DB / 20):
        kept = _joined(wave, spans, sample_rate)
    total_s, kept_s = len(wave) / sample_rate, len(kept) / sample_rate
    if total_s - kept_s >= max(WARN_REMOVED_S, WARN_REMOVED * total_s):
        warnings.append(f"Of the {total_s:.1f} s of the reference, {total_s - kept_s:.1f} s of silence were left out.")
    if np.abs(kept).max(initial=0.0) < SILENCE:
        raise ReferenceAudioError(
            "reference_audio",
            "the recording is silent: its peak without offset and rumble lies below -60 dBFS; check the microphone",
        )
    if not MIN_LEVEL <= level <= MAX_LEVEL:
        kept = kept * np.float32(min(LEVEL / level, MAX_GAIN))
    return Conditioned(kept, " ".join(warnings))


def _rms(wave: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(wave, dtype=np.float64)))) + 1e-9


def _frames(wave: np.ndarray, sample_rate: int) -> np.ndarray:
    """Return whole frames [frames, samples] of a wave."""
    size = round(FRAME_S * sample_rate)
    return wave[: len(wave) // size * size].reshape(-1, size)


def _levels(wave: np.ndarray, sample_rate: int) -> np.ndarray:
    """Return the level of each frame in dB, relative to the speech."""
    levels = 10 * np.log10(np.mean(np.square(_frames(wave, sample_rate), dtype=np.float64), axis=1) + 1e-18)
    loud: np.ndarray = levels - np.sort(levels)[-min(len(levels), round(LOUD_S / FRAME_S))]
    return loud


def _speech(wave: np.ndarray, sample_rate: int) -> np.ndarray:
    """Return the samples of the frames that are not silent."""
    return _frames(wave, sample_rate)[_levels(wave, sample_rate) > SILENT_DB / 2].ravel()


def _rumble_and_hum(wave: np.ndarray, sample_rate: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the part of a wave below the pitch of any voice, and the hum of the mains if there is any."""
    pad = min(len(wave) - 1, round(PAD_S * sample_rate))
    padded = np.pad(wave, pad, "reflect")  # so that filters do not see a step at the ends
    low = soxr.resample(padded, sample_rate, LOW_RATE)
    rumble = _rumble(low)
    own = slice(round(PAD_S * LOW_RATE), -round(PAD_S * LOW_RATE))
    hum = _hum((low - rumble)[own], _rms(_speech(wave - wave.mean(), sample_rate)))

    def at_full_rate(part: np.ndarray) -> np.ndarray:
        return soxr.resample(part, LOW_RATE, sample_rate)[pad : pad + len(wave)].astype(np.float32)

    return at_full_rate(rumble), None if hum is None else at_full_rate(np.pad(hum, round(PAD_S * LOW_RATE)))


def _rumble(low: np.ndarray) -> np.ndarray:
    spectrum, frequencies = np.fft.rfft(low), np.fft.rfftfreq(len(low), 1 / LOW_RATE)
    share = np.clip((PASS_HZ - frequencies) / (PASS_HZ - STOP_HZ), 0, 1)
    return np.fft.irfft(spectrum * np.sin(np.pi / 2 * share) ** 2, len(low))


def _hum(low: np.ndarray, speech: float) -> np.ndarray | None:
    """Return the hum in a wave at `LOW_RATE`, if its level, relative to that of the `speech`, is one of hum."""
    powers = _moving_mean(low**2, round(FRAME_S * LOW_RATE))
    weights = 1 / (powers + np.quantile(powers, NOISE_SHARE) + 1e-12)  # hum is measured between syllables
    loudest, level = None, speech * 10 ** (MAX_HUM_DB / 20)
    for mains_hz in MAINS_HZ:
        hum = np.sum([np.zeros_like(low), *_lines(low, weights, mains_hz)], axis=0)
        if level < _rms(hum) < speech * 10 ** (LOUDEST_HUM_DB / 20):
            loudest, level = hum, _rms(hum)
    return loudest


def _lines(low: np.ndarray, weights: np.ndarray, mains_hz: float) -> Iterator[np.ndarray]:
    """Yield the harmonics of the mains whose amplitude is steady, as that of speech never is."""
    time, size = np.arange(len(low)) / LOW_RATE, round(HUM_WINDOW_S * LOW_RATE)
    divisor = _moving_mean(weights, size)
    for hz in np.arange(mains_hz, MAX_HUM_HZ, mains_hz):
        carrier = np.exp(2j * np.pi * hz * time)
        amplitudes = 2 * _moving_mean(low * weights * carrier.conj(), size) / divisor
        sizes = np.abs(amplitudes)
        steady = np.percentile(sizes, 100 - NEARLY_ALWAYS)
        if steady > STEADY * np.median(sizes):
            # Speech of the same frequency is louder for a moment; it must not be removed.
            yield (amplitudes * carrier).real * np.minimum(1, 1.5 * steady / np.maximum(sizes, 1e-12))


def _moving_mean(values: np.ndarray, size: int) -> np.ndarray:
    """Return the mean around each value, of fewer values at the ends."""
    sums = np.concatenate(([0], np.cumsum(values)))
    places = np.arange(len(values))
    low, high = np.maximum(places - size // 2, 0), np.minimum(places + size // 2 + 1, len(values))
    return (sums[high] - sums[low]) / (high - low)


def _kept(wave: np.ndarray, sample_rate: int) -> list[tuple[int, int]]:
    """Return the spans that remain when long silences, and clicks in them, are cut."""
    sounds = _sounds(wave, sample_rate)
    if not sounds:
        return [(0, len(wave))]
    most_end, end, most_pause, pause = (
        round(seconds * sample_rate) for seconds in (MAX_END_S, KEPT_END_S, MAX_PAUSE_S, KEPT_PAUSE_S)
    )
    first, last = sounds[0][0], sounds[-1][1]
    spans, start = [], first - end if first > most_end else 0
    for (_, stop), (begin, _) in pairwise(sounds):
        if begin - stop > most_pause:
            spans.append((start, stop + pause // 2))
            start = begin - pause // 2
    return [*spans, (start, last + end if len(wave) - last > most_end else len(wave))]


def _joined(wave: np.ndarray, spans: list[tuple[int, int]], sample_rate: int) -> np.ndarray:
    """Return the spans of a wave, which fades in and out where something was cut."""
    if spans == [(0, len(wave))]:
        return wave
    ramp = np.linspace(0, 1, round(FADE_S * sample_rate), dtype=np.float32)
    parts = []
    for start, stop in spans:
        part = wave[start:stop].copy()
        if start:
            part[: len(ramp)] *= ramp
        if stop < len(wave):
            part[-len(ramp) :] *= ramp[::-1]
        parts.append(part)
    return np.concatenate(parts)


def _sounds(wave: np.ndarray, sample_rate: int) -> list[tuple[int, int]]:
    """Return first and end sample of each sound that is surrounded by silence."""
    levels = _levels(wave, sample_rate)
    noise = min(float(np.quantile(levels, NOISE_SHARE)) + NOISE_MARGIN_DB, MAX_NOISE_DB)
    loud = np.flatnonzero(levels > max(SILENT_DB, noise))
    groups = np.split(loud, np.flatnonzero(np.diff(loud) > JOINS_S / FRAME_S) + 1)
    size = round(FRAME_S * sample_rate)
    least = MIN_SOUND_S / FRAME_S
    return [(int(group[0]) * size, int(group[-1] + 1) * size) for group in groups if len(group) >= least]
