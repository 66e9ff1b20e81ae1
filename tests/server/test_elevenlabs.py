"""ElevenLabs' HTTP routes, as its own client and those of LiveKit and Pipecat call them."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2
import numpy as np
import pytest
import soundfile

from s1_mini import ProductionTTSEngine
from s1_mini.server.protocols.elevenlabs import Alignment
from s1_mini.types import Word
from tests.server.conftest import Door, serving
from waiting import EVENTUALLY_S

PATH = "/v1/text-to-speech/default"
BODY = {"text": "Good morning.", "seed": 1, "max_new_tokens": 20}
WORDS = (Word("Good", 0, 4, 0.1, 0.5), Word("morning.", 5, 13, 0.6, 1.4))


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine whose first chunk has the words of `BODY`."""
    speak = ProductionTTSEngine.submit

    def speak_with_words(engine: ProductionTTSEngine, request: Any, **options: Any) -> Any:
        assert request.word_times
        return _WithWords(speak(engine, replace(request, word_times=False), **options))

    monkeypatch.setattr(ProductionTTSEngine, "submit", speak_with_words)
    monkeypatch.setattr(ProductionTTSEngine, "has_word_times", True)


class _WithWords:
    def __init__(self, stream: Any) -> None:
        self._stream, self._words = stream, WORDS

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> _WithWords:
        return self

    async def __anext__(self) -> Any:
        words, self._words = self._words, ()
        return replace(await anext(self._stream), words=words)


@pytest.mark.parametrize(
    ("params", "media_type", "rate"),
    [
        ({}, "audio/mpeg", 44_100),
        ({"output_format": "pcm_16000"}, "audio/pcm;rate=16000;channels=1", 16_000),
        ({"output_format": "ulaw_8000"}, "audio/PCMU;rate=8000;channels=1", 8_000),
        ({"output_format": "alaw_8000"}, "audio/PCMA;rate=8000;channels=1", 8_000),
        ({"output_format": "mp3_22050_32"}, "audio/mpeg", 22_050),
        ({"output_format": "opus_48000_64"}, "audio/ogg", 48_000),
        ({"output_format": "wav_32000"}, "audio/wav", 32_000),
    ],
)
def test_audio_has_the_codec_and_rate_of_its_output_format(
    http: httpx2.Client, params: dict[str, str], media_type: str, rate: int
) -> None:
    answer = http.post(PATH, params=params, json=BODY)

    assert (answer.status_code, answer.headers["content-type"]) == (200, media_type)
    assert int(answer.headers["x-sample-rate"]) == rate
    if rate in (22_050, 32_000, 48_000):
        assert soundfile.info(io.BytesIO(answer.content)).samplerate == rate


def samples(audio: bytes) -> np.ndarray:
    return np.frombuffer(audio, "<i2").astype(int)


@pytest.mark.parametrize(("end", "unknown"), [("", "aac_44100"), ("/stream", "wav_44100")])
def test_another_output_format_is_refused_with_the_valid_ones(http: httpx2.Client, end: str, unknown: str) -> None:
    answer = http.post(PATH + end, params={"output_format": unknown}, json=BODY)

    assert answer.status_code == 422
    assert answer.json()["error"]["field"] == "output_format"
    for known in ("mp3_22050_32", "pcm_24000", "ulaw_8000", "opus_48000_192"):
        assert f"'{known}'" in answer.json()["detail"]["message"]


def test_an_unknown_voice_is_refused_in_the_shape_of_elevenlabs_errors(http: httpx2.Client) -> None:
    answer = http.post("/v1/text-to-speech/hpp4J3VqNfWAUOO0d1Us", json=BODY)

    assert answer.status_code == 404
    assert answer.json()["detail"]["status"] == "voice_not_found"
    assert "hpp4J3VqNfWAUOO0d1Us" in answer.json()["detail"]["message"]


def test_an_id_of_elevenlabs_can_stand_for_a_voice(small_engine: ProductionTTSEngine) -> None:
    with serving(small_engine, voice_names={"hpp4J3VqNfWAUOO0d1Us": "nobody"}) as door, door.client() as client:
        answer = client.post("/v1/text-to-speech/hpp4J3VqNfWAUOO0d1Us", json=BODY)

    assert "'nobody'" in answer.json()["detail"]["message"]


def test_a_key_can_be_sent_as_xi_api_key(small_engine: ProductionTTSEngine) -> None:
    with serving(small_engine, api_key="sesame") as door, door.client() as client:
        refused = client.post(PATH, json=BODY, headers={"xi-api-key": "wrong"})
        statuses = [
            client.post(PATH, json=BODY, headers={"xi-api-key": "sesame"}).status_code,
            client.get("/v1/voices", headers={"xi-api-key": "sesame"}).status_code,
            client.post("/v1/tts", json=BODY, headers={"xi-api-key": "sesame"}).status_code,
        ]
        elsewhere = client.get("/v1/voices", headers={"xi-api-key": "wrong"})

    assert statuses == [200, 200, 200]
    assert refused.status_code == elsewhere.status_code == 401
    assert refused.json()["detail"]["status"] == elsewhere.json()["detail"]["status"] == "unauthorized"


def test_voices_have_the_fields_that_elevenlabs_clients_read(http: httpx2.Client, robin: str) -> None:
    (voice,) = http.get("/v1/voices").json()["voices"]

    assert voice == http.get(f"/v1/voices/{robin}").json()
    assert (voice["voice_id"], voice["category"]) == (robin, "cloned")


@pytest.mark.parametrize("path", [f"{PATH}/with-timestamps", f"{PATH}/stream/with-timestamps"])
def test_audio_comes_without_times_from_a_checkpoint_that_reports_none(http: httpx2.Client, path: str) -> None:
    lines = _lines(http, path)
    plain = http.post(PATH, params={"output_format": "pcm_44100"}, json=BODY).content

    audio = b"".join(base64.b64decode(line["audio_base64"]) for line in lines)
    assert samples(audio) == pytest.approx(samples(plain), abs=1)
    assert {(line["alignment"], line["normalized_alignment"]) for line in lines} == {(None, None)}


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize("path", [f"{PATH}/with-timestamps", f"{PATH}/stream/with-timestamps"])
def test_each_character_has_a_time_interpolated_within_its_word(http: httpx2.Client, path: str) -> None:
    timed = [line["alignment"] for line in _lines(http, path) if line["alignment"]]
    characters, starts, ends = (
        [each for line in timed for each in line[name]]
        for name in ("characters", "character_start_times_seconds", "character_end_times_seconds")
    )

    assert "".join(characters) == BODY["text"]
    assert starts[:6] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    assert (ends[4], starts[-1], ends[-1]) == (0.6, 1.3, 1.4)


def test_characters_after_the_last_word_take_no_time() -> None:
    alignment = Alignment('"Hi" ', start_s=2.0)

    characters = alignment.add([Word("Hi", 1, 3, 0.5, 0.7)]) + alignment.finish()

    assert "".join(each.text for each in characters) == '"Hi" '
    assert [round(each.start_s, 3) for each in characters] == [2.0, 2.5, 2.6, 2.7, 2.7]
    assert Alignment("Hi").finish() == []


def _lines(http: httpx2.Client, path: str) -> list[dict[str, Any]]:
    answer = http.post(path, params={"output_format": "pcm_44100"}, json=BODY)
    assert answer.status_code == 200
    return [json.loads(line) for line in answer.text.splitlines()]


@pytest.fixture
def eleven(door: Door) -> Iterator[Any]:
    """ElevenLabs' own client."""
    package = pytest.importorskip("elevenlabs", reason="pip install -r requirements-test.lock.txt")
    with pytest.importorskip("httpx").Client(trust_env=False, verify=False, timeout=EVENTUALLY_S) as plain:
        yield package.ElevenLabs(base_url=door.url, api_key="none", httpx_client=plain)


@pytest.fixture
def voices(door: Door, tone: np.ndarray) -> Iterator[list[str]]:
    """The names of added voices, in order."""
    names = ["ann", "bob", "carl", "dora"]
    for name in names:
        door.engine.add_voice(name, tone, "Ah.", description="a man" if name in ("bob", "carl") else "a woman")
    yield names
    for name in names:
        door.engine.delete_voice(name)


def test_elevenlabs_client_searches_voices_and_reads_them_in_pages(eleven: Any, voices: list[str]) -> None:
    def names(**options: Any) -> list[str]:
        return [voice.voice_id for voice in eleven.voices.search(**options).voices]

    pages = [eleven.voices.search(page_size=3)]
    while pages[-1].has_more:
        pages.append(eleven.voices.search(page_size=3, next_page_token=pages[-1].next_page_token))

    assert [[voice.voice_id for voice in page.voices] for page in pages] == [voices[:3], voices[3:]]
    assert {page.total_count for page in pages} == {4}
    assert names(page_size=100, sort_direction="desc", language="en") == voices[::-1]
    assert names(sort_direction="desc", page_size=2, next_page_token="carl") == ["bob", "ann"]
    assert names(search=" WOMAN", category="cloned") == ["ann", "dora"]
    assert names(voice_ids=["carl", "ann", "nobody"]) == ["ann", "carl"]
    assert names(category="premade") == []


def test_elevenlabs_client_speaks_streams_and_lists_voices(eleven: Any) -> None:
    options = {"text": "Good morning.", "output_format": "pcm_24000", "seed": 1}

    whole = b"".join(eleven.text_to_speech.convert("default", **options))
    streamed = b"".join(eleven.text_to_speech.stream("default", **options))
    timed = eleven.text_to_speech.convert_with_timestamps("default", **options)
    lines = list(eleven.text_to_speech.stream_with_timestamps("default", **options))

    assert whole == base64.b64decode(timed.audio_base_64)
    assert streamed == b"".join(base64.b64decode(line.audio_base_64) for line in lines)
    assert samples(streamed) == pytest.approx(samples(whole), abs=1)
    assert [voice.category for voice in eleven.voices.get_all().voices] == []
