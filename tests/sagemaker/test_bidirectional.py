"""The container's side of InvokeEndpointWithBidirectionalStream: audio is sent while text still arrives."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import soundfile
from websockets.sync.client import connect

from container_room import ENDPOINT
from s1_mini.cli.app import run
from waiting import EVENTUALLY_S


def test_sound_of_the_first_sentence_comes_while_text_still_arrives(container: Any) -> None:
    url = container.url.replace("http", "ws") + "/invocations-bidirectional-stream"
    with connect(url, proxy=None) as socket:
        socket.send(json.dumps({"type": "session.config", "response_format": "pcm", "max_new_tokens": 8}))
        socket.send(json.dumps({"type": "input.text", "text": "One two three. Fo"}))
        first = messages_until(socket, "audio.done")
        socket.send(json.dumps({"type": "input.text", "text": "ur five six."}))
        socket.send(json.dumps({"type": "input.done"}))
        rest = messages_until(socket, "session.done")

    assert [output["type"] for output in first if isinstance(output, dict)] == ["audio.start", "audio.done"]
    assert sum(len(piece) for piece in first if isinstance(piece, bytes)) > 0
    assert [output["type"] for output in rest if isinstance(output, dict)] == [
        "audio.start",
        "audio.done",
        "session.done",
    ]


def converse(*arguments: str) -> int:
    """Run `s1-mini endpoint invoke … --mode bidirectional`; return its exit code."""
    sys.argv = ["s1-mini", "endpoint", "invoke", ENDPOINT, *arguments, "--mode", "bidirectional"]
    return run()


@pytest.fixture
def command(container: Any, account: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME", container.url)
    monkeypatch.setattr(sys, "argv", [])
    return converse


def test_the_command_sends_lines_and_writes_one_audio_file(command: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"

    assert command("One two three.\nFour five six.", "--seed", "1", "-o", str(path)) == 0

    wave, sample_rate = soundfile.read(path)
    assert sample_rate == 44100
    assert len(wave) > 0


def test_the_command_reads_lines_from_stdin(command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("One two three.\n"))

    assert command("-", "--format", "pcm", "-o", str(tmp_path / "a.pcm")) == 0
    assert (tmp_path / "a.pcm").stat().st_size > 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["a.wav", "--voice", "nobody"], "voice_not_found"),
        (["a.mp3"], "use one of wav, pcm"),
        (
            ["a.wav", "--component", "a"],
            "does not support --target-model, --component or --prefix-id; use --mode stream",
        ),
    ],
)
def test_a_failed_conversation_leaves_no_file(
    command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    path = tmp_path / options[0]

    assert command("One.", "-o", str(path), *options[1:]) != 0
    assert sentence in capsys.readouterr().err
    assert not path.exists()


def messages_until(socket: Any, last: str) -> list[Any]:
    heard: list[Any] = []
    while not (heard and isinstance(heard[-1], dict) and heard[-1]["type"] == last):
        message = socket.recv(timeout=EVENTUALLY_S)
        heard.append(message if isinstance(message, bytes) else json.loads(message))
    return heard
