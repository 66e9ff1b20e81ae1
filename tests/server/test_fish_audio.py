"""Fish Audio's clients on `POST /v1/tts`, whose bodies are MessagePack, over a real socket."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import httpx2
import numpy as np
import pytest
import soundfile

from s1_mini.audio.container import encode
from tests.server.conftest import Door
from waiting import EVENTUALLY_S

msgpack = pytest.importorskip("msgpack", reason="pip install -r requirements.lock.txt")

TYPE = {"Content-Type": "application/msgpack"}
BODY = {"text": "2 cats.", "seed": 1, "max_new_tokens": 20, "format": "pcm", "chunk_profile": "balanced"}
# what fish_audio_sdk.TTSRequest sends besides a text
LEGACY = {"chunk_length": 200, "mp3_bitrate": 128, "opus_bitrate": 32, "sample_rate": None, "references": []}
LEGACY |= {"reference_id": None, "normalize": True, "latency": "balanced", "prosody": None}
DEEP = b"\x81\xa4text" + b"\x91" * 100_000 + b"\xc0"
WIDE = {"text": [[[0] * 100] * 10] * 10}


@pytest.fixture
def recording(tone: np.ndarray) -> bytes:
    return encode(tone, 44_100, "wav")


def post(http: httpx2.Client, body: Any, headers: dict[str, str] = TYPE) -> httpx2.Response:
    content = body if isinstance(body, bytes) else msgpack.packb(body)
    return http.post("/v1/tts?format=msgpack", content=content, headers=headers)


def test_messagepack_with_bytes_equals_json_with_base64(http: httpx2.Client, recording: bytes) -> None:
    coded = base64.b64encode(recording).decode()
    json = BODY | {"streaming": True, "references": [{"audio": coded, "text": "Ah."}]}
    packed = json | {"references": [{"audio": recording, "text": "Ah."}]}

    expected = http.post("/v1/tts", json=json)
    answers = [post(http, body) for body in (packed, json)]

    assert expected.status_code == 200
    assert "content-length" not in answers[0].headers
    assert [answer.content for answer in answers] == [expected.content] * 2


def test_prosody_is_speed_and_gain(http: httpx2.Client) -> None:
    ours = http.post("/v1/tts", json=BODY | {"speed": 1.5, "gain_db": -6})
    theirs = post(http, BODY | {"prosody": {"speed": 1.5, "volume": -6.0}})

    assert ours.status_code == 200
    assert theirs.content == ours.content
    assert theirs.content != post(http, BODY).content


@pytest.mark.parametrize(("fields", "is_streamed"), [({}, True), ({"streaming": False}, False)])
def test_the_header_model_streams_unless_the_body_says_otherwise(
    http: httpx2.Client, fields: dict[str, Any], is_streamed: bool
) -> None:
    answer = post(http, BODY | LEGACY | fields, TYPE | {"model": "s1-mini"})

    assert answer.content == http.post("/v1/tts", json=BODY).content
    assert ("content-length" not in answer.headers) is is_streamed


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, "is not MessagePack: Unpack failed: incomplete input"),
        (b'{"text": "Hi."}', 400, "is not MessagePack: unpack(b) received extra data"),
        (b"\xc1", 400, "is not MessagePack"),
        (b"\x81\xa4text\xa1\xff", 400, "is not MessagePack: 'utf-8' codec can't decode byte 0xff"),
        (b"\x81\xa4text\xc6\xff\xff\xff\xff", 400, "is not MessagePack"),
        (b"\xdd\xff\xff\xff\xff", 400, "4294967295 exceeds max_array_len(1024)"),
        (b"\x82\xa4text\xa1a\xa4text\xa1b", 422, "text: was given more than once"),
        (DEEP, 400, "nested too deeply"),
        (msgpack.packb(WIDE), 400, "more than 1024 entries"),
        ({"text": msgpack.ExtType(5, b"x" * 9)}, 400, "extension type 5"),
        ({"text": msgpack.Timestamp(1)}, 422, "text: "),
        ({"text": b"Hi."}, 422, "text: is bytes; only audio and reference_audio may be bytes"),
        ({"text": "Hi.", "pauses": [b"a"]}, 400, "bytes in a list"),
        ({"text": "Hi.", b"seed": 1}, 400, "a name of a field that is bytes"),
        ({"text": "Hi.", 1: 1}, 400, "is not MessagePack: int is not allowed for map key"),
        ({"text": "Hi.", "temperature": float("nan")}, 422, "temperature: nan: "),
        ({"text": "Hi.", "temperature": "0.7"}, 422, "temperature: '0.7': "),
        ({"text": "Hi.", "seed": 2**64 - 1}, 422, "seed: "),
        ({"text": "Hi.", "references": [{"audio": b"", "text": ""}]}, 422, "references.0.audio: ''"),
        ({"text": "Hi.", "references": [{"audio": b"noise", "text": ""}]}, 422, "reference_audio: "),
        ({"text": "Hi.", "prosody": {"speed": 3.0}}, 422, "prosody.speed: 3.0: "),
        ({"text": "Hi.", "prosody": {"speed": 2.0}, "speed": 2.0}, 422, "prosody: cannot be combined with speed"),
        ({"text": "Hi.", "voise": "a"}, 422, "voise: unknown field; did you mean voice?"),
        ({"text": "Hi.", "reference_id": "a" * 32}, 404, "voice: "),
        (["Hi."], 422, "body: "),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_wrong_body_is_named(http: httpx2.Client, body: Any, status: int, said: str) -> None:
    answer = post(http, body)

    assert (answer.status_code, said in answer.json()["error"]["message"]) == (status, True), answer.text


@pytest.fixture(scope="module")
def fishaudio() -> Any:
    return pytest.importorskip("fishaudio", reason="pip install -r requirements-test.lock.txt")


@pytest.fixture
def client(fishaudio: Any, door: Door) -> Iterator[Any]:
    plain = pytest.importorskip("httpx").Client(base_url=door.url, trust_env=False, timeout=EVENTUALLY_S)
    yield fishaudio.FishAudio(api_key="none", base_url=door.url, httpx_client=plain)
    plain.close()


def test_fish_audio_s_client_clones_a_recording(
    fishaudio: Any, client: Any, http: httpx2.Client, recording: bytes
) -> None:
    config = fishaudio.TTSConfig(format="wav", temperature=0.0, max_new_tokens=20)
    references = [fishaudio.ReferenceAudio(audio=recording, text="Ah.")]

    audio = client.tts.convert(text="2 cats.", references=references, speed=1.2, config=config)

    same = {"temperature": 0.0, "top_p": 0.7, "repetition_penalty": 1.2, "stream": True, "speed": 1.2}
    same |= {"reference_audio": base64.b64encode(recording).decode(), "reference_text": "Ah.", "normalize": "auto"}
    ours = http.post("/v1/tts", json={"text": "2 cats.", "max_new_tokens": 20, **same})
    assert audio == ours.content
    assert len(soundfile.read(io.BytesIO(audio))[0]) > 10_000


def test_fish_audio_s_client_raises_the_server_s_message(fishaudio: Any, client: Any) -> None:
    with pytest.raises(fishaudio.NotFoundError, match="voice: "):
        client.tts.convert(text="Hi.", reference_id="a" * 32)


def test_fish_audio_s_older_client_streams(fishaudio: Any, door: Door, http: httpx2.Client) -> None:
    sdk = pytest.importorskip("fish_audio_sdk")

    class Request(sdk.TTSRequest):  # type: ignore[misc, name-defined]
        seed: int = 1
        max_new_tokens: int = 20

    with sdk.Session("none", base_url=door.url) as session:
        session._sync_client = pytest.importorskip("httpx").Client(base_url=door.url, trust_env=False)
        chunks = [*session.tts(Request(text="2 cats."), backend="s1-mini")]

    body = {"text": "2 cats.", "format": "mp3", "temperature": 0.7, "top_p": 0.7, "stream": True, "normalize": "auto"}
    body |= {"seed": 1, "max_new_tokens": 20}
    assert b"".join(chunks) == http.post("/v1/tts", json=body).content
