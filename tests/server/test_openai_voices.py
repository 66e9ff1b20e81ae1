"""Custom voices and consents of OpenAI's API, with its own client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import numpy as np
import openai
import pytest

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.audio.container import encode
from s1_mini.exceptions import CapacityError, StorageError
from s1_mini.server import consents
from s1_mini.server.consents import Consents
from s1_mini.server.errors import NotFoundError

SHORT = {"seed": 1, "max_new_tokens": 8}


@pytest.fixture
def sample(tone: np.ndarray) -> tuple[str, bytes, str]:
    return "sample.wav", encode(tone, 44_100, "wav"), "audio/wav"


@pytest.fixture
def consent(openai_client: openai.OpenAI, sample: tuple[str, bytes, str]) -> Iterator[str]:
    made = openai_client.audio.voice_consents.create(name="José", language="en-US", recording=sample)
    yield made.id
    openai_client.audio.voice_consents.delete(made.id)


def test_a_voice_is_created_with_a_consent_used_by_its_id_and_deleted(
    openai_client: openai.OpenAI, http: httpx2.Client, sample: tuple[str, bytes, str], consent: str
) -> None:
    voice = openai_client.audio.voices.create(
        name="José's voice", audio_sample=sample, consent=consent, extra_body={"text": "Ah."}
    )
    spoken = openai_client.audio.speech.create(
        model="tts-1", input="Hello.", voice={"id": voice.id}, response_format="pcm", extra_body=SHORT
    )
    listed = http.get(f"/v1/voices/{voice.id}").json()
    deleted = openai_client.audio.voices.delete(voice.id)

    assert (voice.id, voice.name, voice.object, voice.type) == (
        "jose-s-voice",
        "José's voice",
        "audio.voice",
        "audio_sample",
    )
    assert len(spoken.content) > 1000
    assert listed["description"] == f"José's voice (consent {consent})"
    assert (deleted.id, deleted.deleted, deleted.object) == (voice.id, True, "audio.voice.deleted")
    assert http.get(f"/v1/voices/{voice.id}").status_code == 404


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"consent": "cons_1234"}, "unknown consent 'cons_1234'; GET /v1/audio/voice_consents lists all"),
        ({"consent": "../cons"}, "unknown consent '../cons'"),
        ({"extra_body": {}}, "text: is empty; provide the exact words of the recording, which this model needs"),
        ({"name": "声"}, "name: '声' has no letter a-z and no digit"),
        ({"name": "n" * 201}, "name: "),
        ({"audio_sample": ("a.txt", b"no audio", "text/plain")}, "audio_sample: "),
        ({"type": "prompt"}, "type: 'prompt': input should be 'audio_sample'"),
    ],
)
def test_a_voice_that_cannot_be_created_is_refused_by_field(
    openai_client: openai.OpenAI, sample: tuple[str, bytes, str], consent: str, changed: dict[str, object], message: str
) -> None:
    asked = {"name": "Robin", "audio_sample": sample, "consent": consent, "extra_body": {"text": "Ah."}}

    with pytest.raises(openai.APIStatusError) as refusal:
        openai_client.audio.voices.create(**asked | changed)

    assert refusal.value.status_code == (404 if "consent" in changed else 400)
    assert refusal.value.body["message"].startswith(message)


def test_a_name_that_is_taken_is_refused(
    openai_client: openai.OpenAI, sample: tuple[str, bytes, str], consent: str
) -> None:
    asked = {"name": "Robin", "audio_sample": sample, "consent": consent, "extra_body": {"text": "Ah."}}
    voice = openai_client.audio.voices.create(**asked)

    with pytest.raises(openai.ConflictError, match="'robin' already exists"):
        openai_client.audio.voices.create(**asked)

    openai_client.audio.voices.delete(voice.id)
    with pytest.raises(openai.NotFoundError):
        openai_client.audio.voices.delete(voice.id)


def test_a_voice_from_a_description_is_refused(http: httpx2.Client) -> None:
    answer = http.post("/v1/audio/voices", json={"type": "prompt", "name": "Robin", "prompt": "A calm voice."})

    assert answer.status_code == 415
    assert "send multipart/form-data with the fields name, consent, type, text, file audio_sample" in answer.text


def test_consents_are_created_read_renamed_listed_and_deleted(
    openai_client: openai.OpenAI, sample: tuple[str, bytes, str]
) -> None:
    resource = openai_client.audio.voice_consents
    made = [resource.create(name=f"Speaker {number}", language="de", recording=sample) for number in range(3)]
    renamed = resource.update(made[1].id, name="Robin")

    first = resource.list(limit=2)
    every = [each.id for each in resource.list(limit=2)]  # fetches all pages
    deleted = [resource.delete(each.id) for each in made]

    assert made[0].object == "audio.voice_consent"
    assert (renamed.id, renamed.name, renamed.language) == (made[1].id, "Robin", "de")
    assert [each.name for each in first.data] == ["Speaker 0", "Robin"]
    assert first.has_more
    assert every == [each.id for each in made]
    assert all(each.deleted for each in deleted)
    assert resource.list().data == []
    for work in (resource.retrieve, resource.delete, lambda identity: resource.update(identity, name="Robin")):
        with pytest.raises(openai.NotFoundError, match="unknown consent"):
            work(made[0].id)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"language": "English, please"}, "language: 'English, please': string should match pattern"),
        ({"name": ""}, "name: '': string should have at least 1 character"),
        ({"recording": ("a.wav", b"", "audio/wav")}, "recording: "),
    ],
)
def test_an_invalid_consent_is_refused_by_field(
    openai_client: openai.OpenAI, sample: tuple[str, bytes, str], changed: dict[str, object], message: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        openai_client.audio.voice_consents.create(**{"name": "Robin", "language": "en", "recording": sample} | changed)

    assert refusal.value.body["message"].startswith(message)


def test_a_page_has_at_most_100_consents(http: httpx2.Client) -> None:
    answer = http.get("/v1/audio/voice_consents", params={"limit": 101})

    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "limit")


def test_consents_survive_a_restart_and_replicas_share_them(tmp_path: Path) -> None:
    kept = Consents(tmp_path).add("Robin", "en")

    assert Consents(tmp_path).get(kept.id) == kept
    assert Consents(tmp_path).page(None, 20) == ([kept], False)
    with pytest.raises(NotFoundError):
        Consents(None).get(kept.id)


def test_the_voices_in_the_directory_are_not_affected(tiny: Path, tmp_path: Path) -> None:
    Consents(tmp_path).add("Robin", "en")

    with ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu", voices_path=tmp_path)) as engine:
        assert engine.voice_names() == []


def test_a_damaged_consent_is_left_out(tmp_path: Path) -> None:
    store = Consents(tmp_path)
    kept, damaged = store.add("Robin", "en"), store.add("Kim", "en")
    (tmp_path / "consents" / f"{damaged.id}.json").write_text('{"id": "x"')

    assert store.page(None, 20) == ([kept], False)


def test_a_full_or_broken_store_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Consents(tmp_path)
    store.add("Robin", "en")
    monkeypatch.setattr(consents, "MAX_CONSENTS", 1)
    with pytest.raises(CapacityError, match="the limit of 1 consents is reached; delete some"):
        store.add("Kim", "en")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="the folder of consents cannot be created"):
        Consents(tmp_path / "file").add("Kim", "en")
