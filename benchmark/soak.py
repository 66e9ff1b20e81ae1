"""Runs fault scenarios in random order against a server under a permanent load of honest clients, for hours.

A scenario is a row of `SCENARIOS`: events, their required statuses, the number of restarted replicas, the requests that
it may interrupt, and the time within which the server must recover. A server has recovered once all replicas are ready
and answer as the idle server did. The order, the replica that is hit and the pauses depend only on `--seed`.

An answer is lost if it did not arrive whole and no scenario explains it. A scenario explains a failure only if it may
interrupt requests, and the request was sent before the fault was noticed. Such requests count as interrupted. Answers
are compared with those of the idle server; on a GPU, batch invariance is on.

The exit code is 1 if an answer was lost, doubled or different, if a scenario did not recover in time or did not answer
as stated, if memory or descriptors grew by more than 5 % after minute ten, or if SIGTERM under load did not end the
server with exit code 0, after the answers to all requests that were sent at least a second before. Prints tables of
scenarios and minutes, then one line of JSON; failures go to standard error as they occur. Linux only.

python -m benchmark.soak --hours 2 --replicas 2 --checkpoint tests/assets/s1_tiny --seed 1
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmark import http_load
from benchmark.command import columns, make_parser, names, report, run
from benchmark.honest import (
    ANSWER_TIMEOUT_S,
    KINDS,
    Failure,
    Helpers,
    Look,
    Outcome,
    Tally,
    Target,
    family,
    gone_recordings,
    minutes_of,
    read_slowly,
    received,
    recording,
    run_control,
    run_honest,
    run_watcher,
    send,
    summary,
    unread,
)
from benchmark.http_load import Place
from benchmark.scaling import Server
from s1_mini.bench.report import describe_machine, load_average, table
from s1_mini.exceptions import EngineNotReadyError

# Linux only; Windows has none of them
KILL, STOP, GO = (getattr(signal, f"SIG{name}", 0) for name in ("KILL", "STOP", "CONT"))

PAUSE_S = (5.0, 15.0)  # between two scenarios
PROBES = 4  # equal answers in a row that show that a server has recovered
PROBE_S = 10.0  # timeout of each
POLL_S = 0.2
GIVE_UP = 4  # multiple of the stated time after which a server that has not recovered ends the run
NOTICE_S = 1.0  # for the client to notice that its request was interrupted
DISK_BYTES = 4 * 2**20
SPARE_BYTES = 16 * 2**20  # address space that is left to a process under memory pressure
LEAVING = 100
BASE_MINUTE, GROWTH = 10, 1.05
MODEL = "second"
ENGINE = "engine_worker"  # in the command of an engine's process
CALL_S = 120.0  # timeout of loading a model
CLOCK = Path(__file__).with_name("clock_shift.c")
SCENARIO_KEYS = ("scenario", "runs", "interrupted", "recovery_s_p50", "recovery_s_max", "recovers_s")
MINUTE_KEYS = ("minute", "mib", "files", "ping_ms_p99", "ping_ms_max", "control_ms_max")
SCENARIO_HEAD = ["scenario", "runs", "interrupted", "recovery s, median", "longest", "stated"]
MINUTE_HEAD = ["minute", "MiB", "descriptors", "ping ms p99", "max", "control max"]


@dataclass
class Site:
    """The server of a run, and what scenarios need to act on it."""

    server: Server
    process: subprocess.Popen[bytes]
    replicas: int
    checkpoint: Path | None
    folder: Path | None  # a small disk of the server, with its voices; None if there is none
    clock: Path | None  # file with the shift of the server's clock in seconds; None if it cannot be shifted
    expected: Outcome = field(default_factory=lambda: Outcome(0))  # answer of the idle server
    victim: int = 0  # chosen at random for each scenario

    def replica(self) -> psutil.Process:
        """Return the process of the replica that the scenario hits."""
        members = self.server.pids()[0]
        return psutil.Process(members[self.victim % len(members)])

    def engine(self) -> psutil.Process:
        """Return the engine's process of that replica."""
        return next(each for each in family(self.replica().pid) if ENGINE in " ".join(each.cmdline()))

    def disk(self) -> Path:
        """Return the file that fills the server's disk, as this process sees it."""
        return Path(f"/proc/{self.process.pid}/root{self.folder}/filling")

    def answers(self) -> bool:
        """Return whether one request gets the answer of the idle server."""

        async def ask() -> Outcome:
            async with asyncio.timeout(PROBE_S):
                return await send(self.server.place, "whole", 0)

        try:
            return asyncio.run(ask())[:2] == self.expected[:2]
        except (OSError, EOFError, ValueError):
            return False


# ---- events -------------------------------------------------------------------------------------------------------

Act = Callable[[Site], int | None]  # returns a status that the scenario states, or None


def hit(which: Callable[[Site], psutil.Process], number: int) -> Act:
    """Return an event that sends a signal to one process; the same process for both signals of a scenario."""
    return lambda site: which(site).send_signal(number)


def kill_proxy(site: Site) -> None:
    """Kill the proxy."""
    os.kill(site.server.pids()[1][0], KILL)


def send_all(number: int) -> Act:
    """Return an event that sends a signal to all processes of the server, as when its machine is suspended."""

    def act(site: Site) -> None:
        for process in family(site.process.pid):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    return act


def limit_memory(site: Site) -> None:
    """Limit the address space of a replica and its engine to some megabytes more than they use."""
    for process in family(site.replica().pid):
        with suppress(psutil.NoSuchProcess):
            _, hard = process.rlimit(psutil.RLIMIT_AS)
            process.rlimit(psutil.RLIMIT_AS, (process.memory_info().vms + SPARE_BYTES, hard))


def free_memory(site: Site) -> None:
    """Lift the limit of `limit_memory` from all processes."""
    for process in family(site.process.pid):
        with suppress(psutil.NoSuchProcess):
            _, hard = process.rlimit(psutil.RLIMIT_AS)
            process.rlimit(psutil.RLIMIT_AS, (hard, hard))


def fill_disk(site: Site) -> None:
    """Fill the disk to its last byte."""
    with suppress(OSError), site.disk().open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def empty_disk(site: Site) -> None:
    """Free the disk again."""
    site.disk().unlink()


def add_voice(site: Site) -> int:
    """Add a voice."""
    sound = {"audio": ("a.wav", recording(1.0, 16_000, 1))}
    form = {"name": "soak", "text": "Ah."}
    return int(site.server.client.post("/v1/voices", data=form, files=sound, timeout=CALL_S).status_code)


def delete_voice(site: Site) -> int:
    """Delete the voice again."""
    return int(site.server.client.delete("/v1/voices/soak", timeout=CALL_S).status_code)


def load_model(site: Site) -> int:
    """Load the checkpoint a second time, under another name."""
    assert site.checkpoint is not None
    body = {"model_name": MODEL, "url": str(site.checkpoint)}
    return int(site.server.client.post("/models", json=body, timeout=CALL_S).status_code)


def invoke_model(site: Site) -> int:
    """Speak with the second model."""
    body = {"text": "Yes.", "seed": 1, "max_new_tokens": 12}
    return int(site.server.client.post(f"/models/{MODEL}/invoke", json=body, timeout=CALL_S).status_code)


def unload_model(site: Site) -> int:
    """Unload the second model."""
    return int(site.server.client.delete(f"/models/{MODEL}", timeout=CALL_S).status_code)


def shift_clock(seconds: int) -> Act:
    """Return an event that sets the server's clock this many seconds ahead of the machine's."""

    def act(site: Site) -> None:
        assert site.clock is not None
        with site.clock.open("r+b") as file:  # never truncated, because processes have mapped it
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))

    return act


def read_badly(site: Site) -> None:
    """Open streams that are read slowly or never."""

    async def both() -> None:
        target = Target(site.server.place)
        await asyncio.gather(read_slowly(target), unread(target), return_exceptions=True)

    asyncio.run(both())


def leave(site: Site) -> None:
    """Send many requests and large recordings whose clients disconnect."""

    async def all_leave() -> None:
        moments = itertools.product(("before", "middle"), KINDS)
        leaving = [
            send(site.server.place, kind, number % 4, leaves=moment)
            for number, (moment, kind) in zip(range(LEAVING), itertools.cycle(moments), strict=False)
        ]
        recordings = [gone_recordings(Target(site.server.place)) for _ in range(8)]
        await asyncio.gather(*leaving, *recordings, return_exceptions=True)

    asyncio.run(all_leave())


# ---- scenarios ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """Something that happens, this many seconds after the beginning of the scenario (or later, after a long event)."""

    at_s: float
    act: Act


@dataclass(frozen=True)
class Scenario:
    """A fault, and what it may do."""

    name: str
    events: tuple[Event, ...]
    recovers_s: float  # stated time from the last event until the server has recovered
    interrupts_s: float | None = None  # requests sent until this long after the first event may fail; None: none may
    restarts: int | None = 0  # of replicas; None: any number
    answers: tuple[int, ...] = ()  # statuses of the events
    lacks: Callable[[Site], str] = lambda _: ""  # the reason for which it cannot run here


def lacks_replicas(site: Site) -> str:
    """Return why a scenario that ends one of several replicas cannot run."""
    return "" if site.replicas > 1 else "needs --replicas 2"


def lacks_disk(site: Site) -> str:
    """Return why a disk cannot be filled."""
    return "" if site.folder else "this user cannot mount a small disk (unshare -Urm)"


def lacks_clock(site: Site) -> str:
    """Return why the clock cannot be shifted."""
    return "" if site.clock else "clock_shift.c needs a C compiler, cc"


def lacks_checkpoint(site: Site) -> str:
    """Return why a model cannot be loaded."""
    return "" if site.checkpoint else "needs --checkpoint"


SCENARIOS = (
    Scenario(
        "a replica is killed",
        (Event(0, hit(Site.replica, KILL)),),
        recovers_s=90,
        interrupts_s=2,
        restarts=1,
        lacks=lacks_replicas,
    ),
    Scenario(
        "an engine is killed",
        (Event(0, hit(Site.engine, KILL)),),
        recovers_s=90,
        interrupts_s=2,
        restarts=1,
        lacks=lacks_replicas,
    ),
    Scenario("the proxy is killed", (Event(0, kill_proxy),), recovers_s=30, interrupts_s=2, lacks=lacks_replicas),
    Scenario(
        "a replica is terminated",
        (Event(0, hit(Site.replica, signal.SIGTERM)),),
        recovers_s=90,
        restarts=1,
        lacks=lacks_replicas,
    ),
    Scenario(
        "a replica is suspended for 8 s",
        (Event(0, hit(Site.replica, STOP)), Event(8, hit(Site.replica, GO))),
        recovers_s=30,
    ),
    Scenario(
        "a replica hangs",
        (Event(0, hit(Site.replica, STOP)),),
        recovers_s=120,
        interrupts_s=8,
        restarts=1,
        lacks=lacks_replicas,
    ),
    Scenario(
        "all processes are suspended for 20 s", (Event(0, send_all(STOP)), Event(20, send_all(GO))), recovers_s=30
    ),
    Scenario(
        "a replica lacks memory for 10 s",
        (Event(0, limit_memory), Event(10, free_memory)),
        recovers_s=90,
        interrupts_s=10,
        restarts=None,
        lacks=lacks_replicas,
    ),
    Scenario(
        "the disk is full for 5 s",
        (Event(0, fill_disk), Event(0, add_voice), Event(5, empty_disk), Event(5, add_voice), Event(5, delete_voice)),
        recovers_s=30,
        answers=(507, 201, 204),
        lacks=lacks_disk,
    ),
    Scenario(
        "a model is loaded and unloaded",
        (Event(0, load_model), Event(0, invoke_model), Event(0, unload_model)),
        recovers_s=30,
        answers=(200, 200, 200),
        lacks=lacks_checkpoint,
    ),
    Scenario(
        "the clock jumps by hours",
        (Event(0, shift_clock(3 * 3600)), Event(8, shift_clock(-24 * 3600)), Event(16, shift_clock(0))),
        recovers_s=30,
        lacks=lacks_clock,
    ),
    Scenario("clients read slowly or never", (Event(0, read_badly),), recovers_s=30),
    Scenario("100 clients leave", (Event(0, leave),), recovers_s=30),
)
NAMES = tuple(scenario.name for scenario in SCENARIOS)


class Turn(NamedTuple):
    """One entry of a schedule."""

    name: str
    victim: int
    pause_s: float  # before the scenario


def schedule(seed: int, chosen: Sequence[str] = NAMES) -> Iterator[Turn]:
    """Yield turns without end: all scenarios in a random order, then again in another one."""
    chance = random.Random(seed)  # noqa: S311 - a choice, no secret
    while True:
        for name in chance.sample(chosen, len(chosen)):
            yield Turn(name, chance.randrange(64), round(chance.uniform(*PAUSE_S), 1))


@dataclass
class Episode:
    """One run of a scenario. Times are those of `time.monotonic`."""

    scenario: Scenario
    began: float
    ended: float = 0.0  # of the events
    recovered: float | None = None
    violations: list[str] = field(default_factory=list)

    @property
    def recovery_s(self) -> float:
        """Seconds from the last event until the server had recovered."""
        return (self.recovered or time.monotonic()) - self.ended

    def covers(self, moment: float) -> bool:
        """Return whether the server was disturbed at this moment."""
        return self.began <= moment and (self.recovered is None or moment <= self.recovered)

    def explains(self, failure: Failure) -> bool:
        """Return whether a request may have failed because of this scenario."""
        may_s, over = self.scenario.interrupts_s, self.recovered or self.ended
        if failure.what != "lost" or may_s is None:
            return False
        return failure.began <= self.began + may_s and self.began <= failure.ended <= over + NOTICE_S


def play(site: Site, scenario: Scenario, episodes: list[Episode]) -> Episode:
    """Run a scenario, and wait until the server has recovered. Raises `EngineNotReadyError` if it never does."""
    starts, seen = site.server.starts(), list[int]()
    episode = Episode(scenario, time.monotonic())
    episodes.append(episode)
    for event in scenario.events:
        time.sleep(max(0.0, episode.began + event.at_s - time.monotonic()))
        try:
            seen += [] if (status := event.act(site)) is None else [status]
        except Exception as error:  # the scenario fails, and the run goes on
            episode.violations.append(f"{type(error).__name__}: {error}")
    episode.ended = time.monotonic()
    await_recovery(site, episode, starts + (scenario.restarts or 0))
    if seen != [*scenario.answers]:
        episode.violations.append(f"answers {seen}, not {[*scenario.answers]}")
    restarts = site.server.starts() - starts
    if scenario.restarts is not None and restarts != scenario.restarts:
        episode.violations.append(f"{restarts} replicas were restarted, not {scenario.restarts}")
    if episode.recovery_s > scenario.recovers_s:
        episode.violations.append(f"recovered after {episode.recovery_s:.1f} s, not {scenario.recovers_s:g} s")
    return episode


def await_recovery(site: Site, episode: Episode, starts: int) -> None:
    """Wait until all replicas are ready and answer. Raises `EngineNotReadyError` if they do not."""
    gives_up = episode.ended + GIVE_UP * episode.scenario.recovers_s
    while not (site.server.all_ready(starts) and all(site.answers() for _ in range(PROBES))):
        if site.process.poll() is not None or time.monotonic() > gives_up:
            raise EngineNotReadyError(f"the server did not recover: {episode.scenario.name}")
        time.sleep(POLL_S)
    episode.recovered = time.monotonic()


@dataclass
class Played:
    """What a run did."""

    began: float = field(default_factory=time.monotonic)
    episodes: list[Episode] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)  # other than those of scenarios
    ended: float = 0.0  # when SIGTERM was sent


def play_all(site: Site, seed: int, chosen: Sequence[str], seconds: float, played: Played) -> None:
    """Run scenarios until the time is over, and at least one. Raises `EngineNotReadyError`."""
    scenarios = {scenario.name: scenario for scenario in SCENARIOS}
    if all(scenarios[name].lacks(site) for name in chosen):
        raise EngineNotReadyError("none of these scenarios can run here")
    turns = schedule(seed, chosen)
    while not played.episodes or time.monotonic() < played.began + seconds:
        turn = next(turns)
        scenario, site.victim = scenarios[turn.name], turn.victim
        if scenario.lacks(site):
            continue
        time.sleep(turn.pause_s)
        episode = play(site, scenario, played.episodes)
        told = "; ".join(episode.violations) or "as stated"
        print(f"{time.strftime('%X')} {turn.name}: {episode.recovery_s:.1f} s, {told}", file=sys.stderr)


# ---- the run ------------------------------------------------------------------------------------------------------


def build_clock(folder: Path) -> dict[str, str]:
    """Build the library that shifts the clock of processes; return the variables that load it, none if it fails."""
    library, shift = folder / "clock.so", folder / "clock"
    compiler = shutil.which("cc")
    if compiler is None:
        return {}
    shift.write_bytes(bytes(8))
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(CLOCK), "-ldl"]
    built = subprocess.run(command, check=False, capture_output=True)  # noqa: S603 - our own file
    return {} if built.returncode else {"LD_PRELOAD": str(library), "SOAK_CLOCK": str(shift)}


def small_disk(folder: Path) -> list[str]:
    """Return the command that runs a program with a small disk mounted at `folder`; empty if this is not allowed."""
    unshare = shutil.which("unshare")
    if unshare is None or not shutil.which("mount"):
        return []
    mount = f'mount -t tmpfs -o size={DISK_BYTES} soak "$0" && exec "$@"'
    command = [unshare, "-Urm", "sh", "-c", mount, str(folder)]
    tried = subprocess.run([*command, "true"], check=False, capture_output=True)  # noqa: S603 - as above
    return [] if tried.returncode else command


def environment_of(options: Namespace, disk: Path | None) -> dict[str, str]:
    """Return the variables of the server."""
    found = {
        "OMP_WAIT_POLICY": "PASSIVE",
        "S1_MINI_SERVER_ENGINE_PROCESS": "on",
        "S1_MINI_SERVER_LOG_FORMAT": "json",
        "S1_MINI_BATCH_INVARIANCE": "on" if options.device.startswith("cuda") else "off",
    }
    if options.checkpoint:
        found["S1_MINI_SERVER_SAGEMAKER_MODELS_ROOT"] = str(options.checkpoint.resolve().parent)
        found["S1_MINI_SERVER_SAGEMAKER_MODELS_KV_MB"] = "64"
    if disk:
        found |= {"S1_MINI_VOICES_PATH": str(disk / "voices"), "S1_MINI_REFERENCE_CACHE_PATH": str(disk / "cache")}
    return found


def soak(options: Namespace) -> dict[str, Any]:
    """Serve, load and disturb; return all figures."""
    with tempfile.TemporaryDirectory(prefix="s1-mini-soak-") as name:
        folder = Path(name)
        disk, clock = folder / "disk", build_clock(folder)
        disk.mkdir()
        within = small_disk(disk)
        environment = environment_of(options, disk if within else None) | clock
        given = {"device": options.device, "max_batch_size": options.slots, "replicas": options.replicas}
        with http_load.served(options.checkpoint, environment=environment, within=within, log=options.log, **given) as (
            place,
            process,
        ):
            server = Server(place, process, options.replicas)
            checkpoint = options.checkpoint and options.checkpoint.resolve()
            shifts = folder / "clock" if clock else None
            site = Site(server, process, options.replicas, checkpoint, disk if within else None, shifts)
            with server.client:
                server.wait()
                site.expected = asyncio.run(send(place, "whole", 0))
                return disturb(site, options)


def disturb(site: Site, options: Namespace) -> dict[str, Any]:
    """Run the honest clients and all scenarios; end the server with SIGTERM under load."""
    begun, over = multiprocessing.Event(), multiprocessing.Event()
    helpers, place, process = Helpers(), site.server.place, site.process
    try:
        control = Place("127.0.0.1", helpers.start(run_control).recv())
        watching = helpers.start(run_watcher, (place, control), process.pid, begun, over)
        honest = helpers.start(run_honest, place, options.clients, begun, over)
        if not begun.wait(ANSWER_TIMEOUT_S):
            raise EngineNotReadyError("the idle server did not answer every kind of honest request")
        played = Played()
        try:
            play_all(site, options.seed, options.scenarios, 3600 * options.hours, played)
        except EngineNotReadyError as error:
            played.violations.append(str(error))
        played.ended = time.monotonic()
        over.set()
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(http_load.EXIT_LIMIT_S)
        tally, looks = received(honest), received(watching) or []
    finally:
        helpers.end()
    if process.returncode != 0:
        played.violations.append(f"exit code {process.returncode} after SIGTERM under load")
    return judge(site, options, tally or Tally(), looks, played)


def judge(site: Site, options: Namespace, tally: Tally, looks: list[Look], played: Played) -> dict[str, Any]:
    """Return the figures of a run with everything that it violated."""
    episodes, began = played.episodes, played.began
    explained = [next((one for one in episodes if one.explains(each)), None) for each in tally.failures]
    interrupted = [each for each in explained if each is not None]
    tally.failures = [each for each, why in zip(tally.failures, explained, strict=True) if why is None]
    calm = [look for look in looks if not any(one.covers(look.at) for one in episodes)]
    facts = summary(tally, looks, began) | {"minutes": minutes_of(calm, began), "interrupted": len(interrupted)}
    violations = played.violations + [f"{one.scenario.name}: {each}" for one in episodes for each in one.violations]
    counts = Counter(each.what for each in tally.failures)
    violations += [f"{count} {what}" for what, count in counts.items()]
    violations += [
        f"{each.what} in the drain: {each.reason}" for each in tally.ended if each.began < played.ended - NOTICE_S
    ]
    violations += growth(facts["minutes"])
    if not facts["num_whole"]:
        violations.append("no answer was received")
    chosen = [scenario for scenario in SCENARIOS if scenario.name in options.scenarios]
    scenarios = [outcome(site, scenario, episodes, interrupted) for scenario in chosen]
    return facts | {"scenarios": scenarios, "violations": violations}


def outcome(site: Site, scenario: Scenario, episodes: list[Episode], interrupted: list[Episode]) -> dict[str, Any]:
    """Return the figures of one scenario."""
    times = [each.recovery_s for each in episodes if each.scenario is scenario]
    return {
        "scenario": scenario.name,
        "runs": len(times),
        "interrupted": sum(each.scenario is scenario for each in interrupted),
        "recovery_s_p50": round(statistics.median(times), 1) if times else None,
        "recovery_s_max": round(max(times), 1) if times else None,
        "recovers_s": scenario.recovers_s,
        "left_out": scenario.lacks(site),
    }


def growth(minutes: list[dict[str, float]]) -> list[str]:
    """Return which of memory and descriptors grew too much from minute ten to the last minute."""
    base = next((each for each in minutes if each["minute"] >= BASE_MINUTE), None)
    if base is None:
        return []
    grown = [name for name in ("mib", "files") if minutes[-1][name] > GROWTH * base[name]]
    return [f"{name} grew from {base[name]} to {minutes[-1][name]} after minute {BASE_MINUTE}" for name in grown]


def main() -> int:
    """Run scenarios for hours, and report."""
    parser = make_parser(__doc__)
    parser.add_argument("--hours", type=float, default=2.0, help="duration; at least one scenario runs [2]")
    parser.add_argument("--replicas", type=int, default=2, help="servers behind the port [2]")
    parser.add_argument("--clients", type=int, default=8, help="honest requests in flight at once [8]")
    parser.add_argument("--slots", type=int, default=8, help="--max-batch-size of each server [8]")
    parser.add_argument("--seed", type=int, default=1, help="seed of the order of the scenarios [1]")
    parser.add_argument("--scenarios", type=names(NAMES), default=NAMES, help=f"of {', '.join(NAMES)} [all]")
    parser.add_argument("--log", default=os.devnull, help="file for the server's log [none]")
    parser.add_argument("--output", type=Path, help="write the results to this JSON file")
    options = parser.parse_args()
    multiprocessing.set_start_method("fork", force=True)
    work = {name: getattr(options, name) for name in ("hours", "replicas", "clients", "slots", "seed")}
    facts = {"load_average": load_average()} | soak(options)
    facts = describe_machine(options.device) | work | {"kinds": KINDS} | facts
    print(f"{facts['machine']}, torch {facts['torch']}, commit {facts['commit']}; {options.replicas} replicas,")
    print(f"{options.clients} clients, seed {options.seed}, {options.hours:g} hours")
    print(table(MINUTE_HEAD, columns(facts["minutes"], MINUTE_KEYS)))
    for name in ("num_whole", "left", "refused", "interrupted", "lost", "doubled", "different"):
        print(f"{name}: {sum(facts[name].values()) if isinstance(facts[name], dict) else facts[name]}")
    for each in facts["scenarios"]:
        if each["left_out"]:
            print(f"left out: {each['scenario']}: {each['left_out']}")
    for violation in facts["violations"]:
        print(f"violation: {violation}")
    report(SCENARIO_HEAD, columns(facts["scenarios"], SCENARIO_KEYS), facts, options.output)
    return int(bool(facts["violations"]))


if __name__ == "__main__":
    sys.exit(run(main))
