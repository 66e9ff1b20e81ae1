"""Training speech of the 24 kHz voice: one loudness, many speakers, no held-out speaker."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from recipes.voice import packages
from recipes.voice.level import PEAK, levelled, loudness
from recipes.voice.passes import norm_snake
from recipes.voice.speakers import HELD_OUT, PITCHES, POOR, Half, Speaker, Styles, held_out_speakers, speaker
from recipes.voice.speech import KEPT_LEAD_S, KEPT_TAIL_S, Studio, Text, _Waiting, resampled, trimmed
from recipes.voice.teacher import Spoken, last_sounds
from recipes.voice.weights import _module_path, _reordered

RATE = 24_000
VOICES = [f"{kind}_{number}" for kind in ("af", "am", "bf", "bm", "jf") for number in range(3)] + [*HELD_OUT, *POOR]


def tone(frequency: float, seconds: float = 3.0, amplitude: float = 1.0) -> torch.Tensor:
    return amplitude * torch.sin(2 * torch.pi * frequency * torch.arange(round(seconds * RATE)) / RATE).unsqueeze(0)


# ---- level -----------------------------------------------------------------------------------------------------------


def test_a_full_tone_of_one_kilohertz_has_the_loudness_that_the_standard_gives_it() -> None:
    assert loudness(tone(997.0), RATE).item() == pytest.approx(-3.01, abs=0.05)
    assert loudness(tone(60.0), RATE).item() < loudness(tone(3000.0), RATE).item() - 4


def test_silence_around_speech_does_not_change_its_loudness() -> None:
    alone = tone(500.0, amplitude=0.1)
    among = F.pad(alone, (RATE * 4, RATE * 4))
    # 0.4: the blocks at both ends are partly silent, and the standard counts them
    assert loudness(among, RATE).item() == pytest.approx(loudness(alone, RATE).item(), abs=0.5)


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


def test_a_style_takes_its_halves_from_two_mixes_and_its_row_from_the_length_of_the_text() -> None:
    tables = {name: torch.randn(510, 256) for name in ("af_a", "bm_b", "jf_c")}
    styles = Styles(tables)
    plain = styles.row(Speaker(Half(("af_a",), (1.0,)), Half(("bm_b",), (1.0,))), 40)
    assert torch.allclose(plain[:128], tables["af_a"][39, :128], atol=1e-6)
    assert torch.allclose(plain[128:], tables["bm_b"][39, 128:], atol=1e-6)
    mean = (tables["af_a"] + tables["bm_b"])[39, :128] / 2
    spread = styles.row(Speaker(Half(("af_a",), (1.0,), 1.5), Half(("bm_b",), (1.0,))), 40)
    assert torch.allclose(spread[:128] - mean, 1.5 * (tables["af_a"][39, :128] - mean), atol=1e-5)


# ---- speech ----------------------------------------------------------------------------------------------------------


def test_resampling_moves_the_pitch_and_shortens_by_the_same_factor() -> None:
    higher = resampled(tone(440.0, 2.0), 1.25)
    assert higher.shape[-1] == round(2 * RATE / 1.25)
    spectrum = torch.fft.rfft(higher).abs()[0]
    assert spectrum.argmax().item() * RATE / higher.shape[-1] == pytest.approx(550.0, abs=1.0)
    assert higher.abs().max().item() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("pitch", PITCHES)
def test_any_length_is_resampled_by_a_transform_without_large_prime_factors(
    pitch: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = []
    transform = torch.fft.rfft
    monkeypatch.setattr(torch.fft, "rfft", lambda x: (lengths.append(x.shape[-1]), transform(x))[1])
    wave = tone(440.0, 2.1)

    higher = resampled(wave, pitch)

    assert higher.shape[-1] == round(wave.shape[-1] / pitch)
    assert all(not length % Fraction(pitch).limit_denominator(100).numerator and not length % 24 for length in lengths)
    later = torch.fft.fft(higher[:, 4000:28000]).abs()[0, :12000]
    assert later.argmax().item() == pytest.approx(440.0 * pitch, abs=1.0)


def test_a_batch_that_exceeds_memory_is_split_in_halves() -> None:
    class Crowded:
        device = torch.device("cpu")

        def speak(self, texts: Sequence[Spoken], num_frames: int) -> torch.Tensor:
            if len(texts) > 2:
                raise RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED")
            return tone(440.0, num_frames / 40).repeat(len(texts), 1)

    studio = Studio(cast("Any", Crowded()), cast("Any", None), 60.0)
    half = Half(("a",), (1.0,))
    nothing = Spoken(torch.zeros(0), torch.zeros(0), torch.zeros(0), torch.zeros(0), 40, 40)
    waiting = [_Waiting(Text(number, "", ""), 0, Speaker(half, half), nothing) for number in range(5)]

    said = list(studio._all_or_halves(waiting, 40))

    assert [one.text for one in said] == list(range(5))


def test_speech_begins_soon_after_the_beginning_and_ends_soon_after_its_end() -> None:
    wave = np.zeros(4 * RATE, np.int16)
    wave[RATE : 2 * RATE] = 5000
    wave[2 * RATE :] = 100
    cut, slope = trimmed(wave), round(KEPT_TAIL_S * RATE)
    assert len(cut) == round(KEPT_LEAD_S * RATE) + RATE + slope - 1
    assert cut[-slope] == 5000
    assert (np.diff(cut[-slope:]) <= 0).all()
    assert cut[-1] == 0


def test_the_last_phoneme_is_found_before_the_mark_and_the_silence_after_it() -> None:
    is_silent = torch.tensor([[True, False, False, True, True], [True, False, True, True, True], [True] * 5])
    assert last_sounds(is_silent).tolist() == [[2], [1], [0]]


def test_a_module_of_the_graph_is_found_by_its_node() -> None:
    assert _module_path("/encoder/F0.0/norm1/fc/Gemm_MatMul_quant") == "predictor.F0.0.norm1.fc"
    assert _module_path("/decoder/decoder/encode/conv1/Conv_quant") == "decoder.encode.conv1"
    assert _module_path("/encoder/text_encoder/cnn.0/cnn.0.0/Conv_quant") == "text_encoder.cnn.0.0"
    assert _reordered(np.array([0, 1, 2, 3], np.float32)).tolist() == [0, 2, 3, 1]  # i o f c becomes i f c o


def test_the_norm_of_the_generator_is_instance_norm_then_snake() -> None:
    x, style, alpha = torch.randn(2, 6, 1, 50), torch.randn(2, 12), torch.rand(6) + 0.5
    scale, shift = style[:, :, None].chunk(2, dim=1)
    normed = (1 + scale) * F.instance_norm(x.squeeze(2) + 1) + shift
    expected = normed + torch.sin(alpha[:, None] * normed).square() / alpha[:, None]
    assert torch.allclose(norm_snake(x.clone(), style, alpha, torch.ones_like(x)).squeeze(2), expected, atol=1e-5)


def test_every_package_is_pinned_by_its_hash_and_a_file_with_another_is_refused(tmp_path: Path) -> None:
    lines = Path(packages.__file__).with_name("packages.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w-]+==[\d.]+ --hash=sha256:[0-9a-f]{64}", pin) for pin in pins)

    (tmp_path / packages.VOICES).write_bytes(b"other")
    with pytest.raises(SystemExit, match="does not have the hash"):
        packages.check(tmp_path / packages.VOICES, packages.VOICES_SHA256)
