"""`/invocations` over a real socket: every request form, every response form."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import soundfile

from container_room import SHORT, recording, running
from held_generation import held_generation
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.audio.container import SOURCE_TYPE
from waiting import wait_until

ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"


def error_of(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@pytest.mark.parametrize(
    ("accept", "media_type", "kind"),
    [
        ("audio/wav", "audio/wav", "WAV"),
        ("audio/flac", "audio/flac", "FLAC"),
        ("audio/mpeg", "audio/mpeg", "MP3"),
        ("audio/ogg", "audio/ogg", "OGG"),
        ("audio/opus", "audio/ogg", "OGG"),
        ("*/*", "audio/wav", "WAV"),
        ("audio/pcm;q=0.2, audio/flac;q=0.9", "audio/flac", "FLAC"),
    ],
)
def test_accept_chooses_the_format(http: httpx2.Client, accept: str, media_type: str, kind: str) -> None:
    answer = http.post("/invocations", json=SHORT, headers={"Accept": accept})

    assert (answer.status_code, answer.headers["content-type"]) == (200, media_type)
    assert soundfile.info(io.BytesIO(answer.content)).format == kind


def test_accept_chooses_aac_where_it_can_be_encoded(http: httpx2.Client) -> None:
    pytest.importorskip("av", reason="pip install -r requirements-test.lock.txt")
    answer = http.post("/invocations", json=SHORT, headers={"Accept": "audio/aac"})

    assert (answer.status_code, answer.headers["content-type"]) == (200, "audio/aac")
    assert answer.content.startswith(b"\xff\xf1")
    assert "format=aac" in answer.headers[ATTRIBUTES]


@pytest.mark.usefixtures("without_av")
def test_without_its_package_accept_skips_aac_or_is_refused_with_the_extra(http: httpx2.Client) -> None:
    second = http.post("/invocations", json=SHORT, headers={"Accept": "audio/aac, audio/flac;q=0.5"})
    only = http.post("/invocations", json=SHORT, headers={"Accept": "audio/aac"})

    assert (second.status_code, second.headers["content-type"]) == (200, "audio/flac")
    assert error_of(only) == (406, "not_acceptable")
    assert "s1-mini[av]" in only.json()["error"]["message"]
    assert "or use one of audio/wav, audio/x-wav" in only.json()["error"]["message"]


def test_json_carries_the_samples_that_pcm_does(http: httpx2.Client) -> None:
    bare = http.post("/invocations", json=SHORT, headers={"Accept": "audio/pcm"})
    output = http.post("/invocations", json=SHORT | {"format": "pcm"}, headers={"Accept": "application/json"})

    assert bare.headers["content-type"] == "audio/pcm;rate=44100;channels=1"
    assert base64.b64decode(output.json()["audio"]) == bare.content
    assert output.json()["sample_rate"] == 44_100
    label = f"digital_source_type={SOURCE_TYPE}"
    assert bare.headers[ATTRIBUTES] == f"sample_rate=44100,format=pcm,channels=1,{label}"


def test_a_stream_comes_in_chunks_and_says_its_rate_and_is_the_whole_answer(http: httpx2.Client) -> None:
    whole = http.post("/invocations", json=SHORT, headers={"Accept": "audio/pcm"})
    streamed = http.post("/invocations", json=SHORT | {"stream": True}, headers={"Accept": "audio/pcm"})

    assert streamed.headers["transfer-encoding"] == "chunked"
    assert "sample_rate=44100" in streamed.headers[ATTRIBUTES]
    assert streamed.content == whole.content


def test_a_form_with_a_recording_equals_the_same_json(http: httpx2.Client, tone: np.ndarray) -> None:
    wav = recording(tone)
    fields = {name: str(value) for name, value in SHORT.items()} | {"reference_text": "Hello."}
    by_form = http.post("/invocations", data=fields, files={"reference_audio": ("me.wav", wav)})
    coded = {"reference_audio": base64.b64encode(wav).decode(), "reference_text": "Hello."}
    by_json = http.post("/invocations", json=SHORT | coded)

    assert by_form.status_code == by_json.status_code == 200
    assert by_form.content == by_json.content


def test_the_body_of_hugging_face_s_containers_equals_ours(http: httpx2.Client) -> None:
    options = {name: value for name, value in SHORT.items() if name != "text"}
    body = {"inputs": SHORT["text"], "parameters": options}
    lines = json.dumps(body) + "\n" + json.dumps(SHORT)

    ours = http.post("/invocations", json=SHORT)
    theirs = http.post("/invocations", json=body)
    flat = http.post("/invocations", json={"inputs": SHORT["text"]} | options)
    each = http.post("/invocations", content=lines, headers={"Content-Type": "application/jsonlines"}).text.splitlines()

    assert theirs.content == flat.content == ours.content
    assert each[0] == each[1]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"inputs": ["Hi.", "Oh."]}, "inputs"),
        ({"inputs": "Hi.", "text": "Oh."}, "text"),
        ({"inputs": "Hi.", "parameters": [1]}, "parameters"),
        ({"inputs": "Hi.", "parameters": {"seed": 1}, "seed": 2}, "seed"),
        ({"inputs": "Hi.", "parameters": {"pitch": 1}}, "pitch"),
        ({"parameters": {"seed": 1}}, "parameters"),
    ],
)
def test_a_wrong_field_of_that_body_is_named(http: httpx2.Client, body: dict[str, Any], field: str) -> None:
    answer = http.post("/invocations", json=body)

    assert (answer.status_code, answer.json()["error"]["field"]) == (422, field)


def test_json_lines_give_as_many_lines_in_the_same_order(http: httpx2.Client) -> None:
    lines: list[Any] = [SHORT | {"seed": seed} for seed in range(12)]
    lines[3], lines[7] = {"text": " "}, {"wrong": 1}
    body = "\n".join(json.dumps(line) for line in lines)

    answer = http.post("/invocations", content=body, headers={"Content-Type": "application/jsonlines"})
    output = [json.loads(line) for line in answer.text.splitlines()]
    alone = http.post("/invocations", json=lines[5], headers={"Accept": "application/json"}).json()

    assert answer.headers["content-type"] == "application/jsonlines"
    assert len(output) == len(lines)
    assert output[5] == alone
    assert {n: t["error"]["code"] for n, t in enumerate(output) if "error" in t} == {
        3: "text_invalid",
        7: "request_invalid",
    }


def test_a_body_may_begin_with_a_byte_order_mark(http: httpx2.Client) -> None:
    content = json.dumps(SHORT).encode("utf-8-sig")

    one = http.post("/invocations", content=content, headers={"Content-Type": "application/json"})
    lines = http.post("/invocations", content=content, headers={"Content-Type": "application/jsonlines"})
    refused = http.post(
        "/invocations", content=json.dumps(SHORT).encode("utf-16"), headers={"Content-Type": "application/json"}
    )

    assert one.content == http.post("/invocations", json=SHORT).content
    assert "audio" in lines.json()
    assert error_of(refused) == (400, "body_invalid")
    assert "UTF-16" in refused.text


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "application/octet-stream"}], ids=["none", "octet-stream"])
@pytest.mark.parametrize("start", [b"", b"\r\n \t", b"\xef\xbb\xbf"], ids=["object", "space", "mark"])
def test_a_json_object_needs_no_content_type(http: httpx2.Client, headers: dict[str, str], start: bytes) -> None:
    content = start + json.dumps(SHORT).encode()

    answer = http.post("/invocations", content=content, headers=headers)

    assert answer.content == http.post("/invocations", json=SHORT).content


def test_a_json_object_for_another_route_needs_no_content_type(http: httpx2.Client) -> None:
    body = json.dumps({"model": "s1-mini", "input": "Good morning.", "response_format": "wav", "max_new_tokens": 8})

    answer = http.post("/invocations", content=body.encode(), headers={ATTRIBUTES: "route=/v1/audio/speech"})

    assert (answer.status_code, answer.content[:4]) == (200, b"RIFF")


@pytest.mark.parametrize("headers", [{}, {ATTRIBUTES: "route=/v1/audio/speech"}], ids=["invocations", "route"])
@pytest.mark.parametrize("content", [b"", b"RIFF", b"text={", b"[1]", b'"a"'])
def test_other_bodies_without_a_content_type_are_refused(
    http: httpx2.Client, headers: dict[str, str], content: bytes
) -> None:
    answer = http.post("/invocations", content=content, headers=headers)

    assert error_of(answer) == (415, "content_type_unsupported")
    assert "a body without Content-Type is not supported; send application/json" in answer.text


@pytest.mark.parametrize("kind", ["text/plain", "text/csv", "application/x-www-form-urlencoded", "application/x-npy"])
def test_json_with_another_content_type_is_refused(http: httpx2.Client, kind: str) -> None:
    answer = http.post("/invocations", content=json.dumps(SHORT).encode(), headers={"Content-Type": kind})

    assert error_of(answer) == (415, "content_type_unsupported")


def test_more_lines_than_allowed_are_refused_before_anything_is_spoken(http: httpx2.Client) -> None:
    body = (json.dumps(SHORT) + "\n") * 1001

    answer = http.post("/invocations", content=body, headers={"Content-Type": "application/jsonlines"})

    assert error_of(answer) == (400, "body_invalid")


def test_custom_attributes_choose_another_route(http: httpx2.Client) -> None:
    body = {"model": "s1-mini", "input": "Good morning.", "response_format": "wav", "seed": 1, "max_new_tokens": 8}

    answer = http.post("/invocations", json=body, headers={ATTRIBUTES: "route=/v1/audio/speech"})
    batch = http.post("/invocations", json={"items": [SHORT | {}]}, headers={ATTRIBUTES: "x, route=v1/tts/batch"})

    assert (answer.status_code, answer.content[:4]) == (200, b"RIFF")
    (result,) = batch.json()["results"]
    assert result["error"].startswith("seed: unknown field")  # it reached the batch, which has no seed per item


def test_the_attributes_of_every_answer_with_audio_state_that_it_is_synthetic(http: httpx2.Client) -> None:
    line, label = json.dumps(SHORT), f"digital_source_type={SOURCE_TYPE}"
    speech = {"model": "s1-mini", "input": "Good morning.", "response_format": "pcm", "max_new_tokens": 8}

    lines = http.post("/invocations", content=line, headers={"Content-Type": "application/jsonlines"})
    elsewhere = http.post("/invocations", json=speech, headers={ATTRIBUTES: "route=/v1/audio/speech"})
    refused = http.post("/invocations", json={}, headers={ATTRIBUTES: "route=/v1/audio/speech"})

    assert lines.headers[ATTRIBUTES] == label
    assert elsewhere.headers[ATTRIBUTES] == f"sample_rate=24000,{label}"
    assert ATTRIBUTES not in refused.headers


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("route=/v1/nothing", 404),
        ("route=/health", 404),
        ("route=/v1/../invocations", 404),
        ("route=//v1/tts", 404),
        ("route=", 404),
        ("route=/v1/tts,route=/v1/tts/batch", 422),
        ("x" * 1025, 422),
        (b"route=/v1/tts\xe9", 422),
    ],
)
def test_attributes_that_name_no_route_are_refused(http: httpx2.Client, header: str | bytes, status: int) -> None:
    given = header if isinstance(header, bytes) else header.encode()
    answer = http.post("/invocations", json=SHORT, headers=[(ATTRIBUTES.encode(), given)])

    assert answer.status_code == status
    assert answer.headers["x-request-id"]


def test_custom_attributes_of_a_client_are_never_echoed(http: httpx2.Client) -> None:
    answer = http.post("/invocations", json=SHORT, headers={ATTRIBUTES: "sample_rate=1%0d%0aX-Evil: 1"})

    assert answer.status_code == 200
    assert "x-evil" not in answer.headers
    assert answer.headers[ATTRIBUTES].startswith("sample_rate=44100,format=wav,channels=1,")


@pytest.mark.parametrize(
    ("named", "status", "code"),
    [
        ({"content": b"{", "headers": {"Content-Type": "application/json"}}, 400, "body_invalid"),
        ({"content": b"", "headers": {"Content-Type": "application/jsonlines"}}, 400, "body_invalid"),
        ({"content": b"x", "headers": {"Content-Type": "application/x-npy"}}, 415, "content_type_unsupported"),
        ({"json": SHORT, "headers": {"Accept": "image/png"}}, 406, "not_acceptable"),
        ({"json": {"voice": None}}, 422, "request_invalid"),
        ({"json": SHORT | {"voice": "nobody"}}, 404, "voice_not_found"),
        ({"json": SHORT | {"text": " "}}, 422, "text_invalid"),
    ],
)
def test_errors_are_reported_with_their_code(
    http: httpx2.Client, named: dict[str, Any], status: int, code: str
) -> None:
    assert error_of(http.post("/invocations", **named)) == (status, code)


def test_batch_transform_gets_its_execution_parameters(http: httpx2.Client) -> None:
    output = http.get("/execution-parameters").json()

    assert output == {"MaxConcurrentTransforms": 4, "BatchStrategy": "MULTI_RECORD", "MaxPayloadInMB": 16}


def test_lines_wait_for_a_queue_that_is_full_instead_of_failing(container: Any, tmp_path: Path) -> None:
    """Ten lines for a queue of two, half of it taken by others."""
    config = EngineConfig(checkpoint_path=container.engine.config.checkpoint_path, max_queue_size=2, max_batch_size=2)
    with ProductionTTSEngine(config) as engine, running(engine, tmp_path) as small, small.http() as http:
        body = "\n".join(json.dumps(SHORT | {"seed": seed}) for seed in range(10))
        answer = http.post("/invocations", content=body, headers={"Content-Type": "application/jsonlines"})

    assert ["audio" in json.loads(line) for line in answer.text.splitlines()] == [True] * 10


def test_a_client_that_disconnects_from_json_lines_leaves_nothing_behind(container: Any) -> None:
    body = "\n".join(json.dumps(SHORT | {"text": "One two three. " * 30, "max_new_tokens": 200}) for _ in range(20))
    headers = {"Content-Type": "application/jsonlines"}
    with held_generation():
        with container.http() as http, pytest.raises(httpx2.TimeoutException):
            http.post("/invocations", content=body, headers=headers, timeout=0.5)

        wait_until(lambda: container.engine.health_check()["requests"] == 0)
