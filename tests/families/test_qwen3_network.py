"""The network of Qwen3-TTS matches a second, plain implementation, which also writes the oracle that `verify` reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import reference_qwen3 as reference
from s1_mini.checkpoint.verify import verify_checkpoint
from s1_mini.cli.app import app
from s1_mini.families.base import PromptOptions
from s1_mini.families.qwen3 import random
from s1_mini.families.qwen3.loaded import LoadedQwen3
from s1_mini.families.qwen3.prompt import TEXTS, Columns
from s1_mini.families.qwen3.random import codec_json, model_json
from s1_mini.families.qwen3.voice import CODES, PRESET, VECTOR
from s1_mini.types import Voice
from tests.families.qwen3_room import KINDS, clone, opened, written

FRAMES, PENALTY = 9, 1.2
NUM_BOOKS, BOOK_SIZE = 5, 130  # of the checkpoint of another size


@pytest.fixture(scope="module", params=[*KINDS, "another size"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoint") / "checkpoint"
    if request.param in KINDS:
        return written(directory, request.param, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random, "model_json", lambda size: another_model(model_json(size)))
        patch.setattr(random, "codec_json", lambda size: another_codec(codec_json(size)))
        return written(directory, "base", seed=1)


def another_model(values: dict[str, Any]) -> dict[str, Any]:
    """A config with other numbers of layers, heads and codes, and a predictor as wide as the talker."""
    talker, more = values["talker_config"], BOOK_SIZE - values["talker_config"]["code_predictor_config"]["vocab_size"]
    block = {"hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 6, "num_key_value_heads": 3}
    block |= {"head_dim": 8, "num_hidden_layers": 3, "rope_theta": 10_000, "rms_norm_eps": 1e-5}
    languages = {name: value + more for name, value in talker["codec_language_id"].items()}
    ids = {name: value + more for name, value in talker.items() if name.startswith("codec_") and type(value) is int}
    talker |= ids | block | {"codec_language_id": languages, "num_code_groups": NUM_BOOKS, "text_hidden_size": 40}
    talker["vocab_size"] += more
    predictor = talker["code_predictor_config"]
    predictor |= block | {"num_hidden_layers": 1, "num_code_groups": NUM_BOOKS, "vocab_size": BOOK_SIZE}
    values["speaker_encoder_config"]["enc_dim"] = 48
    return values


def another_codec(values: dict[str, Any]) -> dict[str, Any]:
    decoder = values["decoder_config"] | {"num_quantizers": NUM_BOOKS, "codebook_size": BOOK_SIZE}
    encoder = values["encoder_config"] | {"num_quantizers": NUM_BOOKS + 2, "codebook_size": BOOK_SIZE}
    parts = {"decoder_config": decoder, "encoder_config": encoder}
    return values | parts | {"encoder_valid_num_quantizers": NUM_BOOKS}


def oracle_of(directory: Path, loaded: LoadedQwen3) -> dict[str, Any]:
    """What the plain implementation computes, in the form of an oracle of the original."""
    values = json.loads((directory / "config.json").read_text())
    weights = {name: tensor.float() for name, tensor in load_file(directory / "model.safetensors").items()}
    voice, more, voices = None, {}, {}
    if loaded.config.kind == "base":
        voice = clone(loaded, frames=5)
        stored = {"vector": voice.tensors[VECTOR], "ref_code": voice.tensors[CODES].T, "ref_text": voice.text}
        more, voices = {"voice": "mine"}, {"mine": stored}
    elif loaded.config.kind == "custom_voice":
        voice, more = Voice({PRESET: torch.tensor([loaded.config.speakers["sohee"]])}, ""), {"speaker": "Sohee"}
    cases = {}
    for name, text, whole in (("whole", "Hello.", True), ("step", "A longer sentence, or so.", False)):
        layout = "whole" if whole else "step"
        prompt = opened(directory, text_layout=layout).prompt(text, [voice] if voice else [], PromptOptions("german"))
        columns = Columns(loaded.config.num_codebooks, loaded.config.code_size)
        ids = {columns.of(value).tobytes(): value for value in range(loaded.config.vocab_size)}
        ids |= {columns.empty(1).tobytes(): -1, columns.of(columns.vector_row).tobytes(): -2}
        frames = voices["mine"]["ref_code"] if voices else torch.zeros(0, 1).long()
        ids |= {frame.contiguous().numpy().tobytes(): -3 - at for at, frame in enumerate(frames)}
        codec = torch.tensor([ids[item[1:].tobytes()] for item in prompt.items])
        texts = torch.from_numpy(prompt.items[:, 0].copy())
        vector = None if voice is None else voice.tensors.get(VECTOR)
        start = reference.prompt(weights, texts, codec, vector=vector, frames=frames)
        after = prompt.voice[TEXTS].tolist()
        generated = reference.generate(weights, values, start, after, frames=FRAMES, penalty=PENALTY)
        cases[f"{name}/case"] = {
            "text": text,
            "language": "German",
            "whole_text": whole,
            "max_new_tokens": FRAMES,
            "repetition_penalty": PENALTY,
            "layout_text": texts,
            "layout_codec": codec,
            "prompt": start,
            "layout_after": torch.tensor(after).long(),
            **more,
            **generated,
        }
    return {**cases, "voices": voices, "seed": 1}


@pytest.fixture(scope="module")
def oracle(checkpoint: Path) -> dict[str, Any]:
    return oracle_of(checkpoint, opened(checkpoint))


def test_verify_confirms_prompts_logits_and_greedy_tokens(
    checkpoint: Path, oracle: dict[str, Any], tmp_path: Path
) -> None:
    torch.save(oracle, tmp_path / "oracle.pt")

    checks = list(verify_checkpoint(checkpoint, tmp_path / "oracle.pt"))

    assert [check.name for check in checks if not check.passed] == []
    assert len(checks) == 2 * 9


@pytest.mark.parametrize("checkpoint", ["base"], indirect=True, scope="module")
def test_verify_fails_for_each_value_that_differs(checkpoint: Path, oracle: dict[str, Any], tmp_path: Path) -> None:
    keys = ("prompt", "hidden", "logits", "code_logits", "codes", "tokens", "layout_codec")
    cases: dict[str, Any] = {}
    for key in keys:
        changed = oracle["whole/case"][key].clone()
        changed.view(-1)[0] += 0.01 if changed.is_floating_point() else 1
        cases[f"other {key}"] = oracle["whole/case"] | {key: changed}
    torch.save(cases | {"voices": oracle["voices"], "odd": 3}, tmp_path / "oracle.pt")

    run = CliRunner().invoke(app, ["verify", "--checkpoint", str(checkpoint), "--oracle", str(tmp_path / "oracle.pt")])

    assert run.exit_code != 0
    assert all(f"other {key} {key}" in str(run.exception) for key in keys)
    assert "odd (unknown)" in str(run.exception)
