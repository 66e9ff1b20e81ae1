"""Eight-bit weights: half the bytes, the same voice."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.codecs.dac.weights import open_dac
from s1_mini.exceptions import CheckpointMismatchError, ParameterError
from s1_mini.families.base import Conversion
from s1_mini.families.registry import get_family
from s1_mini.families.s1 import weights as s1_weights
from s1_mini.layers.quantized import QuantizedLinear
from s1_mini.packaging.write import convert_checkpoint
from s1_mini.runtime.loader import load


@pytest.fixture(scope="module")
def quantized(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint, all its tables and kernels in eight bits."""
    target = tmp_path_factory.mktemp("quantized") / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(s1_weights, "_MIN_QUANTIZED", 256)
        convert_checkpoint(published, target, Conversion(precision="int8", codec_precision="int8"))
    return target


def speak(checkpoint: Path) -> np.ndarray:
    with ProductionTTSEngine(EngineConfig(checkpoint_path=checkpoint, device="cpu")) as engine:
        return engine.generate("Same voice.", seed=1, max_new_tokens=12).audio


@pytest.mark.parametrize(("shape", "is_int8"), [((2**14, 2), False), ((2**14, 3), True), ((2**14,), False)])
def test_rows_that_their_scale_would_make_larger_keep_their_precision(shape: tuple[int, ...], is_int8: bool) -> None:
    assert s1_weights._can_quantize(torch.zeros(shape)) is is_int8


def test_eight_bit_files_are_half_as_large_with_small_errors(published: Path, quantized: Path, tmp_path: Path) -> None:
    convert_checkpoint(published, tmp_path / "half", Conversion(precision="bfloat16", codec_precision="float32"))

    assert (quantized / "model.safetensors").stat().st_size < 0.7 * (tmp_path / "half/model.safetensors").stat().st_size
    for name in ("model.safetensors", "codec.safetensors"):
        before, after = load_file(tmp_path / "half" / name), load_file(quantized / name)
        int8 = [key for key in after if after[key].dtype == torch.int8]
        assert len(int8) > 10
        assert not any("codebook.weight" in key or "in_proj" in key for key in int8 if name.startswith("codec"))
        for key in int8:
            rows, wide = before[key].float().flatten(1), after[key].float().flatten(1)
            step = after[key + ".scale"].float().unsqueeze(1)
            assert bool(((wide * step - rows).abs() <= 0.51 * step + rows.abs() * 2**-7).all())


def test_an_engine_speaks_eight_bits_as_the_numbers_that_they_stand_for(quantized: Path, tmp_path: Path) -> None:
    convert_checkpoint(quantized, tmp_path / "wide", Conversion(precision="float32", codec_precision="float32"))

    assert {tensor.dtype for tensor in load_file(tmp_path / "wide" / "model.safetensors").values()} == {torch.float32}
    assert np.array_equal(speak(quantized), speak(tmp_path / "wide"))


def test_an_engine_that_keeps_eight_bits_keeps_those_of_the_file(quantized: Path) -> None:
    stored = load_file(quantized / "model.safetensors")

    layers = load(EngineConfig(checkpoint_path=quantized, device="cpu", weights_dtype="int8")).loaded.networks[0].layers

    kept = {name: layer for name, layer in layers.named_modules() if isinstance(layer, QuantizedLinear)}
    assert kept
    for name, layer in kept.items():
        assert torch.equal(layer.values, stored[f"layers.{name}.weight"])
        assert torch.equal(layer.scale, stored[f"layers.{name}.weight.scale"])


def test_converting_eight_bits_again_changes_no_byte(quantized: Path, tmp_path: Path) -> None:
    convert_checkpoint(quantized, tmp_path / "again")

    for name in ("model.safetensors", "codec.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (quantized / name).read_bytes()


def test_a_scale_that_does_not_fit_its_weights_is_named(quantized: Path, tmp_path: Path) -> None:
    shutil.copytree(quantized, tmp_path / "damaged")
    path = tmp_path / "damaged" / "codec.safetensors"
    tensors = load_file(path)
    key = "decoder.model.0.conv.weight"
    save_file(tensors | {f"{key}.scale": tensors[f"{key}.scale"][:-1].clone()}, path)
    with pytest.raises(CheckpointMismatchError, match=r"codec.safetensors: decoder\.model\.0\.conv\.weight\.scale"):
        open_dac(tmp_path / "damaged", encodes=False)

    del tensors[f"{key}.scale"]
    save_file(tensors, path)
    with pytest.raises(CheckpointMismatchError, match=r"decoder\.model\.0\.conv\.weight is not floating point"):
        open_dac(tmp_path / "damaged", encodes=False)


@pytest.mark.parametrize("option", ["precision", "codec_precision"])
def test_families_without_eight_bits_refuse_them(option: str, tmp_path: Path) -> None:
    get_family("speecht5").write_random(tmp_path / "mel", size="tiny", form="compact", seed=0)

    with pytest.raises(ParameterError, match=f"{option}.*'int8'.*SpeechT5"):
        convert_checkpoint(tmp_path / "mel", tmp_path / "target", Conversion(**{option: "int8"}))

    assert not (tmp_path / "target").exists()
