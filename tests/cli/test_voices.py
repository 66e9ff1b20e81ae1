"""`s1-mini voices` on real directories: added voices are listed, visible to other processes, and deletable."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from s1_mini.types import Voice
from s1_mini.voices.library import write_voice
from tests.cli.conftest import Call
from voice_formats import BOOKS


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_a_voice_is_added_listed_described_spoken_with_and_deleted(
    call: Call, tiny: Path, tone: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soundfile.write(tmp_path / "me.wav", tone, 44_100)
    where = ("--checkpoint", tiny, "--voices-path", tmp_path / "voices")
    said = ("--text", "Ah [b].", "--description", "A tone [a].")

    added = call("voices", "add", "me", tmp_path / "me.wav", *said, *where)
    listed, described = call("voices", "list", *where), call("voices", "describe", "me", *where)
    spoken = call("say", "Hi.", "--voice", "me", "-o", tmp_path / "a.wav", "--max-new-tokens", "4", *where)
    monkeypatch.setenv("S1_MINI_VOICES_PATH", str(tmp_path / "voices"))
    deleted = call("voices", "delete", "me", "--checkpoint", tiny)

    assert [result.code for result in (added, listed, described, spoken, deleted)] == [0] * 5
    assert all(word in listed.out for word in ("me", "added", "1.0", "A tone [a]."))
    assert all(word in described.out for word in ("me", "added", "A tone [a].", "Ah [b]."))
    assert list((tmp_path / "voices").iterdir()) == []


def test_a_line_of_the_list_holds_a_voice(call: Call) -> None:
    code, out, _ = call("voices", "list")

    assert code == 0
    voices = [line.split("│")[1:-1] for line in out.splitlines() if line.startswith("│")]
    assert all(cell.strip() for voice in voices for cell in voice)
    assert ["julia (default)", "checkpoint"] in [[cell.strip() for cell in voice[:2]] for voice in voices]


def test_a_damaged_voice_of_a_checkpoint_is_named_next_to_the_list_of_the_others(
    call: Call, tiny: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = Path(shutil.copytree(tiny, tmp_path / "checkpoint"))
    (checkpoint / "voices").mkdir()
    write_voice(checkpoint / "voices", "good", Voice({"codes": torch.zeros(BOOKS, 3, dtype=torch.int64)}, "Hello."))
    (checkpoint / "voices" / "bad.safetensors").write_bytes(b"no voice")

    listed = call("voices", "list", "--checkpoint", checkpoint)
    described = call("voices", "describe", "bad", "--checkpoint", checkpoint)

    assert (listed.code, described.code) == (0, 1)
    assert "good" in listed.out
    assert "bad" not in listed.out
    assert len(caplog.records) == described.err.count("\n") == 1
    warned = [record.message for record in caplog.records]
    for output in (*warned, described.err):
        assert "'bad' cannot be used: voices" in output
        assert "download this file of the checkpoint again, or delete it" in output


CALLS = {
    "not a directory": (["add", "me", "me.wav", "--text", "Ah."], "--voices-path or S1_MINI_VOICES_PATH"),
    "no directory to delete from": (["delete", "me"], "--voices-path or S1_MINI_VOICES_PATH"),
    "unknown": (["describe", "nobody"], " NAME: unknown voice 'nobody'; available: "),
    "checkpoint's": (["delete", "clara", "--voices-path", "{tmp}"], " NAME: 'clara' is a voice of the checkpoint"),
    "checkpoint's, no directory": (
        ["delete", "clara"],
        " NAME: 'clara' is a voice of the checkpoint and cannot be deleted",
    ),
    "no audio": (
        ["add", "me", __file__, "--text", "Ah.", "--voices-path", "{tmp}"],
        f" RECORDING: {__file__!r}: the file",
    ),
    "no transcript": (
        ["add", "me", "a.wav", "--text", "...", "--voices-path", "{tmp}"],
        " --text: '...' contains nothing to speak",
    ),
    "no file": (["add", "me", "no.wav", "--text", "Ah.", "--voices-path", "{tmp}"], " RECORDING: "),
    "no name": (["add", "a/b", "no.wav", "--text", "Ah.", "--voices-path", "{tmp}"], " NAME: "),
    "taken": (["add", "clara", "no.wav", "--text", "Ah.", "--voices-path", "{tmp}"], " NAME: 'clara' is a voice of"),
    "no folder": (
        ["describe", "me", "--voices-path", "{tmp}/typo"],
        "--voices-path: the folder '{tmp}/typo' does not exist",
    ),
    "not there": (["delete", "nobody", "--voices-path", "{tmp}"], "unknown voice 'nobody'"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_bad_call_gets_one_sentence(call: Call, name: str, tmp_path: Path) -> None:
    arguments, complaint = CALLS[name]

    code, _, output = call("voices", *(argument.format(tmp=tmp_path) for argument in arguments))

    assert code == 1
    assert complaint.format(tmp=tmp_path) in output
    assert output.count("\n") == 1
