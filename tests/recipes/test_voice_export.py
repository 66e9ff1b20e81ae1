"""The exported voice: lower temperature and higher level than in training, with its voices and model card."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from recipes.voice import again, export
from recipes.voice.average import average
from recipes.voice.speakers import NAMED
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.codecs.dac.config import read_dac_config
from s1_mini.families.base import Conversion
from s1_mini.families.s1.random import RECIPES, write_random_checkpoint
from s1_mini.packaging.write import convert_checkpoint


def test_exported_voices_are_among_the_training_speakers() -> None:
    assert len(export.REFERENCES) >= 8
    assert set(export.PROSODY) <= set(export.REFERENCES) <= set(NAMED)


def test_a_trained_checkpoint_ships_with_its_voices_and_its_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, output = tmp_path / "work", tmp_path / "voice"
    write_random_checkpoint(work, RECIPES["tiny"])
    references = {name: export.REFERENCES[name] for name in ("robert", "anna")}
    monkeypatch.setattr(export, "REFERENCES", references)
    generator = torch.Generator().manual_seed(0)

    export.export(work, output, {name: 0.1 * torch.randn(9000, generator=generator) for name in references})

    assert (output / "CARD.md").exists()
    config = read_dac_config(output)
    assert {"drive": config.drive, "ceiling": config.ceiling} == export.BOUND
    with ProductionTTSEngine(EngineConfig(checkpoint_path=output, device="cpu")) as engine:
        assert [(voice.name, voice.is_default) for voice in engine.voices()] == [("anna", False), ("robert", True)]


def test_exported_logits_have_a_lower_temperature_and_audio_is_louder(tiny: Path, tmp_path: Path) -> None:
    export.finished(tiny, tmp_path / "finished")

    before, after = (load_file(work / "model.safetensors") for work in (tiny, tmp_path / "finished"))
    for name, factor in export.COLDER.items():
        torch.testing.assert_close(after[name].float(), before[name].float() * factor, rtol=1e-2, atol=1e-4)
    config = read_dac_config(tmp_path / "finished")
    assert config.drive > config.ceiling > read_dac_config(tiny).ceiling / 2


def test_a_resumed_training_has_the_weights_before_the_export(tiny: Path, tmp_path: Path) -> None:
    export.finished(tiny, tmp_path / "finished")
    convert_checkpoint(tmp_path / "finished", tmp_path / "ships", Conversion(precision="int8", codec_precision="int8"))

    again.begin(tmp_path / "ships", tmp_path / "work")

    assert read_dac_config(tmp_path / "ships").drive == export.BOUND["drive"]
    assert read_dac_config(tmp_path / "work") == read_dac_config(tiny)
    for file in again.FILES:
        trained, begun = load_file(tiny / file), load_file(tmp_path / "work" / file)
        assert set(begun) == set(trained)
        for name, tensor in begun.items():
            step = trained[name].float().abs().max() / 127
            torch.testing.assert_close(tensor, trained[name].float(), rtol=1e-2, atol=float(step))


def test_codecs_are_averaged_tensor_by_tensor(tmp_path: Path) -> None:
    paths, same = [tmp_path / name for name in ("a", "b", "c")], torch.tensor([0.1, 1e-30])
    for path, values in zip(paths, ([0.0, 0.0], [1.0, 3.0], None), strict=True):
        save_file({"e": same} if values is None else {"w": torch.tensor(values), "e": same}, path)

    average(paths[:2], tmp_path / "mean")

    assert load_file(tmp_path / "mean")["w"].tolist() == [0.5, 1.5]
    assert torch.equal(load_file(tmp_path / "mean")["e"], same)
    with pytest.raises(ValueError, match=r"c has other tensors than .*a"):
        average([paths[0], paths[2]], tmp_path / "mean")
