"""Every API reports the normalized text, for a checkpoint that reads words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote

import pytest

from held_generation import SOUNDS, held_generation
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.exceptions import ParameterError, TextError
from s1_mini.sagemaker.handler import Container, input_fn, output_fn, predict_fn
from tests.server.conftest import serving
from tests.server.test_websocket import hear, say, session
from waiting import wait_until

TOLD = "two words"
FEW = {"max_new_tokens": 2}


@pytest.fixture(scope="module")
def reader(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProductionTTSEngine]:
    """An engine whose tiny checkpoint declares that it reads lower-case letters, and skips all others."""
    directory = tmp_path_factory.mktemp("words") / "tiny"
    shutil.copytree(tiny, directory)
    config = json.loads((directory / "config.json").read_text())
    declared = {"text": {"language": "en", "alphabet": " abcdefghijklmnopqrstuvwxyz"}}
    (directory / "config.json").write_text(json.dumps(config | declared))
    settings = EngineConfig(checkpoint_path=directory, device="cpu", max_batch_size=2, on_unsupported="skip")
    with ProductionTTSEngine(settings) as engine:
        yield engine


def test_the_python_api_returns_the_normalized_text_and_the_skipped_characters(reader: ProductionTTSEngine) -> None:
    response = reader.generate("2 wordsд", seed=1, **FEW)
    first, *others = reader.stream("2 words", seed=1, **FEW)

    assert response.spoken_text == TOLD
    assert response.warning is not None
    assert "'д'" in response.warning
    assert first.spoken_text == TOLD
    assert not any(chunk.spoken_text for chunk in others)
    assert reader.generate_batch(["2 words"], normalize="off", **FEW).results[0].spoken_text == "words"
    with pytest.raises(ParameterError, match="normalize: must be one of auto, off, not 'on'"):
        reader.generate("Hi", normalize="on")  # type: ignore[arg-type]


def test_a_batch_returns_it_on_request_and_a_binary_response_warns_in_a_header(reader: ProductionTTSEngine) -> None:
    items = {"items": [{"text": "2 wordsд"}], **FEW}
    with serving(reader) as door, door.client() as http:
        asked = http.post("/v1/tts/batch", json=items | {"return_spoken_text": True}).json()["results"][0]
        unasked = http.post("/v1/tts/batch", json=items | {"normalize": "off"}).json()["results"][0]
        binary = http.post("/v1/tts", json={"text": "2 wordsд", **FEW})
        refused = http.post("/v1/tts", json={"text": "Hi", "normalize": "on"})
        output = {
            "input": "2 words",
            "stream_format": "sse",
            "response_format": "pcm",
            "return_spoken_text": True,
            **FEW,
        }
        events = http.post("/v1/audio/speech", json=output).text

    assert asked["spoken_text"] == TOLD
    assert "'2'" in unasked["warning"]
    assert "spoken_text" not in unasked
    assert "'д'" in unquote(binary.headers["x-warning"])
    assert json.loads(events.strip().rpartition("data: ")[2])["spoken_text"] == TOLD
    assert refused.status_code == 422
    assert refused.json()["error"]["field"] == "normalize"


def test_sagemakers_json_returns_it_on_request(reader: ProductionTTSEngine) -> None:
    body = json.dumps({"text": "2 words", "return_spoken_text": True, **FEW})

    with closing(Container(reader)) as model:
        answer, _ = output_fn(predict_fn(input_fn(body, "application/json"), model), "application/json")

    assert json.loads(answer)["spoken_text"] == TOLD


@pytest.fixture(scope="module")
def strict(reader: ProductionTTSEngine) -> Iterator[ProductionTTSEngine]:
    """The same engine with the default setting: unsupported characters are an error."""
    settings = reader.config.model_copy(update={"on_unsupported": "error", "max_text_length": 400})
    with ProductionTTSEngine(settings) as engine:
        yield engine


def test_a_request_chooses_what_happens_to_unsupported_characters(strict: ProductionTTSEngine) -> None:
    with serving(strict) as door, door.client() as http:
        default = http.post("/v1/tts", json={"text": "two 猫 words", **FEW})
        skipped = http.post("/v1/tts", json={"text": "two 猫 words", "on_unsupported": "skip", **FEW})
        nothing = http.post("/v1/tts", json={"text": "猫", "on_unsupported": "skip", **FEW})
        unknown = http.post("/v1/tts", json={"text": "Hi", "on_unsupported": "ignore", **FEW})
        items = {"items": [{"text": "two 猫 words"}], "on_unsupported": "skip", **FEW}
        batch = http.post("/v1/tts/batch", json=items).json()["results"][0]

    assert default.status_code == 422
    assert "this voice speaks English; it cannot pronounce '猫' (character 5)" in default.json()["error"]["message"]
    assert unquote(skipped.headers["x-warning"]) == "Skipped characters that this voice cannot pronounce: '猫'."
    assert "cannot pronounce any character of '猫'" in nothing.json()["error"]["message"]
    assert unknown.json()["error"]["field"] == "on_unsupported"
    assert "'猫'" in batch["warning"]
    assert strict.generate("two 猫 words", on_unsupported="skip", **FEW).warning == batch["warning"]
    with pytest.raises(ParameterError, match="on_unsupported: must be one of error, skip, not 'ignore'"):
        strict.generate("Hi", on_unsupported="ignore")  # type: ignore[arg-type]


def test_openais_route_skips_unsupported_characters_unless_the_request_says_otherwise(
    strict: ProductionTTSEngine,
) -> None:
    body = {"input": "two 猫 words", "response_format": "pcm", **FEW}
    with serving(strict) as door, door.client() as http:
        default = http.post("/v1/audio/speech", json=body)
        events = http.post("/v1/audio/speech", json=body | {"stream_format": "sse"})
        refused = http.post("/v1/audio/speech", json=body | {"on_unsupported": "error"})

    assert "'猫'" in unquote(default.headers["x-warning"])
    assert "speech.audio.done" in events.text
    assert refused.status_code == 400


def test_events_count_the_tokens_of_the_text_that_is_spoken(strict: ProductionTTSEngine) -> None:
    body = {"response_format": "pcm", "stream_format": "sse", "on_unsupported": "error", **FEW}
    longest = "two " * (strict.config.max_text_length // 4)
    texts = {
        "two words": {"input": "猫", "lexicon": {"猫": "two words"}},
        "two.": {"input": '<speak><sub alias="two">猫</sub></speak>', "text_type": "ssml"},
        "": {"input": '<speak><break time="100ms"/></speak>', "text_type": "ssml"},
        longest.strip(): {"input": longest[:-1]},
    }
    with serving(strict) as door, door.client() as http:
        answers = [http.post("/v1/audio/speech", json=body | fields).text for fields in texts.values()]

    usages = [json.loads(answer.strip().rpartition("data: ")[2])["usage"] for answer in answers]
    expected = [strict.count_tokens(text, normalize="off", on_unsupported="skip") if text else 0 for text in texts]
    assert [usage["input_tokens"] for usage in usages] == expected


def test_a_count_that_fails_cancels_the_speech(strict: ProductionTTSEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> int:
        raise TextError("text", "is not counted")

    monkeypatch.setattr(strict, "count_tokens", fail)
    before = strict.metrics.ends["cancelled"]
    with serving(strict) as door, door.client() as http, held_generation(SOUNDS):
        body = {"input": "two words " * 20, "stream_format": "sse", "seed": 1}  # longer than `SOUNDS`
        answer = http.post("/v1/audio/speech", json=body)
        wait_until(lambda: strict.metrics.ends["cancelled"] == before + 1)

    assert answer.status_code == 400


def test_a_websocket_session_continues_after_a_sentence_without_speech(strict: ProductionTTSEngine) -> None:
    with serving(strict) as door, session(door) as socket:
        say(socket, type="session.config", **FEW)
        for text in ("猫。 ", "▶. ", "two 犬 words. ", "one word."):
            say(socket, type="input.text", text=text)
        say(socket, type="input.done")
        messages, _, _ = hear(socket)

    starts = [message for message in messages if message["type"] == "audio.start"]
    assert [message["text"] for message in starts] == ["two 犬 words.", "one word."]
    assert "'猫'" in starts[0]["warning"]
    assert "'犬'" in starts[0]["warning"]
    assert "warning" not in starts[1]
    assert messages[-1] == {"type": "session.done", "sentences": 2}


def test_a_websocket_session_without_any_speech_ends_with_an_error(strict: ProductionTTSEngine) -> None:
    with serving(strict) as door, session(door) as socket:
        say(socket, type="input.text", text="猫。")
        say(socket, type="input.done")
        messages, _, _ = hear(socket)

    assert [message["type"] for message in messages] == ["error"]
    assert "cannot pronounce any character of '猫。'" in messages[0]["error"]["message"]


def test_sagemakers_json_takes_the_policy_and_returns_the_warning(strict: ProductionTTSEngine) -> None:
    body = json.dumps({"text": "two 猫 words", "on_unsupported": "skip", **FEW})

    with closing(Container(strict)) as model:
        answer, _ = output_fn(predict_fn(input_fn(body, "application/json"), model), "application/json")

    assert "'猫'" in json.loads(answer)["warning"]
