"""Language, instructions and sampling defaults: used if the checkpoint supports them, refused otherwise."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import openai
import pytest
from typer.testing import CliRunner
from websockets.exceptions import ConnectionClosed, ConnectionClosedError
from websockets.sync.client import connect

from container_room import running
from door_room import Door
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.cli.app import app
from s1_mini.exceptions import ParameterError
from tests.toy.family import DEFAULTS, Toy
from tests.toy.stages import FRAMES_A_TOKEN

OPTIONS = {"seed": 1, "max_new_tokens": 40}
LISTED = "language: must be one of English (en), Klingon, not 'french'"
NO_LANGUAGES = "language: 'en' is not supported by this model, which has no choice of languages; omit it"
NO_INSTRUCTIONS = "instructions: 'Whisper.' is not supported by this model, which takes no instructions; omit it"


@pytest.fixture
def limited(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProductionTTSEngine]:
    """An engine whose checkpoint has no choice of languages and takes no instructions."""
    describe = Toy.describe
    monkeypatch.setattr(
        Toy, "describe", lambda toy, path: replace(describe(toy, path), languages={}, instructions=False)
    )
    with ProductionTTSEngine(EngineConfig(checkpoint_path=checkpoint, device="cpu")) as engine:
        yield engine


def test_language_and_instructions_reach_every_prompt_of_a_request(engine: ProductionTTSEngine) -> None:
    plain, english, slow = (
        engine.generate("Hello. There.", **OPTIONS, **options).audio
        for options in ({}, {"language": "English"}, {"instructions": "Slowly."})
    )

    assert not np.array_equal(plain, english)
    assert not np.array_equal(plain, slow)
    for spelling in ("english", "en", "EN-US", "en_GB"):
        assert np.array_equal(english, engine.generate("Hello. There.", **OPTIONS, language=spelling).audio)
    marked = engine.generate("Hello. There.", **OPTIONS, language="en", text_type="marked").audio
    assert np.array_equal(english, marked)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "french"}, LISTED),
        ({"language": ""}, "language: must be one of English (en), Klingon, not ''"),
        ({"language": 7}, "language: must be a str, not int"),
        ({"language": "e" * 65}, "language: has 65 characters; the limit is 64"),
        ({"instructions": None}, "instructions: must be a str, not NoneType"),
        ({"instructions": "a" * 4001}, "instructions: has 4001 characters; the limit is 4000"),
        ({"instructions": "a\0"}, "instructions: contains the control character U+0000 (character 2)"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(
    options: dict[str, object], message: str, engine: ProductionTTSEngine
) -> None:
    with pytest.raises(ParameterError) as refusal:
        engine.generate("Hello.", **options)

    assert str(refusal.value).startswith(message)


def test_a_checkpoint_without_them_refuses_both(limited: ProductionTTSEngine) -> None:
    for options, message in (({"language": "en"}, NO_LANGUAGES), ({"instructions": "Whisper."}, NO_INSTRUCTIONS)):
        with pytest.raises(ParameterError) as refusal:
            limited.generate("Hello.", **options)
        assert str(refusal.value) == message


def test_the_family_defaults_apply_to_options_that_a_request_does_not_give(engine: ProductionTTSEngine) -> None:
    whole, short, explicit = (
        engine.generate("Hello.", temperature=0.0, max_new_tokens=tokens).frames for tokens in (None, 20, 1024)
    )

    assert whole == FRAMES_A_TOKEN * DEFAULTS.max_new_tokens
    assert short == FRAMES_A_TOKEN * 20
    assert explicit == FRAMES_A_TOKEN * 1024  # the general default, but given
    assert engine.health_check()["model"]["defaults"]["temperature"] == DEFAULTS.temperature


def exchange(door: Door, *messages: dict[str, object]) -> list[dict[str, object]]:
    """Return the text messages of a WebSocket session."""
    answers = []
    with connect(f"ws://127.0.0.1:{door.port}/v1/audio/speech/stream", proxy=None) as socket:
        for message in messages:
            socket.send(json.dumps(message))
        with suppress(ConnectionClosedError):  # after an error
            for message in socket:
                if isinstance(message, str):
                    answers.append(json.loads(message))
    return answers


def test_native_routes_use_them(engine: ProductionTTSEngine, tmp_path: Path) -> None:
    given = {"language": "en", "instructions": "Whisper."}
    expected = engine.generate("Hello.", **OPTIONS, **given).frames
    with running(engine, tmp_path) as door, door.http() as http:
        body = {"text": "Hello.", "format": "pcm", **OPTIONS, **given}
        answers = [http.post(path, json=body) for path in ("/v1/tts", "/invocations")]
        form = http.post("/v1/tts", files={name: (None, str(value)) for name, value in body.items()})
        messages = exchange(
            door,
            {"type": "session.config", **OPTIONS, **given},
            {"type": "input.text", "text": "Hello."},
            {"type": "input.done"},
        )

    for answer in (*answers, form):
        assert answer.status_code == 200, answer.text
        assert len(answer.content) == len(answers[0].content) > 0
    assert len(answers[0].content) == 2 * 320 * expected
    assert messages[-1] == {"type": "session.done", "sentences": 1}


def test_native_routes_refuse_what_the_checkpoint_does_not_support(
    limited: ProductionTTSEngine, tmp_path: Path
) -> None:
    with running(limited, tmp_path) as door, door.http() as http:
        for given, message in (({"language": "en"}, NO_LANGUAGES), ({"instructions": "Whisper."}, NO_INSTRUCTIONS)):
            for path in ("/v1/tts", "/invocations"):
                answer = http.post(path, json={"text": "Hello.", **given})
                assert (answer.status_code, answer.json()["error"]["message"]) == (422, message)
                assert answer.json()["error"]["field"] == next(iter(given))
            batch = http.post("/v1/tts/batch", json={"items": [{"text": "Hello."}], **given}).json()
            assert batch["results"][0]["error"] == message
            (error,) = exchange(door, {"type": "session.config", **given})
            assert error["error"]["message"] == message


def test_openai_clients_get_audio_and_a_warning_header(limited: ProductionTTSEngine, tmp_path: Path) -> None:
    with running(limited, tmp_path) as door:
        client = openai.OpenAI(base_url=f"{door.url}/v1", api_key="none", max_retries=0)
        asked = {"model": "tts-1", "input": "Hello.", "voice": "alloy", "response_format": "pcm"}
        plain, answer = (
            client.audio.speech.with_raw_response.create(**asked, **given, extra_body=OPTIONS | more)
            for given, more in (({}, {"instructions": None}), ({"instructions": "Whisper."}, {"language": "en"}))
        )

    assert "X-Warning" not in plain.headers
    assert answer.headers["X-Warning"] == (
        "language was ignored: it is not supported by this model, which has no choice of languages; "
        "instructions was ignored: it is not supported by this model, which takes no instructions"
    )
    assert answer.content == plain.content


def test_elevenlabs_language_code_is_a_language(engine: ProductionTTSEngine, tmp_path: Path) -> None:
    with running(engine, tmp_path) as door, door.http() as http:
        answers = [
            http.post("/v1/text-to-speech/low?output_format=pcm_24000", json={"text": "Hello.", **OPTIONS, **given})
            for given in ({}, {"language_code": "en"}, {"language": "English"})
        ]

    plain, by_code, by_name = (answer.content for answer in answers)
    assert by_code == by_name != plain


def of_elevenlabs_socket(door: Door, text: str, **query: str) -> tuple[bytes, list[str]]:
    """Return the audio and the error messages of a session of `stream-input` with one text."""
    parameters = urlencode({"output_format": "pcm_24000", "seed": 1} | query)
    url = f"ws://127.0.0.1:{door.port}/v1/text-to-speech/low/stream-input?{parameters}"
    with connect(url, proxy=None) as socket:
        for content in ({"text": text}, {"text": ""}):
            socket.send(json.dumps(content))
        answers = []
        with suppress(ConnectionClosed):
            while True:
                answers.append(json.loads(socket.recv()))
    audio = b"".join(base64.b64decode(answer.get("audio") or "") for answer in answers)
    return audio, [answer["message"] for answer in answers if "message" in answer]


def test_elevenlabs_sockets_use_the_language_code(engine: ProductionTTSEngine, tmp_path: Path) -> None:
    expected = engine.generate("Hello.", voice="low", seed=1, language="en")
    with running(engine, tmp_path) as door:
        audio, errors = of_elevenlabs_socket(door, "Hello.", language_code="en-US")
        silence, (unknown, *_) = of_elevenlabs_socket(door, "Hello.", language_code="fr")

    assert (len(audio), errors) == (2 * len(expected.audio), [])
    assert silence == b""
    assert "must be one of English (en), Klingon, not 'fr'" in unknown


def test_elevenlabs_sockets_ignore_the_language_code_of_a_model_without_a_choice(
    limited: ProductionTTSEngine, tmp_path: Path
) -> None:
    with running(limited, tmp_path) as door:
        assert of_elevenlabs_socket(door, "Hi.", language_code="fr") == of_elevenlabs_socket(door, "Hi.")


def test_the_command_line_takes_both(checkpoint: Path, tmp_path: Path) -> None:
    def say(name: str, *options: str) -> bytes:
        path = tmp_path / f"{name}.wav"
        asked = ["say", "Hello.", "-o", str(path), "--checkpoint", str(checkpoint), "--seed", "1", *options]
        result = CliRunner().invoke(app, asked)
        assert result.exit_code == 0, result.output
        return path.read_bytes()

    plain = say("plain")
    assert len({plain, say("english", "--language", "en"), say("slow", "--instructions", "Slowly.")}) == 3
