"""`POST /v1/audio/speech` with OpenAI's own client."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator

import httpx2
import openai
import pytest
import soundfile

from tests.server.conftest import Door

SHORT = {"seed": 1, "max_new_tokens": 20}


@pytest.fixture
def client(door: Door) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{door.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("form", ["mp3", "opus", "flac", "wav", "pcm"])
def test_the_client_gets_each_format_that_it_can_ask_for(client: openai.OpenAI, form: str) -> None:
    answer = client.audio.speech.create(
        model="tts-1", input="Good morning.", voice="alloy", response_format=form, extra_body=SHORT
    )

    if form == "pcm":
        assert len(answer.content) > 10_000
    else:
        with soundfile.SoundFile(io.BytesIO(answer.content)) as sound:
            assert len(sound.read(10_000)) == 10_000


def test_a_stream_brings_the_bytes_of_the_whole(client: openai.OpenAI) -> None:
    asked = {"model": "tts-1", "input": "Good morning.", "voice": "alloy", "extra_body": SHORT}

    whole = client.audio.speech.create(**asked, response_format="pcm").content
    with client.audio.speech.with_streaming_response.create(**asked, response_format="pcm") as answer:
        pieces = list(answer.iter_bytes(4096))

    assert b"".join(pieces) == whole
    assert len(pieces) > 2


def test_events_bring_the_same_bytes(client: openai.OpenAI, http: httpx2.Client) -> None:
    body = {"model": "tts-1", "input": "Good morning.", "voice": "alloy", "response_format": "pcm"} | SHORT

    whole = http.post("/v1/audio/speech", json=body).content
    answer = http.post("/v1/audio/speech", json=body | {"stream_format": "sse"})
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert b"".join(base64.b64decode(event["audio"]) for event in events[:-1]) == whole
    assert events[-1]["type"] == "speech.audio.done"


def test_errors_are_those_that_the_client_knows(client: openai.OpenAI) -> None:
    asked = {"model": "tts-1", "input": "Hi.", "voice": "alloy"}

    with pytest.raises(openai.NotFoundError) as caught:
        client.audio.speech.create(**asked | {"voice": "nobody"})
    assert caught.value.code == "voice_not_found"
    with pytest.raises(openai.UnprocessableEntityError, match="speed"):
        client.audio.speech.create(**asked, speed=2.0)
    with pytest.raises(openai.UnprocessableEntityError, match="aac"):
        client.audio.speech.create(**asked, response_format="aac")


def test_the_client_can_list_the_model(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["s1-mini"]
