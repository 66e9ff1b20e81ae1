"""Honest clients that check every answer, slow and leaving clients, and processes that watch a server.

`Honest` keeps requests of all kinds in flight and compares each answer with that of the idle server. The watcher
samples latency, memory and descriptors of the server's processes; an idle control process, which answers the same
`/ping`, separates stalls of the machine from stalls of the server. `Helpers` runs all of them as processes. Linux only.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import multiprocessing
import random
import socket
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import psutil
import soundfile
import websockets

from benchmark.command import quantile_ms
from benchmark.http_load import Answer, Place, processes_of

JSON = "application/json"
HONEST_HOST = "127.0.0.1"
DISCONNECTING = 0.6  # share of the honest clients' requests
NICENESS = 5  # of clients and attackers, which would run on other machines
WATCH_INTERVAL_S = 0.1
ANSWER_TIMEOUT_S = 300  # an answer that takes longer counts as lost
FRAMES = 12
TEXT = "The morning train was late again, and nobody knew why."
SEEDS = 4
ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("/v1/audio/speech", {"input": TEXT, "response_format": "mp3"}),
    "events": ("/v1/audio/speech", {"input": TEXT, "response_format": "pcm", "stream_format": "sse"}),
    "elevenlabs": ("/v1/text-to-speech/default?output_format=pcm_24000", {"text": TEXT}),
    "invocations": ("/invocations", {"text": TEXT, "format": "pcm", "stream": True}),
    "batch": ("/v1/tts/batch", {"items": [{"text": TEXT}, {"text": "Yes."}]}),
}
KINDS = ("whole", "flac", "stream", "lines", "reference", "websocket", *ROUTES)
COUNTS = ("whole", "left", "refused", "lost", "doubled", "different", "num_whole")
REFUSALS = {"queue_full", "server_busy", "too_many_requests", "shutting_down"}
# Just below the limit of 20,000 characters.
LONG: dict[str, Any] = {"text": "One two three four. " * 990, "seed": 1, "max_new_tokens": 200}


# ---- honest clients -----------------------------------------------------------------------------------------------


def recording(seconds: float, rate: int, seed: int | None = None, kind: str = "WAV") -> bytes:
    """Return a recording of soft noise: the same for the same seed, a different one each time without a seed."""
    buffer = io.BytesIO()
    soundfile.write(buffer, np.random.default_rng(seed).uniform(-0.4, 0.4, int(seconds * rate)), rate, format=kind)
    return buffer.getvalue()


def request_of(kind: str, seed: int) -> tuple[str, str, bytes]:
    """Return path, content type and body of an honest request."""
    fields: dict[str, Any] = {"seed": seed, "max_new_tokens": FRAMES}
    if kind in ROUTES:
        path, own = ROUTES[kind]
        return path, JSON, json.dumps(fields | own).encode()
    if kind == "lines":
        line = json.dumps(fields | {"text": "Yes."}).encode()
        return "/invocations", "application/jsonlines", line + b"\n" + line
    if kind == "reference":
        coded = base64.b64encode(recording(1.0, 16_000, seed)).decode()
        fields |= {"reference_audio": coded, "reference_text": "Ah."}
    fields |= {"text": TEXT, "format": "flac" if kind == "flac" else "pcm", "stream": kind == "stream"}
    return "/v1/tts", JSON, json.dumps(fields).encode()


class Outcome(NamedTuple):
    """A client's result: status, comparable bytes, and the seconds to wait after a refusal."""

    status: int
    content: bytes = b""
    retry_after_s: float = 1.0


async def send(place: Place, kind: str, seed: int, *, leaves: str | None = None) -> Outcome:
    """Send one request and read its answer. `leaves` is when the client disconnects: "before" or "middle", or None."""
    if kind == "websocket":
        return await speak_in_session(place, seed, leaves=leaves)
    path, content_type, body = request_of(kind, seed)
    if leaves == "before":
        _, writer = await asyncio.open_connection(place.host, place.port)
        writer.write(post(path, body, content_type))
        await asyncio.sleep(random.random() / 2)  # noqa: S311 - no secret
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()
        return Outcome(0)
    answer = await place.ask("POST", path, body, Content_Type=content_type)
    with answer:
        if leaves == "middle":
            await answer.reader.read(100)
            answer.writer.transport.abort()
            return Outcome(0)
        content = await body_of(answer)
        if await answer.reader.read(1):  # the client sent `Connection: close`
            return Outcome(599, b"bytes after the end of the answer")
    return Outcome(*comparable(kind, answer.status, content), float(answer.headers.get("retry-after", 1)))


def comparable(kind: str, status: int, content: bytes) -> tuple[int, bytes]:
    """Return the status of all items of an answer, and the bytes that are equal each time."""
    if kind == "batch" and status == 200:
        batch = json.loads(content)
        if not batch["success"]:
            codes = {result["error_code"] for result in batch["results"]} - {None}
            return (503 if codes <= REFUSALS else 500), " ".join(codes).encode()
        return status, b"".join(result["audio_base64"].encode() for result in batch["results"])
    if kind == "lines" and status == 200:
        lines = [json.loads(line) for line in content.splitlines()]
        if any("audio" not in line for line in lines):
            return 500, content[:200]
        return status, b"".join(line["audio"].encode() for line in lines)
    return status, content


async def body_of(answer: Answer) -> bytes:
    """Read an answer to its end. Raises if a stream lacks its terminating chunk."""
    if answer.headers.get("transfer-encoding") == "chunked":
        parts = []
        while part := await answer.chunk():
            parts.append(part)
        return b"".join(parts)
    return await answer.reader.readexactly(int(answer.headers["content-length"]))


def session_url(place: Place) -> str:
    """Return the URL of WebSocket sessions."""
    return f"ws://{place.host}:{place.port}/v1/audio/speech/stream"


async def speak_in_session(place: Place, seed: int, *, leaves: str | None) -> Outcome:
    """Synthesize two sentences over a WebSocket, and return their order and texts with the audio."""
    audio, sentences = b"", []
    try:
        keyed = {"Authorization": f"Bearer {place.key}"} if place.key else {}
        async with websockets.connect(
            session_url(place), proxy=None, open_timeout=60, close_timeout=1, additional_headers=keyed
        ) as session:
            await session.send(json.dumps({"type": "session.config", "seed": seed, "max_new_tokens": FRAMES}))
            await session.send(json.dumps({"type": "input.text", "text": f"{TEXT} Yes indeed. "}))
            if leaves == "before":
                session.transport.abort()
                return Outcome(0)
            await session.send(json.dumps({"type": "input.done"}))
            async for message in session:
                if isinstance(message, bytes):
                    audio += message
                    if leaves:
                        session.transport.abort()
                        return Outcome(0)
                    continue
                event = json.loads(message)
                if event["type"] == "error":
                    code = event["error"]["code"]
                    return Outcome(503 if code in REFUSALS else 500, code.encode())
                if event["type"] == "audio.start":
                    sentences.append((event["index"], event["text"]))
                if event["type"] == "session.done":
                    return Outcome(200, audio + repr(sentences).encode())
    except websockets.InvalidStatus as refused:
        wait_s = float(refused.response.headers.get("Retry-After", 1))
        return Outcome(refused.response.status_code, b"", wait_s)
    return Outcome(500, b"the session ended without session.done")


class Failure(NamedTuple):
    """A request whose answer was lost, doubled or different, and when it was sent and failed."""

    what: str
    reason: str
    began: float
    ended: float


@dataclass
class Tally:
    """What the honest clients received."""

    whole: Counter[str] = field(default_factory=Counter)
    left: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    ended: list[Failure] = field(default_factory=list)  # after the end of the run
    latencies_s: list[float] = field(default_factory=list)

    @property
    def num_whole(self) -> int:
        """Number of complete answers."""
        return sum(self.whole.values())

    @property
    def lost(self) -> Counter[str]:
        """Reasons for which answers were lost."""
        return Counter(each.reason for each in self.failures if each.what == "lost")

    @property
    def doubled(self) -> int:
        """Number of answers that something followed."""
        return sum(each.what == "doubled" for each in self.failures)

    @property
    def different(self) -> int:
        """Number of answers that differ from those of the idle server."""
        return sum(each.what == "different" for each in self.failures)


class Honest:
    """Clients that compare every answer with that of the idle server."""

    def __init__(self, place: Place, begun: Any, over: Any) -> None:
        """If `place` has a key, each client has a key of its own, and stays until the end of each answer."""
        self._place, self._begun, self._over, self.tally = place, begun, over, Tally()
        self._expected: dict[tuple[str, int], bytes] = {}

    async def run(self, clients: int) -> Tally:
        """Record the expected answers, then keep `clients` requests in flight until the run is over."""
        for kind in KINDS:
            for seed in range(SEEDS):
                outcome = await send(self._place_of(0), kind, seed)
                assert outcome.status == 200, (kind, outcome)
                self._expected[kind, seed] = hashlib.sha256(outcome.content).digest()
        self._begun.set()
        await asyncio.gather(*(self._client(number) for number in range(clients)))
        return self.tally

    def _place_of(self, number: int) -> Place:
        return replace(self._place, key=key_of(number)) if self._place.key else self._place

    async def _client(self, number: int) -> None:
        disconnecting = 0.0 if self._place.key else DISCONNECTING
        chance = random.Random(number)  # noqa: S311 - a choice, no secret
        while not self._over.is_set():
            kind, seed = chance.choice(KINDS), chance.randrange(SEEDS)
            leaves = chance.choice(("before", "middle")) if chance.random() < disconnecting else None
            wait_s = await self._once(kind, seed, leaves, self._place_of(number))
            while wait_s and not self._over.is_set():
                await asyncio.sleep(min(wait_s, 0.5))
                wait_s = max(0.0, wait_s - 0.5)

    async def _once(self, kind: str, seed: int, leaves: str | None, place: Place) -> float:
        """Send one request and count its outcome; return the seconds to wait before the next."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                outcome = await send(place, kind, seed, leaves=leaves)
        except Exception as error:  # every exception of a client is counted
            if leaves is None:
                self._fail("lost", f"{kind} {type(error).__name__}: {error}", began)
            return 0.1
        if leaves and outcome.status == 0:
            self.tally.left += 1
        elif outcome.status in (429, 503):
            if self._over.is_set():
                self._fail("lost", f"{kind} status {outcome.status}", began)
            else:
                self.tally.refused[f"{outcome.status} {kind}"] += 1
            return outcome.retry_after_s
        elif outcome.status == 599:
            self._fail("doubled", kind, began)
        elif outcome.status != 200:
            self._fail("lost", f"{kind} status {outcome.status} {outcome.content[:100]!r}", began)
        elif hashlib.sha256(outcome.content).digest() != self._expected[kind, seed]:
            self._fail("different", f"{kind} seed {seed}", began)
        elif not self._over.is_set():
            self.tally.whole[kind] += 1
            self.tally.latencies_s.append(time.monotonic() - began)
        return 0.0

    def _fail(self, what: str, reason: str, began: float) -> None:
        failure = Failure(what, reason[:200], began, time.monotonic())
        if self._over.is_set():  # most of them are requests that were sent after SIGTERM
            self.tally.ended.append(failure)
        else:
            self.tally.failures.append(failure)
            print(f"{time.strftime('%X')} {what}: {reason[:200]}", file=sys.stderr)


def key_of(number: int) -> str:
    """Return the API key of an honest client."""
    return f"honest-{number}"


def run_honest(place: Place, clients: int, begun: Any, over: Any, results: Any) -> None:
    """Run honest clients as a process; send their tally."""
    psutil.Process().nice(NICENESS)
    results.send(asyncio.run(Honest(place, begun, over).run(clients)))


# ---- slow and leaving clients -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """The server, and the address from which it is attacked."""

    place: Place
    source: str = HONEST_HOST
    wyoming_port: int = 0

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection from the attackers' address."""
        return await asyncio.open_connection(self.place.host, self.place.port, local_addr=(self.source, 0))

    async def send(self, content: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection and send bytes on it."""
        reader, writer = await self.connect()
        writer.write(content)
        await writer.drain()
        return reader, writer

    def session(self, **options: Any) -> Any:
        """Open a WebSocket session from the attackers' address."""
        url = session_url(self.place)
        return websockets.connect(url, proxy=None, max_size=None, local_addr=(self.source, 0), **options)


def post(path: str, content: bytes, kind: str = JSON, **headers: str) -> bytes:
    """Return a whole request."""
    lines = {"Host": HONEST_HOST, "Content-Type": kind, "Content-Length": str(len(content)), **headers}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + content


def form(parts: dict[str, bytes], *, files: dict[str, bytes] | None = None, charset: str = "") -> tuple[str, bytes]:
    """Return content type and body of a multipart form."""
    content = b""
    for name, value in parts.items():
        content += f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode() + value + b"\r\n"
    for name, value in (files or {}).items():
        line = f'--x\r\nContent-Disposition: form-data; name="{name}"; filename="a.wav"\r\n\r\n'
        content += line.encode() + value + b"\r\n"
    return "multipart/form-data; boundary=x" + charset, content + b"--x--\r\n"


def one_request(content: Callable[[], bytes], stays_s: float = 60.0) -> Callable[[Target], Awaitable[Any]]:
    """Return the attack that sends one request and stays connected for `stays_s`, or until the answer."""

    async def attack(target: Target) -> None:
        async with asyncio.timeout(stays_s):
            reader, writer = await target.send(content())
            with suppress(asyncio.LimitOverrunError):
                await reader.readuntil(b"\r\n\r\n")
            writer.transport.abort()

    return attack


async def gone_recordings(target: Target) -> None:
    """Upload recordings of ten megabytes, each disconnecting after a quarter of a second."""
    kind, content = form({"text": b"Hi."}, files={"reference_audio": recording(50, 96_000)})
    await one_request(lambda: post("/v1/tts", content, kind), stays_s=0.25)(target)


async def unread(target: Target) -> None:
    """Open three streams that are never read."""
    content = post("/v1/tts", json.dumps(LONG | {"stream": True, "format": "pcm"}).encode())
    writers = []
    try:
        for _ in range(3):
            reader, writer = await target.send(content)
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writers.append(writer)
        await asyncio.sleep(25)
    finally:
        for writer in writers:
            writer.transport.abort()


async def read_slowly(target: Target) -> None:
    """Open eight streams, each read at 4 kB a second, so that none counts as stalled."""
    content = post("/v1/tts", json.dumps(LONG | {"stream": True, "format": "pcm"}).encode())

    async def one() -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as plug:
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            plug.setblocking(False)
            plug.bind((target.source, 0))
            await loop.sock_connect(plug, (target.place.host, target.place.port))
            await loop.sock_sendall(plug, content)
            for _ in range(45):
                if not await loop.sock_recv(plug, 4096):
                    break
                await asyncio.sleep(1)

    await asyncio.gather(*(one() for _ in range(8)), return_exceptions=True)


async def hold_open(target: Target, count: int, first: bytes, seconds: float) -> None:
    """Open connections, send the same first bytes on each, and keep them open."""
    writers = []
    try:
        with suppress(OSError):
            for _ in range(count):
                writers.append((await target.send(first))[1])
        await asyncio.sleep(seconds)
    finally:
        for writer in writers:
            writer.transport.abort()


# ---- the watcher --------------------------------------------------------------------------------------------------


class Look(NamedTuple):
    """One sample of the server and the control process."""

    at: float
    ping_s: float
    status: int  # 0 without an answer
    control_s: float
    resident: float  # bytes of the server's processes
    files: float  # their open descriptors


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants."""
    found = []
    for each in processes_of(pid):
        with suppress(psutil.Error):  # it has ended
            found.append(psutil.Process(each))
    return found


def total_of(processes: list[psutil.Process], count: Callable[[psutil.Process], float]) -> float:
    """Return the sum of a figure of those processes that still run."""
    total = 0.0
    for process in processes:
        with suppress(psutil.Error):  # it has ended
            total += count(process)
    return total


class Pinger:
    """Sends `GET /ping` on a persistent connection; reconnects once it was closed."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._plug: socket.socket | None = None

    def ping(self) -> tuple[float, int]:
        """Return the seconds until an answer, and its status: 0 without an answer within a minute."""
        began, status = time.monotonic(), 0
        for _ in range(2):  # the server may have closed an idle connection
            is_kept = self._plug is not None
            try:
                if self._plug is None:
                    self._plug = socket.create_connection((self._place.host, self._place.port), timeout=60)
                self._plug.sendall(f"GET /ping HTTP/1.1\r\nHost: {self._place.host}\r\n\r\n".encode())
                status = int(self._plug.recv(4096).split()[1])
                break
            except (OSError, IndexError):
                if self._plug is not None:
                    self._plug.close()
                self._plug = None
                if not is_kept:
                    break
        return time.monotonic() - began, status


def run_watcher(places: tuple[Place, Place], pid: int, begun: Any, over: Any, results: Any) -> None:
    """Ping the server and the control process ten times a second until `over` is set; send all samples."""
    server, idle_server = map(Pinger, places)
    looks: list[Look] = []
    begun.wait()
    while not over.is_set():
        at = time.monotonic()
        control_s, _ = idle_server.ping()
        ping_s, status = server.ping()
        if len(looks) % 10 == 0:
            processes = family(pid)
            files = total_of(processes, lambda each: each.num_fds())
        resident = total_of(processes, lambda each: each.memory_info().rss)
        looks.append(Look(at, ping_s, status, control_s, resident, files))
        time.sleep(WATCH_INTERVAL_S)
    results.send(looks)


def run_control(ports: Any) -> None:
    """Answer `/ping` in a process without other work."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                await writer.drain()

    async def serve() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        ports.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


# ---- processes next to the server --------------------------------------------------------------------------------


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process and all its descendants."""
    return total_of(family(pid), lambda each: sum(each.cpu_times()[:2]))


class Helpers:
    """Processes next to the server, and the result that each of them sends at its end."""

    def __init__(self) -> None:
        self._running: list[tuple[Any, Any]] = []
        self.pids_of: defaultdict[str, list[int]] = defaultdict(list)  # process ids by kind

    def start(self, run: Callable[..., None], *arguments: Any) -> Any:
        """Start a process; return the pipe on which it sends its result."""
        receives, sends = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.Process(target=run, args=(*arguments, sends), daemon=True)
        process.start()
        sends.close()
        self._running.append((process, receives))
        self.pids_of[run.__name__.removeprefix("run_")] += [process.pid or 0]
        return receives

    def cpu_s(self) -> dict[str, float]:
        """Return the CPU time of each kind of process."""
        return {name: sum(map(cpu_s, pids)) for name, pids in self.pids_of.items()}

    def end(self) -> None:
        """Terminate all of them."""
        for process, receives in self._running:
            process.kill()
            process.join()
            receives.close()


def received(pipe: Any, within_s: float = ANSWER_TIMEOUT_S) -> Any:
    """Return what a process sends at its end; None if it sends nothing."""
    with suppress(EOFError):
        if pipe.poll(within_s):
            return pipe.recv()
    return None


def summary(tally: Tally, looks: list[Look], began: float) -> dict[str, Any]:
    """Return the figures of one run."""
    facts = {name: getattr(tally, name) for name in COUNTS}
    latencies = tally.latencies_s
    facts |= {f"answer_ms_p{round(100 * part)}": quantile_ms(latencies, part) for part in (0.5, 0.99) if latencies}
    for name, times in (("ping", [look.ping_s for look in looks]), ("control", [look.control_s for look in looks])):
        facts |= {f"{name}_ms_{part}": quantile_ms(times, at) for part, at in (("p50", 0.5), ("p99", 0.99), ("max", 1))}
    facts["ping_failures"] = sum(look.status != 200 for look in looks)
    facts["minutes"] = minutes_of(looks, began)
    return facts


def minutes_of(looks: list[Look], began: float) -> list[dict[str, float]]:
    """Return ping, mean memory and fewest descriptors of each minute that has samples."""
    found: dict[int, list[Look]] = {}
    for look in looks:
        found.setdefault(int(max(0.0, look.at - began) // 60), []).append(look)
    return [
        {
            "minute": number + 1,
            "ping_ms_p99": quantile_ms([look.ping_s for look in part], 0.99),
            "ping_ms_max": quantile_ms([look.ping_s for look in part], 1),
            "control_ms_max": quantile_ms([look.control_s for look in part], 1),
            "mib": round(sum(look.resident for look in part) / len(part) / 2**20, 1),
            "mib_max": round(max(look.resident for look in part) / 2**20, 1),
            "files": min(look.files for look in part),  # without those of requests: a leak raises even the fewest
        }
        for number, part in sorted(found.items())
    ]
