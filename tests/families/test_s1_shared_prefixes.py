"""S1's frames are the same whether rows of a voice share its prefix or each reads its own copy, as they come and go.

On a GPU; without one, where Triton is installed, by its interpreter (TRITON_INTERPRET=1, -m gpu).
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from s1_mini.config import EngineConfig
from s1_mini.core.messages import Begin, Conditions, Prefill, Saved
from s1_mini.families.s1.language_model import LanguageModel
from s1_mini.families.s1.loaded import as_s1
from s1_mini.families.s1.model import S1Model
from s1_mini.families.s1.random import RECIPES, write_random_checkpoint
from s1_mini.kernels import common_attention, decode_attention
from s1_mini.kernels.backend import HAS_TRITON
from s1_mini.runtime.loader import load
from s1_mini.types import SamplingParams

INTERPRETED = HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cpu" and not INTERPRETED, reason="needs an NVIDIA GPU, or Triton's interpreter"),
]

SLOTS, SHARED, FRAMES = 8, 80, 12


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S1Model:
    """A random model of ten codebooks, as the published one: kernels are made for their number."""
    write_random_checkpoint(tmp_path / "ten", RECIPES["tiny"])
    monkeypatch.setattr(decode_attention, "PROGRAMS", 1)  # rows are in one part however few they are
    for module in (decode_attention, common_attention):
        monkeypatch.setattr(module, "runs_triton", lambda _: True)
    return as_s1(load(EngineConfig(checkpoint_path=tmp_path / "ten", device=DEVICE, precision="float32")).loaded).model


class Speakers:
    """A stage whose slots speak after the same positions and some of their own."""

    def __init__(self, model: S1Model, *, shares: bool) -> None:
        self.model, self.stage = model, LanguageModel(model, slots=SLOTS, positions=192)
        self.stage.shares_prefixes = shares
        self.stage.make_graphs()
        self.saved: Saved | None = None

    def prompt(self, number: int) -> np.ndarray:
        """The same `SHARED` positions, then some by number, [S, K + 1]."""
        books, parts = self.model.num_codebooks, []
        for seed, length in ((0, SHARED), (number, 5 + number)):
            codes = np.random.default_rng(seed).integers(0, 32, (length, books))
            parts.append(np.concatenate((codes[:, :1] + self.model.tokenizer.semantic_begin, codes), axis=1))
        return np.concatenate(parts)

    def begin(self, slot: int, number: int) -> None:
        prompt = self.prompt(number)
        asked = Conditions(SamplingParams(), number, 0, FRAMES, {})
        self.stage.begin([Begin(slot, 0, prompt, None, 0, FRAMES, 1, 0, len(prompt), asked)])
        if self.saved is None:
            self.stage.prefill([Prefill(slot, 0, SHARED)])
            self.saved = self.stage.save(slot, SHARED)
        else:
            self.stage.load(slot, self.saved)
        self.stage.prefill([Prefill(slot, SHARED, len(prompt) - 1)])

    def speak(self, slots: list[int], frames: int) -> np.ndarray:
        return np.stack([np.stack(self.stage.step(slots, 1)().values) for _ in range(frames)])


@torch.inference_mode()
def test_rows_that_share_say_what_they_say_apart(model: S1Model) -> None:
    said = []
    for shares in (True, False):
        speakers = Speakers(model, shares=shares)
        starts = speakers.stage.state.common
        assert starts is not None
        for slot in range(6):
            speakers.begin(slot, 1 + slot)
        heard = [speakers.speak(list(range(6)), 3)]
        assert (starts.starts[:6] == (64 if shares else 0)).all()
        for slot, number in ((0, 10), (6, 11)):  # the leader's slot is somebody else's now, of the same voice
            speakers.begin(slot, number)
        heard.append(speakers.speak([0, 2, 3, 4, 6], 3))
        said.append(np.concatenate([each.reshape(-1) for each in heard]))

    assert np.array_equal(*said)
