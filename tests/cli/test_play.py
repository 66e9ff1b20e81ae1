"""`say --play` plays the same audio that it would write, as it is generated, and reports missing dependencies.

A stand-in replaces the package sounddevice, since test machines have no audio output.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import soundfile

from tests.cli.conftest import Call, Result


class PortAudioError(Exception):
    pass


class Speaker(ModuleType):
    """The package, with one output device that records the samples."""

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
        """The real stream waits until everything has been played."""

    def write(self, wave: np.ndarray) -> bool:
        assert wave.dtype == np.float32
        if self.broken == "unplugged":
            raise PortAudioError("Error writing to stream: Stream is stopped")
        self.played.append(wave)
        return False


@pytest.fixture
def play(call: Call, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    def play_with(module: ModuleType | None, checkpoint: Path, *more: str | Path) -> Result:
        monkeypatch.setitem(sys.modules, "sounddevice", module)
        return call(
            "say", "Hello.", "--checkpoint", checkpoint, "--seed", "1", "--max-new-tokens", "40", "--play", *more
        )

    return play_with


def test_what_is_played_is_what_is_written_and_comes_in_pieces(play: Call, tiny: Path, tmp_path: Path) -> None:
    speaker = Speaker()

    code = play(speaker, tiny, "-o", tmp_path / "a.wav").code

    wave, rate = soundfile.read(tmp_path / "a.wav", dtype="float32")
    assert code == 0
    assert speaker.rates == [rate]
    assert len(speaker.played) > 1
    assert np.allclose(np.concatenate(speaker.played), wave, atol=1e-4)


def test_nothing_is_written_where_no_file_is_named(
    play: Call, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    speaker = Speaker()

    code, _, said = play(speaker, tiny)

    assert code == 0
    assert speaker.played
    assert list(tmp_path.iterdir()) == []
    assert "wrote" not in said


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        ("none", "play: no audio output device is available (Error querying device -1)"),
        ("rate", "play: the audio output device failed (Error opening OutputStream: Invalid sample rate"),
        ("unplugged", "play: the audio output device failed (Error writing to stream: Stream is stopped)"),
    ],
)
def test_a_failing_audio_device_is_reported_in_one_sentence(
    play: Call, broken: str, complaint: str, tiny: Path
) -> None:
    code, _, said = play(Speaker(broken), tiny)

    assert code == 1
    assert complaint in said
    assert said.count("\n") == 1


def test_a_missing_package_is_reported_with_its_install_command(play: Call, tmp_path: Path) -> None:
    code, _, said = play(None, tmp_path / "nowhere")  # reported before anything is loaded

    assert code == 1
    assert 'pip install "s1-mini[play]"' in said


def test_a_missing_library_is_reported_with_its_install_command(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sounddevice.py").write_text("raise OSError('PortAudio library not found')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)

    code, _, said = call("say", "Hello.", "--play")

    assert code == 1
    assert "PortAudio library not found; on Debian and Ubuntu: apt install libportaudio2" in said
