"""Sticky sessions send a reference once, and are bounded in number, size and time."""

from __future__ import annotations

import base64
import re
from typing import Any

import httpx2
import numpy as np
import pytest

from container_room import SHORT, recording
from s1_mini.sagemaker.sessions import SessionNotFoundError, Sessions, SessionsFullError
from s1_mini.sagemaker.settings import ContainerSettings
from s1_mini.server.accounts import Accounts, Resource

ID, NEW, CLOSED = (f"X-Amzn-SageMaker-{name}" for name in ("Session-Id", "New-Session-Id", "Closed-Session-Id"))
# botocore's pattern of the header, from its service model
NEW_PATTERN = r"[a-zA-Z0-9](-*[a-zA-Z0-9])*;\sExpires=[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z"


def accounts() -> Accounts:
    return Accounts({Resource.BODY_BYTES: 1_000_000})


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def opened(answer: httpx2.Response) -> str:
    assert answer.status_code == 200, answer.text
    return answer.headers[NEW].partition(";")[0]


def test_a_session_speaks_with_the_reference_it_was_opened_with(http: httpx2.Client, tone: np.ndarray) -> None:
    voice = {"reference_audio": base64.b64encode(recording(tone)).decode(), "reference_text": "Hello."}
    begun = http.post("/invocations", json={"requestType": "NEW_SESSION"} | voice, headers={ID: "NEW_SESSION"})
    session = opened(begun)

    within = http.post("/invocations", json=SHORT, headers={ID: session})
    alone = http.post("/invocations", json=SHORT | voice)
    without = http.post("/invocations", json=SHORT)
    closed = http.post("/invocations", json={"requestType": "CLOSE"}, headers={ID: session})
    after = http.post("/invocations", json=SHORT, headers={ID: session})

    assert re.fullmatch(NEW_PATTERN, begun.headers[NEW])
    assert within.content == alone.content != without.content
    assert closed.headers[CLOSED] == session
    assert (after.status_code, after.json()["error"]["code"]) == (404, "session_not_found")


def test_a_session_can_be_opened_with_its_first_words(http: httpx2.Client) -> None:
    begun = http.post("/invocations", json=SHORT, headers={ID: "NEW_SESSION", "Accept": "audio/wav"})

    assert begun.content == http.post("/invocations", json=SHORT).content
    assert http.post("/invocations", json={"requestType": "CLOSE"}, headers={ID: opened(begun)}).status_code == 200


def test_an_invalid_recording_opens_no_session(http: httpx2.Client, container: Any) -> None:
    before = len(container.app.state.sessions)

    answer = http.post("/invocations", json={"reference_audio": "AAAA"}, headers={ID: "NEW_SESSION"})
    failed = http.post("/invocations", json=SHORT | {"text": " "}, headers={ID: "NEW_SESSION"})

    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "reference_invalid")
    assert failed.status_code == 422
    assert NEW not in failed.headers
    assert len(container.app.state.sessions) == before


def test_a_new_session_replaces_the_least_recently_used(http: httpx2.Client) -> None:
    ids = [opened(http.post("/invocations", json={}, headers={ID: "NEW_SESSION"})) for _ in range(3)]
    assert http.post("/invocations", json=SHORT, headers={ID: ids[0]}).status_code == 200

    ids.append(opened(http.post("/invocations", json={}, headers={ID: "NEW_SESSION"})))
    closed = [http.post("/invocations", json={"requestType": "CLOSE"}, headers={ID: each}) for each in ids]

    assert [answer.status_code for answer in closed] == [200, 404, 200, 200]


def test_a_session_ends_when_its_time_is_up() -> None:
    clock = Clock()
    sessions = Sessions(ContainerSettings(session_s=60), accounts(), clock)
    first = sessions.open("client")
    clock.now = 59.0
    assert sessions.get(first.id) == first

    clock.now = 60.0

    with pytest.raises(SessionNotFoundError):
        sessions.get(first.id)
    assert len(sessions) == 0


def test_a_client_with_many_sessions_replaces_its_own() -> None:
    sessions = Sessions(ContainerSettings(max_sessions=3), accounts())
    others = sessions.open("other")
    first, *_ = [sessions.open("client") for _ in range(10)]

    assert sessions.get(others.id) == others
    with pytest.raises(SessionNotFoundError):
        sessions.get(first.id)
    assert len(sessions) == 3


def test_recordings_of_all_sessions_are_bounded_by_closing_old_ones_and_charged_until_they_close() -> None:
    charged = accounts()
    sessions = Sessions(ContainerSettings(max_session_mb=0.001), charged)
    small = sessions.open("other", reference_audio=bytes(100))
    old = sessions.open("client", reference_audio=bytes(600))

    session = sessions.open("client", reference_audio=bytes(700))

    with pytest.raises(SessionNotFoundError):
        sessions.get(old.id)
    assert sessions.get(small.id) == small
    assert charged.of("client", Resource.STICKY_BYTES) == 700
    with pytest.raises(SessionsFullError):
        sessions.open("client", reference_audio=bytes(1001))
    sessions.close(small.id)

    sessions.close(session.id)
    assert charged.clients == []
