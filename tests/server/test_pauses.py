"""The option `pauses`: which values it takes, and what it does to the audio of every API."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from s1_mini import ParameterError, ProductionTTSEngine, TTSRequest
from s1_mini.types import Joined, Pauses

FEW = {"seed": 1, "max_new_tokens": 6}
TEXT = "One.\n\nTwo."


def test_pauses_are_given_by_name_or_as_text_or_are_off() -> None:
    assert Pauses.of(None) == Pauses(0.25, 0.35, 0.6, 0.8, 1.2)
    assert Pauses.of({"scene": 2}) == Pauses.of(" scene = 2 ,") == Pauses(scene=2)
    assert Pauses.of("off") is None
    defaults = Pauses()
    assert defaults.before("clause") < defaults.sentence < defaults.item < defaults.paragraph < defaults.heading


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"chapter": 1}, "pauses: 'chapter' is not one of sentence, item, paragraph, heading, scene; give seconds"),
        ({"scene": 11}, r"pauses\.scene: 11 is not a number in \[0, 10\]"),
        ({"scene": "1"}, r"pauses\.scene: '1' is not a number"),
        ("on", "pauses: 'on' is not of the form name=seconds; give seconds by name"),
        ("scene=nan", r"pauses\.scene: nan is not a number in"),
        (3, "pauses: is a int; give seconds by name"),
        ("scene=1," * 100, "pauses: has 800 characters; the limit is 500; give seconds by name"),
    ],
)
def test_other_pauses_are_refused(given: Any, reason: str) -> None:
    with pytest.raises(ParameterError, match=reason):
        TTSRequest.of("Hi.", pauses=given)


def test_a_part_of_a_longer_text_has_the_rest_of_the_pause_before_it() -> None:
    def around(joined: Joined | None, pauses: Any = None) -> tuple[float | None, float | None]:
        return TTSRequest("Hi.", joined=joined, pauses=pauses).outer_pauses

    assert around(None) == (None, None)
    assert around(Joined()) == (None, 0.1)
    assert around(Joined("paragraph", is_last=True)) == (pytest.approx(0.5), None)
    assert around(Joined("clause", continues=True)) == (pytest.approx(0.07), 0.05)
    assert around(Joined("paragraph"), "off") == (None, None)


def test_streamed_audio_with_pauses_is_the_whole_audio(engine: ProductionTTSEngine) -> None:
    text = "# One\n\nTwo. Three.\n\n***\n\n- four\n- five"
    whole = engine.generate(text, **FEW).audio

    chunks = [chunk.audio for chunk in engine.stream(text, **FEW)]
    assert (
        sum(map(len, chunks)) == len(whole) == len(engine.generate(text, **FEW, pauses="scene=2").audio) - 0.8 * 44_100
    )


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/tts", {"text": TEXT, "format": "pcm", "sample_rate": 24_000}),
        ("/v1/audio/speech", {"input": TEXT, "response_format": "pcm"}),
        ("/v1/text-to-speech/default?output_format=pcm_24000", {"text": TEXT}),
    ],
)
def test_pauses_act_on_every_route(http: httpx2.Client, path: str, body: dict[str, object]) -> None:
    usual, longer = (http.post(path, json=body | FEW | {"pauses": each}) for each in (None, {"paragraph": 1.6}))

    assert len(longer.content) - len(usual.content) == 2 * 24_000


def test_a_form_has_pauses_as_text(http: httpx2.Client) -> None:
    fields = {"text": "One.\n\nTwo.", "format": "pcm", **FEW}

    formed = http.post(
        "/v1/tts", files={name: (None, str(value)) for name, value in (fields | {"pauses": "paragraph=2"}).items()}
    )

    assert formed.content == http.post("/v1/tts", json=fields | {"pauses": {"paragraph": 2}}).content


@pytest.mark.parametrize(
    ("pauses", "field"),
    [
        (5, "pauses"),
        ({"paragraph": "a"}, "pauses.paragraph"),
        ({"chapter": 1}, "pauses"),
        ("on", "pauses"),
        ([], "pauses"),
    ],
)
def test_a_wrong_pause_is_named(http: httpx2.Client, pauses: Any, field: str) -> None:
    answer = http.post("/v1/tts", json={"text": "Hi.", "pauses": pauses})

    assert answer.status_code == 422
    assert answer.json()["error"]["field"] == field
    assert answer.json()["error"]["message"].startswith(f"{field}: ")
