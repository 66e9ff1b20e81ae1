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
and tries again: refusals are counted, and are not losses. `benchmark.soak` runs for hours.

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
import io
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmark import http_load
from benchmark.honest import (
    ANSWER_TIMEOUT_S,
    HONEST_HOST,
    JSON,
    LONG,
    NICENESS,
    Helpers,
    Target,
    form,
    gone_recordings,
    hold_open,
    key_of,
    one_request,
    post,
    read_slowly,
    received,
    run_control,
    run_honest,
    run_watcher,
    summary,
    unread,
)
from benchmark.http_load import Place
from benchmark.scaling import Server

# ---- attackers ----------------------------------------------------------------------------------------------------


def body(path: str, content: bytes, kind: str = JSON) -> Callable[[Target], Awaitable[Any]]:
    return one_request(lambda: post(path, content, kind))


def large_body(path: str, content: Callable[[], bytes]) -> Callable[[Target], Awaitable[Any]]:
    return one_request(lambda: post(path, content()))


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {HONEST_HOST}\r\nConnection: close\r\n\r\n".encode()


MARKS = json.dumps({"text": "a" + "\u0301\u0323" * 9_900}).encode()
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


async def rates(target: Target) -> None:
    """Upload a minute at 384 kHz in a small FLAC file."""
    buffer = io.BytesIO()
    wave = np.zeros(60 * 384_000, np.int16)
    wave[:: random.randint(300, 400)] = 20_000
    soundfile.write(buffer, wave, 384_000, format="FLAC")
    kind, content = form({"text": b"Hi."}, files={"reference_audio": buffer.getvalue()})
    await one_request(lambda: post("/v1/tts", content, kind), stays_s=20)(target)


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


BATCH = json.dumps({"items": [{"text": LONG["text"]}] * 32, "seed": 1, "max_new_tokens": 200}).encode()
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


@contextmanager
def served(options: argparse.Namespace) -> Iterator[tuple[Server, subprocess.Popen[bytes]]]:
    """Start a server, or several replicas, and wait until all of them are ready."""
    environment = {"OMP_WAIT_POLICY": "PASSIVE"}
    options.wyoming_port = http_load.free_port() if options.worst and options.replicas == 1 else 0
    if options.wyoming_port:
        environment["S1_MINI_SERVER_WYOMING_PORT"] = str(options.wyoming_port)
    if options.probing:
        environment["S1_MINI_SERVER_API_KEYS"] = ",".join(map(key_of, range(options.clients)))
    given = {"max_batch_size": options.slots, "replicas": options.replicas}
    log = os.environ.get("HOSTILE_LOG", os.devnull)
    with http_load.served(options.checkpoint, environment=environment, log=log, **given) as (place, process):
        server = Server(replace(place, key=key_of(0) if options.probing else None), process, options.replicas)
        with server.client:
            server.wait()
            yield server, process


def measure(options: argparse.Namespace, seconds: float, attacks: Attacks) -> dict[str, Any]:
    """Run honest clients, with or without attacks, on a fresh server; end it with SIGTERM under load."""
    begun, over, ended = multiprocessing.Event(), multiprocessing.Event(), multiprocessing.Event()
    helpers = Helpers()
    with served(options) as (server, process):
        place = server.place
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
            restarts = max(0, server.starts() - options.replicas) if options.replicas > 1 else 0
            over.set()
            process.send_signal(signal.SIGTERM)
            signalled = time.monotonic()
            with suppress(subprocess.TimeoutExpired):
                process.wait(http_load.EXIT_LIMIT_S)
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
    for minute in facts["minutes"]:
        print(f"{minute['minute']:>6} {minute['ping_ms_p99']:>9} {minute['ping_ms_max']:>8}", end=" ")
        print(f"{minute['control_ms_max']:>12} {minute['mib']:>8} {minute['mib_max']:>8}")
    print(json.dumps(facts))
    failed = [facts[name] for name in ("lost", "doubled", "different", "restarts")]
    return int(any(failed) or not facts["num_whole"])


if __name__ == "__main__":
    sys.exit(main())
