"""AAC over real sockets: with OpenAI's client, over WebSockets, for a client that leaves, and without its package."""

from __future__ import annotations

import gc
import io
import json

import httpx2
import openai
import pytest
from websockets.sync.client import connect

from door_room import raw_post
from held_generation import SOUNDS, held_generation
from s1_mini.audio.aac import AacFile
from s1_mini.audio.container import SOURCE_TYPE
from tests.server.conftest import LONG_SPEECH, Door
from waiting import wait_until

SHORT = {"seed": 1, "max_new_tokens": 20}
ASKED = {"model": "tts-1", "input": "Good morning.", "voice": "alloy", "response_format": "aac"}
REASON = 'its encoder needs av, which is not installed: pip install "s1-mini[av]"'
WITH_AV = "pip install -r requirements-test.lock.txt"


def test_openais_client_gets_labelled_aac_and_a_stream_has_the_bytes_of_the_whole(
    openai_client: openai.OpenAI, http: httpx2.Client
) -> None:
    av = pytest.importorskip("av", reason=WITH_AV)
    own = SHORT | {"text": ASKED["input"], "format": "aac", "chunk_profile": "ttfa"}

    theirs = openai_client.audio.speech.with_raw_response.create(**ASKED, extra_body=SHORT)
    streamed, whole = (http.post("/v1/tts", json=own | {"stream": streams}) for streams in (True, False))

    assert theirs.content == streamed.content == whole.content
    for answer in (theirs, streamed, whole):
        assert answer.headers["content-type"] == "audio/aac"
        assert answer.headers["x-digital-source-type"] == SOURCE_TYPE
    with av.open(io.BytesIO(whole.content)) as file:
        num_samples = sum(frame.samples for frame in file.decode(audio=0))
        assert (file.format.name, file.streams[0].codec.name, file.streams[0].rate) == ("aac", "aac", 44_100)
    padding = num_samples - 1024 - round(44_100 * float(whole.headers["x-audio-seconds"]))  # after the silent frame
    assert -23 < padding < 1024 + 23  # the header is rounded to milliseconds


def test_a_websocket_sends_aac(door: Door) -> None:
    pytest.importorskip("av", reason=WITH_AV)
    config = {"type": "session.config", "response_format": "aac", **SHORT}
    with connect(f"ws://127.0.0.1:{door.port}/v1/audio/speech/stream", proxy=None) as socket:
        for message in (config, {"type": "input.text", "text": "Good morning."}, {"type": "input.done"}):
            socket.send(json.dumps(message))
        audio = [message for message in socket if isinstance(message, bytes)]

    assert b"".join(audio).startswith(b"\xff\xf1")


def test_the_encoder_of_a_client_that_leaves_is_freed(door: Door, http: httpx2.Client) -> None:
    av = pytest.importorskip("av", reason=WITH_AV)

    def alive() -> int:
        kinds = (AacFile, av.AudioCodecContext)
        return sum(type(each) in kinds for each in gc.get_objects())

    with held_generation(SOUNDS), door.connect() as plug:
        plug.sendall(raw_post(LONG_SPEECH | {"stream": True, "format": "aac"}))
        plug.recv(1000)
        assert alive() == 2
        gc.disable()  # memory is freed at once, not by a collection
        try:
            plug.close()
            wait_until(lambda: http.get("/health").json()["server"]["requests"] == 0)
            wait_until(lambda: alive() == 0)
        finally:
            gc.enable()


@pytest.mark.usefixtures("without_av")
def test_without_its_package_aac_is_refused_with_the_extra_and_the_other_formats(
    openai_client: openai.OpenAI, http: httpx2.Client, door: Door
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        openai_client.audio.speech.create(**ASKED)
    own = http.post("/v1/tts", json={"text": "Hi.", "format": "aac"})
    form = http.post("/v1/tts", data={"text": "Hi.", "format": "aac"}, files={"reference_audio": b"none"})
    batch = http.post("/v1/tts/batch", json={"items": [{"text": "Hi."}], "format": "aac"})
    with connect(f"ws://127.0.0.1:{door.port}/v1/audio/speech/stream", proxy=None) as socket:
        socket.send(json.dumps({"type": "session.config", "response_format": "aac"}))
        told = json.loads(socket.recv())

    error = refused.value
    assert (error.code, error.param) == ("request_invalid", "response_format")
    assert f"response_format: 'aac': {REASON}" in error.message
    assert error.message.endswith("or use one of mp3, opus, flac, wav, pcm")
    for answer in (own, form, batch):
        assert answer.status_code == 422
        assert answer.json()["error"]["field"] == "format"
        assert f"format: 'aac': {REASON}" in answer.json()["error"]["message"]
        assert answer.json()["error"]["message"].endswith("or use one of wav, flac, mp3, opus, ogg, pcm, mulaw, alaw")
    assert told["type"] == "error"
    assert REASON in str(told)
