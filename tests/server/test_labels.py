"""Responses on every kind of route state that their audio is synthetic, unless a setting says otherwise."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import soundfile
from websockets.sync.client import connect

from s1_mini import ProductionTTSEngine
from s1_mini.audio.container import COMMENT, FORMATS, RAW, SOURCE_TYPE
from tests.server.conftest import Door

HEADER = "X-Digital-Source-Type"
SPEECH = {"text": "Good morning.", "seed": 1, "max_new_tokens": 12}
POSTED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/tts", SPEECH | {"stream": True}),
    ("/v1/tts/batch", {"items": [{"text": "Yes."}], "max_new_tokens": 12, "seed": 1}),
    ("/v1/audio/speech", {"input": "Yes.", "response_format": "pcm", "max_new_tokens": 12, "seed": 1}),
    (
        "/v1/audio/speech",
        {"input": "Yes.", "stream_format": "sse", "response_format": "wav", "max_new_tokens": 12, "seed": 1},
    ),
    ("/v1/text-to-speech/default?output_format=ulaw_8000", {"text": "Yes.", "max_new_tokens": 12, "seed": 1}),
    ("/v1/text-to-speech/default/stream/with-timestamps", {"text": "Yes.", "max_new_tokens": 12, "seed": 1}),
    ("/dev/captioned_speech", {"input": "Yes.", "return_timestamps": False, "max_new_tokens": 12, "seed": 1}),
    ("/v1/speech", {"Text": "Yes.", "OutputFormat": "mp3", "VoiceId": "Joanna"}),
]
SOCKETS = ("/v1/audio/speech/stream", "/v1/speak", "/v1/text-to-speech/default/stream-input")


@pytest.fixture(params=[True, False], ids=["on", "off"])
def is_on(request: pytest.FixtureRequest, short_engine: ProductionTTSEngine, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether labels are on, their default."""
    if not request.param:
        off = short_engine.config.model_copy(update={"label_audio": False})
        monkeypatch.setattr(short_engine, "config", off)
    return bool(request.param)


@pytest.mark.parametrize(("path", "body"), POSTED, ids=[f"{path} {len(str(body))}" for path, body in POSTED])
def test_every_audio_response_has_the_header(short_door: Door, is_on: bool, path: str, body: dict[str, Any]) -> None:
    with short_door.client() as client:
        answer = client.post(path, json=body)

    assert answer.status_code == 200, answer.text
    assert answer.headers.get(HEADER) == (SOURCE_TYPE if is_on else None)


@pytest.mark.parametrize("path", SOCKETS)
def test_the_handshake_of_every_websocket_has_the_header(short_door: Door, is_on: bool, path: str) -> None:
    with connect(f"ws://127.0.0.1:{short_door.port}{path}", proxy=None) as socket:
        found = socket.response.headers.get(HEADER)

    assert found == (SOURCE_TYPE if is_on else None)


def test_the_mp3_pieces_of_a_session_which_clients_join_have_no_tags(short_door: Door) -> None:
    with connect(f"ws://127.0.0.1:{short_door.port}/v1/audio/speech/stream", proxy=None) as socket:
        for message in (
            {"type": "session.config", "response_format": "mp3", "seed": 1, "max_new_tokens": 12},
            {"type": "input.text", "text": "Yes. No. "},
            {"type": "input.done"},
        ):
            socket.send(json.dumps(message))
        sound = b"".join(message for message in socket if isinstance(message, bytes))

    assert sound.startswith(b"\xff")  # the first frame
    assert COMMENT.encode() not in sound


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("name", [name for name in FORMATS if name not in (*RAW, "aac")])
def test_files_have_the_comment_if_they_have_a_place_for_it(
    short_door: Door, is_on: bool, name: str, streams: bool
) -> None:
    with short_door.client() as client:
        content = client.post("/v1/tts", json=SPEECH | {"format": name, "stream": streams}).content

    with soundfile.SoundFile(io.BytesIO(content)) as sound:
        assert sound.comment == (COMMENT if is_on and (name, streams) != ("wav", True) else "")
