"""With `batch_invariance` a GPU gives a request the same audio, to the last bit, in any batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernel_checks import needs_gpu
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.families.s1.random import RECIPES, TINY_MODEL, Recipe, write_random_checkpoint
from s1_mini.kernels import decode_attention
from s1_mini.runtime.rows import SharedPrefixes

pytestmark = needs_gpu

WIDE = {"dim": 256, "n_head": 4, "n_local_heads": 2, "head_dim": 64, "intermediate_size": 768}
TEXTS = [f"Sentence number {number} of some that are spoken together." for number in range(64)]
ASKED = {"seed": 5, "max_new_tokens": 30, "voice": "tone"}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint in bfloat16 whose heads are wide enough for tensor cores."""
    directory = tmp_path_factory.mktemp("small") / "checkpoint"
    sizes = WIDE | {f"fast_{name.removeprefix('n_')}": size for name, size in WIDE.items() if name[:2] != "n_"}
    sizes |= {f"fast_{name}": WIDE[name] for name in ("n_head", "n_local_heads")}
    recipe = Recipe(TINY_MODEL | sizes, RECIPES["tiny"].codec, num_semantic=64)
    write_random_checkpoint(directory, recipe, dtype=torch.bfloat16)
    return directory


def start(directory: Path, tone: np.ndarray, **settings: Any) -> ProductionTTSEngine:
    given: dict[str, Any] = {"max_columns": 512, "max_batch_size": 64, "kv_cache_gb": 1, "batch_invariance": "on"}
    engine = ProductionTTSEngine(
        EngineConfig(checkpoint_path=directory, device="cuda", precision="bfloat16", **given | settings)
    )
    engine.start()
    engine.add_voice("tone", tone, "A tone.")
    return engine


@pytest.fixture(scope="module")
def engine(small: Path, tone: np.ndarray) -> Iterator[ProductionTTSEngine]:
    engine = start(small, tone)
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def alone(engine: ProductionTTSEngine) -> list[np.ndarray]:
    return [engine.generate(text, **ASKED).audio for text in TEXTS[:8]]


def together(engine: ProductionTTSEngine, count: int) -> list[np.ndarray]:
    return [result.audio for result in engine.generate_batch(TEXTS[:count], **ASKED).results[:8]]


def same(ours: list[np.ndarray], theirs: list[np.ndarray]) -> list[bool]:
    return [np.array_equal(mine, other) for mine, other in zip(ours, theirs, strict=True)]


@pytest.mark.parametrize("count", [8, 64])
def test_a_request_sounds_the_same_alone_and_in_a_batch(
    engine: ProductionTTSEngine, alone: list[np.ndarray], count: int
) -> None:
    assert engine.health_check()["batch_invariance"]["value"] == "on"
    assert same(together(engine, count), alone) == [True] * 8


def test_a_request_sounds_the_same_after_a_restart_with_other_slots_and_no_cached_prefix(
    small: Path, tone: np.ndarray, alone: list[np.ndarray]
) -> None:
    engine = start(small, tone, max_columns=400, max_batch_size=12, kv_cache_size=0)
    try:
        assert same(together(engine, 8), alone) == [True] * 8
    finally:
        engine.stop()


def test_a_request_sounds_the_same_in_a_batch_that_shares_its_voices_prefix(
    small: Path, tone: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_attention, "PROGRAMS", 64)  # so that 64 rows of two heads are in one part
    shared, table = [0], SharedPrefixes._table

    def count(self: SharedPrefixes, rows: int) -> np.ndarray:
        given = table(self, rows)
        shared.append(int((given[:rows] > 0).sum()))
        return given

    monkeypatch.setattr(SharedPrefixes, "_table", count)
    engine = start(small, np.tile(tone, 6))
    try:
        alone = [engine.generate(text, **ASKED).audio for text in TEXTS[:8]]
        assert max(shared) == 0
        assert same(together(engine, 64), alone) == [True] * 8
        assert max(shared) >= 48
    finally:
        engine.stop()


def test_captured_frames_and_prompts_are_the_eager_ones_to_the_last_bit(
    engine: ProductionTTSEngine, alone: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = engine._running.synthesizer.core.runners[0].stage
    for graphs in ("_steps", "_reads"):
        monkeypatch.setattr(stage, graphs, None)

    assert same(together(engine, 8), alone) == [True] * 8
