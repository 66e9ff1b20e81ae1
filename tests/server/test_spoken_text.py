"""What was spoken is told at every door, by an engine whose checkpoint reads words."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.exceptions import ParameterError
from s1_mini.sagemaker.handler import input_fn, output_fn, predict_fn
from tests.server.conftest import serving

TOLD = "two words"
FEW = {"max_new_tokens": 2}


@pytest.fixture(scope="module")
def reader(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProductionTTSEngine]:
    """An engine whose tiny checkpoint declares that it reads small letters, and skips all else."""
    directory = tmp_path_factory.mktemp("words") / "tiny"
    shutil.copytree(tiny, directory)
    config = json.loads((directory / "config.json").read_text())
    declared = {"text": {"language": "en", "alphabet": " abcdefghijklmnopqrstuvwxyz"}}
    (directory / "config.json").write_text(json.dumps(config | declared))
    settings = EngineConfig(checkpoint_path=directory, device="cpu", max_batch_size=2, unspeakable="skip")
    with ProductionTTSEngine(settings) as engine:
        yield engine


def test_python_tells_what_was_spoken_and_what_was_not(reader: ProductionTTSEngine) -> None:
    response = reader.generate("2 wordsд", seed=1, **FEW)
    first, *others = reader.stream("2 words", seed=1, **FEW)

    assert response.spoken_text == TOLD
    assert response.warning is not None
    assert "CYRILLIC SMALL LETTER DE" in response.warning
    assert first.spoken_text == TOLD
    assert not any(chunk.spoken_text for chunk in others)
    assert reader.generate_batch(["2 words"], normalize="off", **FEW).results[0].spoken_text == "words"
    with pytest.raises(ParameterError, match="normalize: 'on' is not known; there are auto, off"):
        reader.generate("Hi", normalize="on")  # type: ignore[arg-type]


def test_a_batch_tells_it_if_asked_and_a_binary_answer_warns_in_a_header(reader: ProductionTTSEngine) -> None:
    items = {"items": [{"text": "2 wordsд"}], **FEW}
    with serving(reader) as door, door.client() as http:
        asked = http.post("/v1/tts/batch", json=items | {"return_spoken_text": True}).json()["results"][0]
        unasked = http.post("/v1/tts/batch", json=items | {"normalize": "off"}).json()["results"][0]
        binary = http.post("/v1/tts", json={"text": "2 wordsд", **FEW})
        refused = http.post("/v1/tts", json={"text": "Hi", "normalize": "on"})
        told = {"input": "2 words", "stream_format": "sse", "response_format": "pcm", "return_spoken_text": True, **FEW}
        events = http.post("/v1/audio/speech", json=told).text

    assert asked["spoken_text"] == TOLD
    assert "DIGIT TWO" in unasked["warning"]
    assert "spoken_text" not in unasked
    assert "CYRILLIC SMALL LETTER DE" in binary.headers["x-warning"]
    assert json.loads(events.strip().rpartition("data: ")[2])["spoken_text"] == TOLD
    assert refused.status_code == 422
    assert refused.json()["error"]["field"] == "normalize"


def test_sagemakers_json_tells_it_if_asked(reader: ProductionTTSEngine) -> None:
    body = json.dumps({"text": "2 words", "return_spoken_text": True, **FEW})

    answer, _ = output_fn(predict_fn(input_fn(body, "application/json"), reader), "application/json")

    assert json.loads(answer)["spoken_text"] == TOLD
