"""The corpus benchmark synthesizes the same texts in each mode and reports each result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmark.corpora import main
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
