"""The cost of the proxy before several replicas: latency added to a chunk of audio, and CPU time of the proxy.

Two small servers stream chunks that carry the moment at which they were sent, at the pace that is asked for;
clients read them once from the servers, and once through HAProxy with the configuration of `s1-mini serve --replicas`.
With `--url` a server that runs is asked instead, as `benchmark.http_load` tells. Linux only. Prints a table, or with
`--url` JSON.

python -m benchmark.door --streams 200 --seconds 10
python -m benchmark.door --url http://localhost:8080 --streams 512 --seconds 20
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmark.command import make_parser
from benchmark.command import run as run_command
from benchmark.http_load import Place, Traffic, quantile_ms, run_load
from s1_mini.bench.report import table
from s1_mini.remote.proxy import Commands, describe_proxy, find_proxy
from s1_mini.server.connections import open_more_files, openable
from s1_mini.server.member import ReplicaInfo
from s1_mini.server.settings import ServerSettings

CHUNK_BYTES = 17_640  # a fifth of a second
STAMP = struct.Struct(">8sd")
MARK = b"S1CHUNK!"
START_S = 10.0


@dataclass(frozen=True)
class Work:
    """The load of the clients."""

    streams: int
    every_s: float
    num_chunks: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; return the exit code."""
    parser = make_parser(__doc__, opens=False)
    parser.add_argument("--streams", type=int, default=200, help="at a time")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--chunks", type=float, default=5.0, help="a second, of each stream")
    parser.add_argument("--url", help="of a server that runs")
    parser.add_argument("--rate", type=float, help="requests a second, instead of so many streams at a time")
    parser.add_argument("--clients", type=int, default=2, help="processes that ask, with --url")
    parser.add_argument("--frames", type=int, default=100, help="of each answer on average, with --url")
    parser.add_argument("--ramp", type=float, default=3.0, help="seconds before those that count, with --url")
    parser.add_argument(
        "--listen", action="store_true", help="each hears its answer out before it asks again, with --url"
    )
    options = parser.parse_args(arguments)
    open_more_files()
    if options.url:
        load = Traffic(
            Place.of(options.url),
            options.streams,
            options.seconds,
            options.rate,
            options.frames,
            options.ramp,
            options.listen,
        )
        print(json.dumps(run_load(load, options.clients)))
        return 0
    work = Work(options.streams, 1 / options.chunks, round(options.seconds * options.chunks))
    rows = measure_door(work)
    print(f"{work.streams} streams of {options.chunks:g} chunks a second, two servers")
    print(table(("", "chunks a second", "chunk late p50, ms", "p95, ms", "proxy, us a chunk", "ping p50, ms"), rows))
    return 0


# ---- the proxy alone ------------------------------------------------------------------------------------------------


def measure_door(work: Work) -> list[tuple[str, ...]]:
    """Read the same chunks from the servers, and through the proxy; give a row of figures for each."""
    with tempfile.TemporaryDirectory(prefix="s1-mini-") as name, socket.socket() as listener:
        folder = Path(name)
        members = [ReplicaInfo(index, 2, folder / str(index), False) for index in range(2)]
        servers = [multiprocessing.Process(target=_serve, args=(str(each.socket), work)) for each in members]
        listener.bind(("127.0.0.1", 0))
        listener.listen(2048)
        (folder / "states").write_text("now up\n")
        (folder / "haproxy.cfg").write_text(
            describe_proxy(ServerSettings(), members, folder, [listener.fileno()], openable())
        )
        for server in servers:
            server.start()
        proxy = subprocess.Popen(  # noqa: S603 - what a person installed
            [find_proxy(), "-db", "-q", "-f", str(folder / "haproxy.cfg")], pass_fds=[listener.fileno()]
        )
        try:
            ends = time.monotonic() + START_S
            while not all((folder / each).exists() for each in ("0", "1", "commands")) and time.monotonic() < ends:
                time.sleep(0.05)
            commands = Commands(folder)
            for member in members:
                asyncio.run(commands.take(member.index))
            rows = []
            for told, places in (
                ("servers", [str(each.socket) for each in members]),
                ("proxy", [listener.getsockname()]),
            ):
                before = sum(psutil.Process(proxy.pid).cpu_times()[:2])
                late, took_s, pings = asyncio.run(_read_all(places, work))
                spent = sum(psutil.Process(proxy.pid).cpu_times()[:2]) - before
                figures = (len(late) / took_s, quantile_ms(late, 0.5, 2), quantile_ms(late, 0.95, 2))
                each_us = f"{1e6 * spent / len(late):.0f}" if told == "proxy" else "-"
                row = [f"{figure:.2f}" for figure in figures] + [each_us, f"{quantile_ms(pings, 0.5, 2):.2f}"]
                rows.append((told, *row))
            return rows
        finally:
            proxy.kill()
            proxy.wait()
            for server in servers:
                server.kill()
                server.join()


def _serve(path: str, work: Work) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET"):
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                    continue
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                for _ in range(work.num_chunks):
                    chunk = STAMP.pack(MARK, time.monotonic()).ljust(CHUNK_BYTES, b"\0")
                    writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
                    await asyncio.sleep(work.every_s)
                writer.write(b"0\r\n\r\n")
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_unix_server(  # type: ignore[attr-defined,unused-ignore] # Windows has none
            answer,
            path,
            backlog=2048,  # a connection beyond is not waited for, and fails when it is used
        )
        await server.serve_forever()

    asyncio.run(serve())


async def _read_all(places: Sequence[object], work: Work) -> tuple[list[float], float, list[float]]:
    """Read all streams; return the delay of each chunk, the time in all, and those of idle requests, in seconds."""
    late: list[float] = []

    async def read(number: int) -> None:
        await asyncio.sleep(random.random() * work.every_s)  # noqa: S311 - no secret
        reader, writer = await _connect(places[number % len(places)])
        writer.write(b"POST /stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        left = b""
        while not left.endswith(b"0\r\n\r\n") and (part := await reader.read(65_536)):
            left += part
            now = time.monotonic()
            while (at := left.find(MARK)) >= 0 and len(left) >= at + CHUNK_BYTES:
                late.append(now - STAMP.unpack_from(left, at)[1])
                left = left[at + CHUNK_BYTES :]
        writer.close()

    started = time.monotonic()
    await asyncio.gather(*(read(number) for number in range(work.streams)))
    took_s, pings = time.monotonic() - started, []
    reader, writer = await _connect(places[0])
    for _ in range(300):
        asked = time.monotonic()
        writer.write(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        pings.append(time.monotonic() - asked)
    writer.close()
    return late, took_s, pings


async def _connect(place: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if isinstance(place, str):
        return await asyncio.open_unix_connection(place)  # type: ignore[attr-defined,unused-ignore] # Windows has none
    assert isinstance(place, tuple)
    return await asyncio.open_connection(place[0], place[1])


if __name__ == "__main__":
    sys.exit(run_command(main))
