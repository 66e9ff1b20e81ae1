"""WebSockets are accepted while the server works: SageMaker gives a bidirectional connection 250 ms."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from s1_mini import ProductionTTSEngine
from s1_mini.audio.container import encode
from tests.server.conftest import Door, serving
from tests.server.test_websocket import session
from waiting import EVENTUALLY_S

BIDIRECTIONAL = "/invocations-bidirectional-stream"
PATHS = (
    BIDIRECTIONAL,
    f"{BIDIRECTIONAL}?model=robin",
    "/v1/speak?model=robin",
    "/v2/speak?model=robin",
    "/v1/audio/speech/stream",
    "/v1/text-to-speech/robin/stream-input",
    "/v1/text-to-speech/robin/multi-stream-input",
)
MAX_CALLBACK_S = 0.1  # CPU time for which the event loop may do one thing


@pytest.fixture
def busy_door(small_engine: ProductionTTSEngine, tone: np.ndarray) -> Iterator[Door]:
    """A server with the voice robin, all of whose threads wait for the end of the test."""
    small_engine.add_voice("robin", tone, "Ah.")
    with serving(small_engine, threads=2) as door:
        released = threading.Event()
        for _ in range(2):
            door.loop.call_soon_threadsafe(door.loop.run_in_executor, None, released.wait)
        yield door
        released.set()
    small_engine.delete_voice("robin")


@pytest.mark.parametrize("path", PATHS)
def test_a_websocket_is_accepted_while_every_thread_is_busy(busy_door: Door, path: str) -> None:
    with session(busy_door, path) as socket:
        assert socket.response.status_code == 101


@pytest.fixture
def no_collection() -> Iterator[None]:
    """No garbage collection, which takes long among all objects of a test run; a server collects when it is idle."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_no_message_or_request_occupies_the_event_loop(
    door: Door, monkeypatch: pytest.MonkeyPatch, tone: np.ndarray
) -> None:
    longest, plain = {"": 0.0}, asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        started = time.thread_time()
        plain(handle)
        if threading.current_thread() is door.thread:
            longest[repr(handle)[:200]] = time.thread_time() - started

    wave = np.tile(tone, 10 * 44_100 // len(tone))
    recording = base64.b64encode(encode(wave, 44_100, "wav")).decode()
    text, limit = "Two cats, 3 dogs. " * 1100, {"max_new_tokens": 1}
    words, ssml = "a " * 10_000, f"<speak>{'<s>Hi.</s>' * 1900}</speak>"
    bodies = [{"text": each, "stream": True} | limit for each in (text, words, "a" * 20_000)]
    bodies += [{"text": ssml, "text_type": "ssml", "stream": True} | limit]
    bodies += [{"text": "Hi.", "reference_audio": recording, "reference_text": "Ah.", "stream": True} | limit]
    monkeypatch.setattr(asyncio.Handle, "_run", measured)
    with door.client() as http:
        for body in bodies:
            with http.stream("POST", "/v1/tts", json=body) as answer:  # until the first audio
                assert answer.status_code == 200, answer.read()
        http.post("/v1/tts/batch", json={"items": [{"text": " "}] * 32})
        http.post("/v1/tts", content=b"[" * 2**20, headers={"Content-Type": "application/json"})
        http.post("/v1/voices", data={"name": "a", "text": "Ah."}, files={"audio": b"RIFF" * 2**20})
    for path, message in (
        (BIDIRECTIONAL, {"type": "Speak", "text": text}),
        ("/v1/audio/speech/stream", {"type": "input.text", "text": words}),
        ("/v1/text-to-speech/default/multi-stream-input", {"text": text, "context_id": "a"}),
    ):
        with session(door, path) as socket:
            socket.send(json.dumps(message))
            socket.recv(timeout=EVENTUALLY_S)

    assert {name: seconds for name, seconds in longest.items() if seconds > MAX_CALLBACK_S} == {}
