"""With `start_at` word, Qwen3-TTS speaks the text of a session as one utterance, which goes on as the text arrives."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from s1_mini import ProductionTTSEngine
from s1_mini.audio.container import StreamEncoder
from s1_mini.core import scheduler
from s1_mini.server.protocols import elevenlabs
from s1_mini.text.arriving import ArrivingText
from tests.families.qwen3_room import config, waiting_row, written
from tests.server.conftest import Clock, Door, limit_sentences, serving
from tests.server.test_early_start import until
from tests.server.test_websocket import hear, say, session
from waiting import EVENTUALLY_S, wait_until

OPTIONS: dict[str, Any] = {"seed": 3, "max_new_tokens": 30, "normalize": "off"}
WORDS: dict[str, Any] = {"type": "session.config", "start_at": "word", "voice": "ryan"} | OPTIONS
PIECES = ("Goo", "d mor", "ning. So ", "mu", "ch. ")
TEXT = "".join(PIECES)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("custom") / "checkpoint", "custom_voice", seed=5)


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[ProductionTTSEngine]:
    """An engine whose whole texts are read as texts that arrive: token by token, and in one piece."""
    options = config(checkpoint, device="cpu", text_layout="step", chunk_length=1000)
    with ProductionTTSEngine(options.model_copy(update={"max_batch_size": 2})) as engine:
        yield engine
        engine.stop(drain=False)


@pytest.fixture(scope="module")
def qwen(engine: ProductionTTSEngine) -> Iterator[Door]:
    with serving(engine) as door:
        yield door


@pytest.fixture(scope="module")
def expected(engine: ProductionTTSEngine) -> bytes:
    """The audio of the whole text in one utterance."""
    chunks = engine.stream(TEXT, voice="ryan", chunk_profile="ttfa", pauses="off", **OPTIONS)
    wave = np.concatenate([chunk.audio for chunk in chunks])
    return pcm(wave)


def pcm(wave: np.ndarray) -> bytes:
    encoder = StreamEncoder("pcm", 24_000)
    return encoder.feed(wave) + encoder.finish()


def sound_until(socket: ClientConnection, kind: str) -> tuple[bytes, dict[str, Any]]:
    """Return the audio before the next message of a type, and the message."""
    sound = b""
    while True:
        message = socket.recv(timeout=EVENTUALLY_S)
        if isinstance(message, bytes):
            sound += message
        elif (parsed := json.loads(message))["type"] == kind:
            return sound, parsed


def test_a_session_is_one_utterance_that_sounds_as_the_whole_text(qwen: Door, expected: bytes) -> None:
    with session(qwen) as socket:
        say(socket, **WORDS)
        for piece in PIECES[:3]:
            say(socket, type="input.text", text=piece)
        sound, start = sound_until(socket, "audio.start")  # before the rest is written
        waiting_row(qwen.engine)
        for piece in PIECES[3:]:
            say(socket, type="input.text", text=piece)
        say(socket, type="input.done")
        messages, rest, code = hear(socket)

    assert sound == b""
    assert start["text"] == "".join(PIECES[:3])
    assert [message["type"] for message in messages] == ["audio.done", "session.done"]
    assert messages[-1]["sentences"] == 1
    assert (rest, code) == (expected, 1000)


@pytest.mark.parametrize("query", ["?start_at=word", ""])
def test_other_protocols_and_the_setting_speak_as_the_text_arrives(
    engine: ProductionTTSEngine, expected: bytes, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    limit_sentences(monkeypatch, elevenlabs, **OPTIONS)
    path = f"/v1/text-to-speech/ryan/stream-input{query or '?'}&output_format=pcm_24000"
    with serving(engine, start_at="sentence" if query else "word") as door, session(door, path) as socket:
        for piece in (*PIECES, ""):
            socket.send(json.dumps({"text": piece}))
        messages, _, _ = hear(socket)

    assert b"".join(base64.b64decode(message.get("audio") or "") for message in messages) == expected


@pytest.mark.parametrize("leaves", [True, False])
def test_a_client_that_disconnects_or_interrupts_frees_the_slot(qwen: Door, leaves: bool) -> None:
    slots = qwen.engine._running.synthesizer.core.slots
    with session(qwen) as socket:
        say(socket, **WORDS)
        say(socket, type="input.text", text="Good morning to")
        waiting_row(qwen.engine)
        assert slots.num_free == slots.count - 1
        if leaves:
            socket.close()
        else:
            say(socket, type="input.clear")
            until(socket, "input.cleared")
        wait_until(lambda: slots.num_free == slots.count)


def test_text_after_an_interruption_is_a_new_utterance(qwen: Door, expected: bytes) -> None:
    with session(qwen) as socket:
        say(socket, **WORDS)
        say(socket, type="input.text", text="Something else, which ")
        until(socket, "audio.start")
        say(socket, type="input.clear")
        until(socket, "input.cleared")
        say(socket, type="input.text", text=TEXT)
        say(socket, type="input.done")
        _, sound, code = hear(socket)

    assert (sound, code) == (expected, 1000)


def test_text_after_the_end_of_the_speech_is_a_new_utterance(qwen: Door) -> None:
    with session(qwen) as socket:
        say(socket, **WORDS | {"max_new_tokens": 3})
        say(socket, type="input.text", text="Good morning to all of you.")
        until(socket, "audio.done")  # at its limit of frames, before the text is complete
        say(socket, type="input.text", text="And more.")
        say(socket, type="input.done")
        messages, sound, code = hear(socket)

    assert [message["text"] for message in messages if message["type"] == "audio.start"] == ["And more."]
    assert (len(sound) > 0, code) == (True, 1000)


def test_a_session_whose_text_does_not_go_on_is_idle(engine: ProductionTTSEngine, clock: Clock) -> None:
    with serving(engine, websocket_idle_s=600) as door, session(door) as socket:
        say(socket, **WORDS)
        say(socket, type="input.text", text="Good morning to")
        waiting_row(engine)
        message: dict[str, Any] = {}
        while message.get("type") != "error":  # the last audio is sent at some moment
            clock.advance(door, 601)
            try:
                received = socket.recv(timeout=0.05)
            except TimeoutError:
                continue
            message = json.loads(received) if isinstance(received, str) else {}

    assert message["error"]["code"] == "session_timeout"
    assert message["error"]["message"] == "no message arrived for 600 s"
    slots = engine._running.synthesizer.core.slots
    wait_until(lambda: slots.num_free == slots.count)


def test_a_context_that_waits_for_a_text_that_does_not_go_on_keeps_no_session_open(
    engine: ProductionTTSEngine, clock: Clock
) -> None:
    path = "/v1/text-to-speech/ryan/multi-stream-input?start_at=word&output_format=pcm_24000"
    limits = {"websocket_idle_s": 600, "max_websocket_s": 86_000, "max_requests_per_client": 1}
    with serving(engine, **limits) as door, session(door, path) as socket:
        for name in ("a", "b"):
            say(socket, text="Good morning to", context_id=name)
            waiting_row(engine)
        message: dict[str, Any] = {}
        while "error" not in message:
            clock.advance(door, 601)
            with suppress(TimeoutError):
                message = json.loads(socket.recv(timeout=0.05))

    assert message["message"] == "no message arrived for 600 s"


def test_sessions_that_wait_for_text_make_room_for_a_request_that_waits_for_a_slot(
    qwen: Door, engine: ProductionTTSEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = engine._running.synthesizer.core.slots
    monkeypatch.setattr(scheduler, "TEXT_WAIT_S", 0.0)
    with session(qwen) as first, session(qwen) as second, qwen.client() as http:
        for socket in (first, second):
            say(socket, **WORDS)
            say(socket, type="input.text", text="Good morning to")
        wait_until(lambda: slots.num_free == 0)
        answer = http.post("/v1/tts", json={"text": "Hi.", "voice": "ryan"} | OPTIONS)
        codes = []
        for socket in (first, second):
            with suppress(ConnectionClosed):  # the server has ended this session
                say(socket, type="input.done")
            messages, _, _ = hear(socket)
            codes += [message["error"]["code"] for message in messages if message["type"] == "error"]

    assert answer.status_code == 200
    assert codes == ["session_timeout"]


@pytest.mark.parametrize(
    ("options", "text", "field"),
    [
        ({}, "1 2 " * 200, "text: does not fit in a slot"),
        (
            {},
            "a" * 20_001,
            "text: is 20001 characters ahead of the audio; at most 20000 are allowed; send text more slowly",
        ),
        ({"word_times": True}, "", "word_times: is not supported"),
    ],
)
def test_what_cannot_be_spoken_as_it_arrives_is_refused_by_name(
    qwen: Door, options: dict[str, Any], text: str, field: str
) -> None:
    with session(qwen) as socket:
        say(socket, **WORDS | options)
        if text:
            say(socket, type="input.text", text=text)
        messages, _, code = hear(socket)

    assert messages[-1]["error"]["message"].startswith(field)
    assert code == 1008


def test_speech_that_fills_its_slot_ends_with_an_error(checkpoint: Path) -> None:
    small = config(checkpoint, device="cpu").model_copy(update={"max_columns": 64, "max_batch_size": 1})
    with ProductionTTSEngine(small) as engine, serving(engine) as door, session(door) as socket:
        say(socket, **WORDS | {"seed": 5, "max_new_tokens": None})  # 73 frames, if a slot has room for them
        say(socket, type="input.text", text="Hello.")
        say(socket, type="input.done")
        messages, sound, code = hear(socket)

    assert "the speech takes more frames than a slot has" in messages[-1]["error"]["message"]
    assert (len(sound) > 0, code) == (True, 1008)


def test_other_families_refuse_it_by_name(door: Door) -> None:
    with session(door) as socket:
        say(socket, type="session.config", start_at="word")
        messages, _, code = hear(socket)

    assert messages[-1]["error"]["message"].startswith("start_at: 'word' is not supported by this model")
    assert (messages[-1]["error"]["field"], code) == ("start_at", 1008)


def test_the_setting_of_a_server_with_another_family_refuses_the_first_text(small_engine: ProductionTTSEngine) -> None:
    with serving(small_engine, start_at="word") as door, session(door) as socket:
        say(socket, type="input.text", text="Good morning.")
        try:
            message = json.loads(socket.recv(timeout=EVENTUALLY_S))
        except ConnectionClosed as closed:
            raise AssertionError from closed

    assert message["error"]["field"] == "start_at"


def test_text_is_read_in_threads_without_an_event_loop(qwen: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    read, loops = ArrivingText.add, list[Any]()

    def add(self: ArrivingText, piece: str, *, is_last: bool) -> str:
        loops.append(asyncio._get_running_loop())
        return read(self, piece, is_last=is_last)

    monkeypatch.setattr(ArrivingText, "add", add)
    with session(qwen) as socket:
        say(socket, **WORDS)
        say(socket, type="input.text", text="Good morning to")
        waiting_row(qwen.engine)
        say(socket, type="input.text", text=" all of you")
        say(socket, type="input.done")
        _, _, code = hear(socket)

    assert code == 1000
    assert len(loops) >= 2
    assert set(loops) == {None}


def test_the_limit_of_characters_counts_what_is_not_spoken_completely(checkpoint: Path) -> None:
    short = config(checkpoint, device="cpu").model_copy(update={"max_text_length": 20})
    with ProductionTTSEngine(short) as engine, serving(engine) as door, session(door) as socket:
        say(socket, **WORDS)
        for _ in range(4):  # more than the limit together
            say(socket, type="input.text", text="Hello.")
            say(socket, **WORDS)  # ends the utterance
            until(socket, "audio.done")
        say(socket, type="input.text", text="Good night to")
        say(socket, type="input.text", text=" all of you")
        messages, _, code = hear(socket)

    reason = "text: has 24 characters in unfinished utterances; the limit is 20"
    assert messages[-1]["error"]["message"].startswith(reason)
    assert code == 1008


def test_ssml_that_arrives_in_pieces_is_not_spoken_as_words(checkpoint: Path) -> None:
    accepting = config(checkpoint, device="cpu").model_copy(update={"accept_ssml": True})
    with ProductionTTSEngine(accepting) as engine, serving(engine) as door, session(door) as socket:
        say(socket, **WORDS)
        for piece in ("<", "spe", "ak>", "Hello.</sp", "eak>"):
            say(socket, type="input.text", text=piece)
        say(socket, type="input.done")
        messages, _, code = hear(socket)

    assert [message["text"] for message in messages if message["type"] == "audio.start"] == ["<speak>Hello.</speak>"]
    assert code == 1000
