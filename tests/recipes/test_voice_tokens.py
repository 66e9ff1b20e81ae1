"""Training data of the dual-AR model: every utterance once, encoded in isolation, laid out as the engine writes it."""

from __future__ import annotations

import json
import lzma
import math
import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from recipes.voice import phonemes, tokens
from recipes.voice.codec import initialise
from recipes.voice.loop import Schedule
from recipes.voice.model import Batch, ModelTraining
from recipes.voice.sizes import CODECS, MODELS
from recipes.voice.speech import Utterance, read_phonemes
from recipes.voice.tokens import PER_GROUP, Coded, Corpus, as_segments, encode_waves, write_vocabulary
from s1_mini.codecs.dac.config import DacConfig
from s1_mini.codecs.dac.model import Dac
from s1_mini.codecs.dac.weights import open_dac
from s1_mini.families.s1.config import S1Config
from s1_mini.families.s1.prompt import build_prompt
from s1_mini.families.s1.tokenizer import S1Tokenizer
from s1_mini.types import Voice
from s1_mini.weights.directory import read_json

CPU = torch.device("cpu")
TEXTS = [f"Room {number} is free." for number in range(20)]
CODEC = CODECS["fast"] | {
    "encoder_dim": 4,
    "decoder_dim": 32,
    "input_dim": 16,
    "q_dim": 16,
    "q_n_head": 2,
    "q_inter": 16,
}
SPEAKERS = [7] * PER_GROUP + [3] * PER_GROUP + [5] * 4


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Phonemes of the texts, and codes of noise in place of the teacher's speech; one speaker per shard."""
    folder = tmp_path_factory.mktemp("work")
    codec = Dac(DacConfig.from_json(CODEC))
    initialise(codec)
    save_file(dict(codec.named_parameters()), folder / "codec.safetensors")
    (folder / "codec_config.json").write_text(json.dumps(CODEC))
    write_vocabulary(folder)
    (folder / "tokens").mkdir()
    (folder / "phonemes.xz").write_bytes(lzma.compress(json.dumps([[text, text, ""] for text in TEXTS]).encode()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "PER_SHARD", PER_GROUP)
        patch.setattr(tokens, "ROWS", 4)  # 32 are for GPUs
        encode(folder)
    return folder


def encode(work: Path) -> None:
    """Encode noise in place of the teacher's speech: utterances of three speakers, in no order, in two batches."""
    noise = np.random.default_rng(0)
    said = [
        Utterance(text, who, torch.from_numpy(noise.integers(-3000, 3000, 1300 + 700 * text).astype(np.int16)))
        for text, who in enumerate(SPEAKERS)
    ]
    noise.shuffle(said)
    texts, _ = read_phonemes(work / "phonemes.xz")
    speakers = tokens.Speakers(work / "tokens", "00", S1Tokenizer.from_directory(work))
    codec = tokens.AsTrained(open_dac(work, encodes=True))
    tokens.encode([said[::2], said[1::2]], texts, codec, speakers, "test")


def test_every_utterance_is_written_once_next_to_others_of_its_speaker(work: Path) -> None:
    tokenizer, codec = S1Tokenizer.from_directory(work), open_dac(work, encodes=True)
    found = {}
    for path in sorted((work / "tokens").glob("shard_00_*.npz")):
        with np.load(path) as shard:
            changes = np.flatnonzero(np.diff(shard["speaker"])) + 1
            assert len(changes) + 1 == len(set(shard["speaker"].tolist()))
            ends = np.cumsum(shard["lengths"])
            for main, who in zip(np.split(shard["main"], ends[:-1]), shard["speaker"].tolist(), strict=True):
                read = bytes(token for token in main.tolist() if token < 256).decode()
                found[read.split(">")[-1]] = (who, int((main >= tokenizer.semantic_begin).sum()))
    assert len(found) == len(TEXTS)
    for number, speaker in enumerate(SPEAKERS):
        said = next(key for key in found if key.endswith(tokens.written(TEXTS[number])))
        frames = -(-(1300 + 700 * number) // codec.samples_per_frame)
        assert found[said] == (speaker, frames)


def test_a_model_can_be_trained_on_the_encoded_data(work: Path) -> None:
    training = training_of(work)
    training.wait_for_tokens()
    training.rate.fill_(1e-2)
    output = []
    for _ in range(8):
        training.report.zero_()
        training.step()
        training.move()
        output.append(float(training.report.sum()))
    assert (training.corpus.num_groups, training.held_back.num_groups) == (2, 1)
    assert output[-1] < output[0]


def training_of(work: Path, **options: Any) -> ModelTraining:
    small = {"dim": 16, "n_head": 4, "n_local_heads": 1, "head_dim": 8, "n_layer": 1, "intermediate_size": 16}
    batch = Batch(2, 256, 64, noise=options.pop("noise", 0.0), epochs=options.pop("epochs", math.inf))
    return ModelTraining(
        work,
        Schedule(600.0, 1e-2, 1),
        batch,
        CPU,
        sizes=MODELS["quick"] | small,
        held_back="shard_00_00002.npz",
        **options,
    )


def test_training_data_is_encoded_as_the_codec_encodes(work: Path) -> None:
    codec = open_dac(work, encodes=True)
    waves = 0.1 * torch.randn(2, 6 * codec.samples_per_frame, generator=torch.Generator().manual_seed(0))
    assert torch.equal(tokens.AsTrained(codec).encode_rows(waves), codec.encode_rows(waves))


def test_the_model_reads_what_the_engine_gives_it_and_the_teacher_says_the_letter_a(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Speaks:
        """A teacher that returns the given audio."""

        def __init__(self, **_: object) -> None:
            self.g2p = types.SimpleNamespace(tokenizer=types.SimpleNamespace(special={}, suffix=re.compile("!$")))

        def phonemize(self, text: str) -> list[str]:
            return [text.replace(" .", ".")]  # a mark is a token of its own

    hibari: Any = types.ModuleType("hibari")
    hibari.g2p = types.ModuleType("hibari.g2p")
    hibari.Hibari, hibari.g2p.G2P = Speaks, lambda british: british
    monkeypatch.setitem(sys.modules, "hibari", hibari)
    monkeypatch.setitem(sys.modules, "hibari.g2p", hibari.g2p)
    texts = ["He paid $42.10 at 5 am. A café — na?", "Ask the BBA or plan A, then A1.", "A B, a USB A"]
    phonemes.write(texts, tmp_path / "phonemes.xz")

    lines = json.loads(lzma.decompress((tmp_path / "phonemes.xz").read_bytes()))

    assert [read for read, _, _ in lines] == [
        "He paid forty-two dollars and ten cents at five A M. A cafe, na?",
        "Ask the B B A or plan A, then A one.",
        "A B, a U S B A",
    ]
    assert [american for _, american, _ in lines] == [
        "He paid forty-two dollars and ten cents at five eh M. A cafe, na?",
        "Ask the B B eh or plan eh, then eh one.",
        "eh B, a U S B eh",
    ]
    assert {tokens.written(f"Room {one}twenty-one is free.") for one in ("", "number ")} == {
        "Room twenty-one is free.",
        "Room number twenty one is free.",
    }


def test_parts_share_the_texts(work: Path) -> None:
    texts = [read_phonemes(work / "phonemes.xz", part, 3)[0] for part in range(3)]
    assert sorted(text for part in texts for text in part) == sorted(TEXTS)


@pytest.fixture(scope="module")
def coded(tiny: Path) -> list[Coded]:
    """Four utterances of noise, two by each speaker."""
    codec, noise = open_dac(tiny, encodes=True), np.random.default_rng(0)
    waves = [noise.integers(-3000, 3000, 3000 + 700 * i).astype(np.int16) for i in range(4)]
    with torch.inference_mode(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "ROWS", 4)  # 32 are for GPUs
        together = encode_waves(codec, waves)
        for wave, batched in zip(waves, together, strict=True):
            alone = codec.encode(torch.from_numpy(wave).float() / 32768).numpy()
            assert (alone == batched).mean() > 0.99
    return [Coded(i // 2, f"Text {i}.", codes) for i, codes in enumerate(together)]


def test_a_window_is_the_prompt_that_the_engine_writes(coded: list[Coded], tiny: Path, tmp_path: Path) -> None:
    tokenizer = S1Tokenizer.from_directory(tiny)
    config = S1Config.from_json(read_json(tiny / "config.json"))
    np.savez(tmp_path / "shard_00001.npz", **as_segments(coded, tokenizer))
    pool = Corpus(
        tmp_path,
        lambda _: True,
        interleave=tokenizer.control("interleave"),
        num_books=config.num_codebooks,
        max_tokens=2000,
        device=CPU,
    )
    pool.refill()

    columns, there = pool.windows(torch.tensor([0]), 400)

    spoken = columns[0][:, there[0]]
    voices = [Voice({"codes": torch.from_numpy(one.codes.astype(np.int64))}, one.text) for one in coded[:2]]
    orders = [torch.from_numpy(build_prompt(tokenizer, config, "", order).items).T for order in (voices, voices[::-1])]
    assert any(torch.equal(spoken, order[:, : spoken.shape[1]]) for order in orders)
    assert pool.num_utterances == 4
