"""Captions of Kokoro-FastAPI, as the examples of its README request and read them."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import soundfile

from tests.server.conftest import Door

PATH = "/dev/captioned_speech"
TEXT = "Good morning to you."
ASKED = {"model": "kokoro", "input": TEXT, "voice": "af_bella", "speed": 1.0, "seed": 1}


@pytest.fixture
def client(built_in: Door) -> Iterator[httpx2.Client]:
    with built_in.client() as client:
        yield client


def lines_of(client: httpx2.Client, **more: Any) -> list[dict[str, Any]]:
    with client.stream("POST", PATH, json=ASKED | {"stream": True} | more) as answer:
        assert answer.status_code == 200, answer.read()
        return [json.loads(line) for line in answer.iter_lines() if line]


def test_a_whole_answer_has_the_audio_and_the_times_of_its_words(client: httpx2.Client) -> None:
    answer = client.post(PATH, json=ASKED | {"response_format": "wav", "stream": False})
    captioned = json.loads(answer.content)

    wave, rate = soundfile.read(io.BytesIO(base64.b64decode(captioned["audio"].encode())))
    assert captioned["audio_format"] == "audio/wav"
    assert [each["word"] for each in captioned["timestamps"]] == ["Good", "morning", "to", "you"]
    times = [time for each in captioned["timestamps"] for time in (each["start_time"], each["end_time"])]
    assert times == sorted(times)
    assert 0 < times[0] < times[-1] <= len(wave) / rate


def test_a_stream_is_lines_with_the_same_audio_and_words(client: httpx2.Client) -> None:
    whole = client.post(PATH, json=ASKED | {"response_format": "pcm", "stream": False}).json()
    lines = lines_of(client, response_format="pcm")

    assert len(lines) > 1
    assert {line["audio_format"] for line in lines} == {whole["audio_format"]} == {"audio/pcm"}
    streamed = b"".join(base64.b64decode(line["audio"]) for line in lines)
    assert len(streamed) == len(base64.b64decode(whole["audio"]))
    words = [each["word"] for line in lines for each in line["timestamps"]]
    assert words == [each["word"] for each in whole["timestamps"]]


def test_times_can_be_left_out(client: httpx2.Client) -> None:
    whole = client.post(PATH, json=ASKED | {"stream": False, "return_timestamps": False}).json()

    assert whole["timestamps"] is None
    assert whole["audio_format"] == "audio/mpeg"
    assert {len(line["timestamps"]) for line in lines_of(client, return_timestamps=False)} == {0}


@pytest.mark.parametrize(
    ("changed", "status", "code", "message"),
    [
        ({"voice": "nobody"}, 404, "voice_not_found", "voice: unknown voice 'nobody'; available: alan, anna"),
        ({"input": ""}, 422, "text_invalid", "input: is empty"),
        ({"speed": 9}, 422, "request_invalid", "speed: 9: input should be less than or equal to 4"),
        ({"response_format": "m4a"}, 422, "request_invalid", "response_format: 'm4a': input should be 'mp3'"),
    ],
)
def test_an_error_has_kokoro_shape(
    client: httpx2.Client, changed: dict[str, object], status: int, code: str, message: str
) -> None:
    answer = client.post(PATH, json=ASKED | changed)

    assert answer.status_code == status
    detail = answer.json()["detail"]
    assert (detail["error"], detail["type"]) == (code, "invalid_request_error")
    assert detail["message"].startswith(message)


def test_a_checkpoint_without_times_says_so_and_speaks_without_them(http: httpx2.Client) -> None:
    asked = {"input": "Hello.", "max_new_tokens": 8, "seed": 1, "stream": False}
    refused, spoken = (http.post(PATH, json=asked | {"return_timestamps": times}) for times in (True, False))

    assert refused.status_code == 422
    assert refused.json()["detail"]["message"] == (
        "return_timestamps: is not supported by this model, which reports no times; send false"
    )
    assert base64.b64decode(spoken.json()["audio"])
