"""`POST /v1/audio/speech` with OpenAI's own client."""

from __future__ import annotations

import base64
import io
import json
import struct
from pathlib import Path

import httpx2
import numpy as np
import openai
import pytest
import soundfile

from s1_mini.families.s1.tokenizer import S1Tokenizer, read_vocabulary
from tests.server.conftest import Door

SHORT = {"seed": 1, "max_new_tokens": 20}


def test_a_stream_brings_the_bytes_of_the_whole(openai_client: openai.OpenAI) -> None:
    asked = {"model": "tts-1", "input": "Good morning.", "voice": "alloy", "extra_body": SHORT}

    whole = openai_client.audio.speech.create(**asked, response_format="pcm").content
    with openai_client.audio.speech.with_streaming_response.create(**asked, response_format="pcm") as answer:
        pieces = list(answer.iter_bytes(4096))

    assert b"".join(pieces) == whole
    assert len(pieces) > 2


def test_pcm_has_24_khz_whatever_the_rate_of_the_model(http: httpx2.Client) -> None:
    body = {"input": "Good morning."} | SHORT

    pcm = http.post("/v1/audio/speech", json=body | {"response_format": "pcm"})
    flac = http.post("/v1/audio/speech", json=body | {"response_format": "flac"})

    own, rate = soundfile.read(io.BytesIO(flac.content))
    assert rate == 44_100
    assert int(flac.headers["x-sample-rate"]) == rate
    assert pcm.headers["x-sample-rate"] == "24000"
    assert pcm.headers["content-type"] == "audio/pcm;rate=24000;channels=1"
    assert abs(len(pcm.content) // 2 - len(own) * 24_000 / rate) <= 1


def test_events_bring_the_same_bytes(http: httpx2.Client) -> None:
    body = {"model": "tts-1", "input": "Good morning.", "voice": "alloy", "response_format": "pcm"} | SHORT

    whole = http.post("/v1/audio/speech", json=body).content
    answer = http.post("/v1/audio/speech", json=body | {"stream_format": "sse"})
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert b"".join(base64.b64decode(event["audio"]) for event in events[:-1]) == whole
    assert events[-1]["type"] == "speech.audio.done"


def test_events_end_with_the_tokens_that_were_read_and_made(http: httpx2.Client, door: Door, tiny: Path) -> None:
    text = "Good morning.  How are you?"
    body = {"input": text, "stream_format": "sse"} | SHORT

    answer = http.post("/v1/audio/speech", json=body)
    usage = json.loads(answer.text.strip().split("\n\n")[-1].removeprefix("data: "))["usage"]

    tokenizer = S1Tokenizer(read_vocabulary(tiny))
    num_read = sum(len(tokenizer.encode(sentence)) for sentence in ("Good morning.", "How are you?"))
    assert usage["input_tokens"] == num_read == door.engine.count_tokens(text)
    assert usage["output_tokens"] == door.engine.generate(text, **SHORT).frames > 0
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_errors_are_of_the_clients_own_types(openai_client: openai.OpenAI) -> None:
    asked = {"model": "tts-1", "input": "Hi.", "voice": "alloy"}

    with pytest.raises(openai.NotFoundError) as caught:
        openai_client.audio.speech.create(**asked | {"voice": "nobody"})
    assert (caught.value.code, caught.value.type, caught.value.param) == (
        "voice_not_found",
        "invalid_request_error",
        "voice",
    )
    wrong = [
        {"speed": 5.0},
        {"response_format": "m4a"},
        {"input": ""},
        {"input": "Hi. " * 6000},
        {"extra_body": {"top_k": 9}},
    ]
    for fields in wrong:
        with pytest.raises(openai.BadRequestError) as refused:
            openai_client.audio.speech.create(**asked | fields)
        assert refused.value.code in {"request_invalid", "text_invalid", "parameter_invalid"}
        (name,) = fields.get("extra_body", fields)
        assert (refused.value.type, refused.value.param) == ("invalid_request_error", name)


@pytest.mark.parametrize("form", ["wav", "mp3"])
def test_a_whole_answer_has_its_length_and_a_stream_has_not(http: httpx2.Client, form: str) -> None:
    body = {"input": "Good morning.", "response_format": form} | SHORT

    whole = http.post("/v1/audio/speech", json=body | {"stream": False})
    streams = [http.post("/v1/audio/speech", json=body | more) for more in ({}, {"stream": True}, {"stream": None})]

    assert int(whole.headers["content-length"]) == len(whole.content)
    assert all("content-length" not in answer.headers for answer in streams)
    heard = [soundfile.read(io.BytesIO(answer.content))[0] for answer in (whole, *streams)]
    assert all(len(sound) > 0 for sound in heard)
    if form == "wav":
        assert struct.unpack("<I", whole.content[4:8])[0] == len(whole.content) - 8
        size = struct.unpack("<I", whole.content[40:44])[0]
        assert whole.content[44 + size :].startswith(b"LIST")  # the comment, after the samples
        assert all(np.allclose(sound, heard[0], atol=1e-4) for sound in heard)


def test_the_client_can_list_and_look_up_the_model(openai_client: openai.OpenAI) -> None:
    assert [model.id for model in openai_client.models.list()] == ["s1-mini"]
    assert openai_client.models.retrieve("s1-mini").object == "model"
    with pytest.raises(openai.NotFoundError, match="s1-mini"):
        openai_client.models.retrieve("gpt-5")


def test_clients_that_list_voices_and_speech_models_get_them(http: httpx2.Client, robin: str) -> None:
    """Open WebUI reads `id` and `name` of both, in the format of Kokoro-FastAPI."""
    assert http.get("/v1/audio/voices").json() == {"voices": [{"id": robin, "name": robin}]}
    assert http.get("/v1/audio/models").json() == {"models": [{"id": "s1-mini", "name": "s1-mini"}]}


def test_a_voice_is_a_name_or_an_object_with_an_id(openai_client: openai.OpenAI, robin: str) -> None:
    asked = {"model": "tts-1", "input": "Good morning.", "response_format": "pcm", "extra_body": SHORT}

    named, by_id, default, alloy = (
        openai_client.audio.speech.create(**asked, voice=voice).content
        for voice in (robin, {"id": robin}, "alloy", {"id": "alloy"})
    )

    assert named == by_id != default == alloy
    with pytest.raises(openai.NotFoundError):
        openai_client.audio.speech.create(**asked, voice={"id": "voice_1234"})


@pytest.mark.parametrize("voice", [{}, {"name": "alloy"}, {"id": "alloy", "more": "x"}, {"id": 7}, ["alloy"], 7])
def test_a_voice_of_another_shape_is_refused_with_our_message(http: httpx2.Client, voice: object) -> None:
    answer = http.post("/v1/audio/speech", json={"input": "Hi.", "voice": voice} | SHORT)
    error = answer.json()["error"]

    assert (answer.status_code, error["field"]) == (400, "voice")
    assert voice == "" or error["message"].endswith('send the name of a voice, or {"id": name}')
