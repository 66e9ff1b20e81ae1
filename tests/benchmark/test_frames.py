"""Frame times are measured on the model alone, without requests, and leave its state clean."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmark.frames import main, measure_frames
from commands import Command
from s1_mini.config import EngineConfig
from s1_mini.runtime.loader import load


def test_each_number_of_rows_is_timed_on_the_threads_of_the_engine(tiny: Path) -> None:
    loaded = load(EngineConfig(checkpoint_path=tiny, device="cpu")).loaded
    threads, seen = torch.get_num_threads(), []
    step = loaded.model.step

    def count(*given: object) -> object:
        seen.append(torch.get_num_threads())
        return step(*given)  # type: ignore[arg-type]

    loaded.model.step = count  # type: ignore[method-assign,assignment]
    times = measure_frames(loaded, (1, 3), context=40, frames=4)

    assert [each.rows for each in times] == [1, 3]
    assert all(each.device_ms == each.step_ms > 0 for each in times), "without graphs both are the same"
    assert all(each.cpu_ms > 0 for each in times)
    assert len(seen) == 2 * (4 + 5)
    assert set(seen) == {1}
    assert torch.get_num_threads() == threads


def test_the_command_prints_a_table_and_a_line_of_json(tiny: Path, command: Command) -> None:
    done = command(main, "--device cpu --rows 1,2 --frames 2 --context 20 --voices 1", checkpoint=tiny)

    assert done.code == 0
    assert [each["rows"] for each in done.facts["frames"]] == [1, 2]
    assert [row.split()[0] for row in done.lines] == ["rows", "1", "2"]
