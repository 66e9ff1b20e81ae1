"""Training speech of the 24 kHz voice: one loudness, many speakers, no held-out speaker."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from recipes.voice import packages
from recipes.voice.level import PEAK, levelled, loudness
from recipes.voice.speakers import HELD_OUT, POOR, held_out_speakers, speaker
from recipes.voice.speech import KEPT_LEAD_S, KEPT_TAIL_S, resampled, trimmed

RATE = 24_000
VOICES = [f"{kind}_{number}" for kind in ("af", "am", "bf", "bm", "jf") for number in range(3)] + [*HELD_OUT, *POOR]


def tone(frequency: float, seconds: float = 3.0, amplitude: float = 1.0) -> torch.Tensor:
    return amplitude * torch.sin(2 * torch.pi * frequency * torch.arange(round(seconds * RATE)) / RATE).unsqueeze(0)


# ---- level -----------------------------------------------------------------------------------------------------------


def test_a_full_tone_of_one_kilohertz_has_the_loudness_that_the_standard_gives_it() -> None:
    assert loudness(tone(997.0), RATE).item() == pytest.approx(-3.01, abs=0.05)
    assert loudness(tone(60.0), RATE).item() < loudness(tone(3000.0), RATE).item() - 4


def test_levelled_waves_are_equally_loud_and_within_bounds() -> None:
    rows = torch.cat((tone(300.0, amplitude=0.02), tone(700.0, amplitude=0.9), torch.zeros(1, 3 * RATE)))
    made = levelled(rows, RATE, target=-20.0)
    assert loudness(made, RATE)[:2].tolist() == pytest.approx([-20.0, -20.0], abs=0.05)
    assert not made[2].any()
    assert levelled(rows[:2], RATE, target=0.0).abs().max() <= PEAK


# ---- speakers --------------------------------------------------------------------------------------------------------


def test_no_training_speaker_has_anything_of_a_held_out_voice() -> None:
    for index in range(500):
        who = speaker(index, VOICES)
        assert not {*who.sound.voices, *who.talk.voices} & {*HELD_OUT, *POOR}
        assert all(voice[0] in "ab" for voice in who.talk.voices)
    assert {v for who in held_out_speakers() for v in (*who.sound.voices, *who.talk.voices)} == set(HELD_OUT)
    assert len(set(held_out_speakers())) == 16


def test_a_speaker_is_always_the_same_and_differs_from_the_next() -> None:
    assert speaker(7, VOICES) == speaker(7, VOICES[::-1])
    assert len({speaker(index, VOICES) for index in range(50)}) == 50


# ---- speech ----------------------------------------------------------------------------------------------------------


def test_resampling_moves_the_pitch_and_shortens_by_the_same_factor() -> None:
    higher = resampled(tone(440.0, 2.0), 1.25)
    assert higher.shape[-1] == round(2 * RATE / 1.25)
    spectrum = torch.fft.rfft(higher).abs()[0]
    assert spectrum.argmax().item() * RATE / higher.shape[-1] == pytest.approx(550.0, abs=1.0)
    assert higher.abs().max().item() == pytest.approx(1.0, abs=0.05)


def test_speech_begins_soon_after_the_beginning_and_ends_soon_after_its_end() -> None:
    wave = np.zeros(4 * RATE, np.int16)
    wave[RATE : 2 * RATE] = 5000
    wave[2 * RATE :] = 100
    cut, slope = trimmed(wave), round(KEPT_TAIL_S * RATE)
    assert len(cut) == round(KEPT_LEAD_S * RATE) + RATE + slope - 1
    assert cut[-slope] == 5000
    assert (np.diff(cut[-slope:]) <= 0).all()
    assert cut[-1] == 0


def test_every_package_is_pinned_by_its_hash_and_a_file_with_another_is_refused(tmp_path: Path) -> None:
    lines = Path(packages.__file__).with_name("packages.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w-]+==[\d.]+ --hash=sha256:[0-9a-f]{64}", pin) for pin in pins)

    (tmp_path / packages.VOICES).write_bytes(b"other")
    with pytest.raises(SystemExit, match="does not have the hash"):
        packages.check(tmp_path / packages.VOICES, packages.VOICES_SHA256)
