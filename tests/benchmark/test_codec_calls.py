"""Calls of codecs are measured with torch and compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmark.codec_calls import main
from commands import Command


def test_every_checkpoint_is_measured_both_ways(tiny: Path, command: Command) -> None:
    pytest.importorskip("numba", reason="numba has no wheels for this platform")

    done = command(main, f"{tiny} --streams 1,2 --frames 1 --rounds 1")

    assert done.code == 0
    assert [(each["kernels"], each["streams"]) for each in done.facts["calls"]] == [
        ("torch", 1),
        ("compiled", 1),
        ("torch", 2),
        ("compiled", 2),
    ]
    assert all(each["cpu_ms"] > 0 for each in done.facts["calls"])
