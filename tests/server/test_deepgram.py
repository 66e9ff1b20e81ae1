"""Deepgram's messages, as Pipecat's class for SageMaker sends them."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.datastructures import State
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection

from held_generation import SOUNDS, held_generation
from s1_mini.server import speech_queue
from s1_mini.server.protocols import deepgram
from s1_mini.server.schemas import SessionConfig
from tests.server.conftest import Door, limit_sentences
from tests.server.test_websocket import hear, session
from waiting import EVENTUALLY_S, wait_until

SAGEMAKER = "/invocations-bidirectional-stream"
QUERY = "?model=default&encoding=linear16&sample_rate=16000"
PATHS = [SAGEMAKER, f"{SAGEMAKER}{QUERY}", f"/v1/speak{QUERY}"]
LONG = "A sentence that goes on and on. " * 20


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_sentences(monkeypatch, deepgram)


def say(socket: ClientConnection, kind: str, **content: object) -> None:
    socket.send(json.dumps({"type": kind} | content))


def until(socket: ClientConnection, kind: str) -> tuple[list[dict[str, Any]], bytes]:
    """Return the messages up to one of a type, and the audio before it."""
    messages: list[dict[str, Any]] = []
    sound = b""
    while not messages or messages[-1]["type"] != kind:
        message = socket.recv(timeout=EVENTUALLY_S)
        if isinstance(message, bytes):
            sound += message
        else:
            messages.append(json.loads(message))
    return messages, sound


@pytest.mark.parametrize("path", PATHS)
def test_a_turn_of_pipecat_is_spoken_and_flushed(door: Door, path: str) -> None:
    with session(door, path) as socket:
        for text in ("Good morning. ", "How are you? "):
            say(socket, "Speak", text=text)
        say(socket, "Flush")
        messages, sound = until(socket, "Flushed")
        say(socket, "Speak", text="Goodbye.")
        say(socket, "Flush")
        second, more = until(socket, "Flushed")
        say(socket, "Close")
        rest, _, code = hear(socket)

    assert [message["type"] for message in messages] == ["Metadata", "Flushed"]
    assert second == [{"type": "Flushed", "sequence_id": 1}]
    rate = 16_000 if "16000" in path else 24_000
    assert len(sound) / 2 / rate == pytest.approx(2 * len(more) / 2 / rate, rel=0.2)
    assert len(more) / 2 / rate == pytest.approx(0.93, abs=0.1)
    assert (rest, code) == ([], 1000)


@pytest.mark.parametrize(
    ("query", "expected"),
    [("", ("pcm", 44_100)), ("?sample_rate=16000", ("pcm", 16_000)), ("?encoding=mulaw", ("mulaw", 8_000))],
)
def test_our_own_messages_use_the_query_too(door: Door, query: str, expected: tuple[str, int]) -> None:
    with session(door, f"{SAGEMAKER}{query}") as socket:
        say(socket, "input.text", text="Good morning.")
        say(socket, "input.done")
        messages, _, code = hear(socket)

    assert ((messages[0]["format"], messages[0]["sample_rate"]), code) == (expected, 1000)


def test_our_own_messages_use_the_voice_and_the_start_options_of_the_query(door: Door, robin: str) -> None:
    with session(door, f"{SAGEMAKER}?model={robin}&start_words=2") as socket:
        say(socket, "input.text", text="Good morning to ")
        (start,), _ = until(socket, "audio.start")
        say(socket, "input.done")
        _, first, _ = hear(socket)
    with session(door, f"{SAGEMAKER}?start_words=2") as socket:
        say(socket, "session.config", voice=robin, start_words=2, seed=1, max_new_tokens=20)
        say(socket, "input.text", text="Good morning to ")
        until(socket, "audio.start")
        say(socket, "input.done")
        _, second, _ = hear(socket)

    assert start["text"].startswith("Good morning")
    assert first == second


def test_clear_stops_the_audio_at_once_and_nothing_is_flushed(door: Door) -> None:
    before = door.engine.metrics.ends["cancelled"]
    with session(door, SAGEMAKER) as socket:
        with held_generation(SOUNDS):
            say(socket, "Speak", text=LONG)
            say(socket, "Flush")
            until(socket, "Metadata")
            heard = socket.recv(timeout=EVENTUALLY_S)
            assert isinstance(heard, bytes)
            say(socket, "Clear")
            messages, more = until(socket, "Cleared")
            heard += more
            wait_until(lambda: door.engine.metrics.ends["cancelled"] == before + 1)
            wait_until(lambda: door.engine.health_check()["requests"] == 0)
        say(socket, "Speak", text="Yes?")
        say(socket, "Close")
        rest, sound, code = hear(socket)

    (cleared,) = messages
    assert cleared == {"type": "Cleared", "sequence_id": 0, "seconds": pytest.approx(len(heard) / 48_000, abs=1e-3)}
    assert (rest, code) == ([], 1000)
    assert sound


def test_text_without_speech_is_flushed_without_audio(door: Door) -> None:
    with session(door, SAGEMAKER) as socket:
        say(socket, "Speak", text="... ")
        say(socket, "Flush")
        messages, sound = until(socket, "Flushed")

    assert ([message["type"] for message in messages], sound) == (["Metadata", "Flushed"], b"")


def test_flushes_that_wait_have_a_limit(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speech_queue, "MAX_ITEMS", 3)
    with session(door, SAGEMAKER) as socket, held_generation(SOUNDS):
        say(socket, "Speak", text=LONG)
        for _ in range(4):
            say(socket, "Flush")
        messages, _ = until(socket, "Error")

    assert "comes after 3 texts and flushes that are not spoken yet, which is the limit" in messages[-1]["description"]


def test_clearing_a_track_compares_no_entries() -> None:
    async def work() -> None:
        raise AssertionError

    holding = SimpleNamespace(set=lambda *_: None)
    record: Any = SimpleNamespace(holding=holding)
    queue = speech_queue.SpeechQueue(State(), record, NotImplemented, lambda _: None)
    tracks = [speech_queue.Track(SessionConfig(type="session.config")) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speech_queue._Item, "__eq__", NotImplemented, raising=False)
        for track in tracks * 2:
            queue.then(track, work)
        asyncio.run(queue.clear(tracks[1]))

    assert [*queue._items] == tracks[:1]


@pytest.mark.parametrize(
    ("message", "kind"),
    [({"type": "Speak"}, "error"), ({"type": "speak"}, "error"), ({"type": "Speak", "text": "a" * 20_001}, "Error")],
    ids=str,
)
def test_an_invalid_message_ends_the_session(door: Door, message: dict[str, str], kind: str) -> None:
    with session(door, SAGEMAKER) as socket:
        socket.send(json.dumps(message))
        messages, _, code = hear(socket)

    assert (messages[-1]["type"], code) == (kind, 1008)


def test_each_session_keeps_the_protocol_of_its_first_message(door: Door) -> None:
    with session(door, SAGEMAKER) as socket:
        say(socket, "input.text", text="Hi")
        say(socket, "Flush")
        messages, _, _ = hear(socket)

    assert "type: 'Flush' is not known" in messages[-1]["error"]["message"]


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("?model=aura-2-helena-en", 404, "'aura-2-helena-en'"),
        ("?encoding=mp3", 422, "'linear16', 'mulaw' or 'alaw'"),
        ("?encoding=mulaw&sample_rate=16000", 422, "use 8000"),
    ],
)
def test_a_wrong_address_is_refused_before_the_session(door: Door, query: str, status: int, message: str) -> None:
    with pytest.raises(InvalidStatus) as refused, session(door, f"/v1/speak{query}"):
        pass

    assert refused.value.response.status_code == status
    assert message in json.loads(refused.value.response.body)["error"]["message"]
