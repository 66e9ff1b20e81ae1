"""Honest clients, clients that vanish, and attackers on one server: what the honest ones get, and what the others cost.

    python tests/hostile_load.py --checkpoint tests/assets/s1_tiny --clients 200 --seconds 300
    python tests/hostile_load.py --checkpoint tests/assets/s1_tiny --clients 16 --seconds 3600 --no-attacks
    python tests/hostile_load.py --checkpoint tests/assets/s1_tiny --each

The first mixes all at once and ends with SIGTERM in the middle; the second is a soak; `--each` makes one attack after
the other against a server that does nothing else. Prints a table and one line of JSON; the exit code is 1 if anything
of the honest clients was lost, doubled or different. Clients, attackers and the look at `/ping` are processes of their
own; clients and attackers, who would be on other machines, give way to the server where cores are few. Linux only:
memory is read from /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
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
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import websockets

if not __package__:  # started as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmark.server_load import Answer, Place, quantile_ms
from s1_mini.bench.clients import resident_bytes

JSON = "application/json"
VANISHING = 0.6
GIVES_WAY = 5
FRAMES = 12
TEXT = "The morning train was late again, and nobody knew why."
SEEDS = 4
KINDS = ("whole", "stream", "batch", "lines", "reference", "websocket")


# ---- honest clients -----------------------------------------------------------------------------------------------


def recording(seconds: float, rate: int, seed: int | None = None, kind: str = "WAV") -> bytes:
    """A recording of soft noise: the same for a seed, else other each time."""
    buffer = io.BytesIO()
    soundfile.write(buffer, np.random.default_rng(seed).uniform(-0.4, 0.4, int(seconds * rate)), rate, format=kind)
    return buffer.getvalue()


def asked(kind: str, seed: int) -> tuple[str, str, bytes]:
    """Path, content type and body of an honest request."""
    own: dict[str, Any] = {"seed": seed, "max_new_tokens": FRAMES}
    if kind == "batch":
        return "/v1/tts/batch", JSON, json.dumps(own | {"items": [{"text": TEXT}, {"text": "Yes."}]}).encode()
    if kind == "lines":
        line = json.dumps(own | {"text": "Yes."}).encode()
        return "/invocations", "application/jsonlines", line + b"\n" + line
    if kind == "reference":
        coded = base64.b64encode(recording(1.0, 16_000, seed)).decode()
        own |= {"reference_audio": coded, "reference_text": "Ah."}
    return "/v1/tts", JSON, json.dumps(own | {"text": TEXT, "format": "pcm", "stream": kind == "stream"}).encode()


async def ask(place: Place, kind: str, seed: int, *, leaves: bool = False) -> tuple[int, bytes]:
    """Ask as `kind`; give the status and what is to be the same each time. Who leaves hears the beginning only."""
    if kind == "websocket":
        return await converse(place, seed, leaves=leaves)
    path, content_type, body = asked(kind, seed)
    answer = await place.ask("POST", path, body, Content_Type=content_type)
    with answer:
        if leaves:
            answer.writer.transport.abort()
            return 0, b""
        content = await body_of(answer)
    if kind == "batch" and answer.status == 200:
        told = json.loads(content)
        if not told["success"]:
            codes = {result["error_code"] for result in told["results"]} - {None}
            return (503 if codes == {"queue_full"} else 500), " ".join(codes).encode()
        content = b"".join(result["audio_base64"].encode() for result in told["results"])
    if kind == "lines" and answer.status == 200:
        content = b"".join(json.loads(line)["audio"].encode() for line in content.splitlines())
    return answer.status, content


async def body_of(answer: Answer) -> bytes:
    """Read an answer to its end; a stream without its end mark is an error."""
    if answer.headers.get("transfer-encoding") == "chunked":
        parts = []
        while part := await answer.chunk():
            parts.append(part)
        return b"".join(parts)
    return await answer.reader.readexactly(int(answer.headers["content-length"]))


async def converse(place: Place, seed: int, *, leaves: bool) -> tuple[int, bytes]:
    """Speak one sentence over a WebSocket."""
    sound = b""
    url = f"ws://{place.host}:{place.port}/v1/audio/speech/stream"
    try:
        async with websockets.connect(url, proxy=None, open_timeout=60, close_timeout=1) as plug:
            await plug.send(json.dumps({"type": "session.config", "seed": seed, "max_new_tokens": FRAMES}))
            await plug.send(json.dumps({"type": "input.text", "text": TEXT}))
            if leaves:
                plug.transport.abort()
                return 0, b""
            await plug.send(json.dumps({"type": "input.done"}))
            async for message in plug:
                if isinstance(message, bytes):
                    sound += message
                elif (told := json.loads(message))["type"] == "error":
                    code = told["error"]["code"]
                    return 503 if code in ("queue_full", "server_busy") else 500, code.encode()
                elif told["type"] == "session.done":
                    return 200, sound
    except websockets.InvalidStatus as refused:
        return refused.response.status_code, b""
    return 500, b""


@dataclass
class Seen:
    """What the honest clients saw."""

    whole: Counter[str] = field(default_factory=Counter)
    left: int = 0
    refused: int = 0  # with a status that says when to come again; asked again
    lost: Counter[str] = field(default_factory=Counter)
    different: int = 0


class Honest:
    """Clients who ask and compare what they get with what they got when nobody else was there."""

    def __init__(self, place: Place, over: Any) -> None:
        self._place, self._over, self.seen = place, over, Seen()
        self._expected: dict[tuple[str, int], bytes] = {}

    async def run(self, clients: int, seconds: float) -> Seen:
        """Keep so many clients asking until the time is over."""
        for kind in KINDS:
            for seed in range(SEEDS):
                status, content = await ask(self._place, kind, seed)
                assert status == 200, (kind, status)
                self._expected[kind, seed] = hashlib.sha256(content).digest()
        ends = time.monotonic() + seconds
        await asyncio.gather(*(self._client(number, ends) for number in range(clients)))
        return self.seen

    async def _client(self, number: int, ends: float) -> None:
        chance = random.Random(number)
        while time.monotonic() < ends and not self._over.is_set():
            await asyncio.sleep(await self._once(chance))

    async def _once(self, chance: random.Random) -> float:
        """Ask once and note what came of it; give the seconds to wait before the next time."""
        kind, seed, leaves = chance.choice(KINDS), chance.randrange(SEEDS), chance.random() < VANISHING
        try:
            async with asyncio.timeout(300):
                status, content = await ask(self._place, kind, seed, leaves=leaves)
        except Exception as error:
            self._lose(f"{kind} {type(error).__name__}: {error}", leaves=leaves)
            return 0.1
        if leaves:
            self.seen.left += 1
        elif status in (429, 503):
            self.seen.refused += 1
            return 1.0
        elif status != 200:
            self._lose(f"{kind} status {status} {content!r}")
        elif hashlib.sha256(content).digest() != self._expected[kind, seed]:
            self.seen.different += 1
        else:
            self.seen.whole[kind] += 1
        return 0.0

    def _lose(self, what: str, *, leaves: bool = False) -> None:
        if not leaves and not self._over.is_set():  # after SIGTERM what is not finished ends with an error
            self.seen.lost[what[:200]] += 1


# ---- attackers ----------------------------------------------------------------------------------------------------


def form(audio: bytes, name: str = "a.wav") -> tuple[str, bytes]:
    """Content type and body of a form with a recording."""
    head = f'--x\r\nContent-Disposition: form-data; name="reference_audio"; filename="{name}"\r\n\r\n'.encode()
    text = b'\r\n--x\r\nContent-Disposition: form-data; name="text"\r\n\r\nHi.\r\n--x--\r\n'
    return "multipart/form-data; boundary=x", head + audio + text


async def throw(place: Place, path: str, kind: str, body: bytes, stays_s: float = 60.0) -> int:
    """Send a body and wait for the answer so long, then leave; give the status."""
    try:
        async with asyncio.timeout(stays_s):
            with await place.ask("POST", path, body, Content_Type=kind) as answer:
                return answer.status
    except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
        return 0


NUMBERS = b'{"items":[' + b"1," * 4_000_000 + b"1]}"
KEYS = b'{"text":"Hi.",' + b",".join(b'"k%07d":1' % number for number in range(1_200_000)) + b"}"
ITEMS = b'{"items":[' + b'{"text":"Hi."},' * 1_000_000 + b'{"text":"Hi."}]}'
DIGITS = b'{"text":"Hi.","seed":' + b"9" * 15_000_000 + b"}"
ESCAPES = b'{"text":"' + b"\\n" * 7_000_000 + b'"}'
MARKS = json.dumps({"text": "a" + "\u0301\u0323" * 9_900}).encode()
TEXT_16MB = json.dumps({"text": "a" * 16_000_000}).encode()


async def gone_recordings(place: Place) -> None:
    """Recordings of ten megabytes whose senders leave after a quarter of a second."""
    kind, body = form(recording(50, 96_000))
    await throw(place, "/v1/tts", kind, body, stays_s=0.25)


async def rates(place: Place) -> None:
    """A minute at 384 kHz in a small flac."""
    buffer = io.BytesIO()
    wave = np.zeros(60 * 384_000, np.int16)
    wave[:: random.randint(300, 400)] = 20_000
    soundfile.write(buffer, wave, 384_000, format="FLAC")
    await throw(place, "/v1/tts", *form(buffer.getvalue(), "a.flac"), stays_s=20)


async def unread(place: Place) -> None:
    """A stream that nobody reads."""
    body = json.dumps({"text": "One two three four. " * 40, "stream": True, "format": "pcm"}).encode()
    with suppress(OSError):
        plug = socket.create_connection((place.host, place.port), timeout=5)
        with plug:
            head = f"POST /v1/tts HTTP/1.1\r\nHost: {place.host}\r\nContent-Type: {JSON}\r\nContent-Length: {len(body)}"
            plug.sendall(f"{head}\r\n\r\n".encode() + body)
            await asyncio.sleep(60)


async def idle(place: Place) -> None:
    """Three hundred connections that say nothing."""
    plugs = []
    with suppress(OSError):
        for _ in range(300):
            plugs.append((await asyncio.open_connection(place.host, place.port))[1])
            await asyncio.sleep(0)
    await asyncio.sleep(15)
    for plug in plugs:
        plug.close()


async def drip(place: Place) -> None:
    """A body at a byte every five seconds."""
    with suppress(OSError, ConnectionError):
        _, writer = await asyncio.open_connection(place.host, place.port)
        head = f"POST /v1/tts HTTP/1.1\r\nHost: {place.host}\r\nContent-Type: {JSON}\r\nContent-Length: 1000\r\n\r\n"
        writer.write(head.encode())
        for _ in range(10):
            await asyncio.sleep(5)
            writer.write(b" ")
            await writer.drain()
        writer.close()


async def crumbs(place: Place) -> None:
    """A body in chunks of one byte."""
    with suppress(OSError, ConnectionError):
        _, writer = await asyncio.open_connection(place.host, place.port)
        head = (
            f"POST /v1/tts HTTP/1.1\r\nHost: {place.host}\r\nContent-Type: {JSON}\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        writer.write(head.encode() + b"1\r\na\r\n" * 200_000)
        await writer.drain()
        writer.close()


async def noise(place: Place) -> None:
    """What is no HTTP."""
    with suppress(OSError, ConnectionError):
        _, writer = await asyncio.open_connection(place.host, place.port)
        writer.write(os.urandom(20_000) + b"\r\n\r\n")
        await writer.drain()
        writer.close()


async def chatter(place: Place) -> None:
    """A WebSocket whose client never rests and listens to nothing."""
    with suppress(Exception):
        url = f"ws://{place.host}:{place.port}/v1/audio/speech/stream"
        async with asyncio.timeout(30), websockets.connect(url, proxy=None) as plug:
            while True:
                await plug.send(json.dumps({"type": "input.text", "text": "a"}))
                await asyncio.sleep(0.1)


def body(path: str, content: bytes, kind: str = JSON) -> Callable[[Place], Awaitable[Any]]:
    """The attack that is one body."""

    async def attack(place: Place) -> int:
        return await throw(place, path, kind, content)

    return attack


ATTACKS: dict[str, Callable[[Place], Awaitable[Any]]] = {
    "8 MB of numbers as items": body("/v1/tts/batch", NUMBERS),
    "15 MB of items": body("/v1/tts/batch", ITEMS),
    "15 MB of unknown keys": body("/v1/tts", KEYS),
    "15 MB of digits": body("/v1/tts", DIGITS),
    "14 MB of escapes": body("/v1/tts", ESCAPES),
    "16 MB of text": body("/v1/tts", TEXT_16MB),
    "20,000 combining marks": body("/v1/tts", MARKS),
    "16 MB of no audio": body("/v1/tts", form(bytes(16_000_000))[1], form(b"")[0]),
    "recordings of clients who leave": gone_recordings,
    "a minute at 384 kHz": rates,
    "a stream that nobody reads": unread,
    "300 idle connections": idle,
    "a body that drips": drip,
    "chunks of one byte": crumbs,
    "what is no HTTP": noise,
    "a WebSocket that never rests": chatter,
}


async def attack_all(place: Place, over: Any) -> None:
    """Make every attack again and again, each as soon as it has ended."""

    async def again(attack: Callable[[Place], Awaitable[Any]]) -> None:
        while not over.is_set():
            with suppress(Exception):
                await attack(place)
            await asyncio.sleep(0.2)

    os.nice(GIVES_WAY)
    await asyncio.gather(*(again(attack) for attack in ATTACKS.values()))


# ---- the look from outside ----------------------------------------------------------------------------------------


def watch(place: Place, pid: int, told: Any, over: Any) -> None:
    """Ask `/ping` ten times a second and read the memory, in a process of its own, until it is over."""
    with told, socket.socket() as plug:
        plug.connect((place.host, place.port))
        while not over.is_set():
            started = time.monotonic()
            try:
                plug.sendall(f"GET /ping HTTP/1.1\r\nHost: {place.host}\r\n\r\n".encode())
                status = int(plug.recv(4096).split()[1])
            except (OSError, IndexError):
                return
            told.send((started, time.monotonic() - started, status, resident_bytes(pid)))
            time.sleep(0.1)


@contextmanager
def served(checkpoint: Path, slots: int) -> Iterator[tuple[Place, subprocess.Popen[bytes]]]:
    """A server of its own process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "s1_mini", "serve", "--port", str(port), "--checkpoint", str(checkpoint)]
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
    with (
        Path(os.environ.get("HOSTILE_LOG", os.devnull)).open("wb") as log,
        subprocess.Popen([*command, "--max-batch-size", str(slots)], stderr=log, env=environment) as process,
    ):
        place, ends = Place("127.0.0.1", port), time.monotonic() + 120
        while time.monotonic() < ends and process.poll() is None:
            with suppress(OSError):
                if asyncio.run(place.get("/ping"))[0] == 200:
                    break
            time.sleep(0.1)
        try:
            yield place, process
        finally:
            process.kill()


def looks_of(pipe: Any) -> list[tuple[float, float, int, int]]:
    """All that `watch` has seen: when, seconds of the ping, its status, bytes of memory."""
    seen = []
    with suppress(EOFError):
        while pipe.poll():
            seen.append(pipe.recv())
    return seen


def mixed(options: argparse.Namespace) -> dict[str, Any]:
    """Everything at once, and SIGTERM in the middle of it."""
    over = multiprocessing.Event()
    with served(options.checkpoint, options.slots) as (place, process):
        pipe, told = multiprocessing.Pipe(duplex=False)
        helpers = [multiprocessing.Process(target=watch, args=(place, process.pid, told, over))]
        if options.attacks:
            helpers.append(multiprocessing.Process(target=lambda: asyncio.run(attack_all(place, over))))
        began, looks = time.monotonic(), []
        for helper in helpers:
            helper.start()
        told.close()

        async def run() -> Seen:
            async def collect() -> None:
                while True:
                    looks.extend(looks_of(pipe))
                    await asyncio.sleep(1)

            collecting = asyncio.ensure_future(collect())
            asking = asyncio.ensure_future(Honest(place, over).run(options.clients, options.seconds + 30))
            await asyncio.sleep(options.seconds)
            over.set()
            process.send_signal(signal.SIGTERM)
            signalled = time.monotonic()
            while process.poll() is None and time.monotonic() < signalled + 60:
                await asyncio.sleep(0.05)
            ended.append(time.monotonic() - signalled)
            collecting.cancel()
            return await asking

        ended: list[float] = []
        os.nice(GIVES_WAY)
        seen = asyncio.run(run())
        for helper in helpers:
            helper.kill()
            helper.join()
        looks = [look for look in looks if look[0] < began + options.seconds]
        minutes = minutes_of(looks, began)
        return {
            "clients": options.clients,
            "seconds": options.seconds,
            "attacks": options.attacks,
            "whole": dict(seen.whole),
            "left": seen.left,
            "refused": seen.refused,
            "lost": dict(seen.lost),
            "different": seen.different,
            "ping_ms_p50": quantile_ms([look[1] for look in looks], 0.5),
            "ping_ms_p99": quantile_ms([look[1] for look in looks], 0.99),
            "ping_ms_max": quantile_ms([look[1] for look in looks], 1),
            "minutes": minutes,
            "sigterm_s": round(ended[0], 1),
            "exit_code": process.returncode,
        }


def minutes_of(looks: list[tuple[float, float, int, int]], began: float) -> list[dict[str, float]]:
    """Ping and memory of each minute."""
    found: dict[int, list[tuple[float, float, int, int]]] = {}
    for look in looks:
        found.setdefault(int((look[0] - began) // 60), []).append(look)
    return [
        {
            "ping_ms_p99": quantile_ms([look[1] for look in part], 0.99),
            "ping_ms_max": quantile_ms([look[1] for look in part], 1),
            "mib": round(sum(look[3] for look in part) / len(part) / 2**20, 1),
            "mib_max": round(max(look[3] for look in part) / 2**20, 1),
        }
        for _, part in sorted(found.items())
    ]


def each(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One attack after the other, four at a time for ten seconds: the largest ping, memory, time to the refusal."""
    rows = []
    for name, attack in ATTACKS.items():
        over = multiprocessing.Event()
        with served(options.checkpoint, options.slots) as (place, process):
            before = resident_bytes(process.pid)
            pipe, told = multiprocessing.Pipe(duplex=False)
            watching = multiprocessing.Process(target=watch, args=(place, process.pid, told, over))
            watching.start()
            told.close()

            async def run(place: Place = place, attack: Callable[[Place], Awaitable[Any]] = attack) -> float:
                async def timed() -> float:
                    started = time.monotonic()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(30):
                            await attack(place)
                    return time.monotonic() - started

                took = await timed()
                await asyncio.gather(*(timed() for _ in range(4)))
                return took

            took = asyncio.run(run())
            time.sleep(0.5)
            looks = looks_of(pipe)
            over.set()
            watching.join()
        rows.append(
            {
                "attack": name,
                "seconds": round(took, 2),
                "ping_ms_max": quantile_ms([look[1] for look in looks], 1),
                "mib_before": round(before / 2**20),
                "mib_max": round(max((look[3] for look in looks), default=0) / 2**20),
            }
        )
        print(rows[-1], flush=True)
    return rows


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--attacks", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--each", action="store_true", help="one attack after the other, and nothing else")
    options = parser.parse_args()
    multiprocessing.set_start_method("fork")
    if options.each:
        print(json.dumps(each(options)))
        return 0
    facts = mixed(options)
    print(f"{'minute':>6} {'ping p99':>9} {'max':>7} {'MiB':>7} {'max':>7}")
    for number, minute in enumerate(facts["minutes"], 1):
        told = f"{number:>6} {minute['ping_ms_p99']:>9} {minute['ping_ms_max']:>7}"
        print(f"{told} {minute['mib']:>7} {minute['mib_max']:>7}")
    print(json.dumps(facts))
    return int(bool(facts["lost"] or facts["different"] or not sum(facts["whole"].values())))


if __name__ == "__main__":
    sys.exit(main())
