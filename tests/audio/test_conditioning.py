"""Faults of a recording do not reach the encoder, and a recording without faults reaches it unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import soundfile

from s1_mini.audio.conditioning import MAX_END_S, MAX_PAUSE_S, condition
from s1_mini.exceptions import ReferenceAudioError

RATE = 24_000
SPEECH, _ = soundfile.read(Path(__file__).parents[2] / "docs" / "voice" / "reference.wav", dtype="float32")
LEVEL = 0.16  # RMS of the speech in it


def silence(seconds: float, level: float = 0.0) -> np.ndarray:
    return noise(round(seconds * RATE)) * np.float32(level)


def noise(size: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(size).astype(np.float32)


def noise_floor(wave: np.ndarray) -> float:
    """Return the RMS of the quietest tenth of a recording."""
    return float(np.quantile(np.sqrt(np.mean(wave[: len(wave) // 480 * 480].reshape(-1, 480) ** 2, axis=1)), 0.1))


def sine(hz: float, size: int = len(SPEECH)) -> np.ndarray:
    return np.sin(2 * np.pi * hz * np.arange(size) / RATE, dtype=np.float32)


def difference(wave: np.ndarray) -> float:
    """Return the level of the difference from the plain speech, relative to the speech."""
    return float(np.sqrt(np.mean((wave - SPEECH) ** 2))) / LEVEL


@pytest.mark.parametrize(
    "wave",
    [
        SPEECH,
        0.3 * SPEECH,
        1.8 * SPEECH,
        SPEECH + silence(len(SPEECH) / RATE, 1e-3),
        np.concatenate([silence(MAX_END_S - 0.15), SPEECH]),
        np.concatenate([SPEECH[:-14_400], silence(MAX_PAUSE_S - 0.4), SPEECH]),
    ],
    ids=["speech", "soft", "loud", "noisy", "short silence", "short pause"],
)
def test_a_recording_without_faults_is_unchanged_to_the_bit(wave: np.ndarray) -> None:
    wave = wave.astype(np.float32)
    conditioned, warning = condition(wave, RATE)

    assert np.array_equal(conditioned, wave)
    assert warning == ""


@pytest.mark.parametrize("seconds", [(5, 0), (0, 5), (5, 5), (25, 30)])
@pytest.mark.parametrize("level", [0.0, 1e-3, 0.04])
def test_silence_at_the_ends_is_left_out_with_a_warning(seconds: tuple[int, int], level: float) -> None:
    before, after = seconds
    quiet = noise(len(SPEECH) + (before + after) * RATE) * np.float32(level)

    wave, warning = condition(np.concatenate([silence(before), SPEECH, silence(after)]) + quiet, RATE)

    assert 1.5 * RATE < len(wave) <= len(SPEECH) + 0.5 * RATE
    assert re.fullmatch(
        rf"Of the {2.68 + before + after:.1f} s of the reference, .* s of silence were left out.", warning
    )


def test_clicks_in_silence_are_left_out() -> None:
    click = noise(480) * np.exp(-np.arange(480, dtype=np.float32) / 80)
    gap = silence(2, 1e-4)

    wave, _ = condition(np.concatenate([gap, click, gap, SPEECH, gap, click, gap]), RATE)

    assert len(wave) <= len(SPEECH)
    assert np.abs(wave).max() <= np.abs(SPEECH).max()


def test_long_pauses_between_words_are_shortened_and_the_words_stay() -> None:
    wave, warning = condition(np.concatenate([SPEECH, silence(4), SPEECH, silence(3), SPEECH]), RATE)

    assert 3 * 1.7 * RATE < len(wave) < 3 * len(SPEECH)
    assert np.sum(wave**2) == pytest.approx(3 * np.sum(SPEECH**2), rel=0.001)
    assert "s of silence were left out" in warning


@pytest.mark.parametrize("offset", [0.01, -0.1, 0.5])
def test_an_offset_is_removed(offset: float) -> None:
    wave, warning = condition(SPEECH + np.float32(offset), RATE)

    assert warning == ""
    assert abs(wave.mean()) < 1e-4
    assert difference(wave) < 0.02


def test_an_offset_does_not_hide_silence() -> None:
    wave, _ = condition(np.concatenate([silence(5), SPEECH, silence(5)]) + np.float32(0.1), RATE)

    assert len(wave) <= len(SPEECH)
    assert noise_floor(wave) < 1e-3


@pytest.mark.parametrize("hz", [7.0, 20.0, 45.0])
@pytest.mark.parametrize("level", [0.01, 0.1])
def test_rumble_is_removed(hz: float, level: float) -> None:
    wave, _ = condition(SPEECH + np.float32(level) * sine(hz), RATE)

    assert difference(wave) < 0.02
    assert noise_floor(wave) < 1e-3


@pytest.mark.parametrize("mains_hz", [50.0, 60.0, 49.95, 60.04])
@pytest.mark.parametrize("level", [0.004, 0.05])
def test_hum_of_the_mains_is_removed_with_its_harmonics(mains_hz: float, level: float) -> None:
    hum = sum(np.float32(0.7**k) * sine(mains_hz * (k + 1)) for k in range(6)) * np.float32(level)

    wave, _ = condition(SPEECH + hum, RATE)

    assert noise_floor(wave) < 0.2 * noise_floor(SPEECH + hum)
    assert difference(wave) < 0.5 * difference(SPEECH + hum)


@pytest.mark.parametrize("gain", [0.01, 0.05, 10.0, 40.0])
def test_a_level_far_from_that_of_speech_is_corrected(gain: float) -> None:
    wave, _ = condition(np.float32(gain) * SPEECH, RATE)

    assert np.sqrt(np.mean(wave**2)) == pytest.approx(0.1 * np.sqrt(np.mean(SPEECH**2)) / LEVEL, rel=0.1)


@pytest.mark.parametrize("gain", [3, 10])
def test_clipping_causes_a_warning(gain: int) -> None:
    _, warning = condition(np.clip(gain * SPEECH, -0.5, 0.5).astype(np.float32), RATE)

    assert warning == "The reference is clipped, which distorts the voice; record it again at a lower level."


@pytest.mark.parametrize("wave", [noise(RATE // 2), np.eye(1, RATE, 500, dtype=np.float32)[0], 0.1 * noise(60 * RATE)])
def test_any_sound_remains_a_recording(wave: np.ndarray) -> None:
    conditioned, _ = condition(wave, RATE)

    assert len(conditioned) >= RATE // 2
    assert conditioned.dtype == np.float32
    assert np.isfinite(conditioned).all()


@pytest.mark.parametrize("noise", [0.0, 1e-4], ids=str)
def test_a_muted_microphone_with_an_offset_is_silent(noise: float) -> None:
    wave = (0.3 + noise * np.random.default_rng(0).standard_normal(5 * 24_000)).astype(np.float32)

    with pytest.raises(ReferenceAudioError, match="the recording is silent"):
        condition(wave, 24_000)
