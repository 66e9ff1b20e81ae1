"""`/v1/voices`: listing voices, using one by name, and adding voices."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx2
import numpy as np
import pytest
import torch

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.audio.container import encode
from s1_mini.types import Voice
from s1_mini.voices.library import write_voice
from tests.server.conftest import serving


@pytest.fixture(scope="module")
def client(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    """A client of a server whose checkpoint has two voices."""
    checkpoint = tmp_path_factory.mktemp("voiced") / "tiny"
    shutil.copytree(tiny, checkpoint)
    (checkpoint / "voices").mkdir()
    codebooks = json.loads((tiny / "config.json").read_text())["num_codebooks"]
    for name, is_default in (("anna", True), ("bert", False)):
        codes = torch.ones(codebooks, 20, dtype=torch.int64)
        write_voice(
            checkpoint / "voices", name, Voice({"codes": codes}, "Ah."), description=f"{name}'s", is_default=is_default
        )
    engine = ProductionTTSEngine(EngineConfig(checkpoint_path=checkpoint, device="cpu"))
    with serving(engine) as door, door.client() as client:
        yield client


def test_all_voices_are_listed_and_each_can_be_queried(client: httpx2.Client) -> None:
    voices = client.get("/v1/voices").json()["voices"]

    assert [(voice["name"], voice["is_default"], voice["source"]) for voice in voices] == [
        ("anna", True, "checkpoint"),
        ("bert", False, "checkpoint"),
    ]
    assert voices[1]["description"] == "bert's"
    assert voices[1]["seconds"] > 0
    assert client.get("/v1/voices/bert").json() == voices[1]


def test_a_voice_of_the_checkpoint_cannot_be_deleted(client: httpx2.Client) -> None:
    answer = client.delete("/v1/voices/anna")

    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "voice_read_only")
    assert client.get("/v1/voices/anna").status_code == 200


@pytest.mark.parametrize(
    ("fields", "has_file", "sentence"),
    [
        ({"name": "../up", "text": "Ah."}, True, "name: '../up' is not a valid name; use 1 to 64 of a-z"),
        ({"text": "Ah."}, True, "name: is missing"),
        ({"name": "carl", "text": "Ah."}, False, "audio: is missing"),
        ({"name": "carl"}, True, "text: is empty"),
        ({"name": "carl", "text": "Ah.", "audios": "3"}, True, "audios: unknown field; did you mean audio?"),
    ],
)
def test_an_invalid_voice_is_refused_with_its_field(
    client: httpx2.Client, tone: np.ndarray, fields: dict[str, str], has_file: bool, sentence: str
) -> None:
    file = encode(tone, 44_100, "wav")
    parts: dict[str, object] = {name: (None, value) for name, value in fields.items()}

    answer = client.post("/v1/voices", files=parts | ({"audio": ("a.wav", file)} if has_file else {}))

    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["message"].startswith(sentence)
    assert error["field"] == sentence.partition(":")[0]


def test_a_voice_is_sent_as_a_form(client: httpx2.Client) -> None:
    assert client.post("/v1/voices", json={"name": "carl"}).status_code == 415


def test_a_voice_from_a_recording_that_is_mostly_silent_is_added_with_a_warning(
    client: httpx2.Client, tone: np.ndarray
) -> None:
    file = encode(np.concatenate([np.zeros(3 * 44_100, np.float32), tone]), 44_100, "wav")

    answer = client.post("/v1/voices", data={"name": "emma", "text": "Ah."}, files={"audio": ("a.wav", file)})

    assert answer.status_code == 201
    assert answer.headers["x-warning"] == "Of the 4.0 s of the reference, 2.7 s of silence were left out."


def test_an_added_voice_is_replaced_on_request(client: httpx2.Client, tone: np.ndarray) -> None:
    file = encode(tone, 44_100, "wav")

    def add(name: str, **fields: str) -> httpx2.Response:
        data = {"name": name, "text": "Ah."} | fields
        return client.post("/v1/voices", data=data, files={"audio": ("a.wav", file)})

    first, again = add("dora"), add("dora")
    replaced, own = add("dora", replace="true", description="The new one."), add("anna", replace="true")
    client.delete("/v1/voices/dora")

    assert (first.status_code, again.status_code, replaced.status_code) == (201, 409, 201)
    assert again.json()["error"]["message"].endswith("choose a different name, or set replace")
    assert replaced.json()["description"] == "The new one."
    assert own.json()["error"]["code"] == "voice_read_only"


@pytest.mark.parametrize("is_kept", [False, True])
def test_the_list_says_whether_added_voices_outlive_the_server(tiny: Path, tmp_path: Path, is_kept: bool) -> None:
    path = tmp_path if is_kept else None
    engine = ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu", voices_path=path))
    with serving(engine) as door, door.client() as client:
        assert client.get("/v1/voices").json()["keeps_added"] is is_kept


def test_a_voice_is_added_used_and_deleted_over_http(client: httpx2.Client, tone: np.ndarray) -> None:
    file = encode(tone, 44_100, "wav")

    added = client.post("/v1/voices", data={"name": "carl", "text": "Ah."}, files={"audio": ("a.wav", file)})
    spoken = client.post("/v1/tts", json={"text": "Hi.", "voice": "carl", "max_new_tokens": 8})
    deleted = client.delete("/v1/voices/carl")

    assert (added.status_code, added.json()["source"]) == (201, "added")
    assert spoken.status_code == 200
    assert deleted.status_code == 204
    assert client.get("/v1/voices/carl").status_code == 404
