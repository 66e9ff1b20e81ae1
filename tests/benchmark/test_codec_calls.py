"""Calls of a codec are measured with torch and compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmark.codec_calls import main
from commands import Command


def test_calls_are_measured_both_ways(tiny: Path, command: Command) -> None:
    pytest.importorskip("numba", reason="numba has no wheels for this platform")

    done = command(main, f"{tiny} --frames 1,2 --rounds 1")

    assert done.code == 0
    assert [each["frames"] for each in done.facts["calls"]] == [1, 2]
    assert all(each["torch_ms"] > 0 and each["compiled_ms"] > 0 for each in done.facts["calls"])
