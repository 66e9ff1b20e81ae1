"""The engine's counters are correct, and survive a reload."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.exceptions import CheckpointError, S1MiniError
from s1_mini.metrics import Histogram


def value(engine: ProductionTTSEngine, name: str) -> object:
    return next(family.value for family in engine.families() if family.name == name)


@pytest.fixture
def own(tiny: Path) -> ProductionTTSEngine:
    return ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu", max_columns=512))


def test_a_histogram_puts_a_value_into_the_first_bucket_that_is_not_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for number in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(number)

    assert histogram.cumulative() == [(1.0, 2), (2.0, 3), (float("inf"), 4)]
    assert (histogram.sum, histogram.count) == (12.0, 4)


def test_every_request_is_counted_once_by_its_end(own: ProductionTTSEngine) -> None:
    with own:
        for seed in range(3):
            own.generate("Hello.", seed=seed, max_new_tokens=6)
        stream = iter(own.stream("Hello there, all of you. " * 60, seed=14))  # minutes of noise without an end
        next(stream)
        stream.close()
        own.stop()

        assert own.metrics.ends == {"spoken": 3, "cancelled": 1}
        assert own.metrics.total_s.count == 4
        assert own.metrics.queue_s.count == own.metrics.prefill_s.count == own.metrics.first_chunk_s.count == 4
        assert own.metrics.frames >= 18
        assert own.metrics.rows.count >= own.metrics.frames  # a step may reach the end instead


def test_families_name_the_queue_the_slots_and_the_caches(own: ProductionTTSEngine) -> None:
    with own:
        own.generate("Hello.", max_new_tokens=4)

        assert value(own, "queue_waiting") == 0
        assert value(own, "slots") == {"taken": 0, "free": 4}
        assert value(own, "cache_hits_total") == {"prefix": 0.0, "reference": 0.0}
        names = [family.name for family in own.families()]
        assert len(names) == len(set(names))


def test_a_reload_speaks_with_the_new_checkpoint_and_loses_nothing(own: ProductionTTSEngine) -> None:
    with own:
        before = own.generate("Hello.", seed=1, max_new_tokens=8).audio
        results: list[np.ndarray | S1MiniError] = []
        stop = threading.Event()

        def ask_on() -> None:
            while not stop.is_set():
                try:
                    results.append(own.generate("Hello.", seed=1, max_new_tokens=8).audio)
                except S1MiniError as error:
                    results.append(error)

        threads = [threading.Thread(target=ask_on) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(2):
            own.reload(own.config.checkpoint_path)
        stop.set()
        for thread in threads:
            thread.join()

        assert len(results) >= 2
        assert all(np.array_equal(result, before) for result in results)
        assert own.metrics.ends["spoken"] == len(results) + 1


def test_a_reload_that_fails_leaves_the_old_checkpoint_speaking(own: ProductionTTSEngine, tmp_path: Path) -> None:
    with own:
        with pytest.raises(CheckpointError):
            own.reload(tmp_path)

        assert own.generate("Hello.", max_new_tokens=4).success
        assert own.health_check()["ready"]


def test_a_reload_keeps_voices_that_were_added(own: ProductionTTSEngine, tone: np.ndarray) -> None:
    with own:
        own.add_voice("me", tone, "Ah.")
        before = own.generate("Hello.", voice="me", seed=1, max_new_tokens=6).audio

        own.reload(own.config.checkpoint_path)

        assert np.array_equal(own.generate("Hello.", voice="me", seed=1, max_new_tokens=6).audio, before)
