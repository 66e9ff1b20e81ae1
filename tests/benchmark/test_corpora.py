"""The corpus benchmark synthesizes the same texts in each mode and reports each result."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmark.corpora import Look, Outcome, looks, main, speed, sums_by_way
from commands import Command


@pytest.mark.long
def test_all_ways_speak_all_texts(tiny: Path, tmp_path: Path, command: Command) -> None:
    output = tmp_path / "corpora.json"

    done = command(main, "--devices cpu --texts 6 --frames 4 --slots 2 --shard-size 2", checkpoint=tiny, output=output)

    told = json.loads(output.read_text(encoding="utf-8"))
    assert (done.code, done.facts) == (0, told)
    engine, corpus = told["outcomes"]
    assert (engine["way"], corpus["way"], engine["texts"]) == ("engine", "corpus", 6)
    assert engine["audio_s"] == pytest.approx(corpus["audio_s"])
    assert engine["audio_s"] > 0
    assert told["sums"] == {each["way"]: each["audio_per_s"] for each in (engine, corpus)}
    assert "CPU cores" in corpus["machine"]


def test_a_way_is_the_sum_of_its_processes_and_the_mean_of_its_rounds() -> None:
    made = ("engine", 10.0), ("engine", 20.0), ("corpus", 9.0), ("engine", 30.0), ("engine", 20.0), ("corpus", 7.0)
    outcomes = [Outcome(way, "cpu", "", 1, 1.0, 1.0, audio_per_s, 1.0) for way, audio_per_s in made]

    assert sums_by_way(outcomes, rounds=2) == {"engine": 40.0, "corpus": 8.0}


def test_monitoring_stops_after_an_error() -> None:
    worker: Any = SimpleNamespace(engine=SimpleNamespace(metrics=SimpleNamespace(audio_s=0.0)))
    running = threading.active_count()

    with pytest.raises(ZeroDivisionError), looks(worker) as seen:
        raise ZeroDivisionError

    assert (len(seen), threading.active_count()) == (2, running)


def test_the_speed_is_that_between_a_quarter_and_three_quarters() -> None:
    seen = [Look(0.0, 0.0, 0.0), Look(5.0, 25.0, 1.0), Look(7.0, 75.0, 5.0), Look(20.0, 100.0, 9.0)]

    assert speed(seen) == (25.0, 2.0)
