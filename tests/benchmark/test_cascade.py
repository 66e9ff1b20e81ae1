"""The cascade benchmark measures the engine and the reference implementation with the same workload."""

from __future__ import annotations

import pytest

from benchmark import cascade
from commands import Command


@pytest.mark.long
def test_the_command_reports_engine_reference_and_stages(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cascade, "BATCH", 2)

    done = command(cascade.main, "--size tiny --device cpu --requests 1,2 --tokens 4")

    assert done.code == 0
    assert "random weights, 4 semantic tokens per request (0.1 s)" in done.lines[0]
    ways = {way["name"]: way for way in done.facts["ways"]}
    assert [*ways] == ["engine, 1 at once", "engine, 2 at once", "transformers, 1 at once", "transformers, 2 at once"]
    sounds = {round(way["audio_s"] / way["requests"], 6) for way in ways.values()}
    assert len(sounds) == 1, "all speak equally long"
    assert {"semantic: step", "coarse: step", "fine: step", "codec: step"} <= set(done.facts["stages"])
