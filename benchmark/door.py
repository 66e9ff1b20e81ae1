"""The cost of the proxy in front of several replicas: added latency per chunk of audio, and CPU time of the proxy.

Two small servers stream timestamped chunks at a fixed rate; clients read them directly from the servers and through
HAProxy with the configuration of `s1-mini serve --replicas`. With `--url`, a running server is loaded instead, as
`benchmark.http_load` describes. Linux only. Prints a table, or with `--url` JSON.

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
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmark.command import make_parser, quantile_ms
from benchmark.command import run as run_command
from benchmark.http_load import Place, Traffic, run_load
from s1_mini.bench.report import table
from s1_mini.remote.proxy import describe_proxy, find_proxy, route
from s1_mini.server.connections import open_more_files, openable
from s1_mini.server.member import ReplicaInfo
from s1_mini.server.settings import ServerSettings

CHUNK_BYTES = 17_640  # 0.2 s of pcm at 44.1 kHz
STAMP = struct.Struct(">8sd")
MARK = b"S1CHUNK!"
START_S = 10.0


@dataclass(frozen=True)
class Work:
    """The load of the clients."""

    streams: int
    interval_s: float  # of a stream's chunks
    num_chunks: int


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the proxy, or load the server at `--url`."""
    parser = make_parser(__doc__, opens=False)
    parser.add_argument("--streams", type=int, default=200, help="concurrent streams")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--chunks", type=float, default=5.0, help="chunks per second and stream")
    parser.add_argument("--url", help="load the running server at this URL instead")
    parser.add_argument("--rate", type=float, help="with --url: requests per second, instead of concurrent streams")
    parser.add_argument("--clients", type=int, default=2, help="with --url: number of client processes")
    parser.add_argument("--frames", type=int, default=100, help="with --url: mean length of a response in frames")
    parser.add_argument("--ramp", type=float, default=3.0, help="with --url: warm-up in seconds, which is not measured")
    parser.add_argument(
        "--listen",
        action="store_true",
        help="with --url: wait for the playback time of each response before the next request",
    )
    given = parser.parse_args(arguments)
    open_more_files()
    if given.url:
        place = Place.of(given.url)
        load = Traffic(place, given.streams, given.seconds, given.rate, given.frames, given.ramp, given.listen)
        print(json.dumps(run_load(load, given.clients)))
        return
    work = Work(given.streams, 1 / given.chunks, round(given.seconds * given.chunks))
    print(f"{work.streams} streams of {given.chunks:g} chunks per second, two servers")
    head = ("", "chunks per second", "chunk delay p50, ms", "p95, ms", "proxy, us per chunk", "ping p50, ms")
    print(table(head, measure_door(work)))


# ---- the proxy alone ------------------------------------------------------------------------------------------------


def measure_door(work: Work) -> list[tuple[str, ...]]:
    """Read the same chunks from the servers, and through the proxy; return a row of figures for each."""
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
        proxy = psutil.Popen(
            [find_proxy(), "-db", "-q", "-f", str(folder / "haproxy.cfg")], pass_fds=[listener.fileno()]
        )
        try:
            ends = time.monotonic() + START_S
            while not all((folder / each).exists() for each in ("0", "1", "commands")) and time.monotonic() < ends:
                time.sleep(0.05)
            for member in members:
                asyncio.run(route(folder, member.index, is_open=True))
            rows = []
            sockets = [str(each.socket) for each in members]
            for way, places in (("servers", sockets), ("proxy", [listener.getsockname()])):
                before = sum(proxy.cpu_times()[:2])
                late, took_s, pings = asyncio.run(_read_all(places, work))
                spent = sum(proxy.cpu_times()[:2]) - before
                figures = (len(late) / took_s, quantile_ms(late, 0.5, 2), quantile_ms(late, 0.95, 2))
                each_us = f"{1e6 * spent / len(late):.0f}" if way == "proxy" else "-"
                row = [f"{figure:.2f}" for figure in figures] + [each_us, f"{quantile_ms(pings, 0.5, 2):.2f}"]
                rows.append((way, *row))
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
                    await asyncio.sleep(work.interval_s)
                writer.write(b"0\r\n\r\n")
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_unix_server(  # type: ignore[attr-defined,unused-ignore] # Windows has none
            answer,
            path,
            backlog=2048,  # connections beyond this backlog fail at their first use
        )
        await server.serve_forever()

    asyncio.run(serve())


async def _read_all(places: Sequence[object], work: Work) -> tuple[list[float], float, list[float]]:
    """Read all streams; return in seconds each chunk's delay, the total time, and the times of 300 later requests."""
    late: list[float] = []

    async def read(number: int) -> None:
        await asyncio.sleep(random.random() * work.interval_s)  # noqa: S311 - no secret
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
        sent = time.monotonic()
        writer.write(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        pings.append(time.monotonic() - sent)
    writer.close()
    return late, took_s, pings


async def _connect(place: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if isinstance(place, str):
        return await asyncio.open_unix_connection(place)  # type: ignore[attr-defined,unused-ignore] # Windows has none
    assert isinstance(place, tuple)
    return await asyncio.open_connection(place[0], place[1])


if __name__ == "__main__":
    sys.exit(run_command(main))
