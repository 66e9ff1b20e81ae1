"""Compiled steps of a mel model match torch's, and do not depend on the other rows of a call.

The first run on a machine compiles for some seconds, as every engine does, and fills the compile cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from s1_mini import EngineConfig, ProductionTTSEngine
from tests.families.mel_room import written

pytest.importorskip("numba", reason="numba has no wheels for this platform")
pytestmark = pytest.mark.long

TEXTS = ["One.", "Two of them, here.", "And three, with some more of it."]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("mel") / "checkpoint", seed=5)


@pytest.fixture(scope="module")
def compiled(checkpoint: Path) -> Iterator[ProductionTTSEngine]:
    with ProductionTTSEngine(EngineConfig(checkpoint_path=checkpoint, device="cpu", compile="true")) as engine:
        assert engine.health_check()["kernels"]["value"] == "numba"
        yield engine


@pytest.mark.parametrize(("formats", "apart"), [({}, 1e-4), ({"weights_dtype": "int8"}, 0.1)])
def test_compiled_steps_sound_as_those_of_torch(checkpoint: Path, formats: dict[str, str], apart: float) -> None:
    waves = []
    for switch in ("true", "false"):
        config = EngineConfig(checkpoint_path=checkpoint, device="cpu", compile=switch, **formats)
        with ProductionTTSEngine(config) as engine:
            assert engine.health_check()["kernels"]["value"] == ("numba" if switch == "true" else "torch")
            waves.append(engine.generate(TEXTS[2], seed=3, max_new_tokens=60).audio)

    assert waves[0].shape == waves[1].shape
    assert 0 < np.abs(waves[0] - waves[1]).max() <= apart * np.abs(waves[1]).max()


def test_in_a_batch_it_sounds_as_alone_to_the_bit(compiled: ProductionTTSEngine) -> None:
    alone = [compiled.generate(text, seed=3, max_new_tokens=60).audio for text in TEXTS]

    together = compiled.generate_batch(TEXTS, seed=3, max_new_tokens=60).results

    assert all(np.array_equal(wave, other.audio) for wave, other in zip(alone, together, strict=True))
