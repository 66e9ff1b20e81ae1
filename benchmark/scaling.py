"""Scaling of a server with replicas on one host, each on a GPU of its own, or on a CPU.

For each number: the start, seconds of sound a second with `--streams` a replica at a time, the first byte at `--rate`
requests a second for each, `--listeners` for each that hear their answers out, and what it costs that one replica is
killed under the first load. Cores and memory are of the server's processes, by /proc, so Linux only. Prints a table,
then one line of JSON; `--plot` draws it.

python -m benchmark.scaling --checkpoint full-size --replicas 1,2,4,8 --output scaling.json --plot scaling.svg
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import psutil

from benchmark.command import give, make_parser, numbers, run
from benchmark.http_load import Place, Traffic, run_load, served
from s1_mini.bench.clients import resident_bytes
from s1_mini.bench.report import describe_machine, table
from s1_mini.exceptions import EngineNotReadyError
from s1_mini.remote.replica import PROCESS
from s1_mini.server.connections import open_more_files

START_LIMIT_S = 600.0
LOOK_S = 0.05
KILL_AFTER = 0.3  # of the seconds of a load
HEADS = {
    "replicas": "replicas",
    "ready_s": "ready s",
    "sound_s_a_second": "sound/s",
    "of_one": "of one",
    "first_ms_p50": "first p50",
    "first_ms_p95": "p95 ms",
    "listeners": "listeners",
    "ran_dry": "dry",
    "failed": "failed",
    "cores": "cores",
    "cores_proxy": "proxy",
    "gb": "GB each",
    "lost": "lost",
    "back_s": "back s",
}


@dataclass(frozen=True)
class Plan:
    """The load per replica; seconds are of all."""

    streams: int
    rate: float
    listeners: int
    frames: int
    seconds: float
    ramp_s: float
    listen_s: float


@dataclass(frozen=True)
class Outcome:
    """Figures of a number of replicas; times in ms unless their names say otherwise."""

    replicas: int
    ready_s: float  # from the start until all speak
    sound_s_a_second: float
    first_ms_p50: float
    first_ms_p95: float
    listeners: int
    ran_dry: int
    failed: int  # of all of these loads
    cores: float  # of a replica, under the first load
    cores_proxy: float
    cores_client: float  # of the busiest process that asks: near 1, it is what limits
    gb: float  # of host memory, of a replica
    lost: int | None = None  # requests, of those under way when one replica is killed; None if there is but one
    missed_pings: int | None = None
    back_s: float | None = None  # until all speak again


class Server:
    """A server that runs, and its processes."""

    def __init__(self, place: Place, process: subprocess.Popen[bytes], replicas: int) -> None:
        self.place, self._process, self._count = place, process, replicas
        self._client = httpx2.Client(base_url=f"http://{place.host}:{place.port}", timeout=10, trust_env=False)

    def wait(self, without: int = 0) -> None:
        """Wait until every replica speaks, and a process is none of them any more.

        Raises `EngineNotReadyError` if the server ends, or takes too long.
        """
        ends = time.monotonic() + START_LIMIT_S
        while without in self.pids()[0] or not self._all_speak():
            if self._process.poll() is not None or time.monotonic() > ends:
                raise EngineNotReadyError("the server does not come up; `s1-mini serve` tells why")
            time.sleep(LOOK_S)

    def pings(self) -> bool:
        """Whether /ping says that somebody speaks."""
        try:
            return self._client.get("/ping").status_code == 200
        except httpx2.TransportError:
            return False

    def pids(self) -> tuple[list[int], list[int]]:
        """Return the process ids of the replicas and of the proxy."""
        if self._count == 1:
            return [self._process.pid], []
        members: list[int] = []
        proxies: list[int] = []
        for child in psutil.Process(self._process.pid).children():
            with suppress(psutil.Error):  # it has just ended
                if words := child.cmdline():  # a zombie has none
                    (members if PROCESS in words else proxies).append(child.pid)
        return sorted(members), sorted(proxies)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _all_speak(self) -> bool:
        try:
            told = self._client.get("/health").json()
        except (httpx2.TransportError, ValueError):
            return False
        if self._count == 1:
            return self.pings()
        states = [each["state"] for each in told.get("replicas", [])]
        return states == ["ready"] * self._count == ["ready"] * len(self.pids()[0])


def measure(server: Server, replicas: int, plan: Plan, began: float) -> Outcome:
    """Load a server that starts."""
    server.wait()
    ready_s = time.monotonic() - began
    clients = 2 * replicas
    many = Traffic(server.place, replicas * plan.streams, plan.seconds, None, plan.frames, plan.ramp_s)
    members, proxies = server.pids()
    before, load_began = [_cpu_s(members), _cpu_s(proxies)], time.monotonic()
    full = run_load(many, clients)
    took_s = time.monotonic() - load_began
    spent = [after - cpu_s for after, cpu_s in zip((_cpu_s(members), _cpu_s(proxies)), before, strict=True)]
    first = run_load(replace(many, rate=replicas * plan.rate), clients)
    listening = replace(many, streams=replicas * plan.listeners, seconds=plan.listen_s, listens=True)
    heard = run_load(listening, clients)
    gb = sum(map(resident_bytes, members)) / len(members) / 1e9
    outcome = Outcome(
        replicas=replicas,
        ready_s=round(ready_s, 1),
        sound_s_a_second=full["sound_s_a_second"],
        first_ms_p50=first["first_ms_p50"],
        first_ms_p95=first["first_ms_p95"],
        listeners=listening.streams,
        ran_dry=int(heard["ran_dry"]),
        failed=int(full["failed"] + first["failed"] + heard["failed"]),
        cores=round(spent[0] / took_s / replicas, 2),
        cores_proxy=round(spent[1] / took_s, 2),
        cores_client=full["cores_client"],
        gb=round(gb, 2),
    )
    return outcome if replicas == 1 else _lose_one(server, outcome, many, clients)


def _lose_one(server: Server, outcome: Outcome, load: Traffic, clients: int) -> Outcome:
    """Kill a replica in the midst of a load."""
    told: dict[str, float] = {}
    asking = threading.Thread(target=lambda: told.update(run_load(load, clients)))
    asking.start()
    time.sleep(load.ramp_s + KILL_AFTER * load.seconds)
    pid = server.pids()[0][-1]
    os.kill(pid, signal.SIGKILL)  # type: ignore[attr-defined,unused-ignore] # Windows has none
    killed, missed, is_over = time.monotonic(), 0, threading.Event()

    def ping() -> None:
        nonlocal missed
        while not is_over.wait(LOOK_S):
            missed += not server.pings()

    pinging = threading.Thread(target=ping)
    pinging.start()
    server.wait(without=pid)
    back_s = round(time.monotonic() - killed, 1)
    asking.join()
    is_over.set()
    pinging.join()
    return replace(outcome, lost=int(told["failed"]), missed_pings=missed, back_s=back_s)


def draw(outcomes: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw sound a second, first bytes and listeners over replicas, the same bytes for the same figures."""
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
        left.set(title="Saturated", xlabel="replicas", ylabel="seconds of sound a second")
        right.plot(counts, [each["first_ms_p50"] for each in outcomes], marker="o", label="50 %")
        right.plot(counts, [each["first_ms_p95"] for each in outcomes], marker="o", label="95 %")
        right.set(title="First byte, as many requests for each", xlabel="replicas", ylabel="ms", ylim=(0, None))
        for part in (left, right):
            part.set_xticks(counts)
            part.legend()
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)


def _cpu_s(pids: Sequence[int]) -> float:
    return float(sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids))


def main() -> int:
    """Measure all numbers of replicas."""
    parser = make_parser(__doc__)
    parser.add_argument("--replicas", type=numbers, default=(1, 2), help="as 1,2,4,8")
    parser.add_argument("--streams", type=int, default=480, help="at a time, for each replica")
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second, for each")
    parser.add_argument("--listeners", type=int, default=384, help="for each")
    parser.add_argument("--frames", type=int, default=100, help="of an answer, on average")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a load, after those that do not count")
    parser.add_argument("--ramp", type=float, default=6.0, help="seconds that do not count")
    parser.add_argument("--listen", type=float, default=60.0, help="seconds that listeners listen")
    parser.add_argument("--output", type=Path, help="file for the JSON")
    parser.add_argument("--plot", type=Path, help="file for a picture (SVG)")
    options = parser.parse_args()
    open_more_files()
    plan = Plan(
        options.streams, options.rate, options.listeners, options.frames, options.seconds, options.ramp, options.listen
    )
    outcomes: list[Outcome] = []
    for replicas in options.replicas:
        began = time.monotonic()
        with (
            served(options.checkpoint, device=options.device, replicas=replicas) as (place, process),
            closing(Server(place, process, replicas)) as server,
        ):
            outcomes.append(measure(server, replicas, plan, began))
    one = outcomes[0].sound_s_a_second / outcomes[0].replicas
    rows = [asdict(each) | {"of_one": each.sound_s_a_second / one if one else None} for each in outcomes]
    print(table([*HEADS.values()], [[row[key] for key in HEADS] for row in rows]))
    if options.plot:
        draw([asdict(each) for each in outcomes], options.plot)
    facts = describe_machine(options.device) | {"cores": os.cpu_count()}
    give(facts | {"plan": asdict(plan), "outcomes": [asdict(each) for each in outcomes]}, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
