"""What the natural voice's dual-AR model learns from: every utterance once, each speaker's together; and its sizes."""

from __future__ import annotations

import json
import lzma
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

if str(Path(__file__).parents[2]) not in sys.path:  # recipes/ is not installed
    sys.path.insert(0, str(Path(__file__).parents[2]))

from recipes.voice import tokens
from recipes.voice.sizes import CODECS, MODELS
from recipes.voice.speech import write_shard
from s1_mini.codecs.dac.config import DacConfig
from s1_mini.codecs.dac.weights import open_dac
from s1_mini.families.s1.config import S1Config
from s1_mini.families.s1.tokenizer import S1Tokenizer
from s1_mini.weights.directory import DEFAULT_MODEL
from training.corpus import PER_GROUP, Corpus
from training.loop import Schedule
from training.model import CONFIG, Batch, ModelTraining

CPU = torch.device("cpu")
TEXTS = [f"Room {number} is free." for number in range(20)]
SPEAKERS = [7] * PER_GROUP + [3] * PER_GROUP + [5] * 4


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Speech of three speakers in two shards of one maker, in no order; a codec; what texts were read."""
    monkeypatch.setattr(tokens, "PER_SHARD", PER_GROUP)
    for name in ("codec.safetensors", "codec_config.json"):
        shutil.copy(DEFAULT_MODEL / name, tmp_path)
    noise = np.random.default_rng(0)
    said = [
        (text, who, noise.integers(-3000, 3000, 1300 + 700 * text).astype(np.int16))
        for text, who in enumerate(SPEAKERS)
    ]
    (tmp_path / "speech").mkdir()
    noise.shuffle(said)
    for shard in range(2):
        write_shard(tmp_path / "speech" / f"shard_00_{shard:05d}.npz", said[shard::2])
    (tmp_path / "phonemes.xz").write_bytes(lzma.compress(json.dumps([[text, "", ""] for text in TEXTS]).encode()))
    return tmp_path


def test_every_utterance_is_written_once_beside_the_others_of_its_speaker(work: Path) -> None:
    assert tokens.encode_speech(work, work / "phonemes.xz", CPU) == 2
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
        said = next(key for key in found if key.endswith(tokens.spoken(TEXTS[number])))
        frames = -(-(1300 + 700 * number) // codec.samples_per_frame)
        assert found[said] == (speaker, frames)


def test_a_model_learns_from_what_was_encoded(work: Path) -> None:
    tokens.encode_speech(work, work / "phonemes.xz", CPU)
    sizes = {**CONFIG, "dim": 16, "n_head": 2, "n_local_heads": 1, "head_dim": 8, "n_layer": 1, "intermediate_size": 16}
    training = ModelTraining(
        work, Schedule(60.0, 1e-2, 1), Batch(2, 256, 64), CPU, sizes=sizes, held_back="shard_00_00002.npz"
    )
    training.wait_for_tokens()
    training.rate.fill_(1e-2)
    told = []
    for _ in range(8):
        training.report.zero_()
        training.step()
        training.move()
        told.append(float(training.report.sum()))
    assert (training.corpus.num_groups, training.held_back.num_groups) == (2, 1)
    assert told[-1] < told[0]


def test_the_models_speak_the_codes_of_the_codec_that_is_trained() -> None:
    codec = DacConfig.from_json(CODECS["fast"])
    for sizes in MODELS.values():
        config = S1Config.from_json({**sizes, "vocab_size": 1300})
        assert config.num_codebooks == codec.num_codebooks
        assert config.codebook_size == codec.codebook_size


def test_makers_are_shared_among_the_processes_that_encode(work: Path) -> None:
    (work / "speech" / "shard_00_00001.npz").rename(work / "speech" / "shard_01_00001.npz")
    assert [tokens.encode_speech(work, work / "phonemes.xz", CPU, part=part, parts=2) for part in (0, 1)] == [1, 1]
    corpus = Corpus(work / "tokens", lambda _: True, interleave=0, num_books=10, max_tokens=20_000, device=CPU)
    corpus.refill()
    assert corpus.num_utterances == len(TEXTS)
