"""Mel checkpoints, published and compact: conversion, verification, planning, packaging, and damaged files."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from commands import invoke
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.cli.app import app
from s1_mini.exceptions import (
    CheckpointFileError,
    CheckpointMismatchError,
    VerificationError,
    VoiceError,
    VoiceFileError,
)
from s1_mini.families.mel import weights
from s1_mini.families.mel.config import MelConfig
from s1_mini.families.mel.family import Mel
from s1_mini.families.mel.random import FULL_MODEL, SIZES, character_model, random_model, random_vocoder
from s1_mini.families.mel.tokenizer import CharTokenizer
from s1_mini.families.mel.verify import verify_mel
from s1_mini.packaging.verify import unpack_archive
from s1_mini.types import Voice
from s1_mini.voices.library import CheckpointVoices
from tests.families.mel_room import TEXT, dropout, inputs_of, opened, original, original_vocoder, speaker, written


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("mel") / "published", form="published")


def spoken(directory: Path) -> np.ndarray:
    """The audio of a checkpoint."""
    with ProductionTTSEngine(EngineConfig(checkpoint_path=directory, device="cpu", stop_threshold=9.0)) as engine:
        return engine.generate("Hello.", seed=1, max_new_tokens=12).audio


def test_every_form_of_a_checkpoint_generates_the_same(published: Path, tmp_path: Path) -> None:
    wanted = spoken(published)
    inside, beside = tmp_path / "inside", tmp_path / "beside"
    shutil.copytree(published, beside)
    (beside / "vocoder").rename(beside / "hifigan")
    shutil.copytree(published, inside)
    shutil.rmtree(inside / "vocoder")
    (inside / "pytorch_model.bin").unlink()
    model, vocoder = (json.loads(json.dumps(sizes)) for sizes in SIZES["tiny"])
    (inside / "config.json").write_text(json.dumps(model | {"vocoder": vocoder}))
    parts = {f"vocoder.{name}": tensor for name, tensor in random_vocoder(vocoder, 1).items()}
    save_file(random_model(model, 0) | parts, inside / "model.safetensors")
    invoke("convert", "--checkpoint", inside, "-o", tmp_path / "compact", "--codec-precision", "float32")

    assert wanted.std() > 0.01
    for directory in (beside, inside, tmp_path / "compact", written(tmp_path / "random")):
        assert np.abs(spoken(directory) - wanted).max() <= 1e-5, directory.name
    assert sorted(path.name for path in (tmp_path / "compact").iterdir()) == [
        *("config.json", "model.safetensors", "spm_char.model", "vocoder", "voices")
    ]


def test_the_real_size_is_counted_without_a_checkpoint() -> None:
    from s1_mini.capacity.sizes import Formats

    half, single = Mel().sizes(None, Formats()), Mel().sizes(None, Formats(large=4, kv=4, codec=4))

    decoder, vocoder = (stage.step for stage in half.stages.values())
    # Six layers of 14 matrices of 768 by 768, less keys and values of the text, in half precision; the prenet in full
    assert decoder(1, 0).num_bytes == pytest.approx(2 * 6 * 14 * 768**2 + 4 * 1.27e6, rel=0.01)
    assert decoder(1, 2).num_bytes - decoder(1, 0).num_bytes == 3 * 18_432, "two steps and a token"
    assert 1 < vocoder(1, 0).operations / half.frame_s / (2 * 8.5e9) < 1.15, "what chunks see twice is a little"
    assert single.weight_bytes("memory") == pytest.approx(4 * 144.4e6, rel=0.01)
    fp8 = Mel().sizes(None, Formats(large=1, is_fp8=True))
    confined = 6 * 12 * 768**2  # weights of a step: four matrices of attention to itself, eight behind it
    assert half.weight_bytes("memory") - fp8.weight_bytes("memory") == pytest.approx(confined, rel=0.01)
    assert decoder(1, 0).num_bytes - fp8.stages["decoder"].step(1, 0).num_bytes == pytest.approx(confined, rel=0.01)
    assert half.frame_s == 0.032
    assert single.weight_bytes("compute") == pytest.approx(4 * 12.66e6, rel=0.01)


@pytest.mark.usefixtures("no_grad")
@pytest.mark.parametrize("seed", [7])
def test_a_correct_oracle_passes_and_a_false_one_fails(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = written(tmp_path / "it", seed=seed)
    tokens, vector = torch.tensor(opened(directory).tokenizer.encode("Hello.")), speaker(1)
    theirs, vocoder = original("tiny", seed), original_vocoder("tiny", seed)
    masks = torch.rand(80, 2, 32, generator=torch.Generator().manual_seed(seed)) >= 0.5
    with dropout(monkeypatch, masks):
        free = theirs.generate_speech(tokens.unsqueeze(0), vector.unsqueeze(0))
        postnet, theirs.speech_decoder_postnet.postnet = theirs.speech_decoder_postnet.postnet, lambda frames: frames
        mel = theirs.generate_speech(tokens.unsqueeze(0), vector.unsqueeze(0))
    oracle = {
        "tokens": tokens,
        "speaker": vector,
        "masks": masks,
        "encoded": theirs.speecht5.encoder(tokens.unsqueeze(0)).last_hidden_state[0],
        "frames_in": inputs_of(mel),
        "mel": mel,
        "postnet": postnet(mel.unsqueeze(0))[0],
        "free_mel": free,
        "free_steps": torch.tensor([len(free) // 2]),
    }
    sound = {"mel_in": free, "wave": vocoder(free)}
    both = {f"a.{name}": value for name, value in oracle.items()} | {f"b.{name}": x for name, x in sound.items()}
    save_file({name: tensor.clone() for name, tensor in both.items()}, tmp_path / "oracle.safetensors")

    told = invoke("verify", "--checkpoint", directory, "--oracle", tmp_path / "oracle.safetensors")

    assert "all 6 checks passed" in told
    false = {name: tensor + 0.01 if name == "a.mel" else tensor for name, tensor in both.items()}
    save_file({name: x.clone() for name, x in false.items()} | {"a.more": vector}, tmp_path / "false.safetensors")
    result = CliRunner().invoke(
        app, ["verify", "--checkpoint", str(directory), "--oracle", str(tmp_path / "false.safetensors")]
    )
    assert "2 of 7 checks failed: a mel, a more (unknown)" in str(result.exception)
    with pytest.raises(VerificationError, match="to a different checkpoint: its num_mel_bins is 7; expected 80"):
        list(verify_mel(directory, {"mel_in": torch.zeros(3, 7)}, torch.device("cpu"), 1e-4) or ())


def test_speakers_vectors_are_read_from_npy_files(published: Path, tmp_path: Path) -> None:
    def file(array: object) -> bytes:
        made = io.BytesIO()
        np.save(made, array, allow_pickle=True)
        return made.getvalue()

    form, vector = Mel().describe(published).voice, np.arange(512.0)[None]

    assert torch.equal(form.from_file(file(vector))["speaker"], torch.arange(512.0))
    for data in (file(np.ones((2, 512))), file(np.ones(512, int)), file(np.array([{}])), b"no", file(vector + np.inf)):
        with pytest.raises(ValueError, match=r"."):
            form.from_file(data)
    with pytest.raises(VoiceError, match=r"needs \[512\]"):
        opened(published).prompt("Hello.", [Voice({"speaker": torch.ones(256)}, "")])
    beside = Path(shutil.copytree(published, tmp_path / "beside"))
    (beside / "voices" / "slt.npy").write_bytes(file(vector))
    with ProductionTTSEngine(EngineConfig(checkpoint_path=beside, device="cpu", stop_threshold=9.0)) as engine:
        assert engine.voice_names() == ["first", "second", "slt"]
        assert engine.generate("Hello.", voice="slt", seed=1, max_new_tokens=5).frames == 10
    invoke("convert", "--checkpoint", beside, "-o", tmp_path / "compact")
    assert [path.name for path in (tmp_path / "compact" / "voices").glob("slt.*")] == ["slt.safetensors"]
    invoke("package", "--checkpoint", beside, "-o", tmp_path / "model.tar.gz")
    unpack_archive(tmp_path / "model.tar.gz", tmp_path / "unpacked")
    with ProductionTTSEngine(EngineConfig(checkpoint_path=tmp_path / "unpacked", device="cpu")) as engine:
        assert engine.voice_names() == ["first", "second", "slt"]
    (beside / "voices" / "broken.npy").write_bytes(file(np.ones(3)))
    library = CheckpointVoices.listed(beside, form)
    assert library.summary("slt").name == "slt"
    with pytest.raises(
        VoiceFileError, match=r"'broken' cannot be used: broken\.npy is not a valid voice: it contains float64"
    ):
        library.summary("broken")


def test_text_becomes_the_originals_tokens(tmp_path: Path) -> None:
    from transformers import SpeechT5Tokenizer

    (tmp_path / "spm_char.model").write_bytes(character_model())
    theirs = SpeechT5Tokenizer(str(tmp_path / "spm_char.model"))
    ours = CharTokenizer(character_model(), MelConfig())

    for text in (TEXT, "a", "  Two  spaces ", "Über 5 €\u2026", "\u33c2 no", "UPPER lower"):
        assert ours.encode(text) == theirs(text)["input_ids"]


def test_names_are_translated_only_once() -> None:
    named = weights.translate(random_model(SIZES["tiny"][0]))

    again = weights.translate(named)

    assert again.keys() == named.keys()
    assert weights.fold(named).keys() == weights.fold(weights.fold(named)).keys()


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"hidden_size": 33}, "hidden_size=33"),
        ({"hidden_act": "relu"}, "hidden_act='relu'"),
        ({"vocab_size": "many"}, "vocab_size='many'"),
        ({"decoder_attention_heads": 4}, "decoder_attention_heads=4"),
        ({"speech_decoder_prenet_dropout": 1.0}, "speech_decoder_prenet_dropout=1.0"),
        ({"speech_decoder_postnet_kernel": 4}, "must be odd"),
        ({"eos_token_id": 81}, "eos_token_id=81"),
        ({"encoder_layers": 10_000}, "encoder_layers=10000"),
    ],
)
def test_an_invalid_config_is_refused_by_name(values: dict[str, object], told: str) -> None:
    with pytest.raises(CheckpointMismatchError, match=told):
        MelConfig.from_json(FULL_MODEL | values)


def drop_tensor(directory: Path) -> None:
    tensors = random_model(SIZES["tiny"][0])
    del tensors["speecht5.decoder.wrapped_decoder.layers.0.self_attn.k_proj.bias"]
    torch.save(tensors, directory / "pytorch_model.bin")


def narrow_vocoder(directory: Path) -> None:
    (directory / "vocoder" / "config.json").write_text(json.dumps(SIZES["tiny"][1] | {"model_in_dim": 40}))


@pytest.mark.parametrize(
    ("damage", "error", "told"),
    [
        (
            lambda path: (path / "spm_char.model").write_bytes(b"\x08\x01 no model"),
            CheckpointFileError,
            r"spm_char\.model is not a sentencepiece model",
        ),
        (
            lambda path: shutil.rmtree(path / "vocoder"),
            CheckpointFileError,
            "no vocoder: it needs a folder vocoder/ or hifigan/",
        ),
        (drop_tensor, CheckpointMismatchError, r"decoder\.wrapped_decoder\.layers\.0\.self_attn\.k_proj"),
        (narrow_vocoder, CheckpointMismatchError, "expects 40 mel bins"),
    ],
)
def test_missing_or_damaged_files_are_reported_in_a_sentence(
    damage: Callable[[Path], object], error: type[Exception], told: str, published: Path, tmp_path: Path
) -> None:
    damage(shutil.copytree(published, tmp_path / "damaged"))

    with pytest.raises(error, match=told):
        ProductionTTSEngine(EngineConfig(checkpoint_path=tmp_path / "damaged", device="cpu")).start()
