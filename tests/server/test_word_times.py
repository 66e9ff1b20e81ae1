"""Times of words over the WebSocket, with the built-in voice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from s1_mini import EngineConfig, ProductionTTSEngine
from tests.server.conftest import Door, serving
from waiting import EVENTUALLY_S

PATH = "/v1/audio/speech/stream"


@pytest.fixture(scope="module")
def built_in() -> Iterator[Door]:
    engine = ProductionTTSEngine(EngineConfig(device="cpu", max_batch_size=1, compile="true"))
    with serving(engine) as door:
        yield door


def messages(door: Door, text: str, **config: object) -> list[dict[str, Any]]:
    """Return all JSON messages of a session that speaks `text`."""
    received = []
    with connect(f"ws://127.0.0.1:{door.port}{PATH}", proxy=None) as socket:
        with suppress(ConnectionClosed):  # a server that refuses the options may close before it gets the text
            socket.send(json.dumps({"type": "session.config", "seed": 1, **config}))
            socket.send(json.dumps({"type": "input.text", "text": text}))
            socket.send(json.dumps({"type": "input.done"}))
        while not received or received[-1]["type"] not in ("session.done", "error"):
            message = socket.recv(timeout=EVENTUALLY_S)
            if isinstance(message, str):
                received.append(json.loads(message))
    return received


def test_a_session_sends_when_each_word_is_spoken(built_in: Door) -> None:
    received = messages(built_in, "Good morning to you.", word_times=True)

    words = [word for message in received if message["type"] == "audio.words" for word in message["words"]]
    assert [word["text"] for word in words] == ["Good", "morning", "to", "you"]
    assert ["Good morning to you."[word["start"] : word["stop"]] for word in words] == [word["text"] for word in words]
    times = [time for word in words for time in (word["start_s"], word["end_s"])]
    assert times == sorted(times)
    done = next(message for message in received if message["type"] == "audio.done")
    assert 0 < times[0] < times[-1] <= done["seconds"]


def test_a_session_sends_no_times_unless_requested(built_in: Door) -> None:
    assert "audio.words" not in {message["type"] for message in messages(built_in, "Good morning.")}


def test_a_checkpoint_without_times_says_so(door: Door) -> None:
    (*_, error) = messages(door, "Good morning.", word_times=True)

    assert error["type"] == "error"
    assert "word_times: is not supported by this model" in error["error"]["message"]
