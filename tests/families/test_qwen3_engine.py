"""Qwen3-TTS in the real engine: presets, designed and cloned voices, streams, batches, languages, bad input."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from commands import invoke
from consistency import assert_consistent
from s1_mini import EngineConfig, ProductionTTSEngine, TTSRequest
from s1_mini.capacity.sizes import Formats
from s1_mini.checkpoint.requests import check_request
from s1_mini.cli.app import app
from s1_mini.exceptions import (
    CapacityError,
    CheckpointMismatchError,
    ConfigurationError,
    ParameterError,
    VoiceError,
    VoiceNotFoundError,
    VoiceUnsupportedError,
)
from s1_mini.families.find import Checkpoint
from s1_mini.families.qwen3.family import Qwen3
from s1_mini.families.qwen3.random import model_json
from s1_mini.layers.quantized import QuantizedLinear
from s1_mini.text.form import TextForm
from s1_mini.voices.library import write_voice
from tests.families.qwen3_room import clone, config, opened, written
from waiting import wait_until

SAMPLES = 1920  # per frame
TEXTS = ["One.", "Two of them, here.", "And three, with some more of it."]
ASKED: dict[str, Any] = {"seed": 3, "max_new_tokens": 12}


@pytest.fixture(scope="module")
def custom(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("custom") / "checkpoint", "custom_voice", seed=5)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With one voice that is continued and one of which only the vector is used."""
    directory = written(tmp_path_factory.mktemp("base") / "checkpoint", "base", seed=5)
    (directory / "voices").mkdir()
    for name, text in (("continued", "Well, hello."), ("vector", "")):
        write_voice(directory / "voices", name, clone(opened(directory), text, frames=30))
    return directory


@pytest.fixture(scope="module")
def presets(custom: Path) -> Iterator[ProductionTTSEngine]:
    with ProductionTTSEngine(config(custom, device="cpu")) as engine:
        yield engine


@pytest.fixture(scope="module")
def cloner(base: Path) -> Iterator[ProductionTTSEngine]:
    with ProductionTTSEngine(config(base, device="cpu")) as engine:
        yield engine


@pytest.fixture
def recording() -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.random.default_rng(0).normal(0, 0.1, 30_000), 24_000, format="WAV")
    return file.getvalue()


def differ(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape != other.shape or bool(np.abs(one - other).max() > 0.01)


def test_presets_are_listed_and_the_first_of_the_config_is_the_default(presets: ProductionTTSEngine) -> None:
    first, second, default = (
        presets.generate("Hello.", voice=name, **ASKED).audio for name in ("serena", "ryan", None)
    )

    assert presets.voice_names() == [
        *("aiden", "dylan", "eric", "ono_anna", "ryan", "serena", "sohee", "uncle_fu", "vivian")
    ]
    assert [voice.name for voice in presets.voices() if voice.is_default] == ["serena"]
    assert np.array_equal(first, default)
    assert np.array_equal(presets.generate("Hello.", voice="Serena", **ASKED).audio, first)  # as in the model's pages
    assert presets.describe_voice("Serena").name == "serena"
    assert differ(first, second)
    assert len(first) % SAMPLES == 0
    assert first.std() > 0.01


def test_a_cloned_voice_sounds_in_a_batch_and_streamed_as_alone(cloner: ProductionTTSEngine) -> None:
    assert_consistent(cloner, TEXTS[:2], tolerance=1e-5, voice="continued", **ASKED)


def test_a_cached_voice_sounds_as_a_fresh_one(base: Path) -> None:
    heard, hits = [], []
    for size in (0.0, 1.0):
        with ProductionTTSEngine(config(base, device="cpu", prefix_cache_mb=size)) as engine:
            heard += [engine.generate(text, voice="continued", **ASKED).audio for text in TEXTS]
            hits.append(engine.health_check()["prefix_cache"]["hits"])

    assert hits[0] == 0 < hits[1]
    for fresh, cached in zip(heard[:3], heard[3:], strict=True):
        assert np.array_equal(fresh, cached)


def test_languages_are_named_or_tagged_and_an_unknown_one_is_refused(presets: ProductionTTSEngine) -> None:
    german, tagged, plain, found = (
        presets.generate("Hallo.", language=each, **ASKED).audio for each in ("German", "de-AT", None, "auto")
    )

    assert np.array_equal(german, tagged)
    assert np.array_equal(plain, found)
    assert differ(german, plain)
    with pytest.raises(ParameterError, match=r"must be one of auto, chinese \(zh\), english \(en\).*not 'klingon'"):
        presets.generate("Hallo.", language="klingon")
    with pytest.raises(VoiceNotFoundError, match="unknown voice 'bob'; available: aiden, dylan, eric"):
        presets.generate("Hallo.", voice="bob")


def test_numbers_are_read_in_the_language_of_the_request_or_of_the_text(presets: ProductionTTSEngine) -> None:
    text = "Das kostet 3,50 € und nicht mehr."
    german = "Das kostet drei Euro fünfzig und nicht mehr."
    options: list[dict[str, Any]] = [
        *({"language": "german"}, {"language": "de-AT"}, {"language": "auto"}, {}),
        *({"language": "french"}, {"normalize": "off"}, {"language": "german", "normalize": "off"}),
    ]

    said = [presets.generate(text, **each, seed=3, max_new_tokens=2).spoken_text for each in options]
    marked = presets.generate(f"<speak>{text}</speak>", text_type="ssml", language="german", seed=3, max_new_tokens=2)

    assert said == [*[german] * 4, "Das kostet trois euros cinquante und nicht mehr.", text, text]
    assert marked.spoken_text == german


def test_a_request_overrides_the_language_that_a_checkpoint_declares(custom: Path) -> None:
    description, declared = Checkpoint(custom).description, TextForm("de")

    assert description.text_form(declared, None) == description.text_form(declared, "auto") == declared
    assert description.text_form(declared, "french") == TextForm("fr", is_chosen=True)


def test_instructions_change_the_speech_of_a_large_model_and_a_small_one_refuses_them(
    presets: ProductionTTSEngine, custom: Path, base: Path, tmp_path: Path
) -> None:
    plain, told = (presets.generate("Hello.", instructions=each, **ASKED).audio for each in ("", "Whisper."))
    small = written(tmp_path / "small", "custom_voice")
    values = json.loads((small / "config.json").read_text()) | {"tts_model_size": "0b6"}
    (small / "config.json").write_text(json.dumps(values))

    assert differ(plain, told)
    takes = [Checkpoint(each).description.instructions for each in (custom, base, small)]
    assert takes == [True, False, False]
    with (
        ProductionTTSEngine(config(small, device="cpu")) as engine,
        pytest.raises(ParameterError, match="takes no instructions"),
    ):
        engine.generate("Hello.", instructions="Whisper.")


def test_a_request_without_room_for_speech_names_its_longest_part_and_the_limit(tmp_path: Path) -> None:
    long = "Speak as slowly as you can. " * 25

    with ProductionTTSEngine(config(written(tmp_path / "design", "voice_design"), device="cpu")) as engine:
        with pytest.raises(CapacityError, match=r"^instructions: .*\(instructions \d{3}, text .*but a slot has 512"):
            engine.generate("Hello.", instructions=long)
        with pytest.raises(CapacityError, match=r"^text: .*\(instructions \d\d, text \d{3}, .*but a slot has 512"):
            engine.generate(long, instructions="Slowly.")
        assert engine.generate("Hello.", instructions=long[:300], **ASKED).audio.size


def test_a_designed_voice_speaks_a_long_text_in_one_piece(tmp_path: Path) -> None:
    with ProductionTTSEngine(config(written(tmp_path / "design", "voice_design"), device="cpu")) as engine:
        long = engine.generate("Many words. " * 30, instructions="An old man.", seed=1, max_new_tokens=30)
        again = engine.generate("Many words. " * 30, instructions="A child.", seed=1, max_new_tokens=30)
        names = engine.voice_names()

    assert long.frames <= 30
    assert differ(long.audio, again.audio)
    assert names == []


def test_a_recording_is_cloned_by_its_vector_and_continued_if_it_has_a_transcript(
    cloner: ProductionTTSEngine, recording: bytes
) -> None:
    plain, continued = (
        cloner.generate("Hello.", reference_audio=recording, reference_text=text, **ASKED).audio
        for text in ("", "Some words.")
    )
    cloner.add_voice("mine", recording, "Some words.")
    named = cloner.generate("Hello.", voice="mine", **ASKED).audio
    cloner.delete_voice("mine")

    assert differ(plain, continued)
    assert np.array_equal(continued, named)


def test_a_voice_may_have_no_transcript_and_then_is_only_its_vector(
    base: Path, tmp_path: Path, recording: bytes
) -> None:
    folder, file = tmp_path / "voices", tmp_path / "me.wav"
    folder.mkdir()
    for path in (file, folder / "found.wav"):
        path.write_bytes(recording)
    invoke("voices", "add", "added", file, "--checkpoint", base, "--voices-path", folder)

    with ProductionTTSEngine(config(base, device="cpu", voices_path=folder)) as engine:
        engine.add_voice("mine", recording)
        wait_until(lambda: "found" in engine.voice_names())
        names = ("added", "mine", "found")
        heard = [engine.generate("Hello.", voice=name, **ASKED).audio for name in names]
        plain = engine.generate("Hello.", reference_audio=recording, **ASKED).audio

    for wave in heard:
        assert np.array_equal(wave, plain)


def test_a_base_model_needs_a_voice_and_other_models_cannot_clone(
    cloner: ProductionTTSEngine, presets: ProductionTTSEngine, recording: bytes
) -> None:
    with pytest.raises(VoiceError, match="specify one of continued, vector, or send a reference"):
        cloner.generate("Hello.")
    with pytest.raises(VoiceUnsupportedError, match="cannot clone a voice from a recording; use one of its voices"):
        presets.generate("Hello.", reference_audio=recording)


def test_a_part_without_a_voice_is_refused_before_any_audio(cloner: ProductionTTSEngine, base: Path) -> None:
    text = '<speak><voice name="vector">Hello.</voice> And more.</speak>'
    accepted = cloner.health_check()["queue"]["accepted"]

    with pytest.raises(VoiceError, match="specify one of continued, vector, or send a reference"):
        cloner.stream(text, text_type="ssml")
    assert cloner.health_check()["queue"]["accepted"] == accepted
    for request in (TTSRequest.of(text, text_type="ssml"), TTSRequest.of("Hello.")):
        with pytest.raises(VoiceError, match="specify one of continued, vector, or send a reference"):
            check_request(request, EngineConfig(), Checkpoint(base))
    named = TTSRequest.of(text, text_type="ssml", voice="continued")
    check_request(named, EngineConfig(), Checkpoint(base))
    assert cloner.generate(text, text_type="ssml", voice="continued", **ASKED).audio.size
    assert cloner.count_tokens("Hello.") > 0


def test_sampling_has_the_checkpoints_defaults(custom: Path, tmp_path: Path) -> None:
    written(tmp_path / "greedy", "custom_voice", seed=5)
    (tmp_path / "greedy" / "generation_config.json").write_text('{"do_sample": false, "subtalker_dosample": false}')
    plain, greedy = (Checkpoint(each).description.defaults for each in (custom, tmp_path / "greedy"))

    assert (plain.temperature, plain.top_k, plain.top_p, plain.repetition_penalty) == (0.9, 50, 1.0, 1.05)
    assert (plain.max_new_tokens, greedy.max_new_tokens) == (8192, 2048)
    with ProductionTTSEngine(config(tmp_path / "greedy", device="cpu")) as engine:
        one, other = (engine.generate("Hello.", seed=seed, max_new_tokens=9).audio for seed in (1, 2))
    assert np.array_equal(one, other)


@pytest.mark.parametrize("key", ["do_sample", "subtalker_dosample"])
def test_a_flag_of_the_sampling_must_be_true_or_false(custom: Path, tmp_path: Path, key: str) -> None:
    other = copytree(custom, tmp_path / "other")
    (other / "generation_config.json").write_text(json.dumps({key: "false"}))

    with pytest.raises(CheckpointMismatchError, match=f"generation_config.json: {key}='false' must be true or false"):
        Checkpoint(other).description  # noqa: B018


def test_the_predictors_sampling_is_a_setting(custom: Path) -> None:
    heard = []
    for options in ({}, {"predictor_temperature": 0.1}, {"predictor_top_k": 2}):
        with ProductionTTSEngine(config(custom, device="cpu", **options)) as engine:
            heard.append(engine.generate("Hello.", **ASKED).audio)

    assert differ(heard[0], heard[1])
    assert differ(heard[0], heard[2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer_type": "qwen3_tts_tokenizer_25hz"}, "25 Hz models are not supported"),
        ({"tts_model_type": "voice_editing"}, "must be one of base, custom_voice, voice_design"),
        ({"tts_model_size": 0.6}, r"tts_model_size=0\.6 must be a string"),
        ({"talker_config": {"attention_bias": "false"}}, "attention_bias='false' must be true or false"),
        ({"talker_config": None}, "talker_config=None must be an object"),
        ({"talker_config": {"head_dim": None}}, "head_dim=None must be a positive integer"),
        ({"talker_config": {"vocab_size": 1089}}, "must be 1024 more than"),
        ({"talker_config": {"spk_id": {"x": "y"}}}, r"spk_id\.x='y' must be"),
        ({"talker_config": {"spk_is_dialect": {"ryan": "scots"}}}, r"spk_is_dialect\.ryan='scots'"),
        ({"talker_config": {"spk_is_dialect": {"ryan": ["scots"]}}}, r"spk_is_dialect\.ryan=\['scots'\]"),
    ],
)
def test_a_config_of_another_model_is_refused_by_name(custom: Path, change: Any, message: str, tmp_path: Path) -> None:
    values = model_json("tiny")
    for key, value in change.items():
        values[key] = values[key] | value if isinstance(value, dict) else value
    other = copytree(custom, tmp_path / "other")
    (other / "config.json").write_text(json.dumps(values))

    with pytest.raises(CheckpointMismatchError, match=message):
        opened(other)


def test_a_codec_with_other_codebooks_is_refused(custom: Path, tmp_path: Path) -> None:
    other = written(tmp_path / "other", "custom_voice")
    values = json.loads((other / "config.json").read_text())
    for part in (values["talker_config"], values["talker_config"]["code_predictor_config"]):
        part["num_code_groups"] = 8
    (other / "config.json").write_text(json.dumps(values))

    with pytest.raises(CheckpointMismatchError, match=r"lm_head|codec_embedding"):
        opened(other)


def test_a_codec_of_another_rate_is_refused(custom: Path, tmp_path: Path) -> None:
    other = copytree(custom, tmp_path / "other")
    path = other / "speech_tokenizer" / "config.json"
    path.write_text(path.read_text().replace("24000", "16000"))

    with pytest.raises(CheckpointMismatchError, match="16000 Hz"):
        opened(other)


def test_a_long_reference_leaves_less_of_the_codec(base: Path) -> None:
    loaded = opened(base)
    loaded.codec.max_frames = 1000
    chain = loaded.chain(2, 2048)

    short, long = (chain.room(loaded.prompt("Hello.", [clone(loaded, frames=frames)])) for frames in (7, 700))

    assert (short, long) == (993, 300)


def speak(directory: Path, **options: Any) -> np.ndarray:
    with ProductionTTSEngine(config(directory, device="cpu")) as engine:
        return engine.generate("Hello.", temperature=0.0, max_new_tokens=12, **options).audio


def test_a_checkpoint_converted_to_decode_only_has_no_encoders_and_speaks_the_same(base: Path, tmp_path: Path) -> None:
    invoke("convert", "--checkpoint", base, "-o", tmp_path / "decodes", "--decode-only")

    names = {*load_file(tmp_path / "decodes" / "model.safetensors")}
    names |= {*load_file(tmp_path / "decodes" / "speech_tokenizer" / "model.safetensors")}
    assert not any(name.startswith(("speaker_encoder.", "encoder.")) for name in names)
    assert np.abs(speak(tmp_path / "decodes", voice="vector") - speak(base, voice="vector")).max() < 0.05


def test_float16_is_refused_because_the_model_overflows(custom: Path) -> None:
    engine = ProductionTTSEngine(EngineConfig(checkpoint_path=custom, device="cpu", precision="float16"))

    with pytest.raises(ConfigurationError, match="Qwen3-TTS overflows in float16; unset S1_MINI_PRECISION"):
        engine.start()


@pytest.mark.parametrize("command", ["convert", "package"])
def test_a_conversion_to_float16_is_refused_because_the_model_overflows(
    custom: Path, tmp_path: Path, command: str
) -> None:
    arguments = [command, "--checkpoint", str(custom), "-o", str(tmp_path / "half.tar.gz"), "--precision", "float16"]

    result = CliRunner().invoke(app, arguments)

    assert "'float16' is not available for Qwen3-TTS, which overflows in float16" in str(result.exception)
    assert not (tmp_path / "half.tar.gz").exists()


def test_a_designed_voice_has_slots_for_a_text_that_is_not_split(custom: Path, tmp_path: Path) -> None:
    preset, design = (
        Qwen3().sizes(path, Formats()).needed_positions(0.0, 200)
        for path in (custom, written(tmp_path / "design", "voice_design"))
    )

    assert (preset, design) == (600, 6000)


def test_the_memory_that_only_clones_need_is_counted(custom: Path, base: Path) -> None:
    single = Formats(weights=4, large=4, kv=4, codec=4)
    preset, clone = (Qwen3().sizes(path, single).demands for path in (custom, base))
    encoder, speaker = opened(base).encoders()
    cache = opened(base).model.allocate(1, 64).depth_cache

    assert (preset["codec"].reference_states, clone["codec"].reference_states) == (0, 2**28)
    assert clone["codec"].fixed - preset["codec"].fixed == 2**28
    weights = [sum(each.nbytes for each in part.parameters()) for part in (encoder, speaker)]
    assert preset["language_model"].encoding == 0
    expected = 2 * weights[0] + weights[1]
    assert clone["language_model"].encoding == pytest.approx(expected, rel=0.05)  # files have a few more tensors
    assert preset["language_model"].fixed_slot == cache.keys.nbytes + cache.values.nbytes


def test_the_published_sizes_are_counted_without_a_checkpoint() -> None:
    large = Qwen3().sizes(None, Formats())

    model, codec = large.stages.values()
    # 2.82 GB of talker and 2.36 GB of predictor passes, their heads, and the projection of one position each
    assert model.step(1, 0).num_bytes == pytest.approx(5.25e9, rel=0.015)
    assert model.step(1, 1).num_bytes - model.step(1, 0).num_bytes == 114_688
    assert codec.weight_bytes == pytest.approx(2 * 122.3e6, rel=0.01)
    assert large.frame_s == 0.08


def test_eight_bit_weights_quantize_both_transformers_on_a_cpu(custom: Path) -> None:
    engine = ProductionTTSEngine(EngineConfig(checkpoint_path=custom, device="cpu", weights_dtype="int8"))
    with engine:
        network = engine._running.speaker.loaded.model.network
        wave = engine.generate("Hello.", **ASKED).audio

    assert sum(isinstance(module, QuantizedLinear) for module in network.modules()) == (2 + 2) * 5
    assert wave.std() > 0.01
    assert torch.is_tensor(network.fast_output)
