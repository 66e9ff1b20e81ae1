"""The mel family in the real engine: texts of all lengths, batches, streams, voices, cancellation, formats, limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.exceptions import CapacityError, ConfigurationError
from s1_mini.families.mel.loaded import open_mel
from s1_mini.families.mel.settings import MelSettings
from s1_mini.layers.quantized import QuantizedLinear
from tests.families.mel_room import CPU, written

LONG = "There are many words in this sentence, and it goes on for a while before it ends. " * 9


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("mel") / "checkpoint", seed=5)


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[ProductionTTSEngine]:
    with ProductionTTSEngine(EngineConfig(checkpoint_path=checkpoint, device="cpu")) as engine:
        yield engine


@pytest.fixture(scope="module")
def endless(checkpoint: Path) -> Iterator[ProductionTTSEngine]:
    """An engine whose model never stops by itself."""
    config = EngineConfig(checkpoint_path=checkpoint, device="cpu", stop_threshold=9.0, max_length_ratio=90.0)
    with ProductionTTSEngine(config) as engine:
        yield engine


@pytest.mark.parametrize(("text", "pieces"), [("A", 1), ("I.", 1), (LONG, 5)])
def test_very_short_and_very_long_texts_are_spoken(endless: ProductionTTSEngine, text: str, pieces: int) -> None:
    assert endless.generate(text, seed=1, max_new_tokens=10, pauses="off").frames == pieces * 2 * 10


def test_a_text_over_six_hundred_characters_is_split_at_sentences(checkpoint: Path) -> None:
    config = EngineConfig(checkpoint_path=checkpoint, device="cpu", chunk_length=1000, stop_threshold=9.0)
    with ProductionTTSEngine(config) as engine:
        assert len(LONG) > 700
        assert engine.generate(LONG, seed=1, max_new_tokens=10, pauses="off").frames == 2 * 2 * 10
        with pytest.raises(CapacityError, match="the model's limit is 600"):
            engine.generate("\u33c2" * 180)  # one character that is read as four, a.m.
        assert engine.generate("Still here.", seed=1, max_new_tokens=5).frames == 10


def test_the_audio_length_is_bounded_by_the_text_length(checkpoint: Path) -> None:
    config = EngineConfig(checkpoint_path=checkpoint, device="cpu", stop_threshold=9.0, max_length_ratio=4.0)
    with ProductionTTSEngine(config) as engine:
        made = engine.generate_batch(["Hi", "Hello to all of you"], seed=1).results

        tokens = [engine.count_tokens(text) for text in ("Hi", "Hello to all of you")]
        assert [item.frames for item in made] == [2 * int(count * 4 / 2) for count in tokens]
        assert {item.finish_reason for item in made} == {"length"}


@pytest.mark.parametrize("formats", [{"weights_dtype": "int8"}, {"precision": "bfloat16"}, {"kv_dtype": "fp8"}])
def test_narrow_formats_change_the_layers_alone_and_the_sound_little(checkpoint: Path, formats: dict[str, str]) -> None:
    base = {"checkpoint_path": checkpoint, "device": "cpu", "stop_threshold": 9.0, "prenet_dropout": "off"}
    with ProductionTTSEngine(EngineConfig(**base)) as engine:
        wanted = engine.generate("Hello there.", max_new_tokens=12).audio
    with ProductionTTSEngine(EngineConfig(**base, **formats)) as engine:
        model = engine._running.speaker.loaded.model
        made = engine.generate("Hello there.", max_new_tokens=12).audio
        name, value = next(iter(formats.items()))
        assert engine.health_check()[name]["value"] == value

    network = model.network
    for kept in (network.decoder.prenet, network.speech_decoder_postnet):
        assert not any(isinstance(module, QuantizedLinear) for module in kept.modules())
        assert {weight.dtype for weight in kept.parameters()} == {torch.float32}
    if "weights_dtype" in formats:
        quantized = [module for module in network.modules() if isinstance(module, QuantizedLinear)]
        assert len(quantized) == 2 * 4 + 2 * 7
    error = np.abs(made - wanted)
    assert error.max() > 0
    assert error.std() < 0.25 * wanted.std()


@pytest.mark.usefixtures("no_grad")
def test_fp8_applies_to_decoder_steps_and_not_to_the_encoder(checkpoint: Path) -> None:
    network = open_mel(checkpoint, replace(CPU, weights_dtype=torch.float8_e4m3fn), MelSettings()).model.network

    quantized = {name for name, module in network.named_modules() if isinstance(module, QuantizedLinear)}
    assert len(quantized) == 2 * 4
    assert all(name.startswith("decoder.") and "encoder_attn" not in name for name in quantized)


def test_when_memory_runs_out_the_newest_request_ends_and_the_others_continue(
    endless: ProductionTTSEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, failing = endless._running.speaker.loaded.model, [2]
    step = model.step

    def out_of_memory(state: object, span: int, text_span: int, rows: int | None = None) -> torch.Tensor:
        if failing[0] and rows == 2:
            failing[0] -= 1
            raise torch.OutOfMemoryError("none left")
        return step(state, span, text_span, rows)

    monkeypatch.setattr(model, "step", out_of_memory)
    made = endless.generate_batch(["The first of two.", "And the second."], max_new_tokens=40).results

    assert sorted(item.success for item in made) == [False, True]
    assert endless.metrics.out_of_memory >= 1


@pytest.mark.parametrize(
    "setting", [{"prenet_dropout": "some"}, {"stop_threshold": 0}, {"max_length_ratio": -1}, {"min_length_ratio": 101}]
)
def test_settings_out_of_range_are_refused_by_name(setting: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(setting))):
        EngineConfig(**setting)
