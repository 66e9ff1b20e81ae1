"""Honest clients, clients that disconnect, and attackers on one server: what each costs the others.

    python tests/hostile_load.py --checkpoint tests/assets/s1_tiny
    python tests/hostile_load.py --checkpoint tests/assets/s1_tiny --attackers-from 127.0.0.1
    python tests/hostile_load.py --checkpoint tests/assets/s1_tiny --replicas 2
    python tests/hostile_load.py --probing --replicas 2 --clients 20 --seconds 60
    python tests/hostile_load.py --worst --replicas 2 --clients 4 --seconds 150

A server serves honest clients alone for --undisturbed seconds, then a fresh server the same clients and all attacks at
once, and SIGTERM under that load. Honest clients connect from 127.0.0.1 and compare every answer with the one that they
received from the idle server; 60 % disconnect before or during their answer. Attackers connect from another address
(127.0.0.2) or, with --attackers-from 127.0.0.1, from the same one. A refused client (429, 503) waits for Retry-After
and tries again: refusals are counted, and are not losses. `benchmark.server_load` is the soak test.

With --probing, the attackers only request `/metrics` and `/health` and hold idle connections, and each honest client
has an API key of its own and stays for its answers. With --worst, one client repeats texts that are slow to read.

Prints a table by minutes and one line of JSON. The exit code is 1 if an answer was lost, duplicated or different, if
a replica was restarted, or if no answer was received; judge the other figures yourself. `/ping` of the server is
compared with `/ping` of an idle control process, which separates stalls of the machine from stalls of the server.
Clients, attackers and the watcher are processes of their own with a lower priority than the server's. Linux only:
127.0.0.2 exists only there without being configured.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import gzip
import hashlib
import io
import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import soundfile
import websockets

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmark.command import quantile_ms
from benchmark.http_load import Answer, Place

JSON = "application/json"
HONEST_HOST = "127.0.0.1"
DISCONNECTING = 0.6  # share of the honest clients' requests
NICENESS = 5  # of clients and attackers, which would run on other machines
WATCH_INTERVAL_S = 0.1
ANSWER_TIMEOUT_S = 300  # an answer that takes longer counts as lost
EXIT_TIMEOUT_S = 60  # after SIGTERM
FRAMES = 12
TEXT = "The morning train was late again, and nobody knew why."
SEEDS = 4
KINDS = ("whole", "flac", "stream", "batch", "lines", "reference", "websocket", "openai")


# ---- honest clients -----------------------------------------------------------------------------------------------


def recording(seconds: float, rate: int, seed: int | None = None, kind: str = "WAV") -> bytes:
    """Return a recording of soft noise: the same for the same seed, a different one each time without a seed."""
    buffer = io.BytesIO()
    soundfile.write(buffer, np.random.default_rng(seed).uniform(-0.4, 0.4, int(seconds * rate)), rate, format=kind)
    return buffer.getvalue()


def request_of(kind: str, seed: int) -> tuple[str, str, bytes]:
    """Return path, content type and body of an honest request."""
    fields: dict[str, Any] = {"seed": seed, "max_new_tokens": FRAMES}
    if kind == "batch":
        return "/v1/tts/batch", JSON, json.dumps(fields | {"items": [{"text": TEXT}, {"text": "Yes."}]}).encode()
    if kind == "lines":
        line = json.dumps(fields | {"text": "Yes."}).encode()
        return "/invocations", "application/jsonlines", line + b"\n" + line
    if kind == "openai":
        return "/v1/audio/speech", JSON, json.dumps(fields | {"input": TEXT, "response_format": "mp3"}).encode()
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
        await asyncio.sleep(random.random() / 2)
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
            is_refused = codes <= {"queue_full", "server_busy", "too_many_requests"}
            return (503 if is_refused else 500), " ".join(codes).encode()
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
                    is_refused = code in ("queue_full", "server_busy", "too_many_requests")
                    return Outcome(503 if is_refused else 500, code.encode())
                if event["type"] == "audio.start":
                    sentences.append((event["index"], event["text"]))
                if event["type"] == "session.done":
                    return Outcome(200, audio + repr(sentences).encode())
    except websockets.InvalidStatus as refused:
        wait_s = float(refused.response.headers.get("Retry-After", 1))
        return Outcome(refused.response.status_code, b"", wait_s)
    return Outcome(500, b"the session ended without session.done")


@dataclass
class Tally:
    """Counts of what the honest clients received."""

    whole: Counter[str] = field(default_factory=Counter)
    left: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    doubled: int = 0
    different: int = 0
    latencies_s: list[float] = field(default_factory=list)

    @property
    def num_whole(self) -> int:
        """Number of complete answers."""
        return sum(self.whole.values())


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
        chance, disconnecting = random.Random(number), 0.0 if self._place.key else DISCONNECTING
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
                self._lose(f"{kind} {type(error).__name__}: {error}")
            return 0.1
        if leaves and outcome.status == 0:
            self.tally.left += 1
        elif outcome.status in (429, 503):
            if not self._over.is_set():
                self.tally.refused[f"{outcome.status} {kind}"] += 1
            return outcome.retry_after_s
        elif outcome.status == 599:
            self.tally.doubled += 1
        elif outcome.status != 200:
            self._lose(f"{kind} status {outcome.status} {outcome.content[:100]!r}")
        elif hashlib.sha256(outcome.content).digest() != self._expected[kind, seed]:
            self.tally.different += 1
        elif not self._over.is_set():
            self.tally.whole[kind] += 1
            self.tally.latencies_s.append(time.monotonic() - began)
        return 0.0

    def _lose(self, reason: str) -> None:
        if not self._over.is_set():  # after SIGTERM, an unfinished request ends with an error
            self.tally.lost[reason[:200]] += 1


def key_of(number: int) -> str:
    """Return the API key of an honest client."""
    return f"honest-{number}"


def run_honest(place: Place, clients: int, begun: Any, over: Any, results: Any) -> None:
    os.nice(NICENESS)
    results.send(asyncio.run(Honest(place, begun, over).run(clients)))


# ---- attackers ----------------------------------------------------------------------------------------------------


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


def body(path: str, content: bytes, kind: str = JSON) -> Callable[[Target], Awaitable[Any]]:
    return one_request(lambda: post(path, content, kind))


def large_body(path: str, content: Callable[[], bytes]) -> Callable[[Target], Awaitable[Any]]:
    return one_request(lambda: post(path, content()))


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {HONEST_HOST}\r\nConnection: close\r\n\r\n".encode()


MARKS = json.dumps({"text": "a" + "\u0301\u0323" * 9_900}).encode()
LONG_TEXT = "One two three four. " * 990  # just below the limit of 20,000 characters
LONG = {"text": LONG_TEXT, "seed": 1, "max_new_tokens": 200}
HANDSHAKE = (
    f"GET /v1/audio/speech/stream HTTP/1.1\r\nHost: {HONEST_HOST}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
).encode()


# Megabytes that the tests of this module's clients never send, so they are built when they are first sent.
@cache
def items() -> bytes:
    return b'{"items":[' + b'{"text":"Hi."},' * 1_000_000 + b'{"text":"Hi."}]}'


@cache
def digits() -> bytes:
    return b'{"text":"Hi.","seed":' + b"9" * 15_000_000 + b"}"


@cache
def escapes() -> bytes:
    return b'{"text":"' + b"\\n" * 7_000_000 + b'"}'


@cache
def text_16mb() -> bytes:
    return json.dumps({"text": "a" * 16_000_000}).encode()


@cache
def gzipped() -> bytes:
    return gzip.compress(bytes(100 * 2**20))


@cache
def no_audio() -> tuple[str, bytes]:
    """Return content type and body of a form with 16 MB that are not audio."""
    return form({"text": b"Hi."}, files={"reference_audio": bytes(16_000_000)})


@cache
def zip_bomb() -> bytes:
    """Return a request to add a voice whose file of a few hundred bytes holds an array of 256 MiB."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_BZIP2) as archive, archive.open("speaker.npy", "w") as entry:
        shape = {"descr": "<f4", "fortran_order": False, "shape": (2**26,)}
        np.lib.format.write_array_header_1_0(entry, shape)
        for _ in range(256):
            entry.write(bytes(2**20))
    kind, content = form({"name": b"bomb", "text": b"Ah."}, files={"audio": buffer.getvalue()})
    return post("/v1/voices", content.replace(b"a.wav", b"a.npz"), kind)


async def gone_recordings(target: Target) -> None:
    """Upload recordings of ten megabytes, each disconnecting after a quarter of a second."""
    kind, content = form({"text": b"Hi."}, files={"reference_audio": recording(50, 96_000)})
    await one_request(lambda: post("/v1/tts", content, kind), stays_s=0.25)(target)


async def rates(target: Target) -> None:
    """Upload a minute at 384 kHz in a small FLAC file."""
    buffer = io.BytesIO()
    wave = np.zeros(60 * 384_000, np.int16)
    wave[:: random.randint(300, 400)] = 20_000
    soundfile.write(buffer, wave, 384_000, format="FLAC")
    kind, content = form({"text": b"Hi."}, files={"reference_audio": buffer.getvalue()})
    await one_request(lambda: post("/v1/tts", content, kind), stays_s=20)(target)


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


async def idle(target: Target) -> None:
    """Open three hundred connections on which nothing is sent."""
    await hold_open(target, 300, b"", 15)


async def silent_sessions(target: Target) -> None:
    """Open 200 WebSocket sessions in which nothing is sent."""
    await hold_open(target, 200, HANDSHAKE, 30)


async def new_sessions(target: Target) -> None:
    """Open 256 SageMaker sessions that are never closed."""
    content = post("/invocations", b'{"requestType": "NEW_SESSION"}', **{"X-Amzn-SageMaker-Session-Id": "NEW_SESSION"})
    for _ in range(256):
        await one_request(lambda: content, stays_s=10)(target)
    await asyncio.sleep(5)


async def pipelined(target: Target) -> None:
    """Request a whole answer, send the first bytes of another request, and disconnect."""
    _, writer = await target.send(post("/v1/tts", json.dumps(LONG).encode()))
    await asyncio.sleep(0.5)
    writer.write(post("/v1/tts", b"{}"))
    await writer.drain()
    await asyncio.sleep(0.2)
    writer.transport.abort()


async def session_recordings(target: Target) -> None:
    """Send recordings of 6 MB in a WebSocket session, each replaced by the next."""
    coded = base64.b64encode(os.urandom(6 * 2**20)).decode()
    async with target.session() as session:
        for _ in range(8):
            config = {"type": "session.config", "reference_audio": coded, "reference_text": "Hi."}
            await session.send(json.dumps(config))
            await session.send(json.dumps({"type": "input.text", "text": "Yes. No. "}))
            await asyncio.sleep(0.3)
        await asyncio.sleep(2)


async def drip(target: Target) -> None:
    """Send a body at one byte every five seconds."""
    _, writer = await target.send(post("/v1/tts", b"")[:-2].replace(b"Length: 0", b"Length: 1000") + b"\r\n")
    for _ in range(10):
        await asyncio.sleep(5)
        writer.write(b" ")
        await writer.drain()
    writer.close()


async def crumbs(target: Target) -> None:
    """Send a body in chunks of one byte."""
    head = f"POST /v1/tts HTTP/1.1\r\nHost: {HONEST_HOST}\r\nContent-Type: {JSON}\r\nTransfer-Encoding: chunked\r\n\r\n"
    _, writer = await target.send(head.encode() + b"1\r\na\r\n" * 200_000)
    writer.close()


async def noise(target: Target) -> None:
    """Send random bytes instead of HTTP."""
    _, writer = await target.send(os.urandom(20_000) + b"\r\n\r\n")
    writer.close()


async def chatter(target: Target) -> None:
    """Send a letter ten times a second in a WebSocket session that is never read."""
    async with asyncio.timeout(30), target.session() as session:
        while True:
            await session.send(json.dumps({"type": "input.text", "text": "a"}))
            await asyncio.sleep(0.1)


def flood(path: str, per_second: float) -> Callable[[Target], Awaitable[Any]]:
    """Return the attack that requests a page again and again for ten seconds."""

    async def attack(target: Target) -> None:
        async def one() -> None:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(10):
                    reader, writer = await target.send(get(path))
                    await reader.read()
                    writer.close()

        async with asyncio.TaskGroup() as group:
            for _ in range(int(10 * per_second)):
                group.create_task(one())
                await asyncio.sleep(1 / per_second)

    return attack


def asking(path: str, connections: int, seconds: float = 60) -> Callable[[Target], Awaitable[Any]]:
    """Return the attack that requests a page again and again, as fast as it is answered, on many connections."""
    content = f"GET {path} HTTP/1.1\r\nHost: {HONEST_HOST}\r\n\r\n".encode()

    async def ask_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(content)
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0]))
                if b"connection: close" in head:
                    return
        finally:
            writer.transport.abort()

    async def attack(target: Target) -> None:
        async def one() -> None:
            while True:
                with suppress(OSError, EOFError, IndexError):
                    await ask_on(*await target.connect())
                await asyncio.sleep(0.1)

        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(one() for _ in range(connections)))

    return attack


# Texts of 20,000 characters that were once slow to read, or are meant to be.
WORST = {
    "flags and stops": "🇦" * 13_000 + "。🇦" * 3_400,
    "tabs in a table": "a|\n" + "\t" * 19_900 + "x",
    "Chinese words": "a" + " 漢" * 9_900,
    "square roots": "√2" * 10_000,
    "combining marks": "a" + "\u0301\u0323" * 9_900,
    "rows of a table": "|a" * 9_900 + "\n",
    "one number": "1," * 9_900 + "1",
    "opening brackets": "[(" * 9_900,
    "dots": "a." * 9_900,
    "tags": "<a " * 6_600,
}
SIGNED = (
    f"POST /v1/speech HTTP/1.1\r\nHost: {HONEST_HOST}\r\nContent-Length: 2\r\nContent-Type: {JSON}\r\n"
    f"Authorization: AWS4-HMAC-SHA256{' ' * 7400}{',' * 7400}\r\n\r\n{{}}"
).encode()
WORST_S = 15.0  # how long one text is repeated


async def worst(target: Target) -> None:
    """Repeat one text after the other, over HTTP, in a WebSocket session and over Wyoming; then a signed request."""
    ways = [speak_over_http, speak_in_messages, *([speak_over_wyoming] if target.wyoming_port else [])]
    for text in [*WORST.values(), ""]:
        ends = time.monotonic() + WORST_S
        while time.monotonic() < ends:
            for speak in ways if text else [send_signed]:
                with suppress(Exception):  # refused or too slow: the text has still been read
                    async with asyncio.timeout(WORST_S):
                        await speak(target, text)


async def send_signed(target: Target, _: str) -> None:
    reader, writer = await target.send(SIGNED)
    await reader.read()
    writer.close()


async def speak_over_http(target: Target, text: str) -> None:
    await body("/v1/tts", json.dumps({"text": text, "max_new_tokens": 1, "on_unsupported": "skip"}).encode())(target)


async def speak_in_messages(target: Target, text: str) -> None:
    async with target.session() as session:
        await session.send(json.dumps({"type": "session.config", "max_new_tokens": 1}))
        await session.send(json.dumps({"type": "input.text", "text": text}))
        await session.send(json.dumps({"type": "input.done"}))
        await session.recv()


async def speak_over_wyoming(target: Target, text: str) -> None:
    _, writer = await asyncio.open_connection(target.place.host, target.wyoming_port, local_addr=(target.source, 0))
    for event, data in (("synthesize-start", {}), ("synthesize-chunk", {"text": text}), ("synthesize-stop", {})):
        writer.write(json.dumps({"type": event, "data": data}).encode() + b"\n")
    await writer.drain()
    await asyncio.sleep(1)
    writer.close()


BATCH = json.dumps({"items": [{"text": LONG_TEXT}] * 32, "seed": 1, "max_new_tokens": 200}).encode()
PUNYCODE = form({"text-": b"b" * 120_000}, charset="; charset=punycode")

Attacks = dict[str, Callable[[Target], Awaitable[Any]]]
ATTACKS: Attacks = {
    # on resources that the server holds for a client: turns, memory, connections, sessions
    "a batch of 32 texts of 20 kB": body("/v1/tts/batch", BATCH),
    "a text of 20 kB": body("/v1/tts", json.dumps(LONG).encode()),
    "a form in punycode": body("/v1/tts", PUNYCODE[1], PUNYCODE[0]),
    "a zip bomb as a voice": one_request(zip_bomb),
    "recordings in a WebSocket session": session_recordings,
    "200 silent WebSocket sessions": silent_sessions,
    "256 SageMaker sessions": new_sessions,
    "streams read at 4 kB/s": read_slowly,
    "streams that are never read": unread,
    "disconnecting behind a pipelined request": pipelined,
    "recordings of clients that disconnect": gone_recordings,
    "300 idle connections": idle,
    # bodies that are slow to parse
    "100 MB of zeros, gzipped": one_request(lambda: post("/v1/tts", gzipped(), Content_Encoding="gzip")),
    "a flood of /v1/voices": flood("/v1/voices", 20),
    "a flood of /metrics": flood("/metrics", 10),
    "15 MB of items": large_body("/v1/tts/batch", items),
    "15 MB of digits": large_body("/v1/tts", digits),
    "14 MB of escapes": large_body("/v1/tts", escapes),
    "16 MB of text": large_body("/v1/tts", text_16mb),
    "20,000 combining marks": body("/v1/tts", MARKS),
    "16 MB that are no audio": one_request(lambda: post("/v1/tts", no_audio()[1], no_audio()[0])),
    "a minute at 384 kHz": rates,
    "a body of one byte in five seconds": drip,
    "chunks of one byte": crumbs,
    "random bytes": noise,
    "a WebSocket session that never rests": chatter,
}
PROBING: Attacks = {
    "120 connections that request /metrics": asking("/metrics", 120),
    "200 connections that request /health": asking("/health", 200),
    "500 idle connections": lambda target: hold_open(target, 500, b"", 60),
}
SLOW_TEXTS: Attacks = {"texts that are slow to read": worst}
ALL = ATTACKS | PROBING | SLOW_TEXTS
ATTACKER_PROCESSES = 4


def run_attacks(target: Target, names: list[str], begun: Any, over: Any, results: Any) -> None:
    """Repeat attacks, each as soon as it has ended, until `over` is set; send how often each was started."""
    made: Counter[str] = Counter()

    async def again(name: str) -> None:
        while not over.is_set():
            made[name] += 1
            with suppress(Exception):  # refused, reset or timed out: the attack has ended
                await ALL[name](target)
            await asyncio.sleep(0.2)

    async def until_over() -> None:
        attacks = [asyncio.ensure_future(again(name)) for name in names]
        while not over.is_set():
            await asyncio.sleep(0.2)
        for attack in attacks:
            attack.cancel()
        await asyncio.gather(*attacks, return_exceptions=True)

    os.nice(NICENESS)
    begun.wait()
    asyncio.run(until_over())
    results.send(made)


# ---- the watcher --------------------------------------------------------------------------------------------------


class Look(NamedTuple):
    """One sample of the server and the control process."""

    at: float
    ping_s: float
    status: int  # 0 without an answer
    control_s: float
    resident: int  # bytes of the server's processes


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def resident_bytes(processes: list[psutil.Process]) -> int:
    """Return the resident memory of those processes that still run."""
    total = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total


class Pinger:
    """Sends `GET /ping` on a persistent connection; reconnects once it was closed."""

    def __init__(self, place: Place) -> None:
        self._place, self._plug = place, None

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
        looks.append(Look(at, ping_s, status, control_s, resident_bytes(processes)))
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


# ---- the server ---------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as free:
        free.bind((HONEST_HOST, 0))
        return int(free.getsockname()[1])


@contextmanager
def served(options: argparse.Namespace) -> Iterator[tuple[Place, subprocess.Popen[bytes]]]:
    """Start a server, or several replicas, as subprocesses."""
    port = free_port()
    command = [sys.executable, "-m", "s1_mini", "serve", "--port", str(port), "--host", HONEST_HOST]
    command += ["--max-batch-size", str(options.slots)]
    command += ["--checkpoint", str(options.checkpoint)] if options.checkpoint else []
    command += ["--replicas", str(options.replicas)] if options.replicas > 1 else []
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
    options.wyoming_port = free_port() if options.worst and options.replicas == 1 else 0
    if options.wyoming_port:
        environment["S1_MINI_SERVER_WYOMING_PORT"] = str(options.wyoming_port)
    if options.probing:
        environment["S1_MINI_SERVER_API_KEYS"] = ",".join(map(key_of, range(options.clients)))
    with (
        Path(os.environ.get("HOSTILE_LOG", os.devnull)).open("wb") as log,
        subprocess.Popen(command, stderr=log, env=environment) as process,
    ):
        place, ends = Place(HONEST_HOST, port, key_of(0) if options.probing else None), time.monotonic() + 180
        try:
            while not is_ready(place, options.replicas):
                if process.poll() is not None or time.monotonic() > ends:
                    raise SystemExit(f"the server did not start (exit code {process.poll()}); set HOSTILE_LOG=FILE")
                time.sleep(0.2)
            yield place, process
        finally:
            for each in reversed(family(process.pid)):
                with suppress(psutil.NoSuchProcess):
                    each.kill()


def is_ready(place: Place, replicas: int) -> bool:
    with suppress(OSError, asyncio.IncompleteReadError, ValueError):
        if replicas > 1:
            status, content = asyncio.run(place.get("/health"))
            states = [replica["state"] for replica in json.loads(content).get("replicas", ())]
            return status == 200 and states == ["ready"] * replicas
        return asyncio.run(place.get("/ready"))[0] == 200
    return False


def num_restarts(place: Place, replicas: int) -> int:
    """Return how many replicas were started again, or have not answered."""
    if replicas == 1:
        return 0
    _, content = asyncio.run(place.get("/health"))
    found = json.loads(content)["replicas"]
    return sum(replica["starts"] - 1 + (not replica["health"]) for replica in found)


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process and all its descendants."""
    total = 0.0
    for process in family(pid):
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:2])
    return total


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
        self.pids_of[run.__name__.removeprefix("run_")] += [process.pid]
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


def measure(options: argparse.Namespace, seconds: float, attacks: Attacks) -> dict[str, Any]:
    """Run honest clients, with or without attacks, on a fresh server; end it with SIGTERM under load."""
    begun, over, ended = multiprocessing.Event(), multiprocessing.Event(), multiprocessing.Event()
    helpers = Helpers()
    with served(options) as (place, process):
        try:
            control = Place("127.0.0.1", helpers.start(run_control).recv())
            watching = helpers.start(run_watcher, (place, control), process.pid, begun, over)
            honest = helpers.start(run_honest, place, options.clients, begun, over)
            target, names = Target(place, options.attackers_from, options.wyoming_port), list(attacks)
            shares = [names[number::ATTACKER_PROCESSES] for number in range(ATTACKER_PROCESSES)]
            # The attacks go on until the server has ended.
            attacking = [helpers.start(run_attacks, target, share, begun, ended) for share in shares if share]
            if not begun.wait(ANSWER_TIMEOUT_S):
                raise SystemExit("the idle server did not answer every kind of honest request")
            helpers.pids_of["server"] = [process.pid]
            began, before = time.monotonic(), helpers.cpu_s()
            time.sleep(seconds)
            cpu = {name: round(spent - before[name], 1) for name, spent in helpers.cpu_s().items()}
            restarts = num_restarts(place, options.replicas)
            over.set()
            process.send_signal(signal.SIGTERM)
            signalled = time.monotonic()
            with suppress(subprocess.TimeoutExpired):
                process.wait(EXIT_TIMEOUT_S)
            exit_s = time.monotonic() - signalled
            ended.set()
            tally = received(honest)
            looks = [look for look in received(watching) or [] if look.at < began + seconds]
            made = sum((received(each, 30) or Counter() for each in attacking), Counter())
        finally:
            helpers.end()
    assert tally is not None, "the honest clients' process died"
    return summary(tally, looks, began) | {
        "seconds": seconds,
        "cpu_s": cpu,
        "attacks": dict(made),
        "restarts": restarts,
        "sigterm_s": round(exit_s, 1),
        "exit_code": process.returncode,
    }


def summary(tally: Tally, looks: list[Look], began: float) -> dict[str, Any]:
    """Return the figures of one run."""
    facts = vars(tally) | {"num_whole": tally.num_whole}
    latencies = facts.pop("latencies_s")
    facts |= {f"answer_ms_p{round(100 * part)}": quantile_ms(latencies, part) for part in (0.5, 0.99) if latencies}
    for name, times in (("ping", [look.ping_s for look in looks]), ("control", [look.control_s for look in looks])):
        facts |= {f"{name}_ms_{part}": quantile_ms(times, at) for part, at in (("p50", 0.5), ("p99", 0.99), ("max", 1))}
    facts["ping_failures"] = sum(look.status != 200 for look in looks)
    facts["minutes"] = minutes_of(looks, began)
    return facts


def minutes_of(looks: list[Look], began: float) -> list[dict[str, float]]:
    """Return ping and memory of each minute."""
    found: dict[int, list[Look]] = {}
    for look in looks:
        found.setdefault(int(max(0.0, look.at - began) // 60), []).append(look)
    return [
        {
            "ping_ms_p99": quantile_ms([look.ping_s for look in part], 0.99),
            "ping_ms_max": quantile_ms([look.ping_s for look in part], 1),
            "control_ms_max": quantile_ms([look.control_s for look in part], 1),
            "mib": round(sum(look.resident for look in part) / len(part) / 2**20, 1),
            "mib_max": round(max(look.resident for look in part) / 2**20, 1),
        }
        for _, part in sorted(found.items())
    ]


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Run the honest clients alone, then with all attacks at once on a fresh server."""
    facts: dict[str, Any] = {
        "clients": options.clients,
        "replicas": options.replicas,
        "attackers_from": options.attackers_from,
    }
    alone = measure(options, options.undisturbed, {})
    names = ("seconds", "num_whole", "cpu_s", "ping_ms_p99", "control_ms_p99", "lost", "doubled", "different")
    facts["undisturbed"] = {name: alone[name] for name in names}
    facts |= measure(options, options.seconds, PROBING if options.probing else SLOW_TEXTS if options.worst else ATTACKS)
    rates_a_second = facts["num_whole"] / options.seconds, alone["num_whole"] / options.undisturbed
    facts["throughput_kept"] = round(rates_a_second[0] / rates_a_second[1], 3) if rates_a_second[1] else None
    return facts


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="directory of the model to serve (the built-in voice)")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--probing", action="store_true", help="only /metrics, /health and idle connections")
    kinds.add_argument("--worst", action="store_true", help="only texts that are slow to read")
    parser.add_argument("--clients", type=int, default=150, help="honest requests under way at once (150)")
    parser.add_argument("--seconds", type=float, default=120, help="length of the run (120)")
    parser.add_argument("--undisturbed", type=float, metavar="SECONDS", default=60, help="run without attacks (60)")
    parser.add_argument("--slots", type=int, default=16, help="--max-batch-size of each server (16)")
    parser.add_argument("--replicas", type=int, default=1, help="servers behind one port; more than 1 needs HAProxy")
    parser.add_argument("--attackers-from", metavar="ADDRESS", default="127.0.0.2", help="their address (127.0.0.2)")
    options = parser.parse_args()
    multiprocessing.set_start_method("fork")
    facts = compare(options)
    print(f"{'minute':>6} {'ping p99':>9} {'max':>8} {'control max':>12} {'MiB':>8} {'max':>8}")
    for number, minute in enumerate(facts["minutes"], 1):
        pings = f"{number:>6} {minute['ping_ms_p99']:>9} {minute['ping_ms_max']:>8} {minute['control_ms_max']:>12}"
        print(f"{pings} {minute['mib']:>8} {minute['mib_max']:>8}")
    print(json.dumps(facts))
    failed = [facts[name] for name in ("lost", "doubled", "different", "restarts")]
    return int(any(failed) or not facts["num_whole"])


if __name__ == "__main__":
    sys.exit(main())
