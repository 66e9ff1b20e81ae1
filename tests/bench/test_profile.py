"""A profile tells where an utterance's time goes: a table, a picture if it is wanted, one line of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from s1_mini.bench.axis import Axis, between
from s1_mini.bench.meter import Meter
from s1_mini.bench.profile import WHOLE_STEP, Rehearsal, measure_sections, shares
from s1_mini.bench.sweep import Sweep
from s1_mini.bench.tables import axis_data, axis_table
from s1_mini.cli.app import app, run
from s1_mini.config import EngineConfig
from s1_mini.families.s1.costs import Costs
from s1_mini.runtime.loader import Speaker, load

SECTIONS = ["text to tokens", "reference encode", "prefill", "slow step", "fast steps", "codec", "to host"]


@pytest.fixture(scope="module")
def speaker(tiny: Path) -> Speaker:
    return load(EngineConfig(checkpoint_path=tiny, device="cpu"))


def profile(*options: str | Path) -> None:
    app(["profile", *map(str, options)], standalone_mode=False)


def test_the_command_prints_a_table_and_a_line_of_json(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile("--checkpoint", tiny, "--device", "cpu", "--rows", "2", "--repeats", "2", "--max-frames", "4")

    captured = capsys.readouterr()
    *table, line = captured.out.splitlines()
    facts = json.loads(line)
    assert [section["name"] for section in facts["sections"]] == [*SECTIONS, "encode to wav", WHOLE_STEP]
    assert captured.err.splitlines() == [  # whether a person looks or a file is written
        "measuring: warm-up",
        "measuring: repetition 1 of 2",
        "measuring: repetition 2 of 2",
    ]
    assert facts["rows"] == 2
    assert all(any(row.startswith(section["name"]) for row in table) for section in facts["sections"])


def test_the_shares_make_the_whole_and_the_check_is_no_part_of_it(speaker: Speaker) -> None:
    sections = measure_sections(Rehearsal(speaker, "Hello.", rows=1, max_frames=3), repeats=2)

    assert sum(shares(sections).values()) == pytest.approx(1.0)
    assert WHOLE_STEP not in shares(sections)
    calls = {section.name: section.calls for section in sections}
    assert calls["prefill"] == 1
    assert calls["slow step"] == calls["fast steps"] == calls[WHOLE_STEP] == 3
    for section in sections:
        assert 0 < section.p50_ms <= section.p95_ms
        assert section.utilisation is None, "there is no GPU"
    assert {section.name for section in sections if section.gb_per_s} == {
        "prefill", "slow step", "fast steps", "codec", WHOLE_STEP
    }  # fmt: skip


def test_measuring_does_not_change_what_is_said(speaker: Speaker) -> None:
    rehearsal = Rehearsal(speaker, "Hello.", rows=1, max_frames=5)
    said: list[torch.Tensor] = []
    decode = rehearsal.codec.decode
    rehearsal.codec.decode = lambda codes: said.append(codes) or decode(codes)  # type: ignore[method-assign]
    try:
        measure_sections(rehearsal, repeats=2)
    finally:
        rehearsal.codec.decode = decode  # type: ignore[method-assign]

    assert len(said) == 3
    assert torch.equal(said[0], said[1])
    assert torch.equal(said[0], said[2])


def test_a_meter_gives_the_result_and_forgets_the_warm_up() -> None:
    meter = Meter(torch.device("cpu"))

    assert meter.measure("work", lambda: 7) == 7
    meter.forget_times()

    assert meter.sections(1) == []


def test_costs_are_those_of_the_checkpoint(speaker: Speaker) -> None:
    model = speaker.model
    costs = Costs(model.network, speaker.codec)

    assert costs.slow_step(1, 65).num_bytes - costs.slow_step(1, 64).num_bytes == model.column_bytes
    assert costs.slow_step(4, 64).operations == 4 * costs.slow_step(1, 64).operations
    assert costs.slow_step(1, 0).num_bytes < model.num_bytes
    whole, halves = costs.prefill(64), costs.prefill(32) + costs.prefill(32, start=32)
    assert halves.operations < whole.operations, "chunks do not compute what the mask hides"
    assert halves.num_bytes > whole.num_bytes, "but read the weights again"


def test_a_sweep_tells_what_was_measured_beside_what_was_predicted(speaker: Speaker) -> None:
    told: list[str] = []
    axes = {axis.name: axis for axis in Sweep(speaker, repeats=1, largest=256).run(told.append)}

    assert told[:2] + told[-1:] == ["growth: text", "growth: prefix", "growth: memory"]

    for exact in ("prefix in the cache", "stream of the codec"):  # bytes are no matter of the machine's mood
        assert axes[exact].exponent == pytest.approx(axes[exact].predicted[0], abs=1e-6)
    assert axes["prefix in the cache"].slope == pytest.approx(speaker.model.column_bytes)
    assert axes["4 slots"].slope == pytest.approx(4 * speaker.model.column_bytes)
    assert axes["prefix, cached"].ys[-1] < axes["prefix, fresh"].ys[-1]
    assert axes["step"].ys[-1] < axes["step, one row after the other"].ys[-1]
    assert axes["first sound, streamed"].ys[-1] < axes["first sound, whole"].ys[-1]
    assert all(min(axis.ys) > 0 and len(axis.xs) == len(axis.ys) >= 2 for axis in axes.values())
    table = axis_table(list(axes.values())).splitlines()
    assert [line.split("  ")[0].rstrip() for line in table[1:]] == list(axes)
    json.dumps(axis_data(list(axes.values())))


def test_an_axis_fits_a_power_and_a_line() -> None:
    axis = Axis("a", "x", "ms", "x²", (1.0, 2.0, 4.0), (3.0, 12.0, 48.0), (2.0, 2.0))

    assert axis.exponent == pytest.approx(2.0)
    assert Axis("b", "x", "ms", "a + b·x", (1.0, 2.0, 4.0), (7.0, 9.0, 13.0), (0.0, 1.0)).slope == pytest.approx(2.0)
    assert between((1, 2, 4), (1, 1, 1), (1, 2, 4)) == pytest.approx((0.0, 1.0))


def test_a_chart_is_a_png(tiny: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="draws the chart: the extra `chart`")

    profile("--checkpoint", tiny, "--device", "cpu", "--repeats", "1", "--max-frames", "2", "--chart", tmp_path / "a")

    assert (tmp_path / "a").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("text", "error"), [(" ", "text:"), ("a" * 19_000, "columns")])
def test_a_text_that_cannot_be_said_is_an_error(
    text: str, error: str, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["s1-mini", "profile", "--checkpoint", str(tiny), "--text", text])

    assert run() == 1
    assert error in capsys.readouterr().err


def test_a_format_that_is_not_known_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["s1-mini", "profile", "--format", "au"])

    assert run() == 1
    assert "'au' is not known" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu_every_section_that_computes_there_tells_how_busy_it_was(tiny: Path) -> None:
    speaker = load(EngineConfig(checkpoint_path=tiny, device="cuda"))

    sections = {s.name: s for s in measure_sections(Rehearsal(speaker, "Hello.", rows=2, max_frames=4), repeats=2)}

    for name in ("prefill", "slow step", "fast steps", "codec", WHOLE_STEP):
        utilisation = sections[name].utilisation
        assert utilisation is not None, name
        assert 0 < utilisation <= 1, name
        assert sections[name].memory_mb > 0, name
