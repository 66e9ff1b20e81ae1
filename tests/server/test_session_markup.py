"""SSML and marks in brackets over WebSocket sessions: held until complete, and errors that end nothing."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.server.text_input import TextInput
from tests.server.conftest import Door, serving
from tests.server.test_websocket import hear, say, session
from waiting import EVENTUALLY_S

FEW = {"type": "session.config", "seed": 1, "max_new_tokens": 2}
SPOKEN_S = 2 * 2048 / 44_100


def speak(door: Door, *texts: str, path: str = "/v1/audio/speech/stream", **config: object) -> list[dict[str, Any]]:
    """Return the messages of a session, which ends normally."""
    with session(door, path) as socket:
        say(socket, **FEW | config)
        for text in texts:
            say(socket, type="input.text", text=text)
        say(socket, type="input.done")
        messages, _, code = hear(socket)
    assert code == 1000
    return messages


def spoken(messages: list[dict[str, Any]]) -> list[str]:
    return [message["text"].strip() for message in messages if message["type"] == "audio.start"]


def errors(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [
        (message["error"]["code"], message["error"]["message"])
        for message in messages
        if message["type"] == "audio.error"
    ]


def test_a_document_is_spoken_when_it_is_complete_and_by_itself(door: Door) -> None:
    pieces = ['<speak>One.<break time="1s"/>', "Two.</spe", "ak>\n<speak><!-- </speak> -->Three.</speak>"]

    messages = speak(door, *pieces, text_type="ssml")

    assert spoken(messages) == ['<speak>One.<break time="1s"/>Two.</speak>', "<speak><!-- </speak> -->Three.</speak>"]
    seconds = [message["seconds"] for message in messages if message["type"] == "audio.done"]
    assert seconds == pytest.approx([1 + 2 * SPOKEN_S, SPOKEN_S], abs=2e-3)


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        ("<speak>\n<b/></speak>", "markup_invalid", "line 2, column 1: <b> is not supported"),
        ('<speak>a<voice name="nobody">b</voice></speak>', "voice_not_found", "nobody"),
        ("<speak><prosody rate='900%'>a</prosody></speak>", "markup_invalid", "line 1, column"),
    ],
)
def test_an_error_in_a_document_is_reported_and_the_next_one_is_spoken(
    door: Door, text: str, code: str, reason: str
) -> None:
    messages = speak(door, text, "<speak>Well.</speak>", text_type="ssml")

    ((found, message),) = errors(messages)
    assert found == code
    assert reason in message
    assert messages[0]["text"] == text
    assert spoken(messages) == ["<speak>Well.</speak>"]


def test_the_event_loop_is_free_between_the_documents_of_a_message(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    put, order = TextInput.speak, []

    def note(*arguments: Any, **options: Any) -> None:
        order.append("put")
        asyncio.get_running_loop().call_soon(order.append, "others")
        put(*arguments, **options)

    monkeypatch.setattr(TextInput, "speak", note)
    speak(door, "<speak>One.</speak>" * 3, text_type="ssml")

    assert order[:6] == ["put", "others"] * 3


def test_a_document_that_is_incomplete_at_the_end_is_an_error(door: Door) -> None:
    messages = speak(door, "<speak>One.</speak><speak>Two.", text_type="ssml")

    assert spoken(messages) == ["<speak>One.</speak>"]
    assert [code for code, _ in errors(messages)] == ["markup_invalid"]
    assert "not well-formed XML" in errors(messages)[0][1]


def test_clearing_drops_a_document_that_is_incomplete(door: Door) -> None:
    with session(door) as socket:
        say(socket, **FEW | {"text_type": "ssml"})
        say(socket, type="input.text", text="<speak>One.")
        say(socket, type="input.clear")
        say(socket, type="input.text", text="<speak>Two.</speak>")
        say(socket, type="input.done")
        messages, _, _ = hear(socket)

    assert spoken(messages) == ["<speak>Two.</speak>"]


def test_a_document_that_never_ends_is_limited(door: Door) -> None:
    with session(door) as socket:
        say(socket, **FEW | {"text_type": "ssml"})
        for _ in range(3):
            say(socket, type="input.text", text="<speak>" + "a" * 9000)
        messages, _, code = hear(socket)

    assert (messages[-1]["error"]["code"], code) == ("text_invalid", 1008)


@pytest.mark.usefixtures("robin")
def test_a_voice_in_brackets_speaks_until_the_next_one(door: Door) -> None:
    messages = speak(door, "[robin] One. T", "wo. [nobody] Three. [pause 0.", "5s] Four.", text_type="marked")

    assert spoken(messages) == ["[robin] One.", "[robin] Two. [nobody] Three.", "[robin] [pause 0.5s] Four."]
    assert errors(messages) == []
    last = [message["seconds"] for message in messages if message["type"] == "audio.done"][-1]
    assert last == pytest.approx(0.5 + SPOKEN_S, abs=2e-3)


def test_another_services_voice_in_brackets_speaks_until_the_next_one(door: Door) -> None:
    messages = speak(door, "[Alloy] One. T", "wo. [Joanna] Three. F", "our.", text_type="marked")

    assert spoken(messages) == ["[Alloy] One.", "[alloy] Two. [Joanna] Three.", "[joanna] Four."]
    assert errors(messages) == []


def test_documents_with_a_declaration_may_follow_each_other(door: Door) -> None:
    document = '<?xml version="1.0"?><speak>One.</speak>'

    messages = speak(door, f"{document}\n{document}", text_type="ssml")

    assert spoken(messages) == [document, document]
    assert errors(messages) == []


@pytest.fixture(scope="module")
def lenient(tiny: Path) -> Iterator[Door]:
    """A server that accepts SSML from clients that cannot say what their text is."""
    config = EngineConfig(checkpoint_path=tiny, device="cpu", accept_ssml=True)
    with ProductionTTSEngine(config) as engine, serving(engine, start_words=1) as door:
        yield door


def test_a_leading_speak_is_read_as_ssml_by_setting(lenient: Door) -> None:
    text = '<speak>One. Two.<break time="1s"/> Three.</speak>'
    messages = speak(lenient, text[:13], text[13:])

    assert spoken(messages) == [text]


def test_deepgrams_clients_get_a_warning_with_the_place_of_an_error(lenient: Door) -> None:
    with session(lenient, "/v1/speak") as socket:
        say(socket, type="Speak", text="<speak><b/></speak>")
        say(socket, type="Close")
        messages, _, code = hear(socket)

    assert [(message["type"], message.get("code")) for message in messages[1:]] == [("Warning", "markup_invalid")]
    assert "column 8" in messages[1]["description"]
    assert code == 1000


def test_elevenlabs_clients_may_send_elements_without_the_outermost_one(door: Door) -> None:
    path = "/v1/text-to-speech/default/stream-input?output_format=pcm_24000&enable_ssml_parsing=true"
    with session(door, path) as socket:
        say(socket, text='<break time="3s"')
        say(socket, text='/><break time="1s"/>', flush=True)
        first = json.loads(socket.recv(timeout=EVENTUALLY_S))
        say(socket, text="<b>Oh</b>", flush=True)
        say(socket, text="")
        messages, _, code = hear(socket)

    audio = [message.get("audio") or "" for message in (first, *messages)]
    assert sum(len(base64.b64decode(each)) for each in audio) / 2 / 24_000 == pytest.approx(4, abs=0.01)
    assert [message.get("error") for message in messages if "error" in message] == ["markup_invalid"]
    assert (messages[-1], code) == ({"audio": None, "isFinal": True}, 1000)


def test_a_session_sends_when_marks_are_reached(built_in: Door) -> None:
    text = '<speak>Good <mark name="here"/>morning. <break time="1s"/><mark name="end"/></speak>'

    messages = speak(built_in, text, text_type="ssml", word_times=True, max_new_tokens=400)

    mark, end = [mark for message in messages if message["type"] == "audio.marks" for mark in message["marks"]]
    words = [word for message in messages if message["type"] == "audio.words" for word in message["words"]]
    assert mark == {
        "name": "here",
        "start": text.index("<mark"),
        "stop": text.index("morning"),
        "time_s": words[1]["start_s"],
    }
    assert [text[word["start"] : word["stop"]] for word in words] == ["Good", "morning"]
    seconds = next(message["seconds"] for message in messages if message["type"] == "audio.done")
    assert (end["name"], end["time_s"]) == ("end", pytest.approx(seconds, abs=2e-3))
