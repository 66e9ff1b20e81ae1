"""Every resource that a client makes the server hold is charged to the client, and released when it disconnects.

Each scenario holds one kind of thing. A new route, WebSocket message or resource without a scenario fails here.
"""

from __future__ import annotations

import base64
import gc
import json
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.sync.client import connect

from container_room import ENDPOINT, running
from door_room import Door
from s1_mini import ProductionTTSEngine
from s1_mini.audio.container import encode
from s1_mini.runtime.running import Preparation
from s1_mini.server.accounts import Resource
from s1_mini.server.protocols.websocket import OwnProtocol
from tests.server.test_openapi import ELEVENLABS
from waiting import EVENTUALLY_S, wait_until

NUM_BYTES = 1_500_000  # of each body and recording
NUM_CLIENTS = 2
MAX_COPIES = 3  # Python objects per charged byte: a body is kept as bytes, as text and as a decoded recording
FIXED_BYTES = 3_000_000  # of modules and caches that the first request of a kind loads
RECORDING = b"RIFF\0\0\0\0WAVE" + np.random.default_rng(1).bytes(NUM_BYTES)
AUDIO = base64.b64encode(
    encode(np.random.default_rng(2).uniform(-0.1, 0.1, 300_000).astype(np.float32), 44_100, "wav")
).decode()
# Ten seconds of audio, most of it silence, which no model generates.
LONG = {"text": "Hi. You.", "pauses": "sentence=10", "seed": 1, "max_new_tokens": 33}


@dataclass
class Rig:
    """A container whose engine generates nothing until `release`, and the connections to it."""

    container: Door
    release: Callable[[], None]
    connections: ExitStack

    @property
    def port(self) -> int:
        return int(self.container.url.rpartition(":")[2])

    def plug(self, data: bytes = b"", *, reads: bool = True) -> socket.socket:
        plug = self.connections.enter_context(socket.socket())
        plug.settimeout(30)
        if not reads:
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plug.connect(("127.0.0.1", self.port))
        plug.sendall(data)
        return plug

    def post(self, path: str, body: bytes, kind: str = "application/json", *, missing: int = 0, **named: Any) -> None:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
        self.plug(f"{head}Content-Length: {len(body) + missing}\r\n\r\n".encode() + body, **named)

    def session(self) -> Any:
        url = f"ws://127.0.0.1:{self.port}/v1/audio/speech/stream"
        # without pings, which a machine that stalls answers too late
        return self.connections.enter_context(connect(url, proxy=None, ping_interval=None))


@dataclass(frozen=True)
class Scenario:
    """One way to make the server hold a resource."""

    resources: tuple[Resource, ...]
    hold: Callable[[Rig], None]
    covers: tuple[str, ...] = ()  # routes and messages
    outlives: bool = False  # the connection


def form(file_field: str, **fields: str) -> tuple[bytes, str]:
    parts = [f'--x\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n' for key, value in fields.items()]
    head = f'--x\r\nContent-Disposition: form-data; name="{file_field}"; filename="a.wav"\r\n\r\n'
    return "".join(parts).encode() + head.encode() + RECORDING + b"\r\n--x--\r\n", "multipart/form-data; boundary=x"


def with_reference(**fields: Any) -> bytes:
    reference = {"reference_audio": base64.b64encode(RECORDING).decode(), "reference_text": "Hi."}
    return json.dumps(reference | fields).encode()


def unfinished_bodies(rig: Rig) -> None:
    rig.post("/v1/tts", b" " * NUM_BYTES, missing=100)


def spoken_json(rig: Rig) -> None:
    rig.post("/v1/tts", with_reference(text="Hi."))
    rig.post("/invocations", with_reference(text="Hi."))
    rig.post(f"/endpoints/{ENDPOINT}/invocations", with_reference(text="Hi."))
    rig.post("/v1/audio/speech", json.dumps({"input": "Hi.", "voice": "alloy"}).encode())
    rig.post("/dev/captioned_speech", json.dumps({"input": "Hi.", "return_timestamps": False}).encode())
    for path in ELEVENLABS:
        rig.post(path.format(voice="default"), json.dumps({"text": "Hi."}).encode())
    polly = {"Text": "Hi.", "VoiceId": "Amy", "OutputFormat": "mp3"}
    rig.post("/v1/speech", json.dumps(polly).encode())


def spoken_form(rig: Rig) -> None:
    rig.post("/v1/tts", *form("reference_audio", text="Hi.", reference_text="Hi."))
    rig.post("/v1/voices", *form("audio", name="new", text="Hi."))
    consent = rig.container.app.state.consents.add("Robin", "en").id
    rig.post("/v1/audio/voices", *form("audio_sample", name="new 2", text="Hi.", consent=consent))
    rig.post("/v1/audio/voice_consents", *form("recording", name="Robin", language="en"))


def spoken_batch(rig: Rig) -> None:
    rig.post("/v1/tts/batch", json.dumps({"items": [json.loads(with_reference(text="Hi."))] * 2}).encode())


def unfinished_messages(rig: Rig) -> None:
    upgrade = (
        b"GET /v1/audio/speech/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    plug = rig.plug(upgrade)
    assert plug.recv(4096).startswith(b"HTTP/1.1 101")
    plug.sendall(b"\x01\xff" + (2 * NUM_BYTES).to_bytes(8) + b"\0\0\0\0" + b"a" * NUM_BYTES)


def recordings_of_sessions(rig: Rig) -> None:
    session = rig.session()
    session.send(json.dumps({"type": "session.config"} | json.loads(with_reference())))
    session.send(json.dumps({"type": "input.text", "text": "One. Two. Three. Four"}))
    session.send(json.dumps({"type": "input.done"}))


def sticky_sessions(rig: Rig) -> None:
    rig.release()
    with rig.container.http() as http:
        for _ in range(NUM_CLIENTS):
            answer = http.post("/invocations", json={"requestType": "NEW_SESSION", "reference_audio": AUDIO})
            assert answer.status_code == 200, answer.text


def unread_whole_answers(rig: Rig) -> None:
    rig.release()
    rig.post("/v1/tts", json.dumps(LONG).encode(), reads=False)


def unread_batches(rig: Rig) -> None:
    rig.release()
    options = {name: value for name, value in LONG.items() if name != "text"}
    rig.post("/v1/tts/batch", json.dumps({"items": [{"text": LONG["text"]}]} | options).encode(), reads=False)


SCENARIOS = {
    "bodies that have not arrived completely": Scenario((Resource.BODY_BYTES, Resource.CONNECTIONS), unfinished_bodies),
    "JSON bodies and the recordings in them": Scenario(
        (Resource.BODY_BYTES, Resource.REQUESTS),
        spoken_json,
        ("/v1/tts", "/v1/audio/speech", "/dev/captioned_speech", *ELEVENLABS, "/v1/speech", "/invocations"),
    ),
    "forms and the recordings in them": Scenario(
        (Resource.BODY_BYTES,), spoken_form, ("/v1/voices", "/v1/audio/voices", "/v1/audio/voice_consents")
    ),
    "batches": Scenario((Resource.BODY_BYTES, Resource.REQUESTS), spoken_batch, ("/v1/tts/batch",)),
    "WebSocket messages that have not arrived completely": Scenario(
        (Resource.BODY_BYTES, Resource.SESSIONS), unfinished_messages
    ),
    "recordings of WebSocket sessions": Scenario(
        (Resource.BODY_BYTES, Resource.SESSIONS),
        recordings_of_sessions,
        ("session.config", "input.text", "input.clear", "input.done"),
    ),
    "sticky sessions": Scenario((Resource.STICKY_SESSIONS, Resource.STICKY_BYTES), sticky_sessions, outlives=True),
    "whole answers that are not read": Scenario((Resource.AUDIO_BYTES,), unread_whole_answers),
    "batches that are not read": Scenario((Resource.AUDIO_BYTES,), unread_batches),
}
# Their bodies are small: the name or the location of a model, or the name of a consent.
SMALL = {"/models", "/models/{name}/invoke", "/v1/audio/voice_consents/{consent_id}"}


@pytest.fixture
def rig(small_engine: ProductionTTSEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    released, read = threading.Event(), Preparation._read

    def read_later(*arguments: Any) -> None:
        assert released.wait(EVENTUALLY_S)
        read(*arguments)

    monkeypatch.setattr(Preparation, "_read", read_later)
    with running(small_engine, tmp_path, send_timeout_s=60.0) as container, ExitStack() as connections:
        try:
            yield Rig(container, released.set, connections)
        finally:
            released.set()


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Measure how many bytes of Python objects are allocated in the block."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    try:
        yield lambda: tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def settled(allocated: Callable[[], int]) -> int:
    threading.Event().wait(0.3)
    gc.collect()
    return allocated()


@pytest.mark.parametrize("name", SCENARIOS)
def test_resources_of_a_client_are_charged_and_released_when_it_disconnects(rig: Rig, name: str) -> None:
    scenario, accounts = SCENARIOS[name], rig.container.app.state.accounts

    def is_charged() -> bool:
        return all(accounts.of("127.0.0.1", resource) for resource in scenario.resources)

    with traced() as allocated:
        scenario.hold(rig)
        wait_until(is_charged)
        if Resource.AUDIO_BYTES in scenario.resources:
            wait_until(lambda: rig.container.engine.health_check()["requests"] == 0)
        last = allocated()
        while abs((now := settled(allocated)) - last) > 10_000:  # an answer is encoded from copies that are freed
            last = now
        kinds = (Resource.BODY_BYTES, Resource.AUDIO_BYTES, Resource.STICKY_BYTES)
        charged = sum(accounts.total(kind) for kind in kinds)
        assert last <= MAX_COPIES * charged + FIXED_BYTES, accounts.describe()
    rig.connections.close()
    rig.release()
    if scenario.outlives:
        return
    wait_until(lambda: not accounts.clients)


def test_every_way_to_hold_something_has_a_scenario(rig: Rig) -> None:
    paths = rig.container.app.openapi()["paths"]
    covered = {each for scenario in SCENARIOS.values() for each in scenario.covers}

    assert {path for path, methods in paths.items() if "post" in methods} - covered - SMALL == set()
    assert set(OwnProtocol.messages.by_type) - covered == set()
    assert {resource for scenario in SCENARIOS.values() for resource in scenario.resources} == set(Resource)
