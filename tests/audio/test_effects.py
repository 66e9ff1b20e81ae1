"""Speed, gain and sample rate: the same audio in any chunks, with the promised length, pitch and peaks."""

from __future__ import annotations

import numpy as np
import pytest
import soxr

from s1_mini.audio.effects import Effects

RATE = 24_000


def glide(seconds: float = 1.0) -> np.ndarray:
    """A voiced sound of 120 to 180 Hz with harmonics and a slow beat."""
    time = np.arange(int(RATE * seconds)) / RATE
    phase = 2 * np.pi * (120 * time + 30 * time**2 / seconds)
    wave = sum(np.sin(number * phase) / number for number in range(1, 12))
    return (0.2 * wave * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * time))).astype(np.float32)


def tone(hz: float) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hz * np.arange(RATE) / RATE)).astype(np.float32)


@pytest.mark.parametrize("size", [1, 333, 2048, RATE])
@pytest.mark.parametrize(
    "options",
    [
        {"speed": 0.5},
        {"speed": 1.3},
        {"speed": 4.0},
        {"gain_db": -7.0},
        {"gain_db": 12.0},
        {"output_rate": 8_000},
        {"output_rate": 44_100},
        {"speed": 0.8, "gain_db": 9.0, "output_rate": 16_000},
    ],
    ids=str,
)
def test_a_stream_has_the_samples_of_the_whole(options: dict[str, float], size: int) -> None:
    wave = glide(0.2 if size == 1 else 1.0)
    expected = effects(**options).feed(wave, is_last=True)

    streamed = effects(**options)
    parts = [streamed.feed(wave[start : start + size]) for start in range(0, len(wave), size)]
    parts.append(streamed.feed(wave[:0], is_last=True))

    assert np.array_equal(np.concatenate(parts), expected)


@pytest.mark.parametrize("speed", [0.25, 0.75, 1.5, 4.0])
def test_speed_changes_the_length_and_keeps_the_pitch(speed: float) -> None:
    wave = tone(220.0)

    changed = effects(speed=speed).feed(wave, is_last=True)

    assert len(changed) == round(len(wave) / speed)
    spectrum = np.abs(np.fft.rfft(changed))
    assert np.argmax(spectrum) * RATE / len(changed) == pytest.approx(220, abs=5)
    assert np.sqrt(np.mean(changed**2)) == pytest.approx(np.sqrt(np.mean(wave**2)), rel=0.05)


def test_a_gain_is_exact_as_long_as_no_peak_exceeds_the_limit() -> None:
    wave = 0.2 * glide()

    louder = effects(gain_db=6.0).feed(wave, is_last=True)

    assert np.allclose(louder, wave * 10 ** (6 / 20), atol=1e-6)


@pytest.mark.parametrize("gain_db", [6.0, 20.0])
def test_a_gain_never_exceeds_the_true_peak_limit(gain_db: float) -> None:
    louder = effects(gain_db=gain_db).feed(glide(), is_last=True)

    true_peak = np.abs(soxr.resample(louder, RATE, 4 * RATE)).max()
    assert 20 * np.log10(true_peak) <= -0.8


def effects(*, speed: float = 1.0, gain_db: float = 0.0, output_rate: float | None = None) -> Effects:
    rate = None if output_rate is None else int(output_rate)
    return Effects(RATE, speed=speed, gain_db=gain_db, output_rate=rate)
