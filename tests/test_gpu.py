"""What only a GPU can show: the same tokens, and the original's tensors, there as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.checkpoint.verify import verify_checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

TEXTS = [f"Sentence number {number}." for number in range(12)]


def start(tiny: Path, device: str) -> ProductionTTSEngine:
    config = EngineConfig(
        checkpoint_path=tiny, device=device, precision="float32", compile="false", max_batch_size=8, max_columns=512
    )
    engine = ProductionTTSEngine(config)
    engine.start()
    return engine


@pytest.fixture(scope="module")
def gpu(tiny: Path) -> Iterator[ProductionTTSEngine]:
    engine = start(tiny, "cuda")
    yield engine
    engine.stop()


def test_the_originals_tensors_are_reproduced_on_the_gpu(oracle: Path) -> None:
    checks = list(verify_checkpoint(oracle, oracle / "oracle.pt", device="cuda", tolerance=1e-3))

    assert [check.name for check in checks if not check.passed] == []


def test_the_gpu_says_what_the_cpu_says(tiny: Path, gpu: ProductionTTSEngine) -> None:
    cpu = start(tiny, "cpu")

    ours, theirs = (engine.generate("Hello.", temperature=0, max_new_tokens=20).audio for engine in (gpu, cpu))

    assert np.abs(ours - theirs).max() < 1e-3
    cpu.stop()


def test_captured_frames_say_what_eager_frames_say(gpu: ProductionTTSEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"temperature": 0.0, "max_new_tokens": 30, "seed": 3}
    captured = [result.audio for result in gpu.generate_batch(TEXTS, **asked).results]
    runner = gpu._running.generator.worker.runner
    assert runner._graphs is not None

    monkeypatch.setattr(runner, "_graphs", None)
    eager = [result.audio for result in gpu.generate_batch(TEXTS, **asked).results]

    for ours, theirs in zip(captured, eager, strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() < 1e-3


def test_a_request_in_company_says_what_it_says_alone(gpu: ProductionTTSEngine) -> None:
    alone = [gpu.generate(text, seed=5, max_new_tokens=30).audio for text in TEXTS]

    together = [result.audio for result in gpu.generate_batch(TEXTS, seed=5, max_new_tokens=30).results]

    same = [a.shape == b.shape and np.abs(a - b).max() < 1e-3 for a, b in zip(alone, together, strict=True)]
    assert sum(same) >= 0.9 * len(same)  # products of other widths round otherwise, and may tip a draw


def test_streamed_sound_is_the_whole_sound(gpu: ProductionTTSEngine) -> None:
    chunks = list(gpu.stream("Hello there.", seed=2, max_new_tokens=40, chunk_profile="ttfa"))
    whole = gpu.generate("Hello there.", seed=2, max_new_tokens=40).audio

    assert np.abs(np.concatenate([chunk.wave for chunk in chunks]) - whole).max() < 1e-3


def test_health_tells_of_the_gpus_memory(gpu: ProductionTTSEngine) -> None:
    health = gpu.health_check()

    assert 0 < health["vram"]["used_gb"] < health["vram"]["total_gb"]
