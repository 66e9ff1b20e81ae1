"""Times of words in JSON responses and over the WebSocket, with the built-in voice."""

from __future__ import annotations

import base64
import io
import json
from contextlib import suppress
from typing import Any

import httpx2
import pytest
import soundfile
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


TEXT = '<speak>Good morning <mark name="who"/>to you.</speak>'
BODY = {"text": TEXT, "text_type": "ssml", "seed": 1, "word_times": True}


def post(door: Door, path: str, body: dict[str, Any]) -> httpx2.Response:
    with door.client() as client:
        return client.post(path, json=body)


def check_times(answer: dict[str, Any], seconds: float) -> None:
    words = answer["words"]
    assert [word["text"] for word in words] == ["Good", "morning", "to", "you"]
    assert [TEXT[word["start"] : word["stop"]] for word in words] == [word["text"] for word in words]
    assert 0 < words[0]["start_s"] < words[-1]["end_s"] <= seconds
    assert [(mark["name"], mark["time_s"]) for mark in answer["marks"]] == [("who", words[2]["start_s"])]


def test_speech_with_word_times_is_one_json_object(built_in: Door) -> None:
    response = post(built_in, "/v1/tts", BODY)

    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    sound = soundfile.info(io.BytesIO(base64.b64decode(answer["audio"])))
    assert (sound.format, sound.samplerate) == ("WAV", answer["sample_rate"])
    check_times(answer, sound.duration)


def test_streamed_speech_with_word_times_is_json_lines_with_the_same_audio_and_times(built_in: Door) -> None:
    whole = post(built_in, "/v1/tts", BODY | {"format": "pcm"}).json()

    response = post(built_in, "/v1/tts", BODY | {"format": "pcm", "stream": True})

    assert response.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert len(lines) > 1
    assert (lines[0]["format"], lines[0]["sample_rate"]) == ("pcm", whole["sample_rate"])
    assert {name for line in lines[1:] for name in line} == {"audio", "words", "marks"}
    assert b"".join(base64.b64decode(line["audio"]) for line in lines) == base64.b64decode(whole["audio"])
    words = [word for line in lines for word in line["words"]]
    assert [word["text"] for word in words] == [word["text"] for word in whole["words"]]
    assert [word["start_s"] for word in words] == pytest.approx([word["start_s"] for word in whole["words"]], abs=0.05)
    assert [mark["name"] for line in lines for mark in line["marks"]] == ["who"]


def test_each_result_of_a_batch_has_its_word_times(built_in: Door) -> None:
    body = {"items": [{"text": TEXT}, {"text": "<speak>"}]} | {k: v for k, v in BODY.items() if k != "text"}

    spoken, failed = post(built_in, "/v1/tts/batch", body).json()["results"]

    check_times(spoken, soundfile.info(io.BytesIO(base64.b64decode(spoken["audio_base64"]))).duration)
    assert failed["error_code"] == "markup_invalid"
    assert "words" not in failed


@pytest.mark.parametrize("path", ["/v1/tts", "/v1/tts/batch"])
def test_word_times_of_a_checkpoint_without_them_are_refused(door: Door, path: str) -> None:
    body = {"text": "Hi."} if path == "/v1/tts" else {"items": [{"text": "Hi."}]}

    answer = post(door, path, body | {"word_times": True}).json()

    error = answer["error"]["message"] if path == "/v1/tts" else answer["results"][0]["error"]
    assert "word_times: is not supported by this model" in error
