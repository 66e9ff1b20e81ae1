"""What the dual-AR model learns from is what was said: encoded as alone, written as the engine writes it, all of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from recipes.voice import tokens
from recipes.voice.tokens import Coded, Corpus, as_segments, encode_waves
from s1_mini.codecs.dac.weights import open_dac
from s1_mini.families.s1.config import S1Config
from s1_mini.families.s1.prompt import build_prompt
from s1_mini.families.s1.tokenizer import S1Tokenizer
from s1_mini.types import Voice
from s1_mini.weights.directory import read_json

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def said(tiny: Path) -> list[Coded]:
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


def test_a_window_is_the_prompt_that_the_engine_writes(said: list[Coded], tiny: Path, tmp_path: Path) -> None:
    tokenizer = S1Tokenizer.from_directory(tiny)
    config = S1Config.from_json(read_json(tiny / "config.json"))
    np.savez(tmp_path / "shard_00001.npz", **as_segments(said, tokenizer))
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
    voices = [Voice({"codes": torch.from_numpy(one.codes.astype(np.int64))}, one.text) for one in said[:2]]
    orders = [torch.from_numpy(build_prompt(tokenizer, config, "", order).items).T for order in (voices, voices[::-1])]
    assert any(torch.equal(spoken, order[:, : spoken.shape[1]]) for order in orders)
    assert pool.num_utterances == 4


def test_a_corpus_that_is_full_is_drawn_from_all_the_same(tmp_path: Path) -> None:
    for shard in range(4):
        np.savez(
            tmp_path / f"shard_{shard:05d}.npz",
            main=np.full(600, shard, np.int32),
            codes=np.zeros((2, 600), np.int16),
            lengths=np.full(12, 50, np.int32),
            speaker=np.repeat([0, 1], 6).astype(np.int32),
        )
    pool = Corpus(tmp_path, lambda _: True, interleave=0, num_books=2, max_tokens=2000, device=CPU)

    pool.refill()

    assert (pool.num_groups, pool.num_tokens) == (6, 1800)
    assert set(pool.random_groups(1000).tolist()) == set(range(6))
