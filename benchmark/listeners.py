"""Clients of a server that runs: what it gives under load, and whether listeners run dry.

So many streams at a time, from `ramp_s` seconds after the start on, or requests a second at random moments. Answers are
half to one and a half times `frames` long, so that they do not all end at once. `cores_client` is what the busiest of
the processes that ask took: near 1, they are what limits, and more are needed. The chunked transfer's few bytes a chunk
count as sound.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

BYTES_A_SECOND = 88_200.0  # of pcm at 44.1 kHz
ASKED = {"text": "The morning train was late again, and nobody knew why.", "stream": True, "format": "pcm"}
BUFFER_S = 0.1  # of sound that a listener has before it begins
PAUSE_S = 1.0  # of a client that was refused, as Retry-After tells it
SPEAKS = b"HTTP/1.1 200"
SEEDS = count()


@dataclass(frozen=True)
class Load:
    """What is asked of a server: so many streams at a time or, with `rate`, requests a second."""

    url: str
    streams: int
    seconds: float
    rate: float | None
    frames: int  # of an answer, on average
    ramp_s: float = 0.0  # before the `seconds` that count
    listens: bool = False  # whether each hears its answer out before it asks again


@dataclass
class Heard:
    """What the clients of one process heard."""

    sound_s: float = 0.0  # that came in the seconds that count
    firsts_s: list[float] = field(default_factory=list)  # from a request to its first sound
    failed: int = 0
    ran_dry: int = 0  # answers whose sound came later than it was to be heard, with a buffer


def ask_server(load: Load, clients: int) -> dict[str, float]:
    """Ask a server from several processes; give what came of it together."""
    seconds, share = load.seconds, None if load.rate is None else load.rate / clients
    each, rest = divmod(load.streams, clients)
    pipes = []
    for number in range(clients):
        part = replace(load, streams=each + (number < rest), rate=share)
        ours, theirs = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.Process(target=_ask_in_process, args=(theirs, part))
        process.start()
        theirs.close()
        pipes.append((process, ours))
    answers = []
    for process, ours in pipes:
        with ours:
            answers.append(ours.recv())
        process.join()
    sound_s = sum(heard.sound_s for heard, _ in answers)
    firsts = [first for heard, _ in answers for first in heard.firsts_s]
    return {
        "sound_s_a_second": round(sound_s / seconds, 1),
        "cores_client": round(max(cores for _, cores in answers), 2),
        "requests": len(firsts),
        "failed": sum(heard.failed for heard, _ in answers),
        "ran_dry": sum(heard.ran_dry for heard, _ in answers),
        "first_ms_p50": round(1e3 * quantile(firsts, 0.5), 2),
        "first_ms_p95": round(1e3 * quantile(firsts, 0.95), 2),
    }


def _ask_in_process(pipe: Connection, load: Load) -> None:
    began, spent = time.monotonic(), time.process_time()
    heard = asyncio.run(_ask(load))
    pipe.send((heard, (time.process_time() - spent) / (time.monotonic() - began)))


async def _ask(load: Load) -> Heard:
    client = _Client(load)
    if load.rate is None:
        await asyncio.gather(*(client.ask_on() for _ in range(load.streams)))
    else:
        tasks = []
        while time.monotonic() < client.ends:
            tasks.append(asyncio.create_task(client.ask()))
            await asyncio.sleep(random.expovariate(load.rate))
        await asyncio.gather(*tasks)
    return client.heard


class _Client:
    """All requests of one process."""

    def __init__(self, load: Load) -> None:
        self.heard, self._load, self._place = Heard(), load, urlsplit(load.url)
        self._counts = time.monotonic() + load.ramp_s
        self.ends = self._counts + load.seconds

    async def ask_on(self) -> None:
        """Ask one request after the other until the end."""
        if self._load.listens:  # else all would end together again and again
            await asyncio.sleep(random.random() * self._load.ramp_s / 2)  # noqa: S311 - no secret
        while time.monotonic() < self.ends:
            await self.ask()

    async def ask(self) -> None:
        """Ask one request, and hear its answer."""
        asked, told, last = time.monotonic(), b"", b""
        ear = _Ear(begun=asked)
        try:
            reader, writer = await asyncio.open_connection(self._place.hostname, self._place.port)
            writer.write(self._request())
            told = await reader.readuntil(b"\r\n\r\n")
            while told.startswith(SPEAKS) and (part := await reader.read(65_536)):
                self._take(ear, len(part) / BYTES_A_SECOND, asked)
                last = (last + part)[-5:]
            writer.close()
        except (OSError, asyncio.IncompleteReadError):
            told = b""
        whole = told.startswith(SPEAKS) and last == b"0\r\n\r\n"
        self.heard.failed += not whole
        self.heard.ran_dry += ear.ran_dry and asked >= self._counts
        pause_s = 0.0 if whole else PAUSE_S
        if self._load.listens:
            pause_s = max(pause_s, ear.begun + ear.sound_s - time.monotonic())
        await asyncio.sleep(pause_s)

    def _take(self, ear: _Ear, part_s: float, asked: float) -> None:
        now = time.monotonic()
        if not ear.sound_s:
            ear.begun = now
            if asked >= self._counts:
                self.heard.firsts_s.append(now - asked)
        ear.ran_dry |= now > ear.begun + BUFFER_S + ear.sound_s
        ear.sound_s += part_s
        self.heard.sound_s += part_s if self._counts <= now < self.ends else 0.0

    def _request(self) -> bytes:
        mean = self._load.frames
        frames = random.randint(mean - mean // 2, mean + mean // 2)  # noqa: S311 - no secret
        body = json.dumps(ASKED | {"seed": next(SEEDS), "max_new_tokens": frames}).encode()
        head = f"POST /v1/tts HTTP/1.1\r\nHost: {self._place.netloc}\r\nContent-Type: application/json\r\n"
        return f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@dataclass
class _Ear:
    """What was heard of one answer: since when, and how much."""

    begun: float
    sound_s: float = 0.0
    ran_dry: bool = False


def quantile(values: Sequence[float], share: float) -> float:
    """Give the value below which `share` of all lie; no number of nothing."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")
