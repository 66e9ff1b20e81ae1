"""HTTP clients of a server: single requests, and a load of streams from several processes.

A load is a number of concurrent streams, or requests per second with random arrival times, measured from `ramp_s`
seconds after the start. Responses are 0.5 to 1.5 times `frames` long, so that they do not all end at once.
`cores_client` is the CPU use of the busiest client process: near 1, the clients are the bottleneck and more are needed.
The few bytes of chunked transfer encoding count as audio.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

from benchmark.command import quantile_ms
from s1_mini.bench.clients import BUFFER_S
from s1_mini.exceptions import EngineNotReadyError
from s1_mini.extras import require

KEY = "S1_MINI_SERVER_API_KEY"
TEXT = "The morning train was late again, and nobody knew why."
BYTES_A_SECOND = 88_200.0  # of pcm at 44.1 kHz
START_LIMIT_S = 120.0
EXIT_LIMIT_S = 60.0  # after SIGTERM
REFUSED_PAUSE_S = 1.0  # pause of a client after a refusal, as in Retry-After
SEEDS = count()


@dataclass
class Answer:
    """The head of a response, and the connection on which its body arrives."""

    status: int
    headers: dict[str, str]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.close()

    async def chunk(self) -> bytes:
        """Read the next chunk of a chunked body; empty at its end."""
        size = int(await self.reader.readline(), 16)
        return (await self.reader.readexactly(size + 2))[:-2]


@dataclass(frozen=True)
class Place:
    """The address of a server."""

    host: str
    port: int
    key: str | None = None

    @classmethod
    def of(cls, url: str) -> Place:
        """Parse a URL; the API key comes from the environment."""
        parts = urlsplit(url)
        return cls(parts.hostname or "127.0.0.1", parts.port or 80, os.environ.get(KEY))

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        """Send one request on a new connection; return the response once its head has arrived."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        lines = {"Host": self.host, "Content-Length": str(len(body)), "Connection": "close", **headers}
        if self.key:
            lines["Authorization"] = f"Bearer {self.key}"
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
        try:
            writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
            status, *fields = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        except BaseException:
            writer.transport.abort()
            raise
        pairs = (line.partition(":") for line in fields if line)
        received = {name.lower(): value.strip() for name, _, value in pairs}
        return Answer(int(status.split()[1]), received, reader, writer)

    async def get(self, path: str) -> tuple[int, bytes]:
        """Get a small response: status and body."""
        with await self.ask("GET", path) as answer:
            return answer.status, await answer.reader.read()

    async def speak(self, frames: int, seed: int, **headers: str) -> Answer:
        """Request a stream of PCM."""
        fields = {"text": TEXT, "seed": seed, "max_new_tokens": frames, "format": "pcm", "stream": True}
        body, headers = json.dumps(fields).encode(), {"Content_Type": "application/json", **headers}
        return await self.ask("POST", "/v1/tts", body, **headers)


async def until_ready(place: Place, is_alive: Callable[[], bool]) -> None:
    """Wait until the server is ready. Raises `EngineNotReadyError` if it exits or takes too long."""
    ends = time.monotonic() + START_LIMIT_S
    while is_alive() and time.monotonic() < ends:
        with suppress(OSError):
            if (await place.get("/ping"))[0] == 200:
                return
        await asyncio.sleep(0.1)
    raise EngineNotReadyError("the server did not start; run `s1-mini serve` to see the reason")


def free_port() -> int:
    """Return a port that nothing uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def served(
    checkpoint: Path | None,
    *,
    environment: Mapping[str, str] | None = None,
    within: Sequence[str] = (),
    log: str = os.devnull,
    **options: object,
) -> Iterator[tuple[Place, subprocess.Popen[bytes]]]:
    """Run `s1-mini serve` with these options and more variables until the block ends, by the command `within`."""
    require("server", "starting a server (instead of naming one with --url)")
    port = free_port()
    given = {"host": "127.0.0.1", "port": port, **options} | ({"checkpoint": checkpoint} if checkpoint else {})
    words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    command = [*within, sys.executable, "-m", "s1_mini", "serve", *words]
    variables = os.environ | (environment or {})
    with (
        Path(log).open("wb") as lines,
        subprocess.Popen(command, stderr=lines, env=variables) as process,  # noqa: S603 - our own server
    ):
        try:
            yield Place("127.0.0.1", port, os.environ.get(KEY)), process
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(EXIT_LIMIT_S)
            process.kill()


def processes_of(pid: int) -> Iterator[int]:
    """Yield a process and all processes below it, such as the server's engine (Linux; elsewhere only the process)."""
    yield pid
    with suppress(OSError):  # it has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text(encoding="ascii").split():
                yield from processes_of(int(child))


@dataclass(frozen=True)
class Traffic:
    """A load: concurrent streams or, with `rate`, requests a second."""

    place: Place
    streams: int
    seconds: float
    rate: float | None
    frames: int  # mean length of a response
    ramp_s: float = 0.0  # time before the measured `seconds`
    listens: bool = False  # whether each client plays its response to the end before its next request


@dataclass
class Heard:
    """Figures of the clients of one process."""

    sound_s: float = 0.0  # audio that arrived in the measured time
    firsts_s: list[float] = field(default_factory=list)  # times to first audio
    failed: int = 0
    ran_dry: int = 0  # responses with an underrun despite a buffer


def run_load(load: Traffic, clients: int) -> dict[str, float]:
    """Load a server from several processes; return their figures together."""
    share = None if load.rate is None else load.rate / clients
    each, rest = divmod(load.streams, clients)
    pipes = []
    for number in range(clients):
        part = replace(load, streams=each + (number < rest), rate=share)
        ours, theirs = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.Process(target=_run_in_process, args=(theirs, part))
        process.start()
        theirs.close()
        pipes.append((process, ours))
    answers: list[tuple[Heard, float]] = []
    for process, ours in pipes:
        with ours:
            answers.append(ours.recv())
        process.join()
    firsts = [first for heard, _ in answers for first in heard.firsts_s]
    return {
        "sound_s_a_second": round(sum(heard.sound_s for heard, _ in answers) / load.seconds, 1),
        "cores_client": round(max(cores for _, cores in answers), 2),
        "requests": len(firsts),
        "failed": sum(heard.failed for heard, _ in answers),
        "ran_dry": sum(heard.ran_dry for heard, _ in answers),
        "first_ms_p50": quantile_ms(firsts, 0.5, 2),
        "first_ms_p95": quantile_ms(firsts, 0.95, 2),
    }


def _run_in_process(pipe: Connection, load: Traffic) -> None:
    began, spent = time.monotonic(), time.process_time()
    heard = asyncio.run(_run(load))
    pipe.send((heard, (time.process_time() - spent) / (time.monotonic() - began)))


async def _run(load: Traffic) -> Heard:
    heard, counts = Heard(), time.monotonic() + load.ramp_s
    ends = counts + load.seconds

    async def stream() -> None:
        if load.listens:  # spread the starts; otherwise all responses would end together
            await asyncio.sleep(random.random() * load.ramp_s / 2)  # noqa: S311 - no secret
        while time.monotonic() < ends:
            await _request(load, heard, counts, ends)

    if load.rate is None:
        await asyncio.gather(*(stream() for _ in range(load.streams)))
    else:
        tasks = []
        while time.monotonic() < ends:
            tasks.append(asyncio.create_task(_request(load, heard, counts, ends)))
            await asyncio.sleep(random.expovariate(load.rate))
        await asyncio.gather(*tasks)
    return heard


async def _request(load: Traffic, heard: Heard, counts: float, ends: float) -> None:
    """Send one request and read its response as a player would; audio between `counts` and `ends` is counted."""
    frames = random.randint(load.frames - load.frames // 2, load.frames + load.frames // 2)  # noqa: S311 - no secret
    sent, last, whole = time.monotonic(), b"", False
    begun, sound_s, ran_dry = sent, 0.0, False
    try:
        with await load.place.speak(frames, next(SEEDS)) as answer:
            while answer.status == 200 and (part := await answer.reader.read(65_536)):
                now, part_s = time.monotonic(), len(part) / BYTES_A_SECOND
                if not sound_s:
                    begun = now
                    if sent >= counts:
                        heard.firsts_s.append(now - sent)
                ran_dry |= now > begun + BUFFER_S + sound_s
                sound_s += part_s
                heard.sound_s += part_s if counts <= now < ends else 0.0
                last = (last + part)[-5:]
        whole = last == b"0\r\n\r\n"
    except (OSError, asyncio.IncompleteReadError):
        pass  # counted as failed
    heard.failed += not whole
    heard.ran_dry += ran_dry and sent >= counts
    pause_s = 0.0 if whole else REFUSED_PAUSE_S
    if load.listens:
        pause_s = max(pause_s, begun + sound_s - time.monotonic())
    await asyncio.sleep(pause_s)
