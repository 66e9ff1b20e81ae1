"""`s1-mini bench` reports machine, commit and workload, then a table and one line of JSON."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from commands import Command, Ran, run_command
from s1_mini.bench.clients import Clients
from s1_mini.bench.workload import choose_voice, make_workload, without_voices
from s1_mini.cli.app import run
from s1_mini.config import EngineConfig
from s1_mini.engine import ProductionTTSEngine
from s1_mini.families.registry import family_of
from s1_mini.types import Voice
from s1_mini.voices.library import FOLDER, CheckpointVoices, write_voice
from s1_mini.weights.directory import DEFAULT_MODEL
from voice_formats import BOOKS

MEASURES = {"first_byte_ms", "audible_ms", "end_to_end_ms", "real_time_factor", "audio_per_s"}


@pytest.fixture
def bench(tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*options: object) -> Ran:
        common = ("s1-mini", "bench", "--checkpoint", tiny, "--device", "cpu", "--max-new-tokens", 6)
        return run_command(monkeypatch, capsys, run, [*common, *options])

    return call


def test_the_command_prints_a_table_and_a_line_of_json(bench: Command) -> None:
    _, lines, facts, _ = bench("--requests", 2, "--concurrency", "2,3", "--rate", 50, "--baseline", "sequential")

    loads = facts["loads"]
    names = ["sequential, 1 slot", "idle, one at a time", "2 at a time", "3 at a time", "50 a second"]
    assert [load["name"] for load in loads] == names
    assert [(load["requests"], load["failed"]) for load in loads] == [(2, 0), (8, 0), (2, 0), (2, 0), (2, 0)]
    assert {"speed_up", "first_p95_ratio", "machine", "commit", "torch", "seed"} <= facts.keys()
    assert facts["first_p95_ratio"] == loads[3]["first_p95_ratio"], "of the greatest concurrency"
    assert facts["speed_up"] == pytest.approx(loads[3]["audio_per_s"] / loads[0]["audio_per_s"])
    for load in loads:
        assert all(any(row.startswith(load["name"]) and name in row for row in lines) for name in MEASURES)
        assert any(row.startswith(load["name"]) and "late_ms" in row for row in lines) == (load["rate"] is not None)
        for name, shares in load["figures"].items():
            assert name == "audible_ms" or 0 <= shares["p50"] <= shares["p95"] <= shares["p99"]
        assert load["audio_s"] > 0


def test_a_cold_voice_is_encoded_with_every_request_and_a_cached_one_once(tiny: Path) -> None:
    asks = make_workload(4, 0, 2)
    misses = {}
    for state in ("cold", "cached"):
        with ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu")) as engine:
            Clients(engine, choose_voice(state, engine, 0), "ttfa").warm_up(asks)  # type: ignore[arg-type]
            misses[state] = engine.health_check()["reference_cache"]["misses"]

    assert misses == {"cold": 4, "cached": 1}


def test_a_known_voice_is_the_default_or_the_first_that_can_be_read(tiny: Path, tmp_path: Path) -> None:
    checkpoint = Path(shutil.copytree(tiny, tmp_path / "checkpoint"))
    (checkpoint / FOLDER).mkdir()
    (checkpoint / FOLDER / "anna.safetensors").write_bytes(b"no voice")
    known = []
    for name in ("bert", "clara"):
        voice = Voice({"codes": torch.zeros(BOOKS, 3, dtype=torch.int64)}, "Hello.")
        write_voice(checkpoint / FOLDER, name, voice, is_default=name == "clara")
        with ProductionTTSEngine(EngineConfig(checkpoint_path=checkpoint, device="cpu")) as engine:
            known.append(choose_voice("cached", engine, 0)(0)["voice"])

    assert known == ["bert", "clara"]


def test_without_voices_the_same_checkpoint_has_none() -> None:
    form = family_of(DEFAULT_MODEL).describe(DEFAULT_MODEL).voice
    with without_voices(DEFAULT_MODEL) as bare:
        assert CheckpointVoices.open(bare, form).names == []
        assert (bare / "config.json").read_bytes() == (DEFAULT_MODEL / "config.json").read_bytes()
    assert CheckpointVoices.open(DEFAULT_MODEL, form).default is not None


def test_failures_are_counted_by_code(tiny: Path) -> None:
    engine = ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu"))
    load = Clients(engine, lambda _: {}, "ttfa").closed("not started", make_workload(3, 0, 2), concurrency=2)

    assert load.failures == {"engine_not_ready": 3}
    assert load.figures["end_to_end_ms"]["p50"] is None


def test_a_load_that_fails_completely_is_reported_and_exits_with_1(
    bench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S1_MINI_MAX_TEXT_LENGTH", "10")  # no sentence is that short

    done = bench("--voice-state", "none", "--requests", 2, "-o", tmp_path / "results.json")

    assert done.code == 1
    assert done.errors == (
        "s1-mini: idle, one at a time: all 8 requests failed (text_invalid), so nothing was measured\n"
    )
    assert json.loads((tmp_path / "results.json").read_text())["failed"] == done.facts["failed"] == 8 + 2


def test_requests_that_failed_among_others_are_counted_in_a_warning(
    bench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = make_workload(2 + 8 + 2 + 4, 0, 2)
    lengths = [len(ask.text) for ask in (*asks[2:10], *asks[12:])]  # except for the warm-up
    monkeypatch.setenv("S1_MINI_MAX_TEXT_LENGTH", str(max(lengths) - 1))

    done = bench("--voice-state", "none", "--requests", 4)

    failed = lengths.count(max(lengths))
    assert (done.code, done.facts["failed"]) == (0, failed)
    assert done.errors == f"s1-mini: warning: {failed} of 12 requests failed and are excluded from all other figures\n"


def test_latency_of_an_open_load_counts_from_the_planned_arrival(engine: ProductionTTSEngine) -> None:
    asks, long_ago = make_workload(2, 0, 2), [-0.5, -0.25]
    load = Clients(engine, lambda _: {}, "ttfa").open("late", asks, long_ago, rate=4.0)

    assert min(one.late_s for one in load.outcomes) > 0.25
    assert all(one.end_to_end_s > one.first_byte_s > one.late_s for one in load.outcomes)
    assert load.seconds > 0.5


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("concurrency", "--concurrency 1,x"),
        ("concurrency", "--concurrency 0"),
        ("concurrency", "--concurrency 2.5"),
        ("rate", "--rate -1"),
        ("rate", "--rate inf"),
        ("baseline", "--rate 1 --baseline sequential"),
    ],
)
def test_an_invalid_load_is_refused_by_name(bench: Command, name: str, options: str) -> None:
    done = bench(*options.split())

    assert done.code == 1
    assert done.errors.startswith(f"s1-mini: --{name}: ")
