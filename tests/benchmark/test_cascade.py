"""The cascade and its original are measured with one workload, and all of it is told."""

from __future__ import annotations

import json
import sys

import pytest

from benchmark import cascade
from benchmark.cascade import main
from benchmark.command import run


def test_the_command_tells_of_engine_original_and_stages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cascade, "BATCH", 2)
    options = "--size tiny --device cpu --requests 1,2 --tokens 4"
    monkeypatch.setattr(sys, "argv", ["cascade", *options.split()])

    assert run(main) == 0
    *lines, line = capsys.readouterr().out.splitlines()
    told = json.loads(line)

    assert "random weights, 4 semantic tokens a request (0.1 s)" in lines[0]
    ways = {way["name"]: way for way in told["ways"]}
    assert [*ways] == [
        "engine, 1 at once",
        "engine, 2 at once",
        "transformers, 1 at once",
        "transformers, 2 at once",
    ]
    sounds = {round(way["audio_s"] / way["requests"], 6) for way in ways.values()}
    assert len(sounds) == 1, "all speak equally long"
    assert {"semantic: step", "coarse: step", "fine: step", "codec: step"} <= set(told["stages"])
