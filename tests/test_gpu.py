"""GPU tests: the same tokens as on a CPU, and the original's tensors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernel_checks import needs_gpu
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.checkpoint.verify import verify_checkpoint
from s1_mini.codecs.causal.stage import CausalDecoder
from s1_mini.codecs.dac.weights import open_dac
from s1_mini.core.messages import Begin, Conditions
from s1_mini.core.stage import Chunks, Spec
from s1_mini.families.s1.random import RECIPES, write_random_checkpoint
from s1_mini.runtime.graphs import STREAMS, graph_stream
from s1_mini.runtime.loader import load
from s1_mini.types import SamplingParams

pytestmark = needs_gpu

TEXTS = [f"Sentence number {number}." for number in range(12)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint of ten codebooks, as published: kernels and graphs depend on their number."""
    directory = tmp_path_factory.mktemp("ten") / "tiny"
    write_random_checkpoint(directory, RECIPES["tiny"])
    return directory


def start(tiny: Path, device: str, **formats: Any) -> ProductionTTSEngine:
    config = EngineConfig(
        checkpoint_path=tiny,
        device=device,
        precision="float32",
        codec_dtype="float32",
        compile="false",
        max_batch_size=8,
        max_columns=512,
        **formats,
    )
    engine = ProductionTTSEngine(config)
    engine.start()
    return engine


@pytest.fixture(scope="module")
def gpu(tiny: Path) -> Iterator[ProductionTTSEngine]:
    engine = start(tiny, "cuda")
    yield engine
    engine.stop()


@pytest.mark.parametrize("name", ["s1_tiny", "audio8_tiny"])
def test_the_originals_tensors_are_reproduced_on_the_gpu(name: str, oracle: Path) -> None:
    checkpoint = oracle.parent / name

    checks = list(verify_checkpoint(checkpoint, checkpoint / "oracle.pt", device="cuda", tolerance=1e-3))

    assert [check.name for check in checks if not check.passed] == []


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_originals_tensors_are_reproduced_on_the_second_gpu(oracle: Path) -> None:
    checks = list(verify_checkpoint(oracle, oracle / "oracle.pt", device="cuda:1", tolerance=1e-3))

    assert [check.name for check in checks if not check.passed] == []


def test_the_gpu_generates_what_the_cpu_generates(tiny: Path, gpu: ProductionTTSEngine) -> None:
    cpu = start(tiny, "cpu")

    ours, theirs = (engine.generate("Hello.", temperature=0, max_new_tokens=20).audio for engine in (gpu, cpu))

    assert np.abs(ours - theirs).max() < 1e-3
    cpu.stop()


def test_words_have_the_same_times_on_the_gpu_and_the_cpu(tmp_path: Path) -> None:
    recipe = RECIPES["tiny"]
    aligned = replace(recipe, model=recipe.model | {"alignment": {"layer": 1, "head": 2, "shift_ms": 20}})
    write_random_checkpoint(tmp_path / "aligned", aligned)
    times = []
    for device in ("cuda", "cpu"):
        engine = start(tmp_path / "aligned", device)
        chunks = engine.stream("One, two, three.", temperature=0, max_new_tokens=20, word_times=True)
        times.append([(word.start_s, word.end_s) for chunk in chunks for word in chunk.words])
        engine.stop()

    assert len(times[0]) > 0
    np.testing.assert_allclose(times[0], times[1], atol=0.01)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_codec_on_another_gpu_gives_the_same_sound(tiny: Path, gpu: ProductionTTSEngine) -> None:
    apart = start(tiny, "cuda", placement="codec=cuda:1")

    ours, theirs = (engine.generate("Hello.", temperature=0, max_new_tokens=20).audio for engine in (gpu, apart))

    assert np.abs(ours - theirs).max() < 1e-3
    apart.stop()


@pytest.mark.parametrize(("stage", "graphs"), [(0, ("_steps", "_reads")), (1, ("_graphs",))])
def test_captured_frames_and_sound_are_the_eager_ones(
    stage: int, graphs: tuple[str, ...], gpu: ProductionTTSEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"temperature": 0.0, "max_new_tokens": 45, "seed": 3}
    captured = [result.audio for result in gpu.generate_batch(TEXTS, **asked).results]
    eager_stage = gpu._running.synthesizer.core.runners[stage].stage
    for each in graphs:
        assert getattr(eager_stage, each) is not None
        monkeypatch.setattr(eager_stage, each, None)
    eager = [result.audio for result in gpu.generate_batch(TEXTS, **asked).results]

    for ours, theirs in zip(captured, eager, strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() < 1e-3


@pytest.mark.parametrize(("weights", "kv"), [("int8", "full"), ("fp8", "fp8")])
def test_eight_bit_weights_work_in_graphs_and_report_what_the_gpu_supports(
    weights: str, kv: str, tiny: Path, gpu: ProductionTTSEngine
) -> None:
    has_fp8 = torch.cuda.get_device_capability() >= (8, 9)
    narrow = start(tiny, "cuda", weights_dtype=weights, kv_dtype=kv)

    results = narrow.generate_batch(TEXTS, seed=3, max_new_tokens=30).results
    health, running = narrow.health_check(), narrow._running.synthesizer
    narrow.stop()

    assert all(result.success and result.frames for result in results)
    assert running.core.runners[0].stage._steps is not None
    assert health["weights_dtype"]["value"] == (weights if has_fp8 else "int8")
    assert health["kv_dtype"]["value"] == (kv if has_fp8 else "full")
    assert running._loaded.position_bytes * (4 if health["kv_dtype"]["value"] == "fp8" else 1) == (
        gpu._running.synthesizer._loaded.position_bytes
    )


def test_a_request_in_a_batch_generates_what_it_generates_alone(gpu: ProductionTTSEngine) -> None:
    alone = [gpu.generate(text, seed=5, max_new_tokens=30).audio for text in TEXTS]

    together = [result.audio for result in gpu.generate_batch(TEXTS, seed=5, max_new_tokens=30).results]

    same = [a.shape == b.shape and np.abs(a - b).max() < 1e-3 for a, b in zip(alone, together, strict=True)]
    assert sum(same) >= 0.9 * len(same)  # GEMMs of other widths round differently, and may tip a sample


def test_speaking_compiles_and_captures_nothing_more(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton", reason="there is nothing to compile without Triton")
    made: list[str] = []
    engine = start(tiny, "cuda")
    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", lambda **told: made.append(told["repr"]))
    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", lambda *_, **__: made.append("a graph"))

    results = engine.generate_batch([*TEXTS, "Of many words. " * 40], seed=3, max_new_tokens=60).results
    for profile in ("ttfa", "balanced", "throughput"):
        list(engine.stream(TEXTS[0], seed=3, max_new_tokens=60, chunk_profile=profile))
    engine.stop()

    assert all(result.success for result in results)
    assert made == []


def test_streamed_sound_is_the_whole_sound(gpu: ProductionTTSEngine) -> None:
    chunks = list(gpu.stream("Hello there.", seed=2, max_new_tokens=40, chunk_profile="ttfa"))
    whole = gpu.generate("Hello there.", seed=2, max_new_tokens=40).audio

    assert np.abs(np.concatenate([chunk.audio for chunk in chunks]) - whole).max() < 1e-3


def test_chunks_of_a_captured_call_sound_as_they_do_alone(oracle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of any length, padded at the end, in any batch."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    codec = open_dac(oracle, encodes=False, device=torch.device("cuda"))
    codes = torch.randint(0, 32, (5, 10, 30), generator=torch.Generator().manual_seed(1))
    policy = Chunks(
        name="codec",
        input=Spec("int64", (10,)),
        output=Spec("float32"),
        slots=8,
        sizes=dict.fromkeys(("ttfa", "balanced", "throughput"), (1, 4, 12)),
        rows=(1, 2, 4, 8),
        max_items=400,
    )
    with torch.inference_mode():
        stage = CausalDecoder(codec, policy, number=1)
        stage.capture()
        heard: list[list[np.ndarray]] = [[] for _ in range(5)]
        batches = (
            ([0, 1], 0, 4),
            ([2, 3, 4], 0, 1),
            ([2, 3, 4], 1, 13),
            ([0, 1], 4, 16),
            ([4], 13, 20),
            ([1, 0], 16, 19),
        )
        for slots, begin, end in batches:
            for slot, wave in zip(slots, _decode(stage, codes, slots, begin, end), strict=True):
                heard[slot].append(wave)
        for row, parts in enumerate(heard):
            wave = np.concatenate(parts)
            alone = codec.decode(codes[row : row + 1, :, : len(wave) // 2048].cuda())[0].cpu().numpy()
            assert np.abs(wave - alone).max() < 1e-3


def _decode(stage: CausalDecoder, codes: torch.Tensor, slots: list[int], begin: int, end: int) -> list[np.ndarray]:
    size = next(size for size in stage._policy.classes if size >= end - begin)
    conditions = Conditions(SamplingParams(), 0, 0, 8, {})
    stage.begin(
        [
            Begin(
                slot,
                begin,
                codes[slot, :, begin:end].T.numpy(),
                None,
                begin * 2048,
                1,
                size,
                0,
                end - begin,
                conditions,
            )
            for slot in slots
        ]
    )
    result = stage.step(slots, size)()
    assert all(result.valid)
    return [wave[:count] for wave, count in zip(result.values, result.counts, strict=True)]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_the_gpu_is_synchronised_only_for_a_frame_and_its_audio(gpu: ProductionTTSEngine) -> None:
    """Torch raises if the threads of frames or of audio synchronise anywhere else."""
    gpu.generate("Hello there.", seed=2, max_new_tokens=20)

    try:
        torch.cuda.set_sync_debug_mode("error")
        result = gpu.generate("Another sentence.", seed=2, max_new_tokens=20)
    finally:
        torch.cuda.set_sync_debug_mode("default")

    assert len(result.audio)


def test_stages_are_captured_on_streams_of_their_own_however_many_others_there_are() -> None:
    """Stages on one stream share cuBLAS's workspace, and a saturated engine would hang."""
    streams = [graph_stream(torch.device("cuda"), number) for number in range(STREAMS)]
    later = []
    for _ in range(40):  # torch has 32, and assigns them round-robin
        torch.cuda.Stream()
        later.append([graph_stream(torch.device("cuda", 0), number) for number in range(STREAMS)])

    assert len(set(streams)) == STREAMS
    assert later == [streams] * len(later)


def test_an_engine_speaks_while_its_successor_starts(tiny: Path) -> None:
    engine = start(tiny, "cuda")
    before = engine.generate("Hello there.", seed=3, max_new_tokens=40).audio
    heard: list[np.ndarray] = []
    over = threading.Event()

    def listen() -> None:
        while not over.is_set():
            heard.append(engine.generate("Hello there.", seed=3, max_new_tokens=40).audio)

    listeners = [threading.Thread(target=listen) for _ in range(4)]
    for listener in listeners:
        listener.start()
    engine.reload(tiny)
    over.set()
    for listener in listeners:
        listener.join()
    engine.stop()

    assert len(heard) >= 4
    assert all(len(wave) == len(before) and np.abs(wave - before).max() < 1e-3 for wave in heard)


def test_engines_that_start_together_generate_what_one_generates(tiny: Path, gpu: ProductionTTSEngine) -> None:
    with ThreadPoolExecutor(2) as pool:
        engines = list(pool.map(lambda _: start(tiny, "cuda"), range(2)))
        waves = list(pool.map(lambda engine: engine.generate("Hello.", seed=4, max_new_tokens=20).audio, engines))
    expected = gpu.generate("Hello.", seed=4, max_new_tokens=20).audio
    for engine in engines:
        engine.stop()

    assert all(np.abs(wave - expected).max() < 1e-3 for wave in waves)
    assert torch.backends.cudnn.enabled


def test_a_compiled_block_matches_the_eager_one_on_the_gpu(tiny: Path) -> None:
    compiled, written = (
        load(EngineConfig(checkpoint_path=tiny, device="cuda", compile=switch)) for switch in ("true", "false")
    )
    x = torch.randn(1, 7, compiled.loaded.model.network.config.backbone.dim, dtype=torch.bfloat16, device="cuda")

    with torch.inference_mode():
        ours, theirs = (each.loaded.model.network.layers[0].feed(x) for each in (compiled, written))

    assert compiled.compiler.choice.value == "inductor"
    assert torch.allclose(ours.float(), theirs.float(), atol=2**-5, rtol=2**-6)


def test_health_reports_the_gpus_memory(gpu: ProductionTTSEngine) -> None:
    health = gpu.health_check()

    assert 0 < health["vram"]["used_gb"] < health["vram"]["total_gb"]
