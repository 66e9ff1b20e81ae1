"""Error responses: one shape, a stable code, the field at fault; never a traceback."""

from __future__ import annotations

import base64
import encodings
import io
import json
import logging
import zlib

import httpx2
import numpy as np
import pytest
import soundfile
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from s1_mini import exceptions
from s1_mini.exceptions import S1MiniError
from s1_mini.runtime.running import EngineRuntime
from s1_mini.server import errors
from tests.server.conftest import Door
from waiting import wait_until

JSON = {"Content-Type": "application/json"}
DEEP = b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def error_of(answer: httpx2.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    assert set(error) - {"type", "param"} == {"code", "message", "field", "request_id"}
    assert "Traceback" not in answer.text
    return answer.status_code, error["code"], error["field"]


def silence_for_hours() -> str:
    """Two hours of silence in a small FLAC file."""
    buffer = io.BytesIO()
    with soundfile.SoundFile(buffer, "w", 8000, 1, format="FLAC") as sound:
        block = np.zeros(8000 * 600, np.int16)
        for _ in range(12):
            sound.write(block)
    return base64.b64encode(buffer.getvalue()).decode()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, (422, "request_invalid", "text")),
        ({"text": ""}, (422, "text_invalid", "text")),
        ({"text": "..."}, (422, "text_invalid", "text")),
        ({"text": "a" * 20_001}, (422, "text_invalid", "text")),
        ({"text": "Hi.", "tempo": 2}, (422, "request_invalid", "tempo")),
        ({"text": "Hi.", "seed": True}, (422, "request_invalid", "seed")),
        ({"text": "Hi.", "voice": "nobody"}, (404, "voice_not_found", "voice")),
        ({"text": "Hi.", "voice": "../../etc/passwd"}, (404, "voice_not_found", "voice")),
        ({"text": "Hi.", "voice": ""}, (404, "voice_not_found", "voice")),
        ({"text": "Hi.", "voice": "n" * 65}, (404, "voice_not_found", "voice")),
        ({"text": "Hi.", "reference_audio": "not base64!"}, (422, "request_invalid", "reference_audio")),
        ({"text": "Hi.", "reference_audio": "QUJD" * 100}, (422, "reference_invalid", "reference_audio")),
        ({"text": "Hi.", "reference_text": "Ah."}, (422, "parameter_invalid", "reference_text")),
        ([], (422, "request_invalid", "body")),
        ("Hi.", (422, "request_invalid", "body")),
    ],
    ids=str,
)
def test_a_wrong_field_is_named(http: httpx2.Client, body: object, expected: tuple[int, str, str]) -> None:
    assert error_of(http.post("/v1/tts", json=body)) == expected


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        ("/v1/tts", {"text": "Hi.", "temprature": 1}, "temprature: unknown field; did you mean temperature?"),
        (
            "/v1/tts",
            {"text": "Hi.", "pitch": 1},
            "pitch: unknown field; use one of ",
        ),
        ("/v1/tts", {"text": "Hi.", "x" * 9_000_000: 1}, "unknown field"),
        ("/v1/tts", {"txt": "Hi."}, "txt: unknown field; did you mean text? (also wrong: text)"),
        ("/v1/tts", {"text": "Hi.", "speed": 5}, "speed: 5: input should be less than or equal to 4"),
        ("/v1/tts", {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}, "sample_rate"),
        (
            "/v1/tts/batch",
            {"itmes": [], "formt": "x"},
            "itmes: unknown field; did you mean items? (also wrong: formt, i",
        ),
        ("/v1/tts", {"text": [True, None]}, "text: [true, null]: input should be a valid string"),
        ("/v1/tts", {"text": "Hi.", "seed": False}, "seed: false: input should be a valid integer"),
        ("/v1/tts/batch", {"items": [1], "formt": "wav"}, "unknown field; did you mean format?"),
        ("/v1/audio/speech", {"input": ""}, "input: is empty; send at least one letter, number or symbol"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_refusal_is_one_sentence_in_the_words_of_json(
    http: httpx2.Client, path: str, body: object, sentence: str
) -> None:
    """The message names the nearest known field, at no cost however long the unknown name."""
    answer = http.post(path, json=body)

    assert sentence in answer.json()["error"]["message"]
    assert "None" not in answer.text
    assert len(answer.content) < 2000


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b'{"text": "\\ud800"}', DEEP, b"NaN", b'{"text": "Hi."} x'],
    ids=lambda c: c[:12],
)
def test_a_body_that_is_not_json_is_reported(http: httpx2.Client, content: bytes) -> None:
    status, code, _ = error_of(http.post("/v1/tts", content=content, headers=JSON))

    assert (status, code) in ((400, "body_invalid"), (422, "request_invalid"))


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/cbor"])
def test_a_body_of_another_type_is_not_read(http: httpx2.Client, kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}

    answer = http.post("/v1/tts", content=b'{"text": "Hi."}', headers=headers)

    assert error_of(answer)[:2] == (415, "content_type_unsupported")
    assert answer.json()["error"]["message"].endswith(
        "is not supported; send application/json, application/msgpack or multipart/form-data"
    )


@pytest.mark.parametrize(
    "content",
    [
        b"not a form",
        b"--x\r\nContent-Disposition: form-data\r\n\r\nHi.\r\n--x--\r\n",
        b'--x\r\nContent-Disposition: form-data; name="text"\r\n\r\nHi.\r\n',
        b'--x\r\nContent-Disposition: form-data; name="text"\r\n\r\n' + b"a" * 1_100_000 + b"\r\n--x--\r\n",
    ],
    ids=lambda content: content[:20],
)
def test_a_malformed_form_is_reported(http: httpx2.Client, content: bytes) -> None:
    answer = http.post("/v1/tts", content=content, headers={"Content-Type": "multipart/form-data; boundary=x"})

    assert error_of(answer)[0] in (400, 422)


def test_a_form_takes_one_file_and_each_field_once(http: httpx2.Client) -> None:
    twice = http.post("/v1/tts", files=[("text", (None, "Hi.")), ("text", (None, "Ho."))])
    other = http.post("/v1/tts", data={"text": "Hi."}, files={"voice": ("a.wav", b"RIFF")})

    assert error_of(twice) == (422, "request_invalid", "text")
    assert error_of(other) == (422, "request_invalid", "voice")


def test_a_small_file_with_hours_of_audio_is_refused_quickly(http: httpx2.Client) -> None:
    answer = http.post("/v1/tts", json={"text": "Hi.", "reference_audio": silence_for_hours()})

    assert error_of(answer) == (422, "reference_invalid", "reference_audio")
    assert answer.elapsed.total_seconds() < 5


@pytest.mark.parametrize("path", ["/v1/tts", "/v1/tts/batch", "/v1/audio/speech", "/v1/speech", "/v1/voices"])
@pytest.mark.parametrize("given", [["deflate"], ["gzip", "identity"], ["Identity, BR"], ["utf-8"]], ids=str)
def test_a_body_with_a_content_encoding_is_refused(http: httpx2.Client, path: str, given: list[str]) -> None:
    packed = zlib.compress(b'{"text": "Hi."}')

    headers = [*JSON.items(), *(("Content-Encoding", encoding) for encoding in given)]
    answer = http.post(path, content=packed, headers=headers)

    assert error_of(answer)[:2] == (415, "content_type_unsupported")
    assert "is not supported; send the body uncompressed" in answer.json()["error"]["message"]


def test_a_body_with_the_content_encoding_identity_is_read(http: httpx2.Client) -> None:
    headers = {"Content-Encoding": "Identity"}

    assert http.post("/v1/tts", json={"text": "Hi.", "max_new_tokens": 4}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/nowhere", (404, "not_found", None)),
        ("GET", "/v1/tts", (405, "method_not_allowed", None)),
        ("PUT", "/ping", (405, "method_not_allowed", None)),
        ("GET", "/v1/voices/nobody", (404, "voice_not_found", "voice")),
        ("DELETE", "/v1/voices/nobody", (404, "voice_not_found", "voice")),
        ("GET", "/v1/voices/..%2f..%2fetc%2fpasswd", (404, "not_found", None)),
    ],
)
def test_a_wrong_path_or_method_has_the_same_shape(
    http: httpx2.Client, method: str, path: str, expected: tuple[int, str, str | None]
) -> None:
    assert error_of(http.request(method, path)) == expected


def test_a_path_names_all_of_its_methods(http: httpx2.Client) -> None:
    assert {http.request(method, "/v1/voices").headers["allow"] for method in ("PUT", "OPTIONS")} == {"GET, POST, HEAD"}


def test_a_whole_number_may_be_written_as_one_with_a_point(http: httpx2.Client) -> None:
    content = b'{"text": "Hi.", "seed": 3.0, "max_new_tokens": 8.0}'

    assert http.post("/v1/tts", content=content, headers=JSON).status_code == 200
    assert error_of(http.post("/v1/tts", json={"text": "Hi.", "seed": 3.5}))[1:] == ("request_invalid", "seed")


def test_an_internal_error_is_logged_once_and_hidden_from_the_client(
    http: httpx2.Client, door, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(EngineRuntime, "begin", lambda *_: 1 / 0)

    def lines() -> list[str]:
        return [line.message for line in caplog.records if getattr(line, "fields", {}).get("request_id") == "ours"]

    with caplog.at_level(logging.INFO, "s1_mini.server"):
        answer = http.post("/v1/tts", json={"text": "Hi."}, headers={"X-Request-Id": "ours"})
        wait_until(lambda: len(lines()) == 2)

    assert error_of(answer) == (500, "internal_error", None)
    assert "division" not in answer.text
    assert lines() == ["request failed", "request"]


def test_every_code_has_one_status() -> None:
    kinds = {
        kind
        for module in (exceptions, errors)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, S1MiniError)
    }
    statuses: dict[str, set[int]] = {}
    for kind in kinds:
        statuses.setdefault(kind.code, set()).add(errors.row_of(kind.__new__(kind)).status)

    assert {code for code, found in statuses.items() if len(found) > 1} == set()


@pytest.mark.parametrize(
    ("charset", "status"),
    [("utf-8", 200), ("US-ASCII", 200), ("latin1", 200), ("punycode", 415), ("undefined", 415), ("no-such", 415)],
)
def test_forms_are_only_read_in_charsets_that_decode_quickly(http: httpx2.Client, charset: str, status: int) -> None:
    part = b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
    content = part % (b"text", b"Hi.") + part % (b"max_new_tokens", b"4") + b"--x--\r\n"
    kind = f"multipart/form-data; boundary=x; charset={charset}"

    answer = http.post("/v1/tts", content=content, headers={"Content-Type": kind})

    assert answer.status_code == status, answer.text
    if status == 415:
        sentence = f"form charset '{charset}' is not supported; send utf-8, us-ascii or latin-1"
        assert answer.json()["error"]["message"] == sentence


def test_unknown_charsets_of_forms_leave_nothing_in_memory(http: httpx2.Client) -> None:
    before = len(encodings._cache)  # type: ignore[attr-defined]
    for number in range(5):
        kind = f"multipart/form-data; boundary=x; charset=unknown{number}"
        http.post("/v1/tts", content=b"--x--\r\n", headers={"Content-Type": kind})

    assert len(encodings._cache) == before  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["/v1/speek", "/v1/tts", "/ping"])
def test_a_websocket_with_a_wrong_path_is_refused_with_the_reason(door: Door, path: str) -> None:
    with pytest.raises(InvalidStatus) as refused, connect(f"ws://127.0.0.1:{door.port}{path}", proxy=None):
        pass

    answer = refused.value.response
    assert answer.status_code == 404
    error = json.loads(answer.body or b"")["error"]
    assert (error["code"], error["request_id"]) == ("not_found", answer.headers["X-Request-Id"])
    assert f"no WebSocket has the path '{path}'" in error["message"]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", ["/v1/speak", "/v1/text-to-speech/julia/stream-input"])
def test_a_request_to_the_path_of_a_websocket_is_told_what_is_missing(
    http: httpx2.Client, method: str, path: str
) -> None:
    answer = http.request(method, path)

    assert error_of(answer)[:2] == (404, "not_found")
    assert "is a WebSocket" in answer.json()["error"]["message"]
