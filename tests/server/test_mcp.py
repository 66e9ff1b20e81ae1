"""`s1-mini mcp` with the client of the package mcp: over stdio, and its tools in this process."""

from __future__ import annotations

import asyncio
import base64
import io
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from commands import ENVIRONMENT
from s1_mini.audio.container import encode
from tests.server.conftest import Door

pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="pip install -r requirements-test.lock.txt")


def call(*calls: tuple[str, dict[str, Any]], options: list[str], **environment: str) -> list[Any]:
    """Run the command and return the results of calls to its tools."""
    from mcp import Client  # takes seconds to import
    from mcp.client.stdio import StdioServerParameters, stdio_client

    async def run() -> list[Any]:
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "s1_mini", "mcp", *options], env=ENVIRONMENT | environment
        )
        async with Client(stdio_client(server)) as client:
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return asyncio.run(run())


def call_here(url: str, folder: Path, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """Return the results of calls to the tools of a server at `url`, without a process for them."""
    from mcp import Client

    from s1_mini.cli.mcp import ServerSpeaker, tools

    async def run() -> list[Any]:
        speaker = ServerSpeaker(url, None)
        try:
            async with Client(tools(speaker, folder)) as client:
                return [await client.call_tool(name, arguments) for name, arguments in calls]
        finally:
            speaker.close()

    return asyncio.run(run())


def text_of(result: Any) -> str:
    return str(result.content[0].text)


def samples(content: bytes) -> int:
    return len(soundfile.read(io.BytesIO(content))[0])


def test_the_tools_speak_and_clone_on_a_running_server(door: Door, tone: np.ndarray, tmp_path: Path) -> None:
    recording = tmp_path / "me.wav"
    recording.write_bytes(encode(tone, 44_100, "wav"))
    robin = {"name": "robin", "recording": str(recording), "transcript": "Ah."}

    try:
        added, listed, spoken, written = call_here(
            door.url,
            tmp_path,
            ("clone_voice", robin),
            ("list_voices", {}),
            ("speak", {"text": "Hi.", "voice": "robin"}),
            ("speak", {"text": "Hi.", "path": "hello.flac", "speed": 2}),
        )
    finally:
        door.engine.delete_voice("robin")

    assert text_of(added) == "Added the voice 'robin'"
    assert listed.structured_content["result"] == [{"name": "robin", "description": ""}]
    assert (spoken.content[0].type, spoken.content[0].mime_type) == ("audio", "audio/mpeg")
    assert samples(base64.b64decode(spoken.content[0].data)) > 1000
    assert str(tmp_path / "hello.flac") in text_of(written)
    assert samples((tmp_path / "hello.flac").read_bytes()) > 100


def test_without_a_server_an_engine_in_the_process_speaks(tiny: Path, tmp_path: Path) -> None:
    options = ["--checkpoint", str(tiny), "--device", "cpu", "--folder", str(tmp_path)]

    spoken, listed = call(
        ("speak", {"text": "Hi.", "path": "hello.wav"}), ("list_voices", {}), options=options, S1_MINI_MAX_COLUMNS="72"
    )

    assert not spoken.is_error, text_of(spoken)
    assert samples((tmp_path / "hello.wav").read_bytes()) > 1000
    assert listed.structured_content["result"] == []


def test_mistakes_are_results_with_our_messages(door: Door, tmp_path: Path) -> None:
    calls = [
        ("speak", {"text": "Hi.", "voice": "nobody"}),
        ("speak", {"text": "Hi.", "path": "../hello.wav"}),
        ("speak", {"text": "Hi.", "path": "hello.txt"}),
        ("clone_voice", {"name": "robin", "recording": str(tmp_path / "none.wav"), "transcript": "Ah."}),
        ("speak", {"text": "Hi.", "path": "a\0.wav"}),
        ("clone_voice", {"name": "robin", "recording": "~nobody-here/a.wav"}),
    ]

    results = call_here(door.url, tmp_path, *calls)

    assert all(result.is_error for result in results)
    messages = [text_of(result) for result in results]
    expected = ["nobody", "outside of the folder", "ends in .txt", "No such file", "not a path", "not a path"]
    assert all(part in message for part, message in zip(expected, messages, strict=True)), messages
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    (result,) = call_here("http://127.0.0.1:9", tmp_path, ("speak", {"text": "Good morning."}))

    assert result.is_error
    assert "no answer from the server at http://127.0.0.1:9" in text_of(result)
