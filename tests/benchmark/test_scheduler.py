"""The cost of a scheduler step is measured without a model."""

from __future__ import annotations

import numpy as np
import pytest

from benchmark import scheduler
from benchmark.scheduler import SAMPLES, NullStage, main, measure_scheduler
from commands import Command


def test_a_null_stage_returns_the_requested_number_of_items() -> None:
    frames = NullStage(np.zeros((1, 10), np.int64), is_over=False).step([3, 5], 1)()
    sound = NullStage(np.zeros(SAMPLES, np.float32), is_over=True).step([3, 5], 12)()

    assert (np.shape(frames.values), frames.counts, frames.stops) == ((2, 1, 10), [1, 1], [False, False])
    assert (np.shape(sound.values), sound.counts, sound.stops) == ((2, 12 * SAMPLES), [12 * SAMPLES] * 2, [True, True])


def test_in_every_turn_all_rows_generate_a_frame_and_their_audio_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    cores, unthreaded = [], scheduler.unthreaded
    monkeypatch.setattr(scheduler, "unthreaded", lambda *given: cores.append(unthreaded(*given)) or cores[0])

    measure_scheduler(3, 20)

    (core,) = cores
    frames = core.scheduler.ledger.metrics.frames
    assert frames == pytest.approx(3 * (20 + scheduler.WARM_UP), abs=9), "and the first turns, until all had begun"
    assert core.scheduler.ledger.metrics.audio_s == pytest.approx(0.04 * frames, abs=3 * 0.04 * 12)


def test_the_command_reports_each_number_of_rows(command: Command) -> None:
    done = command(main, "--rows 1,2 --turns 10")

    assert done.code == 0
    assert set(done.facts["scheduler_ms"]) == {"1", "2"}
    assert all(ms > 0 for ms in done.facts["scheduler_ms"].values())
