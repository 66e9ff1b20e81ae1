"""The benchmark of corpora speaks the same texts in each way, and tells what each gave."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmark.corpora import Look, looks, main, speed


def test_all_ways_speak_all_texts(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "corpora.json"
    arguments = ["--checkpoint", str(tiny), "--devices", "cpu", "--texts", "6", "--frames", "4", "--slots", "2"]
    monkeypatch.setattr(
        sys, "argv", ["corpora", *arguments, "--shard-size", "2", "--rounds", "2", "--output", str(output)]
    )

    assert main() == 0

    told = json.loads(output.read_text(encoding="utf-8"))
    assert told == json.loads(capsys.readouterr().out.splitlines()[-1])
    engine, corpus, *again = told["outcomes"]
    assert [each["way"] for each in again] == ["engine", "corpus"]
    assert (engine["way"], corpus["way"], engine["texts"]) == ("engine", "corpus", 6)
    assert engine["audio_s"] == pytest.approx(corpus["audio_s"])
    assert engine["audio_s"] > 0
    means = {
        way: (one["audio_per_s"] + two["audio_per_s"]) / 2
        for way, one, two in (("engine", engine, again[0]), ("corpus", corpus, again[1]))
    }
    assert told["sums"] == pytest.approx(means)
    assert "CPU cores" in corpus["machine"]


def test_nobody_looks_on_after_an_error() -> None:
    worker: Any = SimpleNamespace(engine=SimpleNamespace(metrics=SimpleNamespace(audio_s=0.0)))
    running = threading.active_count()

    with pytest.raises(ZeroDivisionError), looks(worker) as seen:
        raise ZeroDivisionError

    assert (len(seen), threading.active_count()) == (2, running)


def test_the_speed_is_that_between_a_quarter_and_three_quarters() -> None:
    seen = [Look(0.0, 0.0, 0.0), Look(5.0, 25.0, 1.0), Look(7.0, 75.0, 5.0), Look(20.0, 100.0, 9.0)]

    assert speed(seen) == (25.0, 2.0)
