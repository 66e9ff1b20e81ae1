"""Load on a server over HTTP: half of the streaming clients disconnect early; counts failures.

Meanwhile, WebSockets are opened at the route of SageMaker's bidirectional streams, which waits 250 ms for each.
Every response to a client that stays connected must be complete, and responses to the same text and seed must be
byte-identical. The exit code is 1 if a request failed, if such responses differ, or if no response was complete.
Memory is read from /proc, so this command needs Linux. Prints a table with a row per minute, then one line of JSON.

python -m benchmark.server_load --checkpoint tests/assets/s1_tiny --streams 64 --seconds 180
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmark.command import make_parser, quantile_ms, report
from benchmark.command import run as run_command
from benchmark.http_load import Answer, Place, processes_of, served, until_ready
from benchmark.live import connect
from s1_mini.bench.clients import resident_bytes

SEEDS = 16  # number of different requests
PING_INTERVAL_S = 0.1
ACCEPT_INTERVAL_S = 0.5
BIDIRECTIONAL = "/invocations-bidirectional-stream"
ANSWER_LIMIT_S = 120.0  # a response that takes longer counts as lost
MEMORY_INTERVAL_S = 0.5
HEAD = ["minute", "whole", "vanished", "first ms p50", "/ping ms p50", "p99", "WebSocket accepted ms p50", "max", "MiB"]


@dataclass
class Minute:
    """Figures of one minute."""

    whole: int = 0
    vanished: int = 0
    pings_s: list[float] = field(default_factory=list)
    accepts_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)  # bytes

    def row(self) -> list[float]:
        """Return a row of the table, without the number of the minute."""
        pings = [quantile_ms(self.pings_s, share) for share in (0.5, 0.99)]
        accepts = [quantile_ms(self.accepts_s, share) for share in (0.5, 1.0)]
        mib = round(sum(self.memory) / len(self.memory) / 2**20, 1) if self.memory else 0.0
        return [self.whole, self.vanished, quantile_ms(self.first_s, 0.5), *pings, *accepts, mib]


@dataclass
class Tally:
    """All results, from the start of the load."""

    started: float = field(default_factory=time.monotonic)
    minutes: list[Minute] = field(default_factory=list)
    sent: int = 0
    failed: Counter[str] = field(default_factory=Counter)  # reasons
    answered: set[str] = field(default_factory=set)  # request ids
    digests: dict[int, set[str]] = field(default_factory=dict)  # of the answers to each seed
    free_ms: float = 0.0  # from the disconnect of all clients until every slot is free

    @property
    def minute(self) -> Minute:
        """The current minute."""
        number = int((time.monotonic() - self.started) // 60)
        while len(self.minutes) <= number:
            self.minutes.append(Minute())
        return self.minutes[number]


async def listen(place: Place, tally: Tally, number: int, chance: random.Random | None = None) -> None:
    """Read a stream to its end mark; with `chance`, read only some chunks, then disconnect, sometimes by a reset."""
    started, digest, length = time.monotonic(), hashlib.sha256(), 0
    try:
        async with asyncio.timeout(ANSWER_LIMIT_S):
            with await speak(place, number) as answer:
                if answer.status != 200:
                    tally.failed[f"status {answer.status}"] += 1
                    return
                for _ in range(chance.randint(0, 3)) if chance else itertools.count():
                    if not (piece := await answer.chunk()):
                        break
                    if not (length or chance):
                        tally.minute.first_s.append(time.monotonic() - started)
                    digest.update(piece)
                    length += len(piece)
                if chance and chance.random() < 0.5:
                    answer.writer.transport.abort()
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        tally.failed[type(error).__name__] += 1
        return
    if chance:
        tally.minute.vanished += 1
        return
    name = answer.headers["x-request-id"]
    if not length:
        tally.failed["empty"] += 1
    elif name != f"load-{number}" or name in tally.answered:
        tally.failed["answered twice, or with the id of another request"] += 1
    else:
        tally.answered.add(name)
        tally.digests.setdefault(number % SEEDS, set()).add(f"{length} {digest.hexdigest()}")
        tally.minute.whole += 1


async def speak(place: Place, number: int, frames: int = 60) -> Answer:
    """Request a stream."""
    return await place.speak(frames, number % SEEDS, X_Request_Id=f"load-{number}")


async def run(place: Place, streams: int, seconds: float, pid: int | None) -> Tally:
    """Keep `streams` streams in flight for `seconds`; then disconnect the same number of clients at one moment."""
    tally, chance = Tally(), random.Random(1)  # noqa: S311 - a choice, no secret
    ends = tally.started + seconds

    async def client(index: int) -> None:
        while time.monotonic() < ends:
            tally.sent += 1
            await listen(place, tally, tally.sent, None if index % 2 else chance)

    async def measure_memory() -> None:
        if pid is not None and (memory := sum(map(resident_bytes, processes_of(pid)))):
            tally.minute.memory.append(memory)

    watching = [
        asyncio.create_task(every(interval_s, act))
        for interval_s, act in (
            (PING_INTERVAL_S, partial(ping, place, tally)),
            (ACCEPT_INTERVAL_S, partial(accept, place, tally)),
            (MEMORY_INTERVAL_S, measure_memory),
        )
    ]
    await asyncio.gather(*(client(index) for index in range(streams)))
    for task in watching:
        task.cancel()
    for ended in await asyncio.gather(*watching, return_exceptions=True):
        if not isinstance(ended, asyncio.CancelledError):
            tally.failed[f"watching: {ended}"] += 1
    tally.free_ms = await free_after_all_vanish(place, streams)
    return tally


async def ping(place: Place, tally: Tally) -> None:
    """Measure `/ping`."""
    started = time.monotonic()
    status, _ = await place.get("/ping")
    tally.minute.pings_s.append(time.monotonic() - started)
    if status != 200:
        tally.failed[f"ping {status}"] += 1


async def accept(place: Place, tally: Tally) -> None:
    """Measure how long a WebSocket takes to be accepted."""
    started = time.monotonic()
    async with connect(place, BIDIRECTIONAL):
        tally.minute.accepts_s.append(time.monotonic() - started)


async def every(interval_s: float, act: Callable[[], Awaitable[None]]) -> None:
    """Run `act` repeatedly until cancelled."""
    while True:
        await act()
        await asyncio.sleep(interval_s)


async def free_after_all_vanish(place: Place, streams: int) -> float:
    """Start long streams, close all at once, and return the ms until the engine has released every slot."""

    async def get_health() -> dict[str, Any]:
        health: dict[str, Any] = json.loads((await place.get("/health"))[1])
        return health

    begun = [asyncio.create_task(speak(place, number, frames=600)) for number in range(streams)]
    ends = time.monotonic() + ANSWER_LIMIT_S
    while (await get_health())["requests"] < streams and time.monotonic() < ends:
        await asyncio.sleep(0.02)
    for stream in begun:
        if not stream.cancel():
            stream.result().writer.transport.abort()
    gone = time.monotonic()
    while (health := await get_health()) and time.monotonic() < ends:
        slots = health["slots"]
        if health["requests"] == health["server"]["requests"] == 0 and slots["free"] == slots["total"]:
            return (time.monotonic() - gone) * 1000
    return float("inf")


def facts_of(tally: Tally, streams: int, seconds: float) -> dict[str, Any]:
    """Return the fields of the line of JSON."""
    rows = [minute.row() for minute in tally.minutes]
    pings = [ping_s for minute in tally.minutes for ping_s in minute.pings_s]
    accepts = [accept_s for minute in tally.minutes for accept_s in minute.accepts_s]
    return {
        "streams": streams,
        "seconds": seconds,
        "whole": sum(minute.whole for minute in tally.minutes),
        "vanished": sum(minute.vanished for minute in tally.minutes),
        "failed": dict(tally.failed),
        "different": sum(len(digests) - 1 for digests in tally.digests.values()),
        "ping_ms_p50": quantile_ms(pings, 0.5),
        "ping_ms_p99": quantile_ms(pings, 0.99),
        "accept_ms_p50": quantile_ms(accepts, 0.5),
        "accept_ms_p99": quantile_ms(accepts, 0.99),
        "accept_ms_max": quantile_ms(accepts, 1.0),
        "free_ms": round(tally.free_ms, 1),
        "minutes": [{"whole": row[0], "vanished": row[1], "mib": row[-1], "ping_p99": row[4]} for row in rows],
    }


def has_lost(facts: dict[str, Any]) -> bool:
    """Return whether any response was lost, duplicated or changed, or none was complete."""
    return bool(facts["failed"] or facts["different"] or not facts["whole"])


def measure(
    place: Place, streams: int, seconds: float, pid: int | None, is_alive: Callable[[], bool] = lambda: True
) -> int:
    """Load a server and print the results; return the exit code."""
    asyncio.run(until_ready(place, is_alive))
    tally = asyncio.run(run(place, streams, seconds, pid))
    facts = facts_of(tally, streams, seconds)
    print(f"{facts['whole']} complete, {facts['vanished']} disconnected early, failed: {facts['failed'] or 'none'}")
    report(HEAD, [[str(number), *minute.row()] for number, minute in enumerate(tally.minutes, 1)], facts)
    return int(has_lost(facts))


def main() -> int:
    """Load the server at `--url`, or start one."""
    parser = make_parser(__doc__, opens=False)
    parser.add_argument(
        "--streams", type=int, default=64, help="concurrent streams; every second client disconnects early [64]"
    )
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--url", help="URL of a running server [start one]")
    parser.add_argument("--pid", type=int, help="with --url: process ID of the server, to read its memory")
    parser.add_argument("--checkpoint", type=Path, help="checkpoint directory [the built-in model]")
    parser.add_argument(
        "--max-batch-size", type=int, default=16, help="concurrent sentences of the server that is started [16]"
    )
    options = parser.parse_args()
    if options.url is not None:
        return measure(Place.of(options.url), options.streams, options.seconds, options.pid)
    with served(options.checkpoint, max_batch_size=options.max_batch_size) as (place, process):
        return measure(place, options.streams, options.seconds, process.pid, lambda: process.poll() is None)


if __name__ == "__main__":
    sys.exit(run_command(main))
