"""`POST /v1/tts` and its batch, over a real socket."""

from __future__ import annotations

import asyncio
import base64
import io

import httpx2
import numpy as np
import pytest
import soundfile

from s1_mini.audio.container import encode
from s1_mini.runtime.running import EngineRuntime
from tests.server.conftest import Door

SHORT = {"text": "Good morning.", "seed": 1, "max_new_tokens": 30, "chunk_profile": "balanced"}


def samples_of(content: bytes) -> np.ndarray:
    wave, _ = soundfile.read(io.BytesIO(content), dtype="int16")
    return wave


def test_a_text_becomes_a_wav_with_headers_for_its_length_and_latency(http: httpx2.Client) -> None:
    answer = http.post("/v1/tts", json=SHORT | {"speed": None, "format": None})  # null: not given

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "audio/wav"
    wave, rate = soundfile.read(io.BytesIO(answer.content))
    assert str(rate) == answer.headers["x-sample-rate"]
    assert float(answer.headers["x-audio-seconds"]) == pytest.approx(len(wave) / rate, abs=0.001)
    assert float(answer.headers["x-generation-seconds"]) > 0
    assert answer.headers["x-finish-reason"] in ("stop", "length")


@pytest.mark.parametrize("profile", ["ttfa", "balanced", "throughput"])
def test_a_stream_has_the_bytes_of_the_whole_answer_under_the_same_chunk_profile(
    http: httpx2.Client, profile: str
) -> None:
    body = SHORT | {"text": "Good morning. How are you?", "format": "pcm", "chunk_profile": profile}
    whole = http.post("/v1/tts", json=body)
    streamed = http.post("/v1/tts", json=body | {"stream": True})

    assert len(whole.content) > 50_000
    assert streamed.content == whole.content


def test_only_streams_compete_for_their_first_audio(
    http: httpx2.Client, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, submit = [], EngineRuntime.submit

    def note(*arguments: object, streams: bool) -> object:
        begun.append(streams)
        return submit(*arguments, streams=streams)

    monkeypatch.setattr(EngineRuntime, "submit", note)
    for fields in ({"stream": True}, {}):
        http.post("/v1/tts", json=SHORT | fields)
    http.post("/v1/tts/batch", json={"items": [{"text": "Hi."}], "max_new_tokens": 4})
    asyncio.run(door.engine.generate_async("Hi.", max_new_tokens=4))

    assert begun == [True, False, False, False]


@pytest.mark.parametrize("form", ["pcm", "wav", "flac", "ogg", "opus", "mp3"])
def test_a_stream_decodes_to_the_samples_of_the_whole_answer(http: httpx2.Client, form: str) -> None:
    whole = http.post("/v1/tts", json=SHORT | {"format": form})
    streamed = http.post("/v1/tts", json=SHORT | {"format": form, "stream": True})

    assert whole.status_code == streamed.status_code == 200
    assert streamed.headers["content-type"] == whole.headers["content-type"]
    assert "content-length" not in streamed.headers
    if form == "pcm":
        assert streamed.headers["content-type"] == "audio/pcm;rate=44100;channels=1"
        assert streamed.content == whole.content
    elif form == "mp3":  # of another bit rate, and without a length
        assert abs(len(samples_of(streamed.content)) - len(samples_of(whole.content))) < 4000
    else:
        assert np.array_equal(samples_of(streamed.content), samples_of(whole.content))


def test_a_form_with_a_recording_equals_the_same_json(http: httpx2.Client, tone: np.ndarray) -> None:
    file = encode(tone, 44_100, "wav")
    fields = {
        "text": "Good morning.",
        "seed": "1",
        "max_new_tokens": "20",
        "reference_text": "Ah.",
        "chunk_profile": "balanced",
    }

    formed = http.post("/v1/tts", data=fields, files={"reference_audio": ("me.wav", file)})
    coded = http.post(
        "/v1/tts",
        json=SHORT
        | {"max_new_tokens": 20, "reference_audio": base64.b64encode(file).decode(), "reference_text": "Ah."},
    )

    assert formed.status_code == coded.status_code == 200
    assert formed.content == coded.content


def test_a_body_of_fish_speech_equals_ours(http: httpx2.Client, tone: np.ndarray) -> None:
    coded = base64.b64encode(encode(tone, 44_100, "wav")).decode()
    ours = SHORT | {"text": "2 cats.", "max_new_tokens": 20, "normalize": "auto", "stream": True}
    ours |= {"reference_audio": coded, "reference_text": "Ah."}
    theirs = SHORT | {"text": "2 cats.", "max_new_tokens": 20, "normalize": True, "streaming": True}
    theirs |= {"references": [{"audio": coded, "text": "Ah."}], "reference_id": None, "chunk_length": 300}
    theirs |= {"latency": "normal", "use_memory_cache": "off", "format": "wav"}

    answers = [http.post("/v1/tts", json=body) for body in (ours, theirs)]

    assert answers[0].status_code == 200
    assert answers[0].content == answers[1].content
    assert "content-length" not in answers[1].headers


def test_fish_speech_s_reference_id_is_a_voice(http: httpx2.Client, robin: str) -> None:
    ours = http.post("/v1/tts", json=SHORT | {"voice": robin, "normalize": "off"})
    theirs = http.post("/v1/tts", json=SHORT | {"reference_id": robin, "references": [], "normalize": False})

    assert ours.status_code == 200
    assert theirs.content == ours.content


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"references": [{"audio": "QUFB"}] * 2}, "references"),
        ({"references": [{"audio": "QUFB"}], "reference_text": "Ah."}, "references"),
        ({"references": ["me.wav"]}, "references.0"),
        ({"reference_id": "robin", "voice": "robin"}, "reference_id"),
        ({"streaming": True, "stream": False}, "streaming"),
        ({"reference_id": "nobody"}, "voice"),
        ({"normalize": 2}, "normalize"),
    ],
)
def test_a_wrong_field_of_fish_speech_is_named(http: httpx2.Client, fields: dict[str, object], named: str) -> None:
    error = http.post("/v1/tts", json=SHORT | fields).json()["error"]

    assert error["field"].startswith(named), error


def test_a_batch_has_the_documented_format_and_an_item_fails_alone(http: httpx2.Client) -> None:
    body = {
        "items": [{"text": "Hello world"}, {"text": " "}, {"text": "Goodbye world"}],
        "max_new_tokens": 20,
        "temperature": 0.7,
        "top_p": 0.8,
        "repetition_penalty": 1.1,
        "chunk_length": 200,
    }

    answer = http.post("/v1/tts/batch", json=body).json()

    assert answer["success"] is False
    assert [result["success"] for result in answer["results"]] == [True, False, True]
    assert base64.b64decode(answer["results"][0]["audio_base64"]).startswith(b"RIFF")
    assert answer["results"][1]["error_code"] == "text_invalid"
    assert answer["total_time"] >= max(result["generation_time"] for result in answer["results"])


WRONG_ITEMS = [
    ({"text": ""}, "text_invalid", "text: is empty"),
    ({"text": 7}, "request_invalid", "text: "),
    ({}, "request_invalid", "text: is missing"),
    (1, "request_invalid", "items: 1 is not an object"),
    (None, "request_invalid", "items: null is not an object"),
    ({"text": "Hi.", "voise": "me"}, "request_invalid", "voise: unknown field; did you mean voice?"),
    ({"text": " "}, "text_invalid", "text: is empty"),
    ({"text": "Hi.", "voice": "nobody"}, "voice_not_found", "voice: "),
    ({"text": "Hi.", "voice": "n" * 65}, "voice_not_found", "voice: "),
    ({"text": "Hi.", "reference_audio": "?"}, "request_invalid", "reference_audio: "),
    ({"text": "Hi.", "reference_audio": "bm90aGluZw=="}, "reference_invalid", "reference_audio: "),
    ({"text": "Hi.", "reference_text": "Ah."}, "parameter_invalid", "reference_text: "),
]


def test_an_invalid_item_is_reported_in_its_own_result(http: httpx2.Client) -> None:
    items = [{"text": "Hello world"}, *(item for item, _, _ in WRONG_ITEMS)]

    answer = http.post("/v1/tts/batch", json={"items": items, "max_new_tokens": 8})

    assert answer.status_code == 200, answer.text
    first, *others = answer.json()["results"]
    assert first["success"] is True
    for result, (item, code, message) in zip(others, WRONG_ITEMS, strict=True):
        assert (result["success"], result["error_code"], result["audio_base64"]) == (False, code, None), item
        assert result["error"].startswith(message), item


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b'{"items": [{"text": "Hi."}', 400, None),
        (b'[{"text": "Hi."}]', 422, "body"),
        (b'{"items": {"text": "Hi."}}', 422, "items"),
        (b'{"items": []}', 422, "items"),
        (b'{"items": [' + b",".join([b'{"text": ""}'] * 33) + b"]}", 422, "items"),
        (b'{"items": [{"text": "Hi."}], "pitch": 3}', 422, "pitch"),
        (b'{"items": [{"text": "Hi."}], "temperature": 9}', 422, "temperature"),
    ],
)
def test_an_invalid_batch_is_refused_as_a_whole(
    http: httpx2.Client, body: bytes, status: int, field: str | None
) -> None:
    answer = http.post("/v1/tts/batch", content=body, headers={"Content-Type": "application/json"})

    assert (answer.status_code, answer.json()["error"]["field"]) == (status, field)
