"""Qwen3-TTS through the server: texts of designed voices, which are never spoken in parts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commands import invoke
from s1_mini import EngineConfig, ProductionTTSEngine, TTSRequest
from s1_mini.checkpoint.requests import check_request
from s1_mini.exceptions import MarkupError
from s1_mini.families.find import Checkpoint
from s1_mini.voices.library import write_voice
from tests.families.qwen3_room import clone, config, opened, written
from tests.server.conftest import Door, serving
from tests.server.test_websocket import hear, say, session

pytest.importorskip("wyoming")

from wyoming.client import AsyncTcpClient
from wyoming.tts import SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped

PIECES = ("One of them. Two of", " them, and more! A", "nd three.")


@pytest.fixture(scope="module")
def design(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("design") / "checkpoint", "voice_design")


@pytest.fixture(scope="module")
def designer(design: Path) -> Iterator[Door]:
    """A server that begins sentences early for voices that stay the same."""
    options = {"start_words": 1, "wyoming_port": 0}
    small = config(design, device="cpu").model_copy(update={"max_columns": 128})  # which ends noise
    with ProductionTTSEngine(small) as engine, serving(engine, **options) as door:
        yield door


def converse(door: Door, *sent: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a WebSocket session, without audio."""
    start = {"type": "session.config", "instructions": "An old man.", "seed": 1, "max_new_tokens": 4}
    with session(door) as socket:
        for message in (start, *sent, {"type": "input.done"}):
            say(socket, **message)
        return hear(socket)[0]


def test_a_session_speaks_the_text_of_a_designed_voice_as_a_whole_at_its_end(designer: Door) -> None:
    messages = converse(designer, *({"type": "input.text", "text": piece} for piece in PIECES))

    assert [message["text"] for message in messages if message["type"] == "audio.start"] == ["".join(PIECES)]
    assert messages[-1]["sentences"] == 1


def test_a_session_counts_the_text_that_it_keeps_for_a_designed_voice(designer: Door) -> None:
    text = {"type": "input.text", "text": "Many words. " * 1000}

    (error,) = converse(designer, text, text)

    assert error["error"]["code"] == "text_invalid"
    assert "24000 characters ahead of the audio; at most 20000" in error["error"]["message"]


def test_wyoming_speaks_the_streamed_text_of_a_designed_voice_as_a_whole(designer: Door) -> None:
    async def run() -> None:
        async with AsyncTcpClient("127.0.0.1", designer.app.state.wyoming.port) as client:
            for each in (SynthesizeStart(), *map(SynthesizeChunk, PIECES), SynthesizeStop()):
                await client.write_event(each.event())
            while not SynthesizeStopped.is_type((await client.read_event()).type):
                pass

    before = designer.engine.health_check()["queue"]["accepted"]
    asyncio.run(run())

    assert designer.engine.health_check()["queue"]["accepted"] == before + 1


def test_markup_that_would_change_a_designed_voice_is_refused_with_its_place(designer: Door, design: Path) -> None:
    one, two = "<speak>Hello.</speak>", '<speak>Hello.<break time="1s"/> You.</speak>'
    options: dict[str, Any] = {"text_type": "ssml", "seed": 1, "max_new_tokens": 4}
    expected = "line 1, column 32: another part begins here, and this model would speak it in another voice"

    assert designer.engine.generate(one, **options).audio.size
    with pytest.raises(MarkupError, match=expected):
        designer.engine.generate(two, **options)
    with pytest.raises(MarkupError, match=expected):
        check_request(TTSRequest.of(two, **options), EngineConfig(), Checkpoint(design))


def test_a_model_without_speakers_is_like_one_of_designed_voices(tmp_path: Path) -> None:
    custom = written(tmp_path / "custom", "custom_voice")
    assert Checkpoint(custom).description.splits

    values = json.loads((custom / "config.json").read_text())
    values["talker_config"] |= {"spk_id": {}, "spk_is_dialect": {}}
    (custom / "config.json").write_text(json.dumps(values))

    assert not Checkpoint(custom).description.splits


@pytest.mark.long
@pytest.mark.parametrize("has_voice", [True, False])
def test_the_check_of_a_package_speaks_with_its_first_voice_or_tells_how_to_add_one(
    tmp_path: Path, has_voice: bool
) -> None:
    base, artifact = written(tmp_path / "base", "base"), tmp_path / "model.tar.gz"
    (base / "voices").mkdir()
    if has_voice:
        write_voice(base / "voices", "mine", clone(opened(base)))

    invoke("package", "--checkpoint", base, "-o", artifact)
    checked = invoke("package", "--check", artifact, "--device", "cpu", fails=not has_voice)

    if has_voice:
        assert checked.count("    ok  ") == 8
    else:
        assert checked.count("    ok  ") == 6
        assert "voice: is needed, because this model has no voice of its own; add one, or send a reference" in checked
        assert "`s1-mini package --voices DIR` adds voices" in checked
