"""Conversion makes a checkpoint smaller, keeps its audio, and never leaves a partial file."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.exceptions import CheckpointError, CheckpointFileError, CheckpointMismatchError
from s1_mini.families.base import Conversion
from s1_mini.families.s1.random import RECIPES, write_random_checkpoint
from s1_mini.packaging.write import convert_checkpoint, lay_out, write_prefix
from s1_mini.types import Voice
from s1_mini.voices.library import CheckpointVoices, write_voice
from voice_formats import BOOKS, voice_format


def speak(checkpoint: Path) -> np.ndarray:
    with ProductionTTSEngine(EngineConfig(checkpoint_path=checkpoint, device="cpu")) as engine:
        return engine.generate("Same voice.", seed=1, max_new_tokens=12).audio


def test_a_converted_checkpoint_is_smaller_and_speaks_alike(published: Path, tmp_path: Path) -> None:
    exact = tmp_path / "exact"

    sizes = convert_checkpoint(published, exact, Conversion(codec_precision="float32"))

    assert sizes["codec.safetensors"] < (published / "codec.pth").stat().st_size / 2
    assert np.abs(speak(exact) - speak(published)).max() < 1e-5


def test_codec_rounding_spares_the_tensors_that_determine_codes(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s1_mini.weights.convert.SMALL", 512)

    convert_checkpoint(published, tmp_path / "half")

    tensors = load_file(tmp_path / "half" / "codec.safetensors")
    assert tensors["decoder.model.0.conv.weight"].dtype == torch.float16
    assert tensors["quantizer.semantic_quantizer.quantizers.0.codebook.weight"].dtype == torch.float32
    assert tensors["decoder.model.0.conv.bias"].dtype == torch.float32


def test_values_exact_in_half_precision_are_stored_in_it(published: Path, tmp_path: Path) -> None:
    convert_checkpoint(published, tmp_path / "half")
    before = load_file(tmp_path / "half" / "codec.safetensors")
    exact = {name: tensor.half() for name, tensor in before.items()}
    shutil.copytree(tmp_path / "half", tmp_path / "source")
    save_file(exact, tmp_path / "source" / "codec.safetensors")

    convert_checkpoint(tmp_path / "source", tmp_path / "target")

    after = load_file(tmp_path / "target" / "codec.safetensors")
    assert {tensor.dtype for tensor in after.values()} == {torch.float16}
    assert all(torch.equal(after[name], exact[name]) for name in exact)


def test_named_voices_are_converted_too(published: Path, tmp_path: Path) -> None:
    shutil.copytree(published, tmp_path / "source")
    (tmp_path / "source" / "voices").mkdir()
    codes = torch.zeros(BOOKS, 4, dtype=torch.int64)
    write_voice(tmp_path / "source" / "voices", "anna", Voice({"codes": codes}, "Hello."), is_default=True)

    convert_checkpoint(tmp_path / "source", tmp_path / "target")

    assert CheckpointVoices.open(tmp_path / "target", voice_format()).default.text == "Hello."


def test_converting_twice_changes_nothing(published: Path, tmp_path: Path) -> None:
    convert_checkpoint(published, tmp_path / "once")
    convert_checkpoint(tmp_path / "once", tmp_path / "twice")

    for name in ("model.safetensors", "codec.safetensors", "codec_config.json"):
        assert (tmp_path / "once" / name).read_bytes() == (tmp_path / "twice" / name).read_bytes()


def test_a_decode_only_checkpoint_works_but_refuses_references(
    published: Path, tmp_path: Path, tone: np.ndarray
) -> None:
    convert_checkpoint(published, tmp_path / "half", Conversion(decode_only=True))

    with ProductionTTSEngine(EngineConfig(checkpoint_path=tmp_path / "half", device="cpu")) as engine:
        assert engine.generate("Hello.", max_new_tokens=4).success
        with pytest.raises(CheckpointMismatchError, match="has no encoder weights"):
            engine.generate("Hello.", reference_audio=tone)


@pytest.mark.parametrize("write", [convert_checkpoint, lambda source, target: write_prefix(lay_out(source), target)])
def test_nothing_is_left_behind_when_the_weights_contradict_their_config(
    write: Callable[[Path, Path], object], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    write_random_checkpoint(source, RECIPES["tiny"])
    text = (source / "config.json").read_text()
    (source / "config.json").write_text(text.replace('"n_layer": 3', '"n_layer": 4'))

    with pytest.raises(CheckpointMismatchError, match=r"layers\.3\.attention"):
        write(source, tmp_path / "target")

    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_an_existing_directory_is_never_overwritten(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")

    with pytest.raises(CheckpointFileError, match="already exists"):
        convert_checkpoint(tiny, tmp_path / "mine")

    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_a_directory_that_cannot_be_made_is_named_with_the_reason_alone(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(CheckpointFileError) as raised:
        convert_checkpoint(tiny, tmp_path / "file" / "new")

    assert str(raised.value) == f"{tmp_path / 'file' / 'new'} cannot be written: {os.strerror(errno.EEXIST)}"


def test_a_directory_that_is_not_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a checkpoint directory"):
        convert_checkpoint(tmp_path / "nowhere", tmp_path / "target")
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        convert_checkpoint(tmp_path, tmp_path / "target")
