"""`s1-mini profile` reports the time of each section of an utterance as a table, then one line of JSON."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from commands import Command, Ran, run_command
from kernel_checks import on_gpu
from s1_mini.bench.profile import SCHEDULING, Profiler, measure_sections
from s1_mini.cli.app import run
from s1_mini.config import EngineConfig
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.families import registry
from s1_mini.runtime.loader import LoadedCheckpoint, load
from s1_mini.runtime.synthesizer import Synthesizer
from s1_mini.types import SamplingParams
from tests.toy.family import NAME, Toy

SECTIONS = ["text to prompt", "recording to voice", "language model: prefill", "language model: step", SCHEDULING]
SECTIONS += ["codec: step", "audio to wav"]


@pytest.fixture(scope="module")
def speaker(tiny: Path) -> LoadedCheckpoint:
    return load(EngineConfig(checkpoint_path=tiny, device="cpu"))


@pytest.fixture
def s1_mini(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def call(words: str, **options: object) -> Ran:
        named = (f"--{name}={value}" for name, value in options.items())
        return run_command(monkeypatch, capsys, run, ["s1-mini", *words.split(), *named])

    return call


def test_the_command_prints_a_table_and_a_line_of_json(tiny: Path, s1_mini: Command) -> None:
    code, table, facts, errors = s1_mini("profile --device cpu --rows 2 --repeats 2 --max-frames 4", checkpoint=tiny)

    assert code == 0
    assert {section["name"] for section in facts["sections"]} == set(SECTIONS)
    assert errors.splitlines() == [  # on a terminal or into a file
        "measuring: warm-up",
        "measuring: repetition 1 of 2",
        "measuring: repetition 2 of 2",
    ]
    assert (facts["rows"], facts["frames"]) == (2, 4)
    assert all(any(row.startswith(section["name"]) for row in table) for section in facts["sections"])


def test_the_shares_make_the_whole_and_every_step_is_counted(speaker: LoadedCheckpoint) -> None:
    threads = torch.get_num_threads()
    sections, frames = measure_sections(speaker, "Hello.", repeats=2, max_frames=3)

    assert frames == 3
    assert sum(section.share for section in sections) == pytest.approx(1.0)
    calls = {section.name: section.calls for section in sections}
    assert calls["language model: step"] == 3
    assert calls["text to prompt"] == calls["recording to voice"] == calls["audio to wav"] == 1
    assert 1 <= calls["codec: step"] <= 3
    for section in sections:
        assert 0 < section.p50_ms <= section.p95_ms
        assert section.total_ms == pytest.approx(section.calls * section.mean_ms)
    assert torch.get_num_threads() == threads


def test_profiling_does_not_change_the_output(speaker: LoadedCheckpoint) -> None:
    profiler = Profiler(speaker, "Hello.", rows=2, max_frames=5)
    first, again = profiler.speak(), profiler.speak()
    synthesizer = Synthesizer(speaker, EngineConfig(device="cpu"))
    try:
        asked = SamplingParams(seed=1, max_new_tokens=5)
        chunks = list(synthesizer.speak(["Hello."], (), asked, deadline=float("inf")))
    finally:
        synthesizer.close()

    assert all(np.array_equal(*both) for both in zip(first, again, strict=True))
    assert not np.array_equal(*first), "each row has a seed of its own"
    np.testing.assert_array_equal(first[1], np.concatenate([chunk.audio for chunk in chunks]))


def test_a_checkpoint_for_decoding_only_has_no_section_of_a_recording(
    speaker: LoadedCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise CheckpointMismatchError("decodes only")

    monkeypatch.setattr(speaker.loaded, "condition", refuse)
    sections, _ = measure_sections(speaker, "Hello.", repeats=1, max_frames=2)

    assert {section.name for section in sections} == set(SECTIONS) - {"recording to voice"}


def test_a_family_of_other_stages_is_measured_by_the_same_commands(
    tmp_path: Path, s1_mini: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.FAMILIES, NAME, "tests.toy.family:Toy")
    toy = tmp_path / "toy"
    Toy().write_random(toy, size="tiny", form="compact", seed=0)

    sections = s1_mini("profile --device cpu --repeats 1 --max-frames 8 --rows 2", checkpoint=toy).facts["sections"]
    loads = s1_mini("bench --device cpu --requests 2 --concurrency 2 --max-new-tokens 8", checkpoint=toy).facts["loads"]

    assert {"text: step", "frames: step", "vocoder: step", SCHEDULING} <= {section["name"] for section in sections}
    assert [load["failures"] for load in loads] == [{}, {}]


@pytest.mark.parametrize(
    ("options", "error"),
    [({"text": " "}, "text:"), ({"text": "a" * 19_000}, "positions"), ({"format": "au"}, "'au' is not known")],
)
def test_an_unspeakable_text_or_an_unknown_format_is_an_error(
    options: dict[str, str], error: str, tiny: Path, s1_mini: Command
) -> None:
    done = s1_mini("profile", checkpoint=tiny, **options)

    assert done.code == 1
    assert error in done.errors


@on_gpu
def test_on_a_gpu_every_stage_is_timed_while_the_device_works(tiny: Path) -> None:
    """Launching a step takes microseconds on the host; a synchronised step takes as long as its kernels."""
    speaker = load(EngineConfig(checkpoint_path=tiny, device="cuda"))

    sections, frames = measure_sections(speaker, "Hello.", repeats=2, rows=2, max_frames=4)

    calls = {section.name: section.calls for section in sections}
    assert set(calls) == set(SECTIONS)
    assert calls["language model: step"] >= frames
    assert sum(section.share for section in sections) == pytest.approx(1.0)
