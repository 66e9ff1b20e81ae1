"""Markup over HTTP: fields of every route, errors with their place, and plain text by default."""

from __future__ import annotations

import io

import httpx2
import pytest
import soundfile

RATE = 44_100
FEW = {"seed": 1, "max_new_tokens": 2}
SSML = '<speak>One.<break time="1s"/>Two.</speak>'


def seconds(answer: httpx2.Response) -> float:
    assert answer.status_code == 200, answer.text
    wave, rate = soundfile.read(io.BytesIO(answer.content))
    assert rate == RATE
    return len(wave) / rate


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/tts", {"text": SSML, "text_type": "ssml"}),
        ("/v1/tts", {"text": "One. [pause 1s] Two.", "text_type": "marked", "stream": True}),
        ("/v1/audio/speech", {"input": SSML, "text_type": "ssml", "response_format": "wav"}),
    ],
)
def test_every_route_speaks_markup(path: str, body: dict[str, object], http: httpx2.Client) -> None:
    assert seconds(http.post(path, json=body | FEW)) == 1 + 4 * 2048 / RATE


def test_a_form_has_the_lexicon_as_lines(http: httpx2.Client) -> None:
    fields = {"text": "nginx", "seed": "1", "max_new_tokens": "2"}
    asked = http.post("/v1/tts", files={"lexicon": (None, "nginx = engine x"), **_parts(fields)})
    expected = http.post("/v1/tts", json={"text": "engine x"} | FEW)
    broken = http.post("/v1/tts", files={"lexicon": (None, "nginx"), **_parts(fields)})
    long = http.post("/v1/tts", files={"lexicon": (None, "a = b\n" * 20_000), **_parts(fields)})

    assert asked.content == expected.content
    assert broken.status_code == 422
    assert "line 1, column 1: 'nginx' is not of the form `word = respelling`" in broken.json()["error"]["message"]
    assert "has 120000 characters; the limit is 102400" in long.json()["error"]["message"]


def _parts(fields: dict[str, str]) -> dict[str, tuple[None, str]]:
    return {name: (None, value) for name, value in fields.items()}


@pytest.mark.parametrize(
    ("body", "status", "code", "reason"),
    [
        ({"text": "<speak>\n<b/></speak>", "text_type": "ssml"}, 422, "markup_invalid", "line 2, column 1: <b> is not"),
        ({"text": "a", "text_type": "html"}, 422, "request_invalid", "text_type"),
        ({"text": "a", "lexicon": {"a": ""}}, 422, "parameter_invalid", "lexicon"),
        ({"text": "a", "lexicon": {str(n): "b" for n in range(257)}}, 422, "parameter_invalid", "lexicon"),
        (
            {"text": "<speak>a<voice name='nobody'>b</voice></speak>", "text_type": "ssml"},
            *(404, "voice_not_found", "nobody"),
        ),
    ],
)
def test_mistakes_are_refused(
    body: dict[str, object], status: int, code: str, reason: str, http: httpx2.Client
) -> None:
    answer = http.post("/v1/tts", json=body)

    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert reason in answer.json()["error"]["message"]
