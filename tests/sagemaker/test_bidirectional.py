"""The container's side of InvokeEndpointWithBidirectionalStream: audio is sent while text still arrives."""

from __future__ import annotations

import json
from typing import Any

from websockets.sync.client import connect

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


def messages_until(socket: Any, last: str) -> list[Any]:
    heard: list[Any] = []
    while not (heard and isinstance(heard[-1], dict) and heard[-1]["type"] == last):
        message = socket.recv(timeout=EVENTUALLY_S)
        heard.append(message if isinstance(message, bytes) else json.loads(message))
    return heard
