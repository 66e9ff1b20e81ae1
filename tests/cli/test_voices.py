"""`s1-mini voices` on real directories: what was added is listed, heard by another process, and gone when deleted."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from s1_mini.cli.app import run
from s1_mini.types import Voice
from s1_mini.voices.library import write_voice
from voice_formats import BOOKS


def s1_mini(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["s1-mini", *map(str, arguments)])
    return run()


def test_a_voice_is_added_listed_described_spoken_with_and_deleted(
    tiny: Path,
    tone: np.ndarray,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    soundfile.write(tmp_path / "me.wav", tone, 44_100)
    where = ("--checkpoint", tiny, "--voices-path", tmp_path / "voices")
    said = ("--text", "Ah [b].", "--description", "A tone [a].")

    assert s1_mini(monkeypatch, "voices", "add", "me", tmp_path / "me.wav", *said, *where) == 0
    capsys.readouterr()
    assert s1_mini(monkeypatch, "voices", "list", *where) == 0
    listed = capsys.readouterr().out
    assert s1_mini(monkeypatch, "voices", "describe", "me", *where) == 0
    described = capsys.readouterr().out
    speak = ("say", "Hi.", "--voice", "me", "-o", tmp_path / "a.wav", "--max-new-tokens", "4")
    assert s1_mini(monkeypatch, *speak, *where) == 0
    monkeypatch.setenv("S1_MINI_VOICES_PATH", str(tmp_path / "voices"))
    assert s1_mini(monkeypatch, "voices", "delete", "me", "--checkpoint", tiny) == 0

    assert all(word in listed for word in ("me", "added", "1.0", "A tone [a]."))
    assert all(word in described for word in ("me", "added", "A tone [a].", "Ah [b]."))
    assert list((tmp_path / "voices").iterdir()) == []


def test_a_line_of_the_list_holds_a_voice(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert s1_mini(monkeypatch, "voices", "list") == 0

    voices = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert all(cell.strip() for voice in voices for cell in voice)
    assert ["julia (default)", "checkpoint"] in [[cell.strip() for cell in voice[:2]] for voice in voices]


def test_a_damaged_voice_of_a_checkpoint_is_named_beside_the_list_of_the_others(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    checkpoint = Path(shutil.copytree(tiny, tmp_path / "checkpoint"))
    (checkpoint / "voices").mkdir()
    write_voice(checkpoint / "voices", "good", Voice({"codes": torch.zeros(BOOKS, 3, dtype=torch.int64)}, "Hello."))
    (checkpoint / "voices" / "bad.safetensors").write_bytes(b"no voice")

    assert s1_mini(monkeypatch, "voices", "list", "--checkpoint", checkpoint) == 0
    listed = capsys.readouterr()
    assert s1_mini(monkeypatch, "voices", "describe", "bad", "--checkpoint", checkpoint) == 1
    described = capsys.readouterr()

    assert "good" in listed.out
    assert "bad" not in listed.out
    assert len(caplog.records) == described.err.count("\n") == 1
    warned = [record.message for record in caplog.records]
    for told in (*warned, described.err):
        assert "'bad' cannot be used: voices" in told
        assert "get this file of the checkpoint again, or delete it" in told


CALLS = {
    "no directory": (["add", "me", "me.wav", "--text", "Ah."], "--voices-path or S1_MINI_VOICES_PATH"),
    "no directory to delete from": (["delete", "me"], "--voices-path or S1_MINI_VOICES_PATH"),
    "unknown": (["describe", "nobody"], " NAME: 'nobody' is not a voice here; there are: "),
    "checkpoint's": (["delete", "clara", "--voices-path", "{tmp}"], " NAME: 'clara' is the checkpoint's"),
    "checkpoint's, no directory": (["delete", "clara"], " NAME: 'clara' is the checkpoint's and cannot be deleted"),
    "no sound": (
        ["add", "me", __file__, "--text", "Ah.", "--voices-path", "{tmp}"],
        f" RECORDING: {__file__!r}: the file",
    ),
    "no transcript": (["add", "me", "a.wav", "--text", "...", "--voices-path", "{tmp}"], " --text: '...' has nothing"),
    "no file": (["add", "me", "no.wav", "--text", "Ah.", "--voices-path", "{tmp}"], " RECORDING: "),
    "no name": (["add", "a/b", "no.wav", "--text", "Ah.", "--voices-path", "{tmp}"], " NAME: "),
    "taken": (["add", "clara", "no.wav", "--text", "Ah.", "--voices-path", "{tmp}"], " NAME: 'clara' is a voice of"),
    "not there": (["delete", "nobody", "--voices-path", "{tmp}"], "'nobody' is not a voice here"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_bad_call_gets_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, complaint = CALLS[name]

    code = s1_mini(monkeypatch, "voices", *(argument.format(tmp=tmp_path) for argument in arguments))

    told = capsys.readouterr().err
    assert code == 1
    assert complaint in told
    assert told.count("\n") == 1
