"""Qwen3-TTS on a GPU: kernels, captured frames and prompts match the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernel_checks import needs_gpu
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.families.base import Placement
from s1_mini.families.qwen3.loaded import open_qwen3
from s1_mini.families.qwen3.settings import Qwen3Settings
from s1_mini.kernels.backend import without_triton
from s1_mini.voices.library import write_voice
from tests.families.qwen3_room import LETTERS, clone, config, follow_text, opened, written

pytestmark = needs_gpu

TEXTS = [f"Sentence number {number}." for number in range(12)]
FULL = {"precision": "float32", "codec_dtype": "float32"}


@pytest.fixture(scope="module", params=["custom_voice", "base"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Presets, or a cloned voice that is the default."""
    directory = written(tmp_path_factory.mktemp("qwen3") / "checkpoint", request.param)
    if request.param == "base":
        (directory / "voices").mkdir()
        write_voice(directory / "voices", "mine", clone(opened(directory), frames=40), is_default=True)
    return directory


@pytest.fixture(scope="module", autouse=True)
def exact_convolutions() -> Iterator[None]:
    """Captured and plain calls use other kernels, whose results TF32 would set apart."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.backends.cudnn, "allow_tf32", False)
        yield


def start(settings: EngineConfig) -> ProductionTTSEngine:
    engine = ProductionTTSEngine(settings)
    engine.start()
    return engine


@pytest.fixture(scope="module")
def gpu(checkpoint: Path) -> Iterator[ProductionTTSEngine]:
    engine = start(config(checkpoint, device="cuda", **FULL))
    yield engine
    engine.stop()


def assert_alike(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() < 1e-3


def test_a_gpu_generates_what_a_cpu_generates(checkpoint: Path, gpu: ProductionTTSEngine) -> None:
    asked: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 20}
    cpu = start(config(checkpoint, device="cpu", **FULL))
    expected = [cpu.generate(text, **asked).audio for text in TEXTS[:3]]
    cpu.stop()

    for text, wave in zip(TEXTS, expected, strict=False):
        assert_alike(gpu.generate(text, **asked).audio, wave)


def test_captured_frames_prompts_and_sound_are_the_eager_ones(
    gpu: ProductionTTSEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {"max_new_tokens": 45, "seed": 3}
    captured = [result.audio for result in gpu.generate_batch(TEXTS, **asked).results]
    runners = gpu._running.synthesizer.core.runners
    for stage, name in ((0, "_steps"), (0, "_reads"), (1, "_graphs")):
        assert getattr(runners[stage].stage, name) is not None
        monkeypatch.setattr(runners[stage].stage, name, None)

    eager = [result.audio for result in gpu.generate_batch(TEXTS, **asked).results]

    for ours, theirs in zip(captured, eager, strict=True):
        assert_alike(ours, theirs)


def test_a_batch_and_a_stream_generate_what_each_request_generates_alone(gpu: ProductionTTSEngine) -> None:
    asked: dict[str, Any] = {"max_new_tokens": 40, "seed": 5}
    alone = [gpu.generate(text, **asked).audio for text in TEXTS]

    together = [result.audio for result in gpu.generate_batch(TEXTS, **asked).results]
    streamed = [
        np.concatenate([chunk.audio for chunk in gpu.stream(text, chunk_profile="ttfa", **asked)]) for text in TEXTS[:3]
    ]

    for ours, theirs in zip([*together, *streamed], [*alone, *alone[:3]], strict=True):
        assert_alike(ours, theirs)


@pytest.mark.parametrize("layout", ["whole", "step"])
def test_words_have_the_same_times_on_the_gpu_and_the_cpu(tmp_path: Path, layout: str) -> None:
    directory = follow_text(written(tmp_path / "aligned", "custom_voice"), {"layer": 1, "head": 2, "shift_ms": 0})
    times = []
    for device in ("cuda", "cpu"):
        engine = start(config(directory, device=device, text_layout=layout, **FULL))
        results = engine.generate_batch([LETTERS, "abc def"], word_times=True).results
        times.append([(word.start_s, word.end_s) for result in results for word in result.words])
        engine.stop()

    assert len(times[0]) > 0
    np.testing.assert_allclose(times[0], times[1], atol=0.01)


@torch.inference_mode()
def test_logits_in_bfloat16_are_those_without_kernels(checkpoint: Path) -> None:
    """Teacher-forced, along one sequence: kernels round where the original rounds, in the depth transformer too."""
    placement = Placement(torch.device("cuda"), torch.bfloat16, torch.float32)
    loaded = open_qwen3(checkpoint, placement, Qwen3Settings())
    model, network = loaded.model, loaded.model.network
    items = torch.from_numpy(model.prompt(TEXTS[0]).items).T

    def forced() -> list[torch.Tensor]:
        state, found = model.allocate(4, 64), []
        for slot in range(4):
            model.prefill(state, slot, items[:, :-1])
            model.activate(state, slot, items)
        for _ in range(3):
            hidden = model.hidden(state, span=64)
            found.append(network.semantic_logits(hidden).float())

            def follow(_: int, logits: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
                found.append(logits.float())
                return embeddings[7].expand(len(logits), -1).contiguous()

            first = network.depth_embeddings(0)[7].expand(4, -1).contiguous()
            network.depth(hidden, first, state.depth_cache, state.pairs, follow)
            frame = torch.full((4, model.num_codebooks + 1), 7, device="cuda")
            model.advance(state, frame)
        return found

    ours = forced()
    with without_triton():
        theirs = forced()

    for kernels, plain in zip(ours, theirs, strict=True):
        assert (kernels - plain).abs().max() <= 0.05 * plain.abs().max()
