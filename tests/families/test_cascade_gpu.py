"""The cascade on a GPU: captured steps match the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from kernel_checks import needs_gpu
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.families.cascade.kernels import choose

pytestmark = needs_gpu

TEXTS = [f"Sentence number {number}, or so." for number in range(12)]


def start(cascade: Path, device: str, **formats: str) -> ProductionTTSEngine:
    formats = {"precision": "float32", "codec_dtype": "float32"} | formats
    engine = ProductionTTSEngine(EngineConfig(checkpoint_path=cascade, device=device, max_batch_size=8, **formats))
    engine.start()
    return engine


@pytest.fixture(scope="module")
def gpu(cascade: Path) -> Iterator[ProductionTTSEngine]:
    engine = start(cascade, "cuda")
    yield engine
    engine.stop()


@pytest.mark.parametrize("voice", [None, "two"])
def test_a_gpu_generates_what_a_cpu_generates(gpu: ProductionTTSEngine, cascade: Path, voice: str | None) -> None:
    asked = {"voice": voice, "temperature": 0.0, "max_new_tokens": 60}
    cpu = start(cascade, "cpu")
    expected = [cpu.generate(text, **asked).audio for text in TEXTS[:2]]
    cpu.stop()

    waves = [gpu.generate(text, **asked).audio for text in TEXTS[:2]]

    for wave, other in zip(waves, expected, strict=True):
        assert wave.shape == other.shape
        assert np.abs(wave - other).max() < 1e-3


def test_a_batch_and_a_stream_generate_what_each_request_generates_alone(gpu: ProductionTTSEngine) -> None:
    asked = {"seed": 3, "max_new_tokens": 40}
    alone = [gpu.generate(text, **asked).audio for text in TEXTS]

    together = gpu.generate_batch(TEXTS, **asked).results
    streamed = [np.concatenate([chunk.audio for chunk in gpu.stream(text, **asked)]) for text in TEXTS[:3]]

    for wave, other in zip([*alone, *alone[:3]], [*(each.audio for each in together), *streamed], strict=True):
        assert wave.shape == other.shape
        assert np.abs(wave - other).max() < 1e-3


def test_stages_may_be_on_a_gpu_and_a_cpu(gpu: ProductionTTSEngine, cascade: Path) -> None:
    asked = {"temperature": 0.0, "max_new_tokens": 30}
    engine = start(cascade, "cuda", placement="fine=cpu,codec=cpu")
    wave = engine.generate(TEXTS[0], **asked).audio
    engine.stop()

    assert np.abs(wave - gpu.generate(TEXTS[0], **asked).audio).max() < 1e-3


@pytest.mark.parametrize(("weights", "kv"), [("full", "full"), ("int8", "fp8")])
def test_reduced_precision_formats_work(cascade: Path, weights: str, kv: str) -> None:
    engine = start(cascade, "cuda", precision="bfloat16", codec_dtype="float16", weights_dtype=weights, kv_dtype=kv)
    results = engine.generate_batch(TEXTS, seed=1, max_new_tokens=30, voice="one").results
    engine.stop()

    assert all(np.isfinite(result.audio).all() and result.frames for result in results)


@pytest.mark.parametrize("size", [1024, 1072, 10_001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_samples_the_same_tokens_as_sorting(
    size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except where a probability that was rounded differently lies at a boundary."""
    rows, draws = 64, torch.Generator("cuda").manual_seed(size)
    logits = (4 * torch.randn(rows, size, device="cuda", generator=draws)).to(dtype)
    asked = [
        torch.rand(rows, device="cuda", generator=draws) * 1.5,
        torch.randint(0, 60, (rows,), device="cuda", generator=draws) * torch.arange(rows, device="cuda").remainder(2),
        torch.rand(rows, device="cuda", generator=draws).clamp_min(0.05),
        torch.rand(rows, device="cuda", generator=draws),
    ]
    asked[0][:4] = 0.0
    logits[2, 7:99] = logits[2].max()  # of equal ones the first is the likeliest
    asked[2][4:12] = 1.0

    ours = choose.choose(logits, *asked)
    monkeypatch.setattr(choose, "fits_kernel", lambda _: False)
    theirs = choose.choose(logits, *asked)

    assert (ours == theirs).float().mean() >= 0.95
    assert torch.equal(ours[:4], logits[:4].argmax(-1))
