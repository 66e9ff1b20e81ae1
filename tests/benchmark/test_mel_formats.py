"""Reduced-precision formats of a mel model are compared with float32 on the same frames."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmark.mel_formats import FORMATS, main, mel_cepstral_distortion
from commands import Command
from s1_mini.families.mel.random import write_random_checkpoint


def test_the_command_reports_the_error_of_every_format(tmp_path: Path, command: Command) -> None:
    write_random_checkpoint(tmp_path / "tiny", form="published")

    code, _, output, _ = command(
        main, "--device cpu --text Hello.", checkpoint=tmp_path / "tiny", output=tmp_path / "it.json"
    )

    assert code == 0
    assert json.loads((tmp_path / "it.json").read_text()) == output
    found = {one["name"]: one["distance"] for one in output["formats"]}
    assert [*found] == [each.name for each in FORMATS]
    assert 0 < found["float16"] < found["bfloat16"] < found["bfloat16, fp8 weights"] < 0.2


def test_distortion_is_of_the_shape_of_a_spectrum_and_not_of_its_level() -> None:
    mel = np.random.default_rng(0).normal(size=(20, 80))
    wave = np.cos(np.pi * 3 * (np.arange(80) + 0.5) / 80)  # the third cepstral coefficient

    assert mel_cepstral_distortion(mel, mel) == 0
    assert mel_cepstral_distortion(mel, mel + 1) == pytest.approx(0, abs=1e-9)
    assert mel_cepstral_distortion(mel, mel + 0.1 * wave) == pytest.approx(10 * 2**0.5 * 0.1, rel=1e-6)
