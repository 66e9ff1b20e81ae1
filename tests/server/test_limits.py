"""Checks before the routes: body size and pace, API key, admission, request ids. Real sockets throughout."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from door_room import listening, raw_post
from held_generation import SOUNDS, held_generation
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.core.waiting_line import WaitingLine
from s1_mini.runtime.running import EngineRuntime
from s1_mini.server import limits
from s1_mini.server.app import create_app
from s1_mini.server.limits import PROBES
from s1_mini.server.settings import ServerSettings
from s1_mini.types import EngineState
from tests.server.conftest import LONG_SPEECH, Clock, Door, serving
from waiting import EVENTUALLY_S, wait_until

BODY = {"text": "Good morning.", "max_new_tokens": 8}
PING = b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n"
OVER_AT_ONCE_S = 1e-6  # a timeout that every machine exceeds, however fast it is


@pytest.fixture(scope="module")
def strict(small_engine: ProductionTTSEngine) -> Iterator[Door]:
    """A server with a key and small limits."""
    limits = {"max_body_bytes": 4096, "api_key": "sesame", "cors_origins": "https://a.example"}
    with serving(small_engine, **limits) as door:
        yield door


KEY = {"Authorization": "Bearer sesame"}


def code(answer: httpx2.Response) -> str:
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "field", "request_id"}
    assert error["request_id"] == answer.headers["x-request-id"]
    return error["code"]


def exchange(door: Door, *parts: bytes) -> bytes:
    """Send raw parts; return the response."""
    with door.connect() as plug:
        for part in parts:
            with suppress(OSError):
                plug.sendall(part)
        return read_error(plug)


def read_error(plug: socket.socket) -> bytes:
    """Read until the JSON of an error, or the connection, ends."""
    received = b""
    while b"}}" not in received and (part := plug.recv(65_536)):
        received += part
    return received


def drip(door: Door, clock: Clock, plug: socket.socket, drop: bytes) -> bytes:
    """Send a byte every ten seconds of the test clock until the server answers; return the response."""
    plug.settimeout(0)
    for _ in range(100):
        try:
            plug.sendall(drop)
            clock.advance(door, 10)
            received = plug.recv(65_536)
        except BlockingIOError:
            continue
        plug.settimeout(60)
        return received if b"}}" in received else received + read_error(plug)
    raise AssertionError("the server still waits after 1,000 s")


def head(*lines: str) -> bytes:
    key = "Authorization: Bearer sesame"
    first = ("POST /v1/tts HTTP/1.1", "Host: localhost", key, "Content-Type: application/json")
    return ("\r\n".join([*first, *lines]) + "\r\n\r\n").encode()


def test_a_declared_body_over_the_limit_is_refused_before_it_is_sent(strict: Door) -> None:
    received = exchange(strict, head("Content-Length: 100000000", "Expect: 100-continue"))

    assert received.startswith(b"HTTP/1.1 413")
    assert b'"body_too_large"' in received


def test_a_body_of_undeclared_length_is_refused_once_it_is_over_the_limit(strict: Door) -> None:
    chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"

    received = exchange(strict, head("Transfer-Encoding: chunked"), *[chunk] * 3, b"0\r\n\r\n")

    assert received.startswith(b"HTTP/1.1 413")


def test_a_client_that_reads_only_after_sending_everything_gets_413(strict: Door) -> None:
    with strict.client() as client:
        answer = client.post("/v1/tts", content=b"x" * 300_000, headers=KEY | {"Content-Type": "application/json"})

    assert answer.status_code == 413
    assert code(answer) == "body_too_large"


@pytest.mark.parametrize(
    ("before", "begun", "drop", "error"),
    [
        (b"", b"GET /ping HTTP/1.1\r\n", b"X-Slow: 1\r\n", b'"head_timeout"'),
        (PING, b"GET /ping HTTP/1.1\r\n", b"X-Slow: 1\r\n", b'"head_timeout"'),
        (b"", head("Content-Length: 1000"), b"x", b'"body_timeout"'),
    ],
    ids=["head", "second head", "body"],
)
def test_a_head_or_a_body_that_is_sent_too_slowly_is_refused(
    small_engine: ProductionTTSEngine, clock: Clock, *, before: bytes, begun: bytes, drop: bytes, error: bytes
) -> None:
    with serving(small_engine, head_timeout_s=30, body_timeout_s=30) as door, door.connect() as plug:
        plug.sendall(before)
        if before:
            assert plug.recv(65_536).startswith(b"HTTP/1.1 200")
        plug.sendall(begun)
        received = drip(door, clock, plug, drop)

    assert received.startswith(b"HTTP/1.1 408")
    assert error in received


def test_connections_that_send_no_head_are_closed_and_others_are_served(
    small_engine: ProductionTTSEngine, clock: Clock
) -> None:
    with serving(small_engine, head_timeout_s=30) as door, ExitStack() as held, door.client() as client:
        before = len(door.app.state.connections)
        plugs = [held.enter_context(door.connect()) for _ in range(100)]
        wait_until(lambda: len(door.app.state.connections) == before + 100)
        for plug in plugs:
            plug.setblocking(False)
            with pytest.raises(BlockingIOError):
                plug.recv(100)
            plug.settimeout(60)
        assert client.get("/ping").status_code == 200
        clock.advance(door, 31)

        assert [plug.recv(100) for plug in plugs] == [b""] * 100


def test_an_idle_keep_alive_connection_is_kept(small_engine: ProductionTTSEngine, clock: Clock) -> None:
    with serving(small_engine, head_timeout_s=30) as door, door.connect() as plug:
        for rest_s in (40, 0):
            plug.sendall(PING)
            assert plug.recv(1000).startswith(b"HTTP/1.1 200")
            clock.advance(door, rest_s)


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Basic sesame", "Bearer", "Bearer sésame"])
def test_requests_without_the_key_are_refused(strict: Door, given: str | None) -> None:
    headers = {} if given is None else {"Authorization": given.encode()}
    with strict.client() as client:
        answer = client.post("/v1/tts", json=BODY, headers=headers)

    assert answer.status_code == 401
    assert code(answer) == "unauthorized"
    assert answer.headers["www-authenticate"] == "Bearer"


def test_the_key_grants_access_and_health_needs_none(strict: Door) -> None:
    with strict.client() as client:
        assert client.post("/v1/tts", json=BODY, headers=KEY).status_code == 200
        assert [client.get(path).status_code for path in PROBES] == [200] * 4


def test_a_new_route_has_the_key_and_admission_without_being_listed(
    small_engine: ProductionTTSEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(small_engine, ServerSettings(port=0, api_key="sesame"))
    app.add_api_route("/new", lambda: "done", methods=["POST"])
    with listening(app, small_engine) as door, door.client() as client:
        locked, admitted, unknown = client.post("/new"), client.post("/new", headers=KEY), client.get("/none")
        monkeypatch.setattr(small_engine, "state", lambda: EngineState("ready", 256, 256))
        full = client.post("/new", headers=KEY)

    assert [answer.status_code for answer in (locked, admitted, full, unknown)] == [401, 200, 503, 401]


def test_only_pages_of_allowed_origins_may_read_responses_and_errors(strict: Door, door: Door) -> None:
    origin = {"Origin": "https://a.example"}
    with strict.client() as listed, door.client() as closed:
        failed = listed.post("/v1/tts", json=BODY, headers=origin)
        other = listed.get("/ping", headers={"Origin": "https://b.example"})
        off = closed.get("/ping", headers=origin)

    assert failed.status_code == 401
    assert failed.headers["access-control-allow-origin"] == "https://a.example"
    assert "access-control-allow-origin" not in other.headers
    assert "access-control-allow-origin" not in off.headers


def test_a_sane_request_id_is_kept_and_another_is_replaced(http: httpx2.Client) -> None:
    kept = http.get("/ping", headers={"X-Request-Id": "order-66.a"})
    replaced = http.get("/ping", headers={"X-Request-Id": "no spaces, <please>"})

    assert kept.headers["x-request-id"] == "order-66.a"
    assert len(replaced.headers["x-request-id"]) == 16


def test_the_cached_health_ends_when_the_engine_is_ready(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ready` is logged with the device, also if a probe has just asked while the engine was starting."""
    monkeypatch.setattr(limits, "FRESH_S", 1e9)
    engine = ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu", max_batch_size=1))
    gate = create_app(engine, ServerSettings()).state.gate
    assert gate.health()["status"] == "stopped"

    with engine:
        assert gate.health()["device"]["value"] == "cpu"


def test_a_full_queue_refuses_before_the_body_is_read(
    small_engine: ProductionTTSEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(small_engine) as door:
        monkeypatch.setattr(small_engine, "state", lambda: EngineState("ready", 256, 256))

        received = exchange(door, head("Content-Length: 1000", "Expect: 100-continue"))

    lowered = received.lower()
    assert received.startswith(b"HTTP/1.1 503")
    assert b'"queue_full"' in received
    assert b"retry-after: 1" in lowered


def test_a_refused_request_gets_the_retry_time_of_the_engine(
    small_engine: ProductionTTSEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(small_engine) as door, door.client() as http:
        monkeypatch.setattr(WaitingLine, "retry_after_s", 7.2)
        monkeypatch.setattr(WaitingLine, "__len__", lambda line: line.max_size)

        refused = http.post("/v1/tts", json={"text": "Hi."})

    assert (refused.status_code, refused.headers["Retry-After"], code(refused)) == (503, "8", "queue_full")


def test_requests_over_the_total_limit_get_503_and_over_the_client_limit_429(small_engine: ProductionTTSEngine) -> None:
    for setting, status, output in (("max_requests", 503, "server_busy"), ("max_requests_per_client", 429, "too_many")):
        with serving(small_engine, **{setting: 1}) as door, door.client() as client:
            body = LONG_SPEECH | {"stream": True, "format": "pcm"}
            with held_generation(SOUNDS), client.stream("POST", "/v1/tts", json=body):
                refused = client.post("/v1/tts", json=BODY)
            wait_until(lambda door=door: door.app.state.gate.num_inside == 0)
            again = client.post("/v1/tts", json=BODY)

        assert refused.status_code == status
        assert output in code(refused)
        assert refused.headers["retry-after"] == "1"
        assert again.status_code == 200


def test_a_request_that_times_out_ends_with_a_clean_error_and_frees_its_slot(small_engine: ProductionTTSEngine) -> None:
    with serving(small_engine, request_timeout_s=OVER_AT_ONCE_S) as door, door.client() as client:
        answer = client.post("/v1/tts", json=LONG_SPEECH)
        wait_until(lambda: small_engine.health_check()["requests"] == 0)

    assert answer.status_code == 504
    assert code(answer) == "request_timeout"


def test_a_stream_that_times_out_is_cut_off_without_its_terminating_chunk(small_engine: ProductionTTSEngine) -> None:
    with serving(small_engine, stream_timeout_s=OVER_AT_ONCE_S) as door, door.client() as client:
        with (
            pytest.raises(httpx2.RemoteProtocolError),
            client.stream("POST", "/v1/tts", json=LONG_SPEECH | {"stream": True, "format": "pcm"}) as answer,
        ):
            for _ in answer.iter_raw():
                pass
        wait_until(lambda: small_engine.health_check()["requests"] == 0)


@pytest.mark.parametrize(("stream_timeout_s", "is_whole"), [(OVER_AT_ONCE_S, False), (3600.0, True)])
def test_an_incomplete_stream_that_ends_by_closing_is_reset(
    small_engine: ProductionTTSEngine, stream_timeout_s: float, is_whole: bool
) -> None:
    request = raw_post(LONG_SPEECH | {"stream": True, "format": "pcm"}, version="1.0")
    with (
        serving(small_engine, stream_timeout_s=stream_timeout_s) as door,
        door.connect() as plug,
        nullcontext() if is_whole else pytest.raises(ConnectionResetError),
    ):
        plug.sendall(request)
        while plug.recv(65_536):
            pass


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_disconnects_frees_its_slot(door: Door, http: httpx2.Client, streams: bool) -> None:
    def inside() -> list[int]:
        output = http.get("/health").json()
        return [output["requests"], output["server"]["requests"]]  # in the engine, and in the server

    def cancelled() -> int:
        return sum(map(int, re.findall(r'_requests_total{end="cancelled".*} (\d+)', http.get("/metrics").text)))

    request, before = raw_post(LONG_SPEECH | {"stream": streams, "format": "pcm"}), cancelled()

    with held_generation(SOUNDS), door.connect() as plug:
        plug.sendall(request)
        wait_until(lambda: inside() == [1, 1])
        if streams:
            plug.recv(1000)
        plug.close()
        wait_until(lambda: inside() == [0, 0])
        wait_until(lambda: cancelled() == before + 1)


def test_a_client_that_disconnects_during_submission_leaves_nothing_behind(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that prepares a request cannot be interrupted."""
    begin, asked, went, done = EngineRuntime.begin, threading.Event(), threading.Event(), threading.Event()

    def begin_slowly(*arguments: Any) -> None:
        asked.set()
        went.wait()
        begin(*arguments)
        done.set()

    monkeypatch.setattr(EngineRuntime, "begin", begin_slowly)
    before = door.engine.health_check()["queue"]["accepted"]
    with door.connect() as plug:
        plug.sendall(raw_post(LONG_SPEECH))
        assert asked.wait(EVENTUALLY_S)
    wait_until(lambda: door.app.state.gate.num_inside == 0)
    wait_until(lambda: door.engine.health_check()["requests"] == 0)
    went.set()
    assert done.wait(EVENTUALLY_S)

    assert door.engine.health_check()["queue"]["accepted"] == before
    assert door.engine.health_check()["requests"] == 0


def test_ping_answers_while_many_requests_are_being_generated(door: Door) -> None:
    statuses: list[int] = []

    def speak() -> None:
        with door.client() as client:
            statuses.append(client.post("/v1/tts", json=BODY | {"max_new_tokens": 8, "format": "mp3"}).status_code)

    speakers = [threading.Thread(target=speak) for _ in range(8)]
    with held_generation() as held, door.client() as client:
        for speaker in speakers:
            speaker.start()
        wait_until(lambda: door.engine.health_check()["requests"] == 8)
        pings = [client.get("/ping").status_code for _ in range(30)]
        inside = door.engine.health_check()["requests"]
        held.release()
        for speaker in speakers:
            speaker.join()

    assert pings == [200] * 30
    assert inside == 8
    assert statuses == [200] * 8


def test_the_server_responds_while_the_engine_is_still_loading(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    from s1_mini import EngineConfig

    engine = ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu"))
    may_start, start = threading.Event(), engine.start
    monkeypatch.setattr(engine, "start", lambda: (may_start.wait(), start())[1])

    with serving(engine, waits=False) as door, door.client() as client:
        early = client.get("/ping")
        refused = client.post("/v1/tts", json=BODY)
        may_start.set()
        wait_until(lambda: client.get("/ready").status_code == 200)
        spoken = client.post("/v1/tts", json=BODY)

    assert early.status_code == refused.status_code == 503
    assert code(refused) == "engine_not_ready"
    assert spoken.status_code == 200
    assert engine.health_check()["status"] == "stopped"


LOCAL = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/v1/tts", {"Origin": "https://evil.example"}),
        ("POST", "/v1/voices", {"Origin": "https://evil.example", "Content-Type": "multipart/form-data; boundary=x"}),
        ("POST", "/v1/tts", {"Origin": "null"}),
        ("POST", "/v1/tts", {"Host": "evil.example"}),
        ("GET", "/v1/voices", {"Host": "evil.example:8080"}),
        ("DELETE", "/v1/voices/anna", {"Host": "evil.example"}),
        ("GET", "/", {"Host": "evil.example"}),
        ("POST", "/v1/tts", {"Origin": "http://["}),
        ("POST", "/v1/tts", {"Origin": "http://localhost:3000", "Host": "localhost"}),
        ("POST", "/v1/tts", {"Origin": "https://localhost", "Host": "localhost:80"}),
        ("POST", "/v1/tts", {"Origin": "capacitor://localhost", "Host": "localhost"}),
        ("POST", "/v1/tts", {"Origin": "http://", "Host": ""}),
    ],
    ids=str,
)
def test_a_page_of_another_site_cannot_call_a_server_without_a_key(
    http: httpx2.Client, method: str, path: str, headers: dict[str, str]
) -> None:
    answer = http.request(method, path, headers=LOCAL | headers, content=b"{}" if method == "POST" else None)

    assert answer.status_code == 403
    assert code(answer) == "origin_not_allowed"


def test_a_page_of_another_site_cannot_open_a_websocket(door: Door) -> None:
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(f"ws://127.0.0.1:{door.port}/v1/audio/speech/stream", origin="https://evil.example", proxy=None),
    ):
        pass

    assert refused.value.response.status_code == 403


def test_our_own_page_and_allowed_pages_may_send_requests(door: Door, small_engine: ProductionTTSEngine) -> None:
    with door.client() as client:
        own = client.post("/v1/tts", json=BODY, headers={"Origin": door.url})
    settings = {"cors_origins": "https://a.example", "allowed_hosts": "speech.example"}
    with serving(small_engine, **settings) as other, other.client() as client:
        headers = {"Origin": "https://a.example", "Host": "speech.example"}
        named = client.post("/v1/tts", json=BODY, headers=headers)

    assert (own.status_code, named.status_code) == (200, 200)


def test_a_page_of_an_allowed_site_may_use_a_library_that_adds_headers_of_its_own(strict: Door) -> None:
    names = "authorization, content-type, x-stainless-retry-count, x-fern-language, amz-sdk-request"
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": names}
    with strict.client() as client:
        allowed, other = (
            client.options("/v1/audio/speech", headers={"Origin": origin, **asked})
            for origin in ("https://a.example", "https://b.example")
        )

    assert allowed.status_code == 200
    assert set(names.split(", ")) <= set(allowed.headers["access-control-allow-headers"].lower().split(", "))
    assert other.status_code == 400
    assert "access-control-allow-origin" not in other.headers


def test_a_path_with_an_extra_slash_is_an_error_and_not_a_redirect(http: httpx2.Client) -> None:
    answer = http.post("/v1/tts/", json=BODY)

    assert answer.status_code == 404
    assert "location" not in answer.headers


def test_a_load_balancer_may_check_health_under_any_host_name(http: httpx2.Client) -> None:
    assert [http.get(path, headers={"Host": "10.0.0.7:8080"}).status_code for path in PROBES] == [200] * 4


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://x.example", "x.example:443"),
        ("https://x.example", "x.example"),
        ("http://x.example:80", "X.example"),
        (None, "LOCALHOST."),
    ],
)
def test_host_names_are_compared_as_names(small_engine: ProductionTTSEngine, origin: str | None, host: str) -> None:
    with serving(small_engine, allowed_hosts="x.example,localhost") as door, door.client() as client:
        headers = {"Host": host} | ({"Origin": origin} if origin else {})

        assert client.post("/v1/tts", json=BODY, headers=headers).status_code == 200
