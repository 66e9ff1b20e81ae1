"""What the dual-AR model learns from is what was said: encoded as alone, written as the engine writes it, all of it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

if str(Path(__file__).parents[2]) not in sys.path:  # training/ is not installed
    sys.path.insert(0, str(Path(__file__).parents[2]))

from s1_mini.codecs.dac.weights import open_dac
from s1_mini.families.s1.config import S1Config
from s1_mini.families.s1.prompt import build_prompt
from s1_mini.families.s1.tokenizer import S1Tokenizer
from s1_mini.types import Voice
from s1_mini.weights.directory import DEFAULT_MODEL, read_json
from training.corpus import Corpus
from training.speech import Utterance
from training.tokens import as_segments, encode

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def utterances() -> list[Utterance]:
    noise = np.random.default_rng(0)
    return [
        Utterance(f"Text {i}.", noise.integers(-3000, 3000, 3000 + 700 * i).astype(np.int16), i // 2) for i in range(4)
    ]


@pytest.fixture(scope="module")
def codes(utterances: list[Utterance]) -> list[np.ndarray]:
    codec = open_dac(DEFAULT_MODEL, encodes=True)
    with torch.inference_mode():
        together = encode(codec, [utterance.samples for utterance in utterances])
        for utterance, batched in zip(utterances, together, strict=True):
            alone = codec.encode(torch.from_numpy(utterance.samples).float() / 32768).numpy()
            assert (alone == batched).mean() > 0.99
    return together


def test_a_window_is_the_prompt_that_the_engine_writes(
    utterances: list[Utterance], codes: list[np.ndarray], tmp_path: Path
) -> None:
    tokenizer = S1Tokenizer.from_directory(DEFAULT_MODEL)
    config = S1Config.from_json(read_json(DEFAULT_MODEL / "config.json"))
    np.savez(tmp_path / "shard_00001.npz", **as_segments(utterances, codes, tokenizer))
    corpus = Corpus(
        tmp_path,
        lambda _: True,
        interleave=tokenizer.control("interleave"),
        num_books=config.num_codebooks,
        max_tokens=2000,
        device=CPU,
    )
    corpus.refill()

    columns, there = corpus.windows(torch.tensor([0]), 400)

    spoken = columns[0][:, there[0]]
    voices = [
        Voice({"codes": torch.from_numpy(c.astype(np.int64))}, u.text)
        for c, u in zip(codes[:2], utterances, strict=False)
    ]
    orders = [build_prompt(tokenizer, config, "", order).columns for order in (voices, voices[::-1])]
    assert any(torch.equal(spoken, order[:, : spoken.shape[1]]) for order in orders)
    assert corpus.num_utterances == 4


def test_a_corpus_that_is_full_is_drawn_from_all_the_same(tmp_path: Path) -> None:
    for shard in range(4):
        np.savez(
            tmp_path / f"shard_{shard:05d}.npz",
            main=np.full(600, shard, np.int32),
            codes=np.zeros((2, 600), np.int16),
            lengths=np.full(12, 50, np.int32),
            speaker=np.repeat([0, 1], 6).astype(np.int32),
        )
    corpus = Corpus(tmp_path, lambda _: True, interleave=0, num_books=2, max_tokens=2000, device=CPU)

    corpus.refill()

    assert (corpus.num_groups, corpus.num_tokens) == (6, 1800)
    assert set(corpus.random_groups(1000).tolist()) == set(range(6))
