"""`say --play`: what is heard is what would be written, while it is made; and what is missing is told with the way out.

A stand-in for the package sounddevice: nothing that runs tests has a loudspeaker.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import soundfile

from s1_mini.cli.app import run


class PortAudioError(Exception):
    pass


class Speaker(ModuleType):
    """The package, with one loudspeaker that writes down what it plays."""

    PortAudioError = PortAudioError

    def __init__(self, broken: str = "") -> None:
        super().__init__("sounddevice")
        self.played: list[np.ndarray] = []
        self.rates: list[int] = []
        self.broken = broken

    def query_devices(self, *, kind: str) -> dict[str, object]:
        assert kind == "output"
        if self.broken == "none":
            raise PortAudioError("Error querying device -1")
        return {"name": "a loudspeaker"}

    def OutputStream(self, *, samplerate: int, channels: int, dtype: str) -> Speaker:  # noqa: N802
        assert (channels, dtype) == (1, "float32")
        if self.broken == "rate":
            raise PortAudioError("Error opening OutputStream: Invalid sample rate [PaErrorCode -9997]")
        self.rates.append(samplerate)
        return self

    def __enter__(self) -> Speaker:
        return self

    def __exit__(self, *given: object) -> None:
        """The real one waits until all was heard."""

    def write(self, wave: np.ndarray) -> bool:
        assert wave.dtype == np.float32
        if self.broken == "unplugged":
            raise PortAudioError("Error writing to stream: Stream is stopped")
        self.played.append(wave)
        return False


def say(monkeypatch: pytest.MonkeyPatch, tiny: Path, module: ModuleType | None, *more: str) -> int:
    monkeypatch.setitem(sys.modules, "sounddevice", module)
    limits = ["--checkpoint", str(tiny), "--seed", "1", "--max-new-tokens", "40"]
    monkeypatch.setattr(sys, "argv", ["s1-mini", "say", "Hello.", *limits, "--play", *more])
    return run()


def test_what_is_played_is_what_is_written_and_comes_in_pieces(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speaker = Speaker()

    code = say(monkeypatch, tiny, speaker, "-o", str(tmp_path / "a.wav"))

    wave, rate = soundfile.read(tmp_path / "a.wav", dtype="float32")
    assert code == 0
    assert speaker.rates == [rate]
    assert len(speaker.played) > 1
    assert np.allclose(np.concatenate(speaker.played), wave, atol=1e-4)


def test_nothing_is_written_where_no_file_is_named(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    speaker = Speaker()

    assert say(monkeypatch, tiny, speaker) == 0

    assert speaker.played
    assert list(tmp_path.iterdir()) == []
    assert "wrote" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        ("none", "play: this machine has no loudspeaker that can be used (Error querying device -1)"),
        ("rate", "play: the loudspeaker cannot be used (Error opening OutputStream: Invalid sample rate"),
        ("unplugged", "play: the loudspeaker cannot be used (Error writing to stream: Stream is stopped)"),
    ],
)
def test_a_loudspeaker_that_does_not_play_is_told_in_one_sentence(
    broken: str, complaint: str, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert say(monkeypatch, tiny, Speaker(broken)) == 1

    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1


def test_a_package_that_is_missing_is_told_with_the_command_that_brings_it(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = say(monkeypatch, tmp_path / "nowhere", None)  # told before anything is loaded

    assert code == 1
    assert 'pip install "s1-mini[play]"' in capsys.readouterr().err


def test_a_library_that_is_missing_is_told_with_the_command_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sounddevice.py").write_text("raise OSError('PortAudio library not found')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    monkeypatch.setattr(sys, "argv", ["s1-mini", "say", "Hello.", "--play"])

    assert run() == 1

    assert "PortAudio library not found; on Debian and Ubuntu: apt install libportaudio2" in capsys.readouterr().err
