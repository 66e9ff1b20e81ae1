"""Baseline and engine of the mel family produce the same output, and the command reports all figures."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmark.mel_baseline import FIFTY, SECTIONS, TEXTS, Comparison, Original, decoder_macs, encoder_macs, main
from commands import Command
from s1_mini.families.mel.config import MelConfig
from s1_mini.families.mel.random import write_random_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("mel") / "tiny"
    write_random_checkpoint(directory, form="published")
    return directory


def test_texts_have_the_lengths_that_are_stated() -> None:
    assert (min(map(len, TEXTS)), max(map(len, TEXTS)), len(FIFTY), len(TEXTS)) == (12, 307, 50, 10)


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


def test_the_derived_figures_match_those_counted_for_the_full_size() -> None:
    """The reference counts more coarsely: 12.6 TMAC without caches and 37.5 GMAC with them, for 20 s of 307 tokens."""
    config = MelConfig(max_text=600, max_steps=1876)

    assert decoder_macs(config, 625, 307, cached=True) == pytest.approx(37.5e9, rel=0.15)
    assert 10e12 < decoder_macs(config, 625, 307, cached=False) < 14e12
    assert decoder_macs(config, 400, 50, cached=False) / decoder_macs(config, 200, 50, cached=False) > 3.5
    assert decoder_macs(config, 400, 50, cached=True) / decoder_macs(config, 200, 50, cached=True) < 2.2
    assert encoder_macs(config, 100) > 85e6 * 100


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


def test_the_baselines_latencies_are_measured_in_a_queue_of_all_requests(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    compared = Comparison(checkpoint, "cpu", "auto", "full", 10)
    compared.start()
    waves, ends = compared.baseline.speak(FIFTY, 10), iter([1.0, 3.0, 7.0])  # the second takes 2 s, the third 4 s

    def speak(*_: object) -> np.ndarray:
        now[0] = next(ends)
        return waves

    monkeypatch.setattr(compared.baseline, "speak", speak)
    monkeypatch.setattr("benchmark.mel_baseline.time", SimpleNamespace(perf_counter=lambda: now[0]))
    try:
        one, three = compared.batches([1, 3], 1)
    finally:
        compared.engine.stop()

    assert one["baseline_average_ms"] == 1000.0
    assert three["baseline_average_ms"] == pytest.approx(1000 * (1 + 3 + 7) / 3)
    assert three["baseline_requests_per_s"] == pytest.approx(3 / 7)


def test_without_a_published_checkpoint_the_reason_for_no_transformers_row_is_reported(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path / "compact")

    assert Original.obstacle(tmp_path / "compact") == (
        "the checkpoint has no pytorch_model.bin; transformers reads the published form only"
    )
