"""The examples of the batch interface's specification run unchanged, and batching saves steps."""

from __future__ import annotations

import asyncio
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from held_generation import Held, held_generation
from s1_mini import EngineConfig, ProductionTTSEngine

BATCH = """
    from s1_mini import ProductionTTSEngine, EngineConfig

    # Configure with batching
    config = EngineConfig(
        checkpoint_path="checkpoints/openaudio-s1-mini",
        device="cuda",
        enable_batching=True,
        max_batch_size=4,
        batch_timeout_ms=200,
    )

    engine = ProductionTTSEngine(config)
    engine.start()

    # Generate batch
    response = engine.generate_batch(
        texts=[
            "Welcome to our service.",
            "Your order has been confirmed.",
            "Thank you for your purchase.",
            "Have a great day!",
        ],
        temperature=0.7,
        return_bytes=True,
    )

    # Process results
    for i, result in enumerate(response.results):
        if result.success:
            with open(f"output_{i}.wav", "wb") as f:
                f.write(result.audio_bytes)
        else:
            print(f"Failed: {result.error}")

    print(f"Total time: {response.total_time:.2f}s")
"""

ASYNC = """
    import asyncio
    from s1_mini import ProductionTTSEngine, EngineConfig

    async def process_batch():
        config = EngineConfig(enable_batching=True)
        engine = ProductionTTSEngine(config)
        engine.start()

        response = await engine.generate_batch_async(
            texts=["Hello", "World"],
            return_bytes=True,
        )

        return response

    asyncio.run(process_batch())
"""

MONITOR = """
    health = engine.health_check()
    print(f"VRAM: {health['vram']['used_gb']:.1f}/{health['vram']['total_gb']:.1f} GB")
"""

SETTINGS = """
    config = EngineConfig(max_batch_size=2)
    config = EngineConfig(batch_timeout_ms=100)
    config = EngineConfig(batch_grouping=False)
"""

SEEDED = """
    response = engine.generate_batch(texts=texts, seed=42)
"""


# Of a slot: it ends random models, which would not stop.
POSITIONS = 96


@pytest.fixture(scope="module")
def engine(tiny: Path) -> Iterator[ProductionTTSEngine]:
    with ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu", max_columns=POSITIONS)) as engine:
        yield engine


def run(example: str, **names: Any) -> dict[str, Any]:
    """Run an example; on this machine its GPU is the CPU."""
    code = textwrap.dedent(example).replace('device="cuda"', 'device="cpu"')
    exec(compile(code, "example", "exec"), names)
    return names


@pytest.fixture
def desk(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with the checkpoint that the examples name; engines that they start are stopped."""
    monkeypatch.setenv("S1_MINI_MAX_COLUMNS", str(POSITIONS))
    shutil.copytree(tiny, tmp_path / "checkpoints" / "openaudio-s1-mini")
    monkeypatch.chdir(tmp_path)
    started: list[ProductionTTSEngine] = []
    start = ProductionTTSEngine.start
    monkeypatch.setattr(ProductionTTSEngine, "start", lambda self: (started.append(self), start(self))[1])
    yield tmp_path
    for engine in started:
        engine.stop(drain=False)


class TestBatchIntegration:
    """Examples of the specification."""

    def test_a_batch_is_spoken_into_files(self, desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
        response = run(BATCH)["response"]

        assert response.success
        assert len(list(desk.glob("output_*.wav"))) == 4
        assert "Total time" in capsys.readouterr().out

    @pytest.mark.usefixtures("desk")
    def test_a_batch_is_spoken_in_an_event_loop(self) -> None:
        run(ASYNC)

    def test_memory_can_be_watched(self, engine: ProductionTTSEngine, capsys: pytest.CaptureFixture[str]) -> None:
        run(MONITOR, engine=engine)

        assert capsys.readouterr().out.startswith("VRAM: ")

    def test_the_settings_of_the_troubleshooting_exist(self) -> None:
        assert run(SETTINGS, EngineConfig=EngineConfig)["config"].batch_grouping is False

    def test_a_seed_makes_results_the_same(self, engine: ProductionTTSEngine) -> None:
        texts = ["One.", "Two."]
        first, second = (run(SEEDED, engine=engine, texts=texts)["response"] for _ in range(2))

        for one, other in zip(first.results, second.results, strict=True):
            assert one.audio_bytes == other.audio_bytes

    def test_items_may_have_references_of_their_own(self, engine: ProductionTTSEngine, tone: np.ndarray) -> None:
        response = engine.generate_batch(
            texts=["Hello", "World", "Test"],
            reference_audios=[tone, np.roll(tone, 7), None],
            reference_texts=["ref1", "ref2", None],
            max_new_tokens=8,
            temperature=0.7,
            seed=1,
            return_bytes=True,
        )

        assert response.success
        assert [len(result.audio) for result in response.results] == [8 * 2048] * 3

    def test_an_event_loop_goes_on_while_a_batch_is_spoken(self, engine: ProductionTTSEngine) -> None:
        async def turn_while_speaking(held: Held) -> bool:
            spoken = asyncio.ensure_future(engine.generate_batch_async(texts=["Hello. " * 4], max_new_tokens=40))
            while not engine.health_check()["requests"]:
                await asyncio.sleep(0.001)
            held.release()
            return (await spoken).success

        with held_generation() as held:
            assert asyncio.run(turn_while_speaking(held))


class TestBatchPerformance:
    """Batching saves steps; `s1-mini bench` measures the time."""

    def test_a_batch_of_four_takes_few_more_steps_than_one(self, tiny: Path) -> None:
        config = EngineConfig(checkpoint_path=tiny, device="cpu", max_batch_size=4, batch_timeout_ms=500)
        with ProductionTTSEngine(config) as engine:
            model, steps = engine._running.synthesizer.core.runners[0].stage, []
            step = model.step
            model.step = lambda slots, size: (steps.append(len(slots)), step(slots, size))[1]
            engine.generate_batch(texts=["One.", "Two.", "Three.", "Four."], max_new_tokens=20, seed=1)

        assert 20 <= len(steps) <= 26  # 20, and a few while the prompts are prefilled one after the other
        assert sum(steps) > 2.5 * len(steps)  # utterances in a step
