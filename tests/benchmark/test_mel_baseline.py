"""Baseline and engine of the mel family produce the same output, and the command reports all figures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmark.mel_baseline import SECTIONS, TEXTS, Comparison, main
from commands import Command
from s1_mini.families.mel.random import write_random_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("mel") / "tiny"
    write_random_checkpoint(directory, form="published")
    return directory


def test_the_baseline_generates_what_the_engine_generates(checkpoint: Path) -> None:
    compared = Comparison(checkpoint, "cpu", "auto", "full", 16)
    compared.start()
    try:
        for text in TEXTS[:2]:
            wave = compared.baseline.speak(text, compared.steps(text))
            made = compared.engine.generate(text, max_new_tokens=compared.steps(text)).audio
            assert np.abs(made - wave).max() <= 1e-4
            assert wave.std() > 0.01
    finally:
        compared.engine.stop()


@pytest.mark.long
def test_the_command_prints_every_table_and_a_line_of_json(checkpoint: Path, tmp_path: Path, command: Command) -> None:
    words = "--device cpu --texts 1,2 --repeats 2 --requests 1,5 --growth 4,8 --max-steps 30"

    code, lines, output, _ = command(main, words, checkpoint=checkpoint, output=tmp_path / "it.json")

    assert code == 0
    assert json.loads((tmp_path / "it.json").read_text()) == output
    assert output["facts"]["steps"] == [25, 30]
    assert [way["name"] for way in output["latencies"]] == ["baseline", "transformers", "engine", "engine, first audio"]
    assert all(way["largest_difference"] <= 1e-4 for way in output["latencies"][1:3])
    assert [batch["failed"] for batch in output["batches"]] == [0, 0]
    assert [way["runs"] for way in output["latencies"]] == [4, 4, 4, 4]
    assert [(batch["rounds"], len(batch["seconds_of_rounds"])) for batch in output["batches"]] == [(2, 2), (2, 2)]
    before, after = output["sections"]["before"], output["sections"]["after"]
    assert list(before) == list(SECTIONS)
    assert list(after) == [*SECTIONS, "scheduling"]
    assert all(section["seconds"] > 0 for section in before.values())
    assert all(after[name]["seconds"] > 0 for name in (*SECTIONS[:4], "scheduling"))
    assert 0 < before["decode_mel"]["use"] <= 1
    assert after["decode_mel"]["bandwidth_gb_s"] > 0
    assert len(output["bottlenecks_before"]) == len(output["bottlenecks_after"]) == 3
    assert {one["part"] for one in output["growth"]} == {"decode, baseline", "decode, engine", "encode"}
    for words in ("one at a time", "before use %", "requests at once", "section", "Bottlenecks before", "derived"):
        assert any(words in line for line in lines)
