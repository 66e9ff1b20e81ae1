"""Times of words over the WebSocket, with the built-in voice."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from websockets.exceptions import ConnectionClosed

from tests.server.conftest import Door
from tests.server.test_websocket import hear, say, session


def messages(door: Door, text: str, **config: object) -> list[dict[str, Any]]:
    """Return all JSON messages of a session that speaks `text`."""
    with session(door) as socket:
        with suppress(ConnectionClosed):  # a server that refuses the options may close before it gets the text
            say(socket, type="session.config", seed=1, **config)
            say(socket, type="input.text", text=text)
            say(socket, type="input.done")
        return hear(socket)[0]


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
