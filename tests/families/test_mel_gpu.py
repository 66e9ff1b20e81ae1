"""Mel models on a GPU: captured steps and windows match the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernel_checks import needs_gpu
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.kernels import backend
from tests.families.mel_room import follow_text, written

pytestmark = needs_gpu

TEXTS = [
    f"Sentence number {['one', 'two', 'three', 'four', 'five', 'six'][number % 6]}, or so." for number in range(10)
]
FULL = {"precision": "float32", "codec_dtype": "float32"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("mel") / "checkpoint", seed=5)


def start(checkpoint: Path, device: str, **options: Any) -> ProductionTTSEngine:
    config = EngineConfig(checkpoint_path=checkpoint, device=device, max_batch_size=8, stop_threshold=9.0, **options)
    engine = ProductionTTSEngine(config)
    engine.start()
    return engine


@pytest.fixture(scope="module")
def gpu(checkpoint: Path) -> Iterator[ProductionTTSEngine]:
    engine = start(checkpoint, "cuda", **FULL)
    yield engine
    engine.stop()


def test_a_gpu_generates_what_a_cpu_generates(gpu: ProductionTTSEngine, checkpoint: Path) -> None:
    asked = {"seed": 2, "max_new_tokens": 60}
    cpu = start(checkpoint, "cpu", **FULL)
    expected = [cpu.generate(text, **asked).audio for text in TEXTS[:3]]
    cpu.stop()

    for text, wave in zip(TEXTS, expected, strict=False):
        heard = gpu.generate(text, **asked).audio
        assert heard.shape == wave.shape
        assert np.abs(heard - wave).max() < 1e-3


def test_words_have_the_same_times_on_a_gpu_and_a_cpu(tmp_path: Path) -> None:
    directory = written(tmp_path / "following", seed=5)
    rate = follow_text(directory, alignment={"layer": 1, "head": 0, "shift_ms": 0})
    times = []
    for device in ("cuda", "cpu"):
        config = EngineConfig(checkpoint_path=directory, device=device, min_length_ratio=2 * rate, **FULL)
        with ProductionTTSEngine(config) as engine:
            results = engine.generate_batch(TEXTS[:3], seed=1, word_times=True).results
        times.append([(word.start_s, word.end_s) for result in results for word in result.words])

    assert len(times[0]) == 5 * 3
    np.testing.assert_allclose(times[0], times[1], atol=0.01)


def test_a_batch_and_a_stream_generate_what_each_request_generates_alone(gpu: ProductionTTSEngine) -> None:
    asked = {"seed": 3, "max_new_tokens": 70}
    alone = [gpu.generate(text, **asked).audio for text in TEXTS]

    together = gpu.generate_batch(TEXTS, **asked).results
    streams = [gpu.stream(text, chunk_profile="ttfa", **asked) for text in TEXTS[:3]]
    streamed = [np.concatenate([chunk.audio for chunk in stream]) for stream in streams]

    for wave, other in zip([*alone, *alone[:3]], [*(each.audio for each in together), *streamed], strict=True):
        assert wave.shape == other.shape
        assert np.abs(wave - other).max() < 1e-3


def test_where_triton_fails_torch_generates_the_same_and_health_reports_it(
    gpu: ProductionTTSEngine, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: str) -> None:
        raise RuntimeError("no C compiler")

    expected = gpu.generate(TEXTS[0], seed=2, max_new_tokens=60).audio
    monkeypatch.setattr(backend, "_uses_triton", True)  # as it is restored afterwards
    monkeypatch.setattr("s1_mini.runtime.loader._try_kernel", refuse)
    engine = start(checkpoint, "cuda", **FULL)
    try:
        heard = engine.generate(TEXTS[0], seed=2, max_new_tokens=60).audio
        told = engine.health_check()["kernels"]
    finally:
        engine.stop()

    assert told == {"value": "torch", "reason": "Triton failed: no C compiler"}
    assert heard.shape == expected.shape
    assert np.abs(heard - expected).max() < 1e-3


@pytest.mark.parametrize("formats", [{}, {"weights_dtype": "int8"}, {"weights_dtype": "fp8", "kv_dtype": "fp8"}])
def test_reduced_precision_keeps_the_length_and_nearly_the_audio(checkpoint: Path, formats: dict[str, str]) -> None:
    engine = start(checkpoint, "cuda", **formats)
    try:
        result = engine.generate(TEXTS[0], seed=1, max_new_tokens=60)
        assert engine.health_check()["weights_dtype"]["value"] == formats.get("weights_dtype", "full")
    finally:
        engine.stop()

    assert len(result.audio) == result.frames * 256 == 120 * 256
    assert result.audio.std() > 0.01
