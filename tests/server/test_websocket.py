"""Incremental text in, audio out: a session over a real WebSocket, and the reasons for which it ends."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from held_generation import SOUNDS, held_generation
from s1_mini import ProductionTTSEngine
from s1_mini.audio.container import encode
from s1_mini.text.split import cut_arriving
from tests.server.conftest import Clock, Door, serving
from waiting import EVENTUALLY_S, wait_until

PATH = "/v1/audio/speech/stream"
CONFIG = {"type": "session.config", "seed": 1, "max_new_tokens": 20}


@pytest.fixture(scope="module")
def locked(small_engine: ProductionTTSEngine) -> Iterator[Door]:
    with serving(small_engine, api_key="sesame") as door:
        yield door


@contextmanager
def session(door: Door, path: str = PATH, **options: object) -> Iterator[ClientConnection]:
    with connect(f"ws://127.0.0.1:{door.port}{path}", proxy=None, **options) as socket:
        yield socket


def say(socket: ClientConnection, **content: object) -> None:
    socket.send(json.dumps(content))


def hear(socket: ClientConnection) -> tuple[list[dict[str, object]], bytes, int]:
    """Return everything until the connection closes: messages, audio, close code."""
    messages, sound = [], b""
    try:
        while True:
            message = socket.recv(timeout=EVENTUALLY_S)
            if isinstance(message, bytes):
                sound += message
            else:
                messages.append(json.loads(message))
    except ConnectionClosed as closed:
        return messages, sound, closed.rcvd.code


@pytest.mark.parametrize(
    ("max_websocket_s", "is_draining", "outcome"),
    [(1.0, False, ("session_timeout", 1008)), (60.0, True, ("shutting_down", 1013))],
)
def test_a_client_that_never_stops_sending_receives_the_reason_its_session_ends(
    small_engine: ProductionTTSEngine, max_websocket_s: float, is_draining: bool, outcome: tuple[str, int]
) -> None:
    with serving(small_engine, max_websocket_s=max_websocket_s) as door, session(door) as socket:
        say(socket, **CONFIG)
        door.app.state.gate.is_draining = is_draining
        with suppress(ConnectionClosed):
            while True:
                say(socket, type="input.text", text="a")
                time.sleep(0.02)
        messages, _, code = hear(socket)

    assert (messages[-1]["error"]["code"], code) == outcome


def test_an_unknown_voice_is_reported_before_any_text_arrives(door: Door) -> None:
    with session(door) as socket:
        say(socket, **CONFIG | {"voice": "nobody"})
        messages, sound, code = hear(socket)

    assert (messages[-1]["error"]["code"], sound, code) == ("voice_not_found", b"", 1008)


def test_a_message_may_begin_with_a_byte_order_mark(door: Door) -> None:
    with session(door) as socket:
        socket.send("\ufeff" + json.dumps(CONFIG | {"voice": "nobody"}))
        messages, _, _ = hear(socket)

    assert messages[-1]["error"]["code"] == "voice_not_found"


@pytest.mark.parametrize(
    ("message", "field", "sentence"),
    [
        ({}, "type", "type: is missing"),
        ({"type": "session.begin"}, "type", "type: 'session.begin' is not known; use one of 'session.config'"),
        ({"type": "session.config", "voice": 3}, "voice", "voice: 3: input should be a valid string"),
        ({"type": "input.text", "txt": "Hi."}, "txt", "txt: unknown field; did you mean text? (also wrong: text)"),
        ({"type": "session.config", "voce": "me"}, "voce", "voce: unknown field; did you mean voice?"),
        ({"type": "input.text"}, "text", "text: is missing"),
    ],
    ids=str,
)
def test_an_invalid_message_is_reported_by_its_fields(
    door: Door, message: dict[str, object], field: str, sentence: str
) -> None:
    with session(door) as socket:
        say(socket, **message)
        (output,), _, _ = hear(socket)

    assert (output["error"]["code"], output["error"]["field"]) == ("request_invalid", field)
    assert output["error"]["message"].startswith(sentence)


def test_a_session_clones_its_reference_with_a_transcript(
    door: Door, small_engine: ProductionTTSEngine, tone: np.ndarray
) -> None:
    """All its sentences, which sound as over HTTP."""
    wave = encode(tone, 44_100, "wav")
    reference = {"reference_audio": base64.b64encode(wave).decode(), "reference_text": "Hi."}
    with session(door) as socket:
        say(socket, **CONFIG, **reference, pauses="off")
        say(socket, type="input.text", text="Good morning. Good night.")
        say(socket, type="input.done")
        messages, sound, code = hear(socket)

    expected = [
        small_engine.generate(text, seed=1, max_new_tokens=20, reference_audio=wave, reference_text="Hi.").audio
        for text in ("Good morning.", "Good night.")
    ]
    assert [message["text"].strip() for message in messages if message["type"] == "audio.start"] == [
        "Good morning.",
        "Good night.",
    ]
    samples = np.frombuffer(sound, "<i2") / 32_768
    np.testing.assert_allclose(samples, np.concatenate(expected), atol=1e-3)
    assert code == 1000


@pytest.mark.parametrize("pieces", [[""], ["...", " !"]])
def test_a_text_without_speech_is_refused_when_it_is_complete(door: Door, pieces: list[str]) -> None:
    with session(door) as socket:
        for piece in pieces:
            say(socket, type="input.text", text=piece)
        say(socket, type="input.done")
        (output,), _, code = hear(socket)

    assert (output["error"]["code"], output["error"]["field"], code) == ("text_invalid", "text", 1008)


@pytest.mark.parametrize("path", [PATH, "/invocations-bidirectional-stream"])
def test_the_first_sentence_is_audible_while_the_second_is_still_typed(door: Door, path: str) -> None:
    with session(door, path) as socket:
        say(socket, **CONFIG)
        for piece in ("Good mor", "ning. How a"):
            say(socket, type="input.text", text=piece)
        first, sound = json.loads(socket.recv(timeout=EVENTUALLY_S)), socket.recv(timeout=EVENTUALLY_S)
        say(socket, type="input.text", text="re you?")
        say(socket, type="input.done")
        rest, more, code = hear(socket)

    assert (first["type"], first["text"], first["format"]) == ("audio.start", "Good morning.", "pcm")
    assert isinstance(sound, bytes)
    assert [message["type"] for message in rest] == ["audio.done", "audio.start", "audio.done", "session.done"]
    assert rest[1]["text"] == "How are you?"
    seconds = rest[0]["seconds"] + rest[2]["seconds"]
    assert len(sound + more) == pytest.approx(2 * seconds * first["sample_rate"], rel=0.01)
    assert code == 1000


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("not json", "body_invalid"),
        (b"\x00\x01", "body_invalid"),
        (json.dumps({"type": "input.text", "text": "a" * 20_001}), "text_invalid"),
        ('{"type": "session.config", "reference_audio": "?"}', "request_invalid"),
        ("[" * 100_000, "body_invalid"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_garbage_gets_its_code_and_ends_the_session(door: Door, message: str | bytes, code: str) -> None:
    with session(door) as socket:
        socket.send(message)
        messages, _, closed = hear(socket)

    assert [each["type"] for each in messages] == ["error"]
    assert messages[0]["error"]["code"] == code
    assert closed == 1008


def test_a_text_of_one_letter_a_message_is_cut_at_its_sentences(door: Door) -> None:
    with session(door) as socket:
        say(socket, **CONFIG)
        for letter in "Dr. Smith is in. He waits. ":
            say(socket, type="input.text", text=letter)
        say(socket, type="input.done")
        messages, _, _ = hear(socket)

    texts = [message["text"] for message in messages if message["type"] == "audio.start"]
    assert " ".join(text.strip() for text in texts) == "Dr. Smith is in. He waits."


def test_the_work_on_a_text_in_tiny_pieces_is_in_proportion_to_its_length(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = 0

    def cut(text: str) -> tuple[str, str]:
        nonlocal looked_at
        looked_at += len(text)
        return cut_arriving(text)

    monkeypatch.setattr("s1_mini.server.text_input.cut_arriving", cut)
    text = "No. 5 " * 50  # has no complete sentence
    with session(door) as socket:
        say(socket, **CONFIG)
        for piece in [*text, *[""] * len(text)]:
            say(socket, type="input.text", text=piece)
        say(socket, type="input.clear")
        socket.recv(timeout=EVENTUALLY_S)

    assert looked_at < 50 * len(text)


def test_a_sentence_is_spoken_as_soon_as_the_text_after_it_pauses(door: Door) -> None:
    with session(door) as socket:
        say(socket, **CONFIG)
        for piece in ("The rain has stopped, and the streets are full of people again.", " ", "S"):
            say(socket, type="input.text", text=piece)
        started = json.loads(socket.recv(timeout=EVENTUALLY_S))

    assert (started["type"], started["text"][-6:]) == ("audio.start", "again.")


def test_text_in_pieces_has_the_pauses_of_the_whole_text(door: Door, small_engine: ProductionTTSEngine) -> None:
    text = "# One\n\nTwo. Three.\n\n***\n\nFour."
    with session(door) as socket:
        say(socket, **CONFIG | {"max_new_tokens": 4, "pauses": {"sentence": 0.5}})
        for letter in text:
            say(socket, type="input.text", text=letter)
        say(socket, type="input.done")
        _, sound, _ = hear(socket)

    whole = small_engine.generate(text, seed=1, max_new_tokens=4, pauses={"sentence": 0.5})
    assert len(sound) / 2 == pytest.approx(len(whole.audio), abs=4 * 441)


@pytest.mark.parametrize("limit", ["websocket_idle_s", "max_websocket_s"])
def test_a_client_that_sends_nothing_is_disconnected(small_engine: ProductionTTSEngine, limit: str) -> None:
    with serving(small_engine, **{limit: 0.3}) as door, session(door) as socket:
        messages, _, closed = hear(socket)

    assert (messages[0]["error"]["code"], closed) == ("session_timeout", 1008)


def test_a_session_whose_sentence_waits_for_a_slot_is_not_idle(small_engine: ProductionTTSEngine, clock: Clock) -> None:
    with serving(small_engine, websocket_idle_s=60) as door, ExitStack() as others, held_generation(SOUNDS) as held:
        for _ in range(3 * small_engine.config.max_batch_size):
            other = others.enter_context(session(door))
            say(other, **CONFIG | {"max_new_tokens": 400})
            say(other, type="input.text", text="A sentence that goes on and on, longer than anybody waits. And")
        wait_until(lambda: door.engine.state().num_waiting > 0)
        with session(door) as socket:
            waiting = door.engine.state().num_waiting
            say(socket, **CONFIG)
            say(socket, type="input.text", text="A sentence that waits. And")
            wait_until(lambda: door.engine.state().num_waiting > waiting)
            for _ in range(3):
                clock.advance(door, 61)
            held.release()
            others.pop_all().close()
            messages = [json.loads(socket.recv(timeout=EVENTUALLY_S))]
            while messages[-1]["type"] != "audio.done":
                message = socket.recv(timeout=EVENTUALLY_S)
                messages += [json.loads(message)] if isinstance(message, str) else []
            while messages[-1]["type"] != "error":  # the idle timeout starts at some moment after audio.done is sent
                clock.advance(door, 61)
                with suppress(TimeoutError):
                    messages.append(json.loads(socket.recv(timeout=0.05)))

    assert [message["type"] for message in messages] == ["audio.start", "audio.done", "error"]
    assert messages[-1]["error"]["code"] == "session_timeout"


def test_a_session_that_has_ended_holds_no_connection(small_engine: ProductionTTSEngine) -> None:
    with serving(small_engine, send_timeout_s=10 * EVENTUALLY_S) as door:  # no stall check before the end
        with session(door):
            assert len(door.app.state.connections) == 1
        wait_until(lambda: len(door.app.state.connections) == 0)


def test_a_client_that_disconnects_from_a_session_frees_its_slot(door: Door) -> None:
    before = door.engine.metrics.ends["cancelled"]
    with held_generation():
        with session(door) as socket:
            say(socket, type="input.text", text="A sentence that goes on and on. " * 30)
            wait_until(lambda: door.engine.health_check()["requests"] == 1)
        wait_until(lambda: door.engine.health_check()["requests"] == 0)
        wait_until(lambda: door.app.state.gate.num_inside == 0)

    assert door.engine.metrics.ends["cancelled"] > before


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is an address of Linux without being configured")
def test_an_evicted_session_ends_even_after_its_text_is_complete(small_engine: ProductionTTSEngine) -> None:
    with serving(small_engine, max_websockets=1) as door, held_generation(), session(door) as first:
        say(first, type="input.text", text="A sentence that goes on and on. " * 30)
        say(first, type="input.done")
        wait_until(lambda: door.engine.health_check()["requests"] == 1)
        with session(door, source_address=("127.0.0.2", 0)):
            messages, _, code = hear(first)

    assert messages[-1]["error"]["code"] == "server_busy"
    assert code == 1013


@pytest.mark.parametrize("told", [{}, {"played_s": 0.125}, {"played_s": 100}], ids=str)
def test_clearing_stops_the_audio_at_once_and_reports_how_much_was_sent_and_played(
    door: Door, told: dict[str, float]
) -> None:
    before = door.engine.metrics.ends["cancelled"]
    with session(door) as socket:
        with held_generation(SOUNDS):
            say(socket, **CONFIG | {"max_new_tokens": 200})
            say(socket, type="input.text", text="A sentence that goes on and on. " * 30)
            start, sound = json.loads(socket.recv(timeout=EVENTUALLY_S)), socket.recv(timeout=EVENTUALLY_S)
            say(socket, type="input.clear", **told)
            while isinstance(cleared := socket.recv(timeout=EVENTUALLY_S), bytes):
                sound += cleared
            wait_until(lambda: door.engine.health_check()["requests"] == 0)
        say(socket, type="input.text", text="Well?")
        say(socket, type="input.done")
        rest, _, code = hear(socket)

    seconds = round(len(sound) / 2 / start["sample_rate"], 3)
    played = {name: min(played_s, seconds) for name, played_s in told.items()}
    assert json.loads(cleared) == {"type": "input.cleared", "seconds": seconds} | played
    assert door.engine.metrics.ends["cancelled"] == before + 1
    assert [message["type"] for message in rest] == ["audio.start", "audio.done", "session.done"]
    assert (rest[0]["text"], rest[2]["sentences"], code) == ("Well?", 1, 1000)


def test_clearing_after_the_end_of_the_text_ends_the_session(door: Door) -> None:
    with held_generation(), session(door) as socket:
        say(socket, type="input.text", text="A sentence that goes on and on. " * 30)
        say(socket, type="input.done")
        say(socket, type="input.text")
        say(socket, type="input.clear")
        messages, sound, code = hear(socket)

    assert messages == [{"type": "input.cleared", "seconds": 0.0}, {"type": "session.done", "sentences": 0}]
    assert (sound, code) == (b"", 1000)


def test_a_flood_of_text_ends_the_session(door: Door) -> None:
    with held_generation(), session(door) as socket:
        with suppress(ConnectionClosed):  # possibly before everything is sent
            for _ in range(3):
                say(socket, type="input.text", text="One more. " * 1500)
        messages, _, closed = hear(socket)
    wait_until(lambda: door.app.state.gate.num_inside == 0)

    assert messages[-1]["error"]["code"] == "text_invalid"
    assert "ahead" in messages[-1]["error"]["message"]
    assert closed == 1008


def test_a_message_over_the_limit_ends_the_session(small_engine: ProductionTTSEngine) -> None:
    with serving(small_engine, max_body_bytes=4096) as door, session(door) as socket:
        socket.send("x" * 5000)
        _, _, closed = hear(socket)

    assert closed == 1009


@pytest.mark.parametrize(
    ("path", "name", "value", "last"),
    [
        (PATH, "Authorization", "Bearer sesame", {"type": "input.done"}),
        ("/v1/speak", "Authorization", "Token sesame", {"type": "Close"}),
        ("/v1/text-to-speech/default/multi-stream-input", "xi-api-key", "sesame", {"close_socket": True}),
    ],
)
def test_without_the_key_in_its_header_no_session_begins(
    locked: Door, path: str, name: str, value: str, last: dict[str, object]
) -> None:
    with pytest.raises(InvalidStatus, match="401"), session(locked, path):
        pass
    with session(locked, path, additional_headers={name: value}) as socket:
        say(socket, **last)
        _, _, code = hear(socket)

    assert code == 1000
