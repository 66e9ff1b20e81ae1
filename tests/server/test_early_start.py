"""Audio may start before the end of a sentence has arrived, by setting and for each session."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import AbstractContextManager
from typing import Any

import pytest
from websockets.sync.client import ClientConnection

from held_generation import SOUNDS, held_generation
from s1_mini import ProductionTTSEngine
from s1_mini.server.protocols import deepgram, elevenlabs
from tests.server.conftest import Clock, Door, limit_sentences, serving
from tests.server.test_websocket import CONFIG, hear, say, session
from waiting import EVENTUALLY_S

BEGINNING, CLAUSE = "Good evening to all, and ", "Good evening to all,"


def until(socket: ClientConnection, kind: str) -> dict[str, Any]:
    """Return the next message of a type."""
    while True:
        message = socket.recv(timeout=EVENTUALLY_S)
        if isinstance(message, str) and json.loads(message)["type"] == kind:
            return dict(json.loads(message))


def texts(messages: list[dict[str, Any]]) -> list[Any]:
    return [message["text"] for message in messages if message["type"] == "audio.start"]


@pytest.mark.parametrize(
    ("options", "text", "first"),
    [({"start_at": "clause"}, BEGINNING, CLAUSE), ({"start_words": 3}, "One two three fo", "One two three")],
)
def test_a_session_begins_before_the_sentence_has_ended(
    door: Door, options: dict[str, object], text: str, first: str
) -> None:
    with session(door) as socket:
        say(socket, **CONFIG | options)
        say(socket, type="input.text", text=text)
        start = until(socket, "audio.start")  # before more text
        say(socket, type="input.text", text="ur. The end.")
        say(socket, type="input.done")
        messages, _, code = hear(socket)

    assert start["text"] == first
    assert " ".join(" ".join([first, *texts(messages)]).split()) == f"{text}ur. The end."
    assert code == 1000


def test_by_default_a_sentence_is_spoken_as_a_whole(small_engine: ProductionTTSEngine, clock: Clock) -> None:
    with serving(small_engine) as door, session(door) as socket:
        say(socket, **CONFIG)
        say(socket, type="input.text", text=BEGINNING)
        clock.advance(door, 30)
        say(socket, type="input.text", text="good night.")
        say(socket, type="input.done")
        messages, _, _ = hear(socket)

    assert texts(messages) == [BEGINNING + "good night."]


def test_text_that_arrives_while_audio_is_left_is_cut_at_sentences(door: Door) -> None:
    with session(door) as socket, held_generation(SOUNDS) as held:
        say(socket, **CONFIG | {"start_at": "clause"})
        say(socket, type="input.text", text=BEGINNING)
        until(socket, "audio.start")
        say(socket, type="input.text", text="thank you, my friends, for coming. Now")
        say(socket, type="input.done")
        held.release()
        messages, _, _ = hear(socket)

    assert texts(messages) == ["and thank you, my friends, for coming.", "Now"]


def test_a_clause_is_spoken_once_the_client_runs_out_of_audio(small_engine: ProductionTTSEngine, clock: Clock) -> None:
    with (
        serving(small_engine, websocket_idle_s=1e6, max_websocket_s=1e6) as door,
        session(door) as socket,
        held_generation(SOUNDS) as held,
    ):
        say(socket, **CONFIG | {"start_at": "clause"})
        say(socket, type="input.text", text=BEGINNING)
        until(socket, "audio.start")
        say(socket, type="input.text", text="thank you, my dear friends, for")
        held.release()
        until(socket, "audio.done")
        clock.advance(door, 100)
        start = until(socket, "audio.start")

    assert start["text"] == "and thank you, my dear friends,"


@pytest.mark.parametrize(("text", "spoken"), [("Good mor", "Good"), ("Good morning.", "Good morning.")])
def test_a_session_begins_when_the_writer_pauses(
    small_engine: ProductionTTSEngine, clock: Clock, text: str, spoken: str
) -> None:
    with (
        serving(small_engine, start_pause_s=60, websocket_idle_s=1e6, max_websocket_s=1e6) as door,
        session(door) as socket,
    ):
        say(socket, **CONFIG)
        say(socket, type="input.text", text=text)
        with pytest.raises(TimeoutError):
            socket.recv(timeout=0.1)
        message: object = None
        while message is None:  # the pause begins at some moment after the text was sent
            clock.advance(door, 61)
            try:
                message = socket.recv(timeout=0.05)
            except TimeoutError:
                continue
        assert isinstance(message, str)

    assert json.loads(message)["text"] == spoken


def test_the_beginning_of_a_sentence_gets_a_comma_instead_of_a_full_stop(built_in: Door) -> None:
    with session(built_in) as socket:
        say(socket, **CONFIG | {"start_words": 2, "return_spoken_text": True})
        say(socket, type="input.text", text="Good morning to")
        start = until(socket, "audio.start")
        say(socket, type="input.done")
        messages, _, _ = hear(socket)

    assert (start["text"], start["spoken_text"]) == ("Good morning", "Good morning,")
    assert [message["spoken_text"] for message in messages if message["type"] == "audio.start"] == ["to."]


def test_clearing_drops_also_the_unfinished_sentence(door: Door) -> None:
    with session(door) as socket:
        say(socket, **CONFIG | {"start_at": "clause"})
        say(socket, type="input.text", text="Good eve")
        say(socket, type="input.clear")
        say(socket, type="input.text", text="ning to all, and welcome.")
        say(socket, type="input.done")
        messages, _, _ = hear(socket)

    assert texts(messages) == ["ning to all, and welcome."] or texts(messages) == ["ning to all,", "and welcome."]


@pytest.mark.parametrize(
    "options", [{"start_at": "letter"}, {"start_words": -1}, {"start_pause_s": 61}], ids=lambda value: next(iter(value))
)
def test_a_wrong_option_is_named(door: Door, options: dict[str, object]) -> None:
    with session(door) as socket:
        say(socket, **CONFIG | options)
        messages, _, _ = hear(socket)

    assert messages[0]["error"]["field"] == next(iter(options))


def test_deepgrams_clients_choose_it_in_the_address(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_sentences(monkeypatch, deepgram)
    with session(door, "/v1/speak?start_at=clause") as socket:
        say(socket, type="Speak", text=BEGINNING)
        until(socket, "Metadata")
        assert isinstance(socket.recv(timeout=EVENTUALLY_S), bytes)


def test_the_server_chooses_it_for_elevenlabs_clients(
    small_engine: ProductionTTSEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_sentences(monkeypatch, elevenlabs)
    path = "/v1/text-to-speech/default/stream-input?output_format=pcm_24000"
    with serving(small_engine, start_at="clause") as door, session(door, path) as socket:
        say(socket, text=BEGINNING)
        message = json.loads(socket.recv(timeout=EVENTUALLY_S))

    assert base64.b64decode(message["audio"])


@pytest.mark.parametrize(
    ("settings", "text"), [({"start_at": "clause"}, BEGINNING), ({"start_pause_s": 0.01}, "Good morning.")]
)
def test_wyomings_first_audio_comes_before_the_end_of_the_sentence(
    small_engine: ProductionTTSEngine, settings: dict[str, Any], text: str
) -> None:
    pytest.importorskip("wyoming")
    from wyoming.client import AsyncTcpClient
    from wyoming.tts import SynthesizeChunk, SynthesizeStart, SynthesizeStop

    async def run(port: int) -> list[str]:
        received: list[str] = []
        async with AsyncTcpClient("127.0.0.1", port) as client:
            await client.write_event(SynthesizeStart().event())
            await client.write_event(SynthesizeChunk(text).event())
            while "audio-chunk" not in received:
                received.append((await client.read_event()).type)
            await client.write_event(SynthesizeChunk("good night.").event())
            await client.write_event(SynthesizeStop().event())
            while "synthesize-stopped" not in received:
                received.append((await client.read_event()).type)
        return received

    context: AbstractContextManager[Door] = serving(small_engine, wyoming_port=0, **settings)
    with context as door:
        received = asyncio.run(run(door.app.state.wyoming.port))

    assert received.count("audio-start") == received.count("audio-stop") == 1
