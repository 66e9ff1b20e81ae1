"""Hostile clients do not affect other clients. Real sockets, one server with small limits."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import logging
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx2
import numpy as np
import pytest
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from door_room import raw_post, read_all
from held_generation import held_generation
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.audio.container import encode
from s1_mini.exceptions import TextError
from s1_mini.server.accounts import Resource
from s1_mini.server.connections import MAX_WAITING_BYTES
from s1_mini.server.speech import while_listened
from s1_mini.server.wire import SocketWire
from s1_mini.types import Reference, Voice
from s1_mini.voices.reference import Check, ReferenceEncoder
from tests.server.conftest import LONG_SPEECH, Clock, Door, serving
from waiting import EVENTUALLY_S, wait_until

JSON = {"Content-Type": "application/json"}
LONG = LONG_SPEECH | {"stream": True, "format": "pcm", "max_new_tokens": 300}
PING_S = 0.5  # CPU time, which other load on the machine does not stretch; 5 ms on an idle machine


def held_bytes(door: Door) -> int:
    """Bytes of bodies and recordings that the server has charged to clients."""
    return door.app.state.accounts.total(Resource.BODY_BYTES)


@pytest.fixture(scope="module")
def open_door(small_engine: ProductionTTSEngine) -> Iterator[Door]:
    """A server with a short send timeout and few connections."""
    with serving(small_engine, send_timeout_s=1.0, max_connections=32) as door:
        yield door


def head(num_bytes: int, kind: str = "application/json") -> bytes:
    """Return the head of a synthesis request with a body of `num_bytes`."""
    lines = ["POST /v1/tts HTTP/1.1", "Host: localhost", f"Content-Type: {kind}", f"Content-Length: {num_bytes}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@contextmanager
def pinging(door: Door) -> Iterator[list[float]]:
    """Request `/ping` continuously; record the CPU seconds of this process for each."""
    took, over = [], threading.Event()

    def ask() -> None:
        with door.client() as client:
            while not over.is_set() or not took:
                started = time.process_time()
                assert client.get("/ping").status_code == 200
                took.append(time.process_time() - started)
                time.sleep(0.01)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield took
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    "content",  # allocated by the test: 70 MB
    [
        lambda: b'{"items":[' + b'{"text":"Hi."},' * 900_000 + b'{"text":"Hi."}]}',
        lambda: b'{"text":"Hi.","seed":' + b"9" * 14_000_000 + b"}",
    ],
    ids=["items", "digits"],
)
def test_megabytes_of_json_are_refused_while_others_are_answered(door: Door, content: Callable[[], bytes]) -> None:
    body = content()
    with pinging(door) as took, door.client() as client:
        answer = client.post("/v1/tts/batch", content=body, headers=JSON)

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "body_invalid"
    assert max(took) < PING_S


def test_a_body_in_chunks_of_one_byte_is_refused(door: Door) -> None:
    lines = b"POST /v1/tts HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with pinging(door) as took, door.connect() as plug:
        plug.sendall(lines + b"Transfer-Encoding: chunked\r\n\r\n")
        received = b""
        try:
            plug.sendall(b"1\r\na\r\n" * 100_000)
            received = plug.recv(65_536)
        except OSError:  # it was closed before the whole body was sent
            pass

    assert not received or received.startswith(b"HTTP/1.1 400")
    wait_until(lambda: door.app.state.gate.num_inside == 0)
    assert max(took) < PING_S


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"\x16\x03\x01 hello\r\n\r\n", ""),
        (b"GET /ping HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * 200 + b"\r\n", "at most 100 are allowed"),
        (b"GET /ping HTTP/1.1\r\nHost: localhost\r\na: " + b"b" * 2**14 + b"\r\n\r\n", "larger than 16384 bytes"),
        (b"GET /ping HTTP/1.1\r\nHost: localhost\r\na: " + b"b" * 2**15, "larger than 16384 bytes"),
    ],
    ids=["no HTTP", "200 headers", "a large head", "a large unfinished head"],
)
def test_malformed_http_is_refused_in_the_shape_of_all_errors(door: Door, content: bytes, sentence: str) -> None:
    with door.connect() as plug:
        plug.sendall(content)
        output, _, body = read_all(plug).partition(b"\r\n\r\n")

    assert output.startswith(b"HTTP/1.1 400")
    assert json.loads(body)["error"]["code"] == "http_invalid"
    assert sentence in json.loads(body)["error"]["message"]


def test_the_total_size_of_all_bodies_is_bounded(small_engine: ProductionTTSEngine) -> None:
    # a quarter of the bytes is reserved for other clients, and one request may hold a third of the rest
    with serving(small_engine, max_bodies_bytes=400_000) as door, ExitStack() as held:
        plugs = [held.enter_context(door.connect()) for _ in range(2)]
        plugs[0].sendall(head(90_000) + b" " * 80_000)
        wait_until(lambda: held_bytes(door) == 80_000)
        plugs[1].sendall(head(90_000) + b" " * 80_000)
        refused = b""
        while not refused.endswith(b"}") and (part := plugs[1].recv(65_536)):
            refused += part

        assert refused.startswith(b"HTTP/1.1 503")
        assert b"server_busy" in refused
        plugs[0].close()
        wait_until(lambda: held_bytes(door) == 0)


def test_stalled_clients_are_disconnected_and_others_are_served(open_door: Door, caplog) -> None:
    with ExitStack() as held, caplog.at_level(logging.WARNING, "s1_mini.server.connections"):
        for _ in range(4):  # as many as there are slots
            plug = held.enter_context(socket.socket())
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            plug.connect(("127.0.0.1", open_door.port))
            plug.sendall(raw_post(LONG))
        with held_generation():
            wait_until(lambda: open_door.app.state.gate.num_inside == 4)
        wait_until(lambda: open_door.app.state.gate.num_inside == 0)

        with open_door.client() as client:
            assert client.post("/v1/tts", json={"text": "Hi.", "max_new_tokens": 8}).status_code == 200
    assert any("the client stopped reading" in record.message for record in caplog.records)


def test_a_complete_response_that_is_not_read_is_aborted(open_door: Door) -> None:
    with socket.socket() as plug:
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plug.connect(("127.0.0.1", open_door.port))
        with held_generation():
            plug.sendall(raw_post(LONG | {"stream": False, "format": "wav", "max_new_tokens": 80}))
            wait_until(lambda: open_door.app.state.gate.num_inside == 1)
        wait_until(lambda: open_door.app.state.gate.num_inside == 0)
        wait_until(lambda: not open_door.app.state.connections.busy)

        assert b"HTTP/1.1 200" in plug.recv(4096)  # it had started, and was cut off


def test_idle_connections_are_evicted_for_new_ones_with_one_warning(open_door: Door, caplog) -> None:
    with ExitStack() as held, caplog.at_level(logging.WARNING, "s1_mini.server.connections"):
        for _ in range(100):
            held.enter_context(open_door.connect())
        with open_door.client() as client:
            assert client.get("/ping").status_code == 200

        assert len(open_door.app.state.connections) <= 32
    output = [record for record in caplog.records if "to make room" in record.message]
    assert len(output) == 1


@pytest.mark.parametrize("path", ["/v1/tts", "/nowhere", "/ping"])
def test_a_refused_request_whose_body_drips_holds_its_connection_for_seconds_only(
    small_engine: ProductionTTSEngine, clock: Clock, path: str
) -> None:
    with serving(small_engine, api_key="sesame") as door, door.connect() as plug:
        plug.sendall(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n".encode())
        received = plug.recv(65_536)
        for _ in range(10):  # seconds
            with suppress(OSError):
                plug.sendall(b"x")
            clock.advance(door, 1)
        read_all(plug)  # until it is closed

    assert received.split()[1] in (b"401", b"404", b"405")


def flac(seconds: float, rate: int = 24_000) -> bytes:
    """A recording of noise, different each time."""
    return encode(np.random.default_rng().uniform(-0.5, 0.5, int(seconds * rate)).astype(np.float32), rate, "flac")


def send_recording(door: Door, recording: bytes) -> socket.socket:
    """Send a request with a reference, and return the connection without reading the response."""
    with httpx2.Client() as client:
        form = client.build_request(
            *("POST", door.url + "/v1/tts"),
            data={"text": "Hi.", "max_new_tokens": "8"},
            files={"reference_audio": ("me.flac", recording)},
        )
    content = form.read()
    plug = door.connect()
    plug.sendall(head(len(content), form.headers["content-type"]) + content)
    return plug


def answered(plug: socket.socket) -> bytes:
    """Return the beginning of the response, however long it takes."""
    plug.settimeout(120)
    return plug.recv(65_536)


@pytest.fixture
def held_recordings(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Keep references waiting to be encoded until this is set, or their clients disconnect."""
    released, encode = threading.Event(), ReferenceEncoder.encode

    def encode_later(encoder: ReferenceEncoder, reference: Reference, check: Check) -> Voice:
        while not released.wait(0.005):
            check()
        return encode(encoder, reference, check)

    monkeypatch.setattr(ReferenceEncoder, "encode", encode_later)
    return released


@pytest.mark.usefixtures("held_recordings")
def test_recordings_of_disconnected_clients_are_dropped(tiny) -> None:
    config = EngineConfig(checkpoint_path=tiny, device="cpu", max_batch_size=2)
    with ProductionTTSEngine(config) as engine, serving(engine) as door:
        plugs = [send_recording(door, flac(3)) for _ in range(12)]
        wait_until(lambda: engine.health_check()["recordings"]["waiting"] > 0)
        for plug in plugs:
            plug.close()

        wait_until(lambda: door.app.state.gate.num_inside == 0)
        wait_until(lambda: not any(engine.health_check()["recordings"][part] for part in ("waiting", "running")))
        assert held_bytes(door) == 0


def test_recordings_over_the_queue_limit_are_refused_and_plain_requests_are_served(
    tiny, held_recordings: threading.Event
) -> None:
    config = EngineConfig(checkpoint_path=tiny, device="cpu", max_batch_size=2, max_waiting_references=2)
    # with several clients, one of them does not fill the queue
    with ProductionTTSEngine(config) as engine, serving(engine, fairness="request") as door, ExitStack() as held:
        plugs = [held.enter_context(send_recording(door, flac(3))) for _ in range(8)]
        wait_until(lambda: engine.health_check()["recordings"]["waiting"] == 2)
        with door.client() as client:
            assert client.post("/v1/tts", json={"text": "Hi.", "max_new_tokens": 4}).status_code == 200
        assert engine.health_check()["recordings"]["running"] > 0
        held_recordings.set()

        answers = [answered(plug) for plug in plugs]
        refused = [answer for answer in answers if answer.startswith(b"HTTP/1.1 503")]
        assert len(refused) >= 3
        assert all(b"recordings are already waiting" in answer for answer in refused)


def test_a_request_with_both_a_length_and_chunks_is_refused_with_what_follows_it(door: Door) -> None:
    head = b"POST /v1/tts HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n"
    smuggled = b"GET /v1/voices HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with door.connect() as plug:
        plug.sendall(head + b"0\r\n\r\n" + smuggled)
        received = read_all(plug)

    assert received.startswith(b"HTTP/1.1 400 ")
    assert b"both Content-Length and Transfer-Encoding" in received
    assert received.count(b"HTTP/1.1") == 1


UPGRADE = (
    b" HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
)


@pytest.mark.parametrize(
    ("request_line", "more", "status"),
    [
        (b"GET /v1/audio/speech/stream", b"Content-Length: 2\r\n\r\n{}", b"400"),
        (b"GET /v1/audio/speech/stream", b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
        (b"GET /v1/audio/speech/stream", b"X-Long: " + b"a" * 9000 + b"\r\n\r\n", b"400"),
        (b"GET /v1/audio/speech/stream?" + b"a" * 9000, b"\r\n", b"400"),
        (b"POST /v1/audio/speech/stream", b"Content-Length: 2\r\n\r\n{}", b"404"),
        (b"POST /v1/tts", b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", b"422"),
    ],
    ids=["a body", "chunks", "a long header", "a long path", "another method", "another route"],
)
def test_an_invalid_websocket_handshake_is_answered_and_its_connection_closed(
    door: Door, request_line: bytes, more: bytes, status: bytes
) -> None:
    with door.connect() as plug:
        plug.sendall(request_line + UPGRADE + more)
        received = read_all(plug)

    assert received.split()[1] == status
    assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"]


@pytest.mark.parametrize("data", [b"\xff\xfe", b"\xed\xa0\x80"], ids=["not UTF-8", "a surrogate"])
@pytest.mark.parametrize("splits", [False, True], ids=["one frame", "two frames"])
def test_a_text_message_that_is_not_utf8_closes_the_websocket_without_a_traceback(
    door: Door, caplog: pytest.LogCaptureFixture, data: bytes, splits: bool
) -> None:
    def frame(opcode: int, part: bytes) -> bytes:
        return bytes([opcode, 0x80 | len(part)]) + bytes(4) + part

    with websocket(door) as plug:
        plug.sendall(frame(0x01, data[:1]) + frame(0x80, data[1:]) if splits else frame(0x81, data))
        received = read_all(plug)

    assert received[:1] == b"\x88"
    assert int.from_bytes(received[2:4]) == 1007
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system does not tell before all is read")
@pytest.mark.parametrize("more", [b"POST", b"a" * 30_000, b"a" * 3_000_000], ids=["word", "more", "much"])
def test_a_client_that_disconnects_with_a_pipelined_request_frees_its_slot(open_door: Door, more: bytes) -> None:
    before = open_door.engine.metrics.ends["cancelled"]
    with held_generation():
        with open_door.connect() as plug:
            plug.sendall(raw_post(LONG_SPEECH | {"max_new_tokens": 400}))
            wait_until(lambda: open_door.engine.health_check()["requests"] == 1)
            with suppress(ConnectionError):
                plug.sendall(more[:10])
                plug.sendall(more[10:])
        wait_until(lambda: open_door.engine.health_check()["requests"] == 0)

    assert open_door.engine.metrics.ends["cancelled"] > before


def test_an_upload_in_many_small_pieces_is_read(door: Door) -> None:
    lines = [json.dumps({"text": "Hi.", "number": number}).encode() + b"\n" for number in range(900)]
    with door.client() as client:
        answer = client.post("/v1/tts", content=iter(lines), headers=JSON)

    assert answer.status_code == 400  # the body is not a JSON object, but was read to its end
    assert answer.json()["error"]["code"] == "body_invalid"


def test_a_connection_is_reusable_after_the_late_body_of_a_refused_request(
    small_engine: ProductionTTSEngine, clock: Clock
) -> None:
    with serving(small_engine) as door, door.connect() as plug:
        plug.sendall(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n")
        assert plug.recv(65_536).startswith(b"HTTP/1.1 404")
        plug.sendall(b"abc")
        clock.advance(door, 0)  # the server has read it
        clock.advance(door, 5)
        plug.sendall(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        while b"HTTP/1.1 200" not in received:
            received += (part := plug.recv(65_536))
            assert part


def test_a_client_that_reads_slowly_receives_the_whole_answer(small_engine: ProductionTTSEngine, clock: Clock) -> None:
    """20 kB every ten seconds, from a server that closes a connection without progress for forty."""
    body = LONG | {"stream": False, "format": "wav", "max_new_tokens": 40}
    limits = {"send_timeout_s": 40, "stream_timeout_s": 3600}
    with serving(small_engine, **limits) as door, socket.socket() as plug:
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plug.settimeout(60)
        plug.connect(("127.0.0.1", door.port))
        plug.sendall(raw_post(body, "Connection: close"))
        taken = b""
        while part := plug.recv(20_000, socket.MSG_WAITALL):
            taken += part
            clock.advance(door, 10)

    output, _, sound = taken.partition(b"\r\n\r\n")
    length = int(output.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    assert length > 400_000
    assert len(sound) == length


def websocket(door: Door) -> socket.socket:
    """A WebSocket on which frames are written by hand."""
    plug = door.connect()
    lines = ["GET /v1/audio/speech/stream HTTP/1.1", "Host: localhost", "Connection: Upgrade", "Upgrade: websocket"]
    lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg=="]
    plug.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
    assert plug.recv(65_536).startswith(b"HTTP/1.1 101")
    return plug


@pytest.mark.parametrize("frame", [b"\x89\x80\0\0\0\0", b"\x00\x80\0\0\0\0"], ids=["pings", "continuations"])
def test_a_flood_of_empty_frames_ends_the_websocket(door: Door, frame: bytes) -> None:
    with pinging(door) as took, websocket(door) as plug:
        plug.sendall(b"\x01\x80\0\0\0\0")
        try:
            for _ in range(20):
                plug.sendall(frame * 10_000)
        except OSError:
            pass
        read_all(plug)  # until it is closed

    assert max(took) < PING_S


def test_a_flood_of_binary_messages_ends_the_websocket(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    handled: list[int] = []
    plain = WebSocketsSansIOProtocol.handle_bytes
    monkeypatch.setattr(
        WebSocketsSansIOProtocol, "handle_bytes", lambda wire, event: handled.append(1) or plain(wire, event)
    )

    with websocket(door) as plug:
        with suppress(OSError):
            plug.sendall(b"\x82\x80\0\0\0\0" * 100_000)
        with suppress(OSError):
            read_all(plug)  # until it is closed

    assert len(handled) < 5_000


def test_a_websocket_whose_client_has_not_read_its_pings_yet_stays_open(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = SocketWire.connection_made

    def ping_at_once(wire: SocketWire, transport: Any) -> None:
        wire.ping_interval, wire.ping_timeout = 0.01, wire.ping_timeout and 0.01
        plain(wire, transport)

    monkeypatch.setattr(SocketWire, "connection_made", ping_at_once)
    received = b""
    with websocket(door) as plug:
        while received.count(b"\x89\x04") < 3 and (piece := plug.recv(65_536)):
            received += piece

    assert received.count(b"\x89\x04") >= 3


def test_a_websocket_whose_client_reads_nothing_is_closed_although_it_is_pinged(
    open_door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, wires = SocketWire.connection_made, list[SocketWire]()

    def ping_often(wire: SocketWire, transport: Any) -> None:
        wire.ping_interval = 0.02  # far below the send timeout of 1 s
        wires.append(wire)
        plain(wire, transport)

    monkeypatch.setattr(SocketWire, "connection_made", ping_often)
    with websocket(open_door):
        open_door.loop.call_soon_threadsafe(wires[0].transport.write, bytes(MAX_WAITING_BYTES - 2**17))
        wait_until(wires[0].transport.is_closing)


def test_an_unfinished_message_in_tiny_pieces_is_one_buffer(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[int] = []
    plain = SocketWire.data_received

    def receive(wire: SocketWire, data: bytes) -> None:
        plain(wire, data)
        pieces.append(len(wire.frames))

    monkeypatch.setattr(SocketWire, "data_received", receive)
    message = json.dumps({"type": "input.text", "text": "Hi."}).encode()

    with websocket(door) as plug:
        plug.sendall(b"\x01\x80\0\0\0\0" + b"".join(b"\0\x81\0\0\0\0" + bytes([each]) for each in message))
        plug.sendall(b"\x80\x80\0\0\0\0\x81\x95\0\0\0\0" + b'{"type":"input.done"}')
        answer = plug.recv(65_536)

    assert b"audio.start" in answer
    assert max(pieces) <= 1


def test_a_failed_request_frees_its_recording_without_the_garbage_collector() -> None:
    kept: list[weakref.ref[np.ndarray]] = []

    async def fail() -> None:
        recording = np.zeros(10)
        kept.append(weakref.ref(recording))
        raise TextError("text", "is empty")

    async def answer() -> None:
        with suppress(TextError):
            await while_listened(asyncio.Event().wait, fail())  # type: ignore[arg-type]

    gc.disable()
    try:
        asyncio.run(answer())
        assert kept[0]() is None
    finally:
        gc.enable()


def test_session_recordings_and_unfinished_messages_count_towards_the_body_limit(
    small_engine: ProductionTTSEngine,
) -> None:
    with serving(small_engine, max_bodies_bytes=2_000_000) as door:
        config = {"type": "session.config", "reference_audio": base64.b64encode(flac(3)).decode()}
        url = f"ws://127.0.0.1:{door.port}/v1/audio/speech/stream"
        with ExitStack() as held:
            for _ in range(3):  # together they fit, also while they arrive
                held.enter_context(connect(url, proxy=None)).send(json.dumps(config))
            wait_until(lambda: held_bytes(door) > 400_000)
            last = held.enter_context(websocket(door))
            with suppress(OSError):
                last.sendall(b"\x01\xff" + (2_000_000).to_bytes(8) + b"\0\0\0\0" + b"a" * 450_000)  # fits alone
            read_all(last)  # until it is closed
        wait_until(lambda: held_bytes(door) == 0)


def test_recordings_of_all_waiting_utterances_count(small_engine: ProductionTTSEngine) -> None:
    def fill(session: ClientConnection) -> None:
        session.send(json.dumps({"type": "input.text", "text": "It goes on and on. " * 200}))
        for _ in range(20):
            recording = base64.b64encode(flac(3)).decode()
            session.send(json.dumps({"type": "session.config", "reference_audio": recording}))
            session.send(json.dumps({"type": "input.text", "text": "Hi there. And"}))
        while True:
            session.recv(timeout=EVENTUALLY_S)

    with serving(small_engine, max_bodies_bytes=1_000_000) as door:
        url = f"ws://127.0.0.1:{door.port}/v1/audio/speech/stream"
        with held_generation(), connect(url, proxy=None) as session, pytest.raises(ConnectionClosed) as closed:
            fill(session)
        wait_until(lambda: held_bytes(door) == 0)

    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1013  # retry later
