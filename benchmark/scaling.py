"""Scaling of a server with replicas on one host, each on its own GPU, or on a CPU.

For each number of replicas, it measures the startup time, throughput with `--streams` concurrent streams per replica,
time to first byte at `--rate` requests per second and replica, underruns of `--listeners` clients per replica that play
their responses, and the requests lost when one replica is killed under the load of `--streams`. Cores and memory of the
server's processes are read from /proc, so it needs Linux. Prints a table, then one line of JSON; `--plot` draws
throughput and time to first byte.

python -m benchmark.scaling --checkpoint full-size --replicas 1,2,4,8 --output scaling.json --plot scaling.svg
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import psutil

from benchmark.command import columns, make_parser, numbers, report, run
from benchmark.http_load import Place, Traffic, processes_of, run_load, served
from s1_mini.bench.report import describe_machine
from s1_mini.exceptions import EngineNotReadyError
from s1_mini.remote.replica import PROCESS
from s1_mini.server.connections import open_more_files

START_LIMIT_S = 600.0
POLL_INTERVAL_S = 0.05
COMPILING = "still compiling"  # in the reason for an engine's kernels
KILL_AFTER = 0.3  # share of a load's duration after which a replica is killed
# Keys of the JSON and heads of the table. Times are in ms, or seconds where the name ends in _s.
HEADS = {
    "replicas": "replicas",
    "ready_s": "ready s",  # from the start until all are ready and, on a CPU, have compiled their kernels
    "sound_s_a_second": "sound/s",
    "of_one": "of one",  # throughput, as a multiple of the throughput per replica in the first row
    "first_ms_p50": "first p50",
    "first_ms_p95": "p95 ms",
    "listeners": "listeners",
    "ran_dry": "dry",
    "failed": "failed",  # failed requests of the three loads: streams, rate, listeners
    "cores": "cores",  # of a replica, under the first load
    "cores_proxy": "proxy",
    "gb": "GB each",  # host memory of a replica
    "lost": "lost",  # failed requests when one of several replicas is killed under the first load
    "back_s": "back s",  # from this kill until all are ready again, with their kernels as above
}
PLAN = ("streams", "rate", "listeners", "frames", "seconds", "ramp_s", "listen_s")  # options in the JSON


class Server:
    """A running server and its processes."""

    def __init__(self, place: Place, process: subprocess.Popen[bytes], replicas: int) -> None:
        self.place, self._process, self._count = place, process, replicas
        self.client = httpx2.Client(base_url=f"http://{place.host}:{place.port}", timeout=10, trust_env=False)

    def wait(self, starts: int = 0) -> None:
        """Wait until every replica is ready and all replicas together have started at least `starts` times.

        On a CPU, also wait until no replica compiles kernels, because compiled kernels round differently. Raises
        `EngineNotReadyError` if the server ends, or takes too long.
        """
        ends = time.monotonic() + START_LIMIT_S
        while not (self.all_ready(starts) and self.has_kernels()):
            if self._process.poll() is not None or time.monotonic() > ends:
                raise EngineNotReadyError("the server did not start; run `s1-mini serve` to see the reason")
            time.sleep(POLL_INTERVAL_S)

    def answers_ping(self) -> bool:
        """Return whether /ping reports a ready replica."""
        try:
            return self.client.get("/ping").status_code == 200
        except httpx2.TransportError:
            return False

    def pids(self) -> tuple[list[int], list[int]]:
        """Return the process ids of the replicas and of the proxy."""
        if self._count == 1:
            return [self._process.pid], []
        members: list[int] = []
        proxies: list[int] = []
        for child in psutil.Process(self._process.pid).children():
            with suppress(psutil.Error):  # the process has just ended
                if words := child.cmdline():  # a zombie has none
                    (members if PROCESS in words else proxies).append(child.pid)
        return sorted(members), sorted(proxies)

    def cpu_s(self) -> list[float]:
        """Return the CPU seconds of the replicas, with their engines' processes, and of the proxy."""
        return [sum(sum(each.cpu_times()[:2]) for pid in pids for each in _all_of(pid)) for pids in self.pids()]

    def all_ready(self, starts: int = 0) -> bool:
        """Return whether every replica is ready, and all together have started at least `starts` times."""
        if self._count == 1:
            return self.answers_ping()
        replicas = self.replicas()
        return [each["state"] for each in replicas] == ["ready"] * self._count and self.starts(replicas) >= starts

    def replicas(self) -> list[dict[str, Any]]:
        """Return the replicas in `/health`; empty without an answer, and without replicas."""
        return list(self.health().get("replicas", []))

    def health(self) -> dict[str, Any]:
        """Return `/health`; empty without an answer."""
        try:
            return dict(self.client.get("/health").json())
        except (httpx2.TransportError, ValueError):
            return {}

    def has_kernels(self) -> bool:
        """Return whether every engine has the kernels that it keeps."""
        health = self.health()
        engines = [each["health"] for each in health.get("replicas", [])] or [health]
        return all("kernels" in each and COMPILING not in each["kernels"]["reason"] for each in engines)

    def starts(self, replicas: Sequence[Mapping[str, Any]] | None = None) -> int:
        """Return how often all replicas together were started."""
        return sum(each["starts"] for each in (self.replicas() if replicas is None else replicas))


def _all_of(pid: int) -> Iterator[psutil.Process]:
    return map(psutil.Process, processes_of(pid))


def measure(server: Server, replicas: int, plan: Namespace, began: float) -> dict[str, Any]:
    """Load a server that is starting; return the figures of `HEADS` except `of_one`, and some more."""
    server.wait()
    ready_s, clients = time.monotonic() - began, 2 * replicas
    many = Traffic(server.place, replicas * plan.streams, plan.seconds, None, plan.frames, plan.ramp_s)
    before, load_began = server.cpu_s(), time.monotonic()
    full = run_load(many, clients)
    took_s = time.monotonic() - load_began
    spent = [after - cpu_s for after, cpu_s in zip(server.cpu_s(), before, strict=True)]
    first = run_load(replace(many, rate=replicas * plan.rate), clients)
    listening = replace(many, streams=replicas * plan.listeners, seconds=plan.listen_s, listens=True)
    heard = run_load(listening, clients)
    members = server.pids()[0]
    outcome = {
        "replicas": replicas,
        "ready_s": round(ready_s, 1),
        "sound_s_a_second": full["sound_s_a_second"],
        "first_ms_p50": first["first_ms_p50"],
        "first_ms_p95": first["first_ms_p95"],
        "listeners": listening.streams,
        "ran_dry": int(heard["ran_dry"]),
        "failed": int(full["failed"] + first["failed"] + heard["failed"]),
        "cores": round(spent[0] / took_s / replicas, 2),
        "cores_proxy": round(spent[1] / took_s, 2),
        "cores_client": full["cores_client"],  # of the busiest client process: near 1, it is the bottleneck
        "gb": round(sum(each.memory_info().rss for pid in members for each in _all_of(pid)) / len(members) / 1e9, 2),
    }
    lost = _lose_one(server, many, replicas) if replicas > 1 else (None, None, None)
    return outcome | dict(zip(("lost", "missed_pings", "back_s"), lost, strict=True))


def _lose_one(server: Server, load: Traffic, replicas: int) -> tuple[int, int, float]:
    """Kill a replica under a load; return lost requests, missed pings, and `back_s` of `HEADS`."""
    missed, is_over = 0, threading.Event()

    def ping() -> None:
        nonlocal missed
        while not is_over.wait(POLL_INTERVAL_S):
            missed += not server.answers_ping()

    with ThreadPoolExecutor(2) as pool:
        figures = pool.submit(run_load, load, 2 * replicas)
        time.sleep(load.ramp_s + KILL_AFTER * load.seconds)
        os.kill(server.pids()[0][-1], signal.SIGKILL)  # type: ignore[attr-defined,unused-ignore] # Windows has none
        killed, pinging = time.monotonic(), pool.submit(ping)
        try:
            server.wait(starts=replicas + 1)
            back_s = round(time.monotonic() - killed, 1)
            lost = int(figures.result()["failed"])
        finally:
            is_over.set()
        pinging.result()
    return lost, missed, back_s


def draw(outcomes: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw throughput and time to first byte over replicas. Equal figures give identical files."""
    import matplotlib as mpl  # type: ignore[import-not-found,import-untyped,unused-ignore]

    mpl.use("Agg")
    from matplotlib import pyplot

    counts = [each["replicas"] for each in outcomes]
    one = outcomes[0]["sound_s_a_second"] / counts[0]
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "scaling", "font.sans-serif": ["DejaVu Sans"], "font.size": 8}
    with mpl.rc_context(style | {"legend.frameon": False, "axes.spines.top": False, "axes.spines.right": False}):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(8.0, 3.0), layout="constrained")
        left.plot(counts, [each["sound_s_a_second"] for each in outcomes], marker="o", label="measured")
        left.plot(counts, [one * count for count in counts], linestyle=":", label="of one, times as many")
        left.set(title="Saturated", xlabel="replicas", ylabel="seconds of audio per second")
        right.plot(counts, [each["first_ms_p50"] for each in outcomes], marker="o", label="50 %")
        right.plot(counts, [each["first_ms_p95"] for each in outcomes], marker="o", label="95 %")
        right.set(title="First byte, as many requests for each", xlabel="replicas", ylabel="ms", ylim=(0, None))
        for part in (left, right):
            part.set_xticks(counts)
            part.legend()
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)


def main() -> None:
    """Measure all numbers of replicas."""
    parser = make_parser(__doc__)
    parser.add_argument("--replicas", type=numbers, default=(1, 2), help="numbers of replicas, such as 1,2,4,8 [1,2]")
    parser.add_argument("--streams", type=int, default=480, help="concurrent streams per replica [480]")
    parser.add_argument("--rate", type=float, default=20.0, help="requests per second and replica [20]")
    parser.add_argument("--listeners", type=int, default=384, help="concurrent listeners per replica [384]")
    parser.add_argument("--frames", type=int, default=100, help="mean length of a response in frames [100]")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured duration of each load in seconds [20]")
    parser.add_argument(
        "--ramp", dest="ramp_s", type=float, default=6.0, help="warm-up in seconds, which is not measured [6]"
    )
    parser.add_argument(
        "--listen", dest="listen_s", type=float, default=60.0, help="duration of the listeners' load in seconds [60]"
    )
    parser.add_argument("--output", type=Path, help="write the results to this JSON file")
    parser.add_argument("--plot", type=Path, help="draw the results in this SVG file")
    options = parser.parse_args()
    open_more_files()
    outcomes = []
    for replicas in options.replicas:
        began = time.monotonic()
        with served(options.checkpoint, device=options.device, replicas=replicas) as (place, process):
            server = Server(place, process, replicas)
            with server.client:
                outcomes.append(measure(server, replicas, options, began))
    one = outcomes[0]["sound_s_a_second"] / outcomes[0]["replicas"]
    rows = [each | {"of_one": each["sound_s_a_second"] / one if one else None} for each in outcomes]
    if options.plot:
        draw(outcomes, options.plot)
    facts = describe_machine(options.device) | {"cores": os.cpu_count()}
    facts |= {"plan": {name: getattr(options, name) for name in PLAN}, "outcomes": outcomes}
    report([*HEADS.values()], columns(rows, HEADS), facts, options.output)


if __name__ == "__main__":
    sys.exit(run(main))
