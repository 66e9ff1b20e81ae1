"""Several replicas behind one port: failures, shared state and shutdown. Real processes."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx2
import numpy as np
import psutil
import pytest
from websockets.sync.client import connect

from door_room import raw_post, read_all
from held_generation import held_environment
from replica_room import Replicas, needs_proxy, replicated
from s1_mini.audio.container import encode
from tests.server.conftest import LONG_SPEECH
from waiting import EVENTUALLY_S, wait_until

pytestmark = [needs_proxy, pytest.mark.long]

SHORT = {"text": "Good morning.", "seed": 1, "max_new_tokens": 8}
LONG = LONG_SPEECH | {"format": "pcm", "stream": True}
LOAD = LONG | {"max_new_tokens": 25}
HELD = "held"  # a file of the store
SESSION = "X-Amzn-SageMaker-Session-Id"


@pytest.fixture(scope="module")
def door(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    limits = {"MAX_REQUESTS": "32", "MAX_REQUESTS_PER_CLIENT": "40", "SEND_TIMEOUT_S": "4", "HEAD_TIMEOUT_S": "3"}
    settings = {f"S1_MINI_SERVER_{name}": value for name, value in limits.items()}
    store = tmp_path_factory.mktemp("store")
    settings |= held_environment(store / HELD)
    with replicated(tiny, store, "--max-batch-size", "16", **settings) as door:
        yield door


@pytest.fixture
def held(door: Replicas) -> Iterator[Path]:
    """A file; while it exists, generation of all replicas waits after the first audio."""
    file = door.store / HELD
    file.touch()
    yield file
    file.unlink(missing_ok=True)


@pytest.fixture
def http(door: Replicas) -> Iterator[httpx2.Client]:
    with door.client() as client:
        yield client


def who_spoke(door: Replicas, request_id: str) -> str:
    wait_until(lambda: bool(door.told(message="request", request_id=request_id)))
    replica: str = door.told(message="request", request_id=request_id)[0]["replica"]
    return replica


def requests_inside(door: Replicas) -> list[int]:
    return [replica["health"]["server"]["requests"] for replica in door.health()["replicas"] if replica["health"]]


def test_a_voice_added_through_the_proxy_exists_and_is_deleted_on_every_replica(
    door: Replicas, http: httpx2.Client, tone: np.ndarray
) -> None:
    form = {"name": "robin", "text": "Ah."}
    added = http.post("/v1/voices", data=form, files={"audio": encode(tone, 44_100, "wav")})
    sound, spoke = set(), set()
    asked = {"voice": (None, "robin")} | {name: (None, str(value)) for name, value in SHORT.items()}
    for number in range(4):  # forms, which the proxy does not search for a voice
        answer = http.post("/v1/tts", files=asked, headers={"X-Request-Id": f"robin-{number}"})
        assert answer.status_code == 200, answer.text
        sound.add(answer.content)
        spoke.add(who_spoke(door, f"robin-{number}"))
    listed = http.get("/v1/voices").json()
    gone = http.delete("/v1/voices/robin")

    assert added.status_code == 201
    assert spoke == {"0", "1"}
    assert len(sound) == 1
    assert [voice["name"] for voice in listed["voices"]] == ["robin"]
    assert listed["keeps_added"] is False
    assert gone.status_code == 204
    assert {http.post("/v1/tts", json=SHORT | {"voice": "robin"}).status_code for _ in range(4)} == {404}


@pytest.mark.usefixtures("held")
def test_requests_go_to_the_less_busy_replica(door: Replicas) -> None:
    with door.client() as client:
        streams = [client.stream("POST", "/v1/tts", json=LONG) for _ in range(6)]
        for stream in streams:
            stream.__enter__()
        wait_until(lambda: sum(requests_inside(door)) == 6)  # `/health` may be a second old
        inside = requests_inside(door)
        for stream in streams:
            stream.__exit__(None, None, None)
    wait_until(lambda: sum(requests_inside(door)) == 0)

    assert inside == [3, 3]


def test_a_voice_stays_on_one_replica_while_it_is_not_busier_than_the_other(
    door: Replicas, http: httpx2.Client, tone: np.ndarray
) -> None:
    for name in ("carl", "dora"):
        http.post("/v1/voices", data={"name": name, "text": "Ah."}, files={"audio": encode(tone, 44_100, "wav")})
    spoke = {}
    for name in ("carl", "dora"):
        for number in range(4):
            request_id = f"{name}-{number}"
            http.post("/v1/tts", json=SHORT | {"voice": name}, headers={"X-Request-Id": request_id})
            spoke.setdefault(name, set()).add(who_spoke(door, request_id))
        http.delete(f"/v1/voices/{name}")

    assert {len(replicas) for replicas in spoke.values()} == {1}


def test_a_session_is_served_by_the_replica_that_holds_it(
    door: Replicas, http: httpx2.Client, tone: np.ndarray
) -> None:
    opened = [http.post("/invocations", json={"requestType": "NEW_SESSION"}, headers={SESSION: "NEW_SESSION"})]
    opened += [http.post("/invocations", json=SHORT, headers={SESSION: "NEW_SESSION"}) for _ in range(3)]
    sessions = [answer.headers["X-Amzn-SageMaker-New-Session-Id"].partition(";")[0] for answer in opened]
    spoke = []
    for number in range(8):
        session = sessions[number % len(sessions)]
        answer = http.post("/invocations", json=SHORT, headers={SESSION: session, "X-Request-Id": f"session-{number}"})
        assert answer.status_code == 200
        spoke.append((session[-1], who_spoke(door, f"session-{number}")))
    closed = [http.post("/invocations", json={"requestType": "CLOSE"}, headers={SESSION: each}) for each in sessions]

    assert all(mine == replica for mine, replica in spoke)
    assert {answer.status_code for answer in closed} == {200}


def test_one_metrics_page_has_the_figures_and_states_of_all_replicas(http: httpx2.Client) -> None:
    http.post("/v1/tts", json=SHORT)
    count = re.compile(r'^s1_mini_http_requests_total\{replica=".",route="/v1/tts",status="200"\} [1-9]', re.MULTILINE)
    wait_until(lambda: count.search(http.get("/metrics").text) is not None)  # it may be a second old
    output = http.get("/metrics").text

    for replica in ("0", "1"):
        for name in ("s1_mini_ready", "s1_mini_replica_ready"):
            assert re.search(rf'^{name}\{{replica="{replica}"\}} 1.0$', output, re.MULTILINE), name
        assert re.search(rf'^s1_mini_slots\{{replica="{replica}",state="free"\}} 16.0$', output, re.MULTILINE)
        # More than one start where the machine stalled for so long that a replica was taken for hanging.
        assert re.search(rf'^s1_mini_replica_starts_total\{{replica="{replica}"\}} [1-9]', output, re.MULTILINE)
        assert re.search(rf'^process_resident_memory_bytes\{{replica="{replica}"\}} ', output, re.MULTILINE)
    for family in ("s1_mini_frames_total", "s1_mini_queue_seconds"):
        assert output.count(f"# TYPE {family} ") == 1


def test_health_reports_all_replicas_and_batch_transform_reports_all_slots(http: httpx2.Client) -> None:
    output = http.get("/health").json()

    assert output["ready"] is True
    assert output["slots"]["total"] == 32
    assert output["server"] == {"requests": 0, "draining": False}
    assert [replica["replica"] for replica in output["replicas"]] == ["0", "1"]
    assert [replica["health"]["slots"]["total"] for replica in output["replicas"]] == [16, 16]
    assert http.get("/execution-parameters").json()["MaxConcurrentTransforms"] == 32


def exchange(door: Replicas, content: bytes, *, drips: bytes = b"") -> bytes:
    """Send bytes, then `drips` five times a second until there is a response; return the response."""
    with door.connect() as plug:
        plug.sendall(content)
        num_drips = 0
        while drips and not select.select([plug], [], [], 0.2)[0]:
            plug.sendall(drips)
            num_drips += 1
            assert num_drips < 95, "there is no answer, and at 100 headers there will be another one"
        return read_all(plug)


@pytest.mark.parametrize(
    ("content", "drips", "status"),
    [
        (b"GET /ping HTTP/1.1\r\n", b"X-Slow: 1\r\n", b"408"),
        (b"\x16\x03\x01 hello\r\n\r\n", b"", b"400"),
        (b"GET /ping HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * 200 + b"\r\n", b"", b"400"),
        (b"GET /ping HTTP/1.1\r\nHost: localhost\r\nA: " + b"b" * 40_000 + b"\r\n\r\n", b"", b"400"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"", b"400"),
        (b"POST /v1/tts HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", b"", b"400"),
    ],
    ids=["a slow head", "no HTTP", "many headers", "a large head", "HTTP/2", "two lengths"],
)
def test_an_invalid_request_head_is_refused_before_it_reaches_a_replica(
    door: Replicas, content: bytes, drips: bytes, status: bytes
) -> None:
    received = exchange(door, content, drips=drips)

    assert received.split()[1] == status


def test_a_request_head_with_the_maximum_of_headers_is_accepted(door: Replicas) -> None:
    lines = [b"Host: localhost", b"Connection: close", *(b"A%d: b" % number for number in range(98))]
    received = exchange(door, b"GET /v1/voices HTTP/1.1\r\n" + b"\r\n".join(lines) + b"\r\n\r\n")

    assert received.split()[1] == b"200"


@pytest.mark.parametrize(
    ("lines", "status", "code"),
    [
        (b"DELETE /models/a HTTP/1.1\r\nAuthorization: Bearer \xe9", 404, "model_not_found"),
        (b"DELETE /%6dodels/a HTTP/1.1", 404, "model_not_found"),
        (b"POST /health HTTP/1.1\r\nContent-Length: 0", 405, "method_not_allowed"),
        (b"GET /pin%67 HTTP/1.1", 200, None),
    ],
    ids=["a header that is not ASCII", "an encoded path", "another method", "an encoded ping"],
)
def test_proxy_errors_have_the_same_shape_as_all_errors(
    door: Replicas, lines: bytes, status: int, code: str | None
) -> None:
    received = exchange(door, lines + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    head, _, body = received.decode().partition("\r\n\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:])

    assert int(head.split()[1]) == status
    assert len(headers["x-request-id"]) == 16
    if code is not None:
        error = json.loads(body)["error"]
        assert (error["code"], error["request_id"]) == (code, headers["x-request-id"])


def test_a_body_with_a_content_encoding_is_refused_behind_the_proxy_too(http: httpx2.Client) -> None:
    answer = http.post("/v1/tts", json=SHORT, headers={"Content-Encoding": "gzip"})

    assert answer.status_code == 415
    assert answer.json()["error"]["code"] == "content_type_unsupported"


def test_a_request_with_both_a_length_and_chunks_is_one_request(door: Replicas) -> None:
    head = b"POST /v1/tts HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n"
    smuggled = b"GET /v1/voices HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    received = exchange(door, head + b"0\r\n\r\n" + smuggled)

    assert received.split()[1] == b"415"
    assert received.count(b"HTTP/1.1") == 1


def test_a_stream_to_an_http_1_0_client_states_its_length(door: Replicas) -> None:
    received = exchange(door, raw_post(SHORT | {"stream": True}, version="1.0"))
    head, _, sound = received.partition(b"\r\n\r\n")

    assert head.split()[1] == b"200"
    assert int(re.findall(rb"content-length: (\d+)", head, re.IGNORECASE)[0]) == len(sound) > 1000
    assert b"transfer-encoding" not in head.lower()


@pytest.mark.parametrize("path", ["/v1/voices", "/ping"])  # answered by a replica, and by the proxy
def test_a_body_that_drips_after_the_answer_does_not_hold_the_connection(door: Replicas, path: str) -> None:
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n".encode()
    closed = False
    with door.connect() as plug:
        plug.sendall(head)
        for _ in range(120):
            try:
                plug.sendall(b"x")
            except OSError:
                closed = True
                break
            time.sleep(0.5)

    assert closed


def test_many_idle_connections_do_not_block_new_ones(door: Replicas, http: httpx2.Client) -> None:
    plugs = []
    for number in range(400):
        plugs.append(door.connect())
        if number >= 200:
            plugs[-1].sendall(b"GET /ping HTTP/1.1\r\nHost: a\r\n\r\n")
    status = http.post("/v1/tts", json=SHORT).status_code
    silent = [plug.recv(100) for plug in plugs[:200]]
    for plug in plugs:
        plug.close()

    assert status == 200
    assert set(silent) == {b""}  # ended by the timeout for request heads


def end_of(plug: socket.socket, last: bytes = b"") -> bytes:
    """Return the last bytes that a server sends."""
    plug.settimeout(EVENTUALLY_S)
    with suppress(ConnectionResetError):
        while not last.endswith(b"0\r\n\r\n") and (part := plug.recv(65_536)):
            last = last[-5:] + part
    return last


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("streams", [False, True])
def test_a_client_that_disconnects_frees_its_slot(door: Replicas, streams: bool) -> None:
    with door.connect() as plug:
        plug.sendall(raw_post(LONG | {"stream": streams}))
        wait_until(lambda: sum(requests_inside(door)) == 1)
        plug.close()
        wait_until(lambda: sum(requests_inside(door)) == 0)


def test_a_stalled_client_is_disconnected_and_a_slow_one_is_not(door: Replicas, held: Path) -> None:
    with ExitStack() as stack:
        plugs = [stack.enter_context(socket.socket()) for _ in range(3)]
        for plug in plugs:
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            plug.connect(("127.0.0.1", door.port))
            plug.sendall(raw_post(LONG | {"max_new_tokens": 60, "text": str(LONG["text"]) * 4}))
        wait_until(lambda: sum(requests_inside(door)) == 3)
        held.unlink()
        last, slow = b"", plugs[0]  # the last bytes, since the final chunk may arrive in two parts
        slow.settimeout(EVENTUALLY_S)
        for _ in range(round(EVENTUALLY_S / 0.1)):
            if sum(requests_inside(door)) <= 1:  # the rest of the slow client's audio may be in buffers
                break
            last = last[-5:] + slow.recv(20_000)
            time.sleep(0.1)
        for plug in plugs[1:]:
            assert not end_of(plug).endswith(b"0\r\n\r\n")
        last = end_of(slow, last)

    assert last.endswith(b"0\r\n\r\n")
    assert door.told(message="connection closed: the client stopped reading")


def send_many(door: Replicas, count: int, stack: ExitStack, clients: int = 1) -> None:
    """Send requests from some clients' addresses without reading; return once all are accepted."""
    for number in range(count):
        address = [f"X-Forwarded-For: 192.0.2.{number % clients}"] if clients > 1 else []
        stack.enter_context(door.connect()).sendall(raw_post(LOAD, *address))
    wait_until(lambda: sum(requests_inside(door)) == count)


def test_one_client_has_no_more_than_its_share_of_all_replicas_together(door: Replicas, held: Path) -> None:
    with door.client() as client, ExitStack() as stack:
        send_many(door, 40, stack)
        refused = client.post("/v1/tts", json=SHORT)
        encoded = client.post("/v1/%74ts", json=SHORT)
        forged = client.post("/v1/tts", json=SHORT, headers={"X-Forwarded-For": "192.0.2.1, 127.0.0.1"})
        held.unlink()
        other = client.post("/v1/tts", json=SHORT, headers={"X-Forwarded-For": "192.0.2.1"})  # by a proxy
    wait_until(lambda: sum(requests_inside(door)) == 0)

    assert [answer.status_code for answer in (refused, encoded, forged, other)] == [429, 429, 429, 200]
    error = refused.json()["error"]
    assert (error["code"], error["request_id"]) == ("too_many_requests", refused.headers["X-Request-Id"])
    assert refused.headers["Retry-After"] == "1"


@pytest.mark.usefixtures("held")
def test_a_request_over_the_shared_limit_reaches_no_replica(door: Replicas, http: httpx2.Client) -> None:
    with ExitStack() as stack:
        send_many(door, 64, stack, clients=64)
        refused = http.post("/v1/tts", json=SHORT, headers={"X-Request-Id": "one-too-many"})
        others = [http.get(path).status_code for path in ("/ping", "/v1/voices")]
    wait_until(lambda: sum(requests_inside(door)) == 0)

    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_busy")
    assert refused.headers["Retry-After"] == "1"
    assert others == [200, 200]
    assert not door.told(logger="s1_mini.server.access", request_id="one-too-many")


def test_a_replica_killed_under_load_loses_its_own_requests_and_no_other_and_comes_back(
    door: Replicas, tone: np.ndarray, held: Path
) -> None:
    sentence = LOAD | {"text": "A sentence that goes on and on."}  # one slot each, so that all of them start
    held.unlink()
    with door.client() as client:
        client.post("/v1/voices", data={"name": "erna", "text": "Ah."}, files={"audio": encode(tone, 44_100, "wav")})
    ended: list[tuple[str, bool]] = []  # the replica that started, and whether the response was complete
    pings: list[int] = []
    over = threading.Event()

    def speak(number: int) -> None:
        with door.client() as client:
            request_id = f"load-{number}"
            try:
                with client.stream("POST", "/v1/tts", json=sentence, headers={"X-Request-Id": request_id}) as answer:
                    began.release()
                    is_whole = answer.status_code == 200 and len(b"".join(answer.iter_raw())) > 0
            except httpx2.TransportError:
                is_whole = False
            ended.append((request_id, is_whole))

    def ping() -> None:
        with door.client() as client:
            while not over.is_set():
                pings.append(client.get("/ping").status_code)
                time.sleep(0.02)

    held.touch()
    began = threading.Semaphore(0)
    speakers = [threading.Thread(target=speak, args=(number,)) for number in range(32)]
    pinging = threading.Thread(target=ping, daemon=True)
    pinging.start()
    for speaker in speakers:
        speaker.start()
    for _ in speakers:
        assert began.acquire(timeout=EVENTUALLY_S)
    wait_until(lambda: sum(requests_inside(door)) == 32)  # `/health` may be a second old
    inside = requests_inside(door)
    killed = door.pids()[1]
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: killed not in door.pids())
    held.unlink()
    with door.client() as client:
        at_once = [client.post("/v1/tts", json=SHORT | {"voice": "erna"}).status_code for _ in range(4)]
    for speaker in speakers:
        speaker.join()
    wait_until(lambda: door.num_ready() == 2)
    over.set()
    pinging.join()

    whole = {request_id for request_id, is_whole in ended if is_whole}
    output = {line["request_id"]: line["replica"] for line in door.told(message="request", status=200)}
    assert len(whole) == 32 - inside[1]
    assert {output[request_id] for request_id in whole} == {"0"}
    assert set(at_once) == {200}
    assert len(pings) > 20
    assert set(pings) == {200}
    assert door.told(event="replica_ended", replica="1", exit_code=-9)
    spoke = set()
    asked = {"voice": (None, "erna")} | {name: (None, str(value)) for name, value in SHORT.items()}
    with door.client() as client:
        for number in range(4):
            assert client.post("/v1/tts", files=asked, headers={"X-Request-Id": f"again-{number}"}).status_code == 200
            spoke.add(who_spoke(door, f"again-{number}"))
    assert spoke == {"0", "1"}  # the restarted replica knows the voice, too


def test_a_request_on_used_connections_to_a_lost_replica_gets_an_error(door: Replicas, held: Path) -> None:
    answers: list[httpx2.Response] = []
    held.unlink()
    with door.client() as client:
        for _ in range(8):  # both replicas have answered on this connection
            assert client.post("/v1/tts", json=SHORT).status_code == 200
        held.touch()
        speaker = threading.Thread(target=lambda: answers.append(client.post("/v1/tts", json=LOAD | {"stream": False})))
        speaker.start()
        wait_until(lambda: sum(requests_inside(door)) == 1)
        index = requests_inside(door).index(1)
        starts = door.health()["replicas"][index]["starts"]
        os.kill(door.pids()[index], signal.SIGKILL)
        speaker.join()
    wait_until(lambda: door.health()["replicas"][index]["starts"] > starts and door.num_ready() == 2)

    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in answers] == [(502, "replica_lost")]


def test_a_hanging_replica_is_bypassed_and_replaced(door: Replicas) -> None:
    before = door.pids()
    os.kill(before[0], signal.SIGSTOP)

    def speaks() -> bool:
        try:
            with door.client() as client:
                return [client.post("/v1/tts", json=SHORT, timeout=2).status_code for _ in range(4)] == [200] * 4
        except httpx2.TimeoutException:  # it went to the stopped replica
            return False

    wait_until(speaks)  # the proxy checks each replica every second, and bypasses it after three failures
    is_replaced = before[0] not in door.pids()
    with door.client() as client:
        pings = {client.get("/ping").status_code}
    (door.store / f"{HELD}-silence").touch()  # from now on the supervisor kills silent replicas
    wait_until(lambda: bool(door.told(event="replica_hangs", replica="0")))
    wait_until(lambda: before[0] not in door.pids() and len(door.pids()) == 2)  # reported first, then replaced
    wait_until(lambda: door.num_ready() == 2)

    assert pings == {200}
    assert not is_replaced
    assert door.pids()[0] != before[0]
    assert door.pids()[1] == before[1]


def test_the_proxy_is_restarted_and_clients_wait_meanwhile(door: Replicas, http: httpx2.Client) -> None:
    (proxy,) = (
        child for child in psutil.Process(door.process.pid).children() if "haproxy" in " ".join(child.cmdline())
    )
    proxy.kill()
    wait_until(lambda: bool(door.told(message="the proxy exited; restarting it")))

    def speaks() -> bool:
        with door.client() as client:
            return client.post("/v1/tts", json=SHORT).status_code == 200

    wait_until(speaks)


def test_sigterm_finishes_requests_in_flight_and_refuses_new_ones(door: Replicas, held: Path) -> None:
    """The last test of this server: it shuts it down."""
    results: list[object] = []

    def speak() -> None:
        with door.client() as client:
            answer = client.post("/v1/tts", json=LONG | {"stream": False, "max_new_tokens": 40})
            results.append((answer.status_code, len(answer.content)))

    threads = [threading.Thread(target=speak) for _ in range(6)]
    for thread in threads:
        thread.start()
    wait_until(lambda: sum(requests_inside(door)) == 6)
    with connect(f"ws://127.0.0.1:{door.port}/v1/audio/speech/stream", proxy=None) as plug:
        door.process.send_signal(signal.SIGTERM)
        with door.client() as client:
            wait_until(lambda: client.get("/ping").status_code == 503)
            late = [client.get("/ping"), client.get("/ready"), client.post("/v1/tts", json=SHORT)]
        output = json.loads(plug.recv(timeout=EVENTUALLY_S))
    held.unlink()
    code = door.process.wait(EVENTUALLY_S)
    for thread in threads:
        thread.join()

    assert code == 0
    assert [answer.status_code for answer in late] == [503] * 3
    assert late[2].json()["error"]["code"] == output["error"]["code"] == "shutting_down"
    assert {status for status, _ in results} == {200}  # type: ignore[misc]
    assert len(results) == 6
    assert not any(Path(f"/proc/{pid}").exists() for pid in door.pids())
