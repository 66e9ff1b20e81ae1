"""The figures that a fast engine is held to, one command long: frames, sound, first sounds, streams, start.

On a GPU with S1-mini's own size; elsewhere the same parts in small, so that they are known to run. Each part ends by
itself after a stated time.

python -m benchmark.gpu_suite --checkpoint full-size --output suite.json
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmark.agreement import measure_agreement
from benchmark.command import make_parser, run
from benchmark.frames import measure_frames
from benchmark.targets import Figure, judge, lay_out
from s1_mini.audio.container import check_writable
from s1_mini.bench.clients import BUFFER_S, Clients, Load, Tally, run_together
from s1_mini.bench.report import describe_engine
from s1_mini.bench.workload import Ask, make_workload, planned_arrivals
from s1_mini.capacity.cards import card_in
from s1_mini.capacity.plan import Floors
from s1_mini.config import EngineConfig
from s1_mini.engine import ProductionTTSEngine
from s1_mini.exceptions import ConfigurationError
from s1_mini.families.find import find_checkpoint
from s1_mini.families.s1.config import read_configs
from s1_mini.families.s1.loaded import LoadedS1, as_s1
from s1_mini.runtime.loader import LoadedCheckpoint, load
from s1_mini.runtime.process import frozen, prepare_process

VOICE, VOICE_TEXT, TONE_HZ = "suite", "The children were playing in the garden behind the house.", 150.0
SAME = {  # figures of agreement, and what they are called there
    "same_captured": "captured as eager",
    "same_alone": "alone as in company",
    "same_cached": "prefix cached as read, in other company",
    "same_torch": "by kernels as by torch",
}
LATE_S = 1.0  # a stream whose first sounds come later (p95) is not held: its listener waits between two sentences
QUEUE = 8192
START_LIMIT_S = 120.0
START = """
import sys
from s1_mini import EngineConfig, ProductionTTSEngine
engine = ProductionTTSEngine(EngineConfig.model_validate_json(sys.argv[1]))
engine.start()
print("ready", flush=True)
engine.stop()
"""


@dataclass(frozen=True)
class Scale:
    """Sizes of the workload."""

    name: str
    rows: tuple[int, ...]
    context: int  # positions when frames are timed
    frames: int  # that are timed
    reference_s: float  # of the voice: with text and frames, the positions of the other parts
    max_new_tokens: int
    idle: int  # requests
    rate: float  # requests a second
    rate_s: float
    clients: int  # that saturate the engine
    saturated_s: float
    first_streams: int
    most_streams: int
    rounds: int  # requests of each stream
    streams_s: float
    slots: int | None  # None: as the engine chooses
    company: int  # rows whose tokens are compared with those of rows alone
    alone: int
    compared: int  # frames of each


FULL = Scale("full", (1, 64, 128), 300, 100, 10.0, 100, 32, 20.0, 12.0, 512, 20.0, 128, 4096, 2, 100.0, None, 64, 8, 40)
SMALL = Scale("small", (1, 4, 8), 300, 20, 1.0, 10, 4, 4.0, 2.0, 8, 3.0, 1, 8, 2, 15.0, 4, 4, 2, 5)


@dataclass(frozen=True)
class SuitePlan:
    """Options of the suite."""

    checkpoint: Path | None = None
    device: str = "auto"
    seed: int = 0
    slots: int | None = None
    scale: Scale | None = None  # None: full on a GPU, small elsewhere


@dataclass
class SuiteResult:
    """The figures and what they were taken from."""

    figures: list[Figure] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        """Return the fields of the line of JSON."""
        return {**self.facts, "figures": [figure.data() for figure in self.figures], "details": self.details}


def run_suite(plan: SuitePlan, tell: Callable[[str], None]) -> SuiteResult:
    """Measure all parts, one after the other; `tell` hears which. Raises what an engine raises at its start."""
    begun = time.perf_counter()
    has_gpu = plan.device.startswith("cuda") or (plan.device == "auto" and torch.cuda.is_available())
    scale = plan.scale or (FULL if has_gpu else SMALL)
    if plan.slots is not None:
        scale = replace(scale, slots=plan.slots)
    config = _config(plan, scale)
    result = SuiteResult()

    tell("start to ready, twice")
    starts = measure_starts(config)
    result.details["start_s"] = starts
    tell("frames")
    speaker = load(config)
    loaded = as_s1(speaker.loaded)
    times = measure_frames(loaded, scale.rows, context=scale.context, frames=scale.frames)
    result.details["frames"] = [each.data() for each in times]
    result.details["floor_ms"] = _floors(speaker, loaded, scale)
    tell("the same tokens every way")
    same = measure_agreement(
        loaded.model, rows=scale.company, context=scale.context, frames=scale.compared, alone=scale.alone
    )
    result.details["agreement"] = same
    del speaker, loaded
    _free_memory()
    prepare_process()
    with ProductionTTSEngine(config) as engine, frozen():
        parts = Parts(engine, plan.seed, scale)
        result.facts = _facts(engine, scale)
        tell("first sound, idle")
        idle = parts.idle()
        tell("first sound under load")
        busy = parts.busy()
        tell("saturated")
        full = parts.saturated()
        tell("streams")
        streams, levels = parts.streams()
    loads = (idle, busy, full)
    result.details["loads"] = {each.name: each.figures for each in loads}
    result.details["failures"] = {each.name: each.failures for each in loads if each.failures}
    result.details["streams"] = levels
    values: dict[str, float | None] = {
        **{f"frame_{each.rows}": each.device_ms for each in times},
        "audio_per_s": full.audio_per_s,
        "first_idle": idle.figures["first_byte_ms"]["p50"],
        "first_busy": busy.figures["first_byte_ms"]["p95"],
        "underruns_busy": sum(one.underruns for one in busy.outcomes),
        "streams": streams,
        **{name: min(same[way][kind] for kind in ("main", "codes")) for name, way in SAME.items()},
        "start": starts[-1],
    }
    result.figures = [judge(name, value, is_full=scale.name == FULL.name) for name, value in values.items()]
    result.facts["seconds"] = round(time.perf_counter() - begun, 1)
    return result


class Parts:
    """The parts that need a whole engine."""

    def __init__(self, engine: ProductionTTSEngine, seed: int, scale: Scale) -> None:
        self._seed, self._scale = seed, scale
        self._asked = 0
        rate = engine.sample_rate
        moments = np.arange(round(scale.reference_s * rate)) / rate
        wave = (0.2 * np.sin(2 * np.pi * TONE_HZ * moments)).astype(np.float32)
        engine.add_voice(VOICE, wave, VOICE_TEXT)
        engine.pin_voice(VOICE)
        self._clients = Clients(engine, lambda _: {"voice": VOICE}, "ttfa")
        self._bulk = Clients(engine, lambda _: {"voice": VOICE}, "balanced")
        _, codec = read_configs(find_checkpoint(engine.config.checkpoint_path).directory)
        self._length_s = scale.max_new_tokens * codec.samples_per_frame / codec.sample_rate
        self._clients.warm_up(self._asks(2))

    def idle(self) -> Load:
        """One request at a time."""
        return self._clients.closed("idle", self._asks(self._scale.idle), concurrency=1)

    def busy(self) -> Load:
        """Requests at random moments."""
        asks = self._asks(round(self._scale.rate * self._scale.rate_s))
        arrivals = planned_arrivals(len(asks), self._scale.rate, self._seed)
        return self._clients.open(f"{self._scale.rate:g} a second", asks, arrivals, rate=self._scale.rate)

    def saturated(self) -> Load:
        """More requests at a time than there are slots, until the time is over."""
        scale = self._scale
        asks = self._asks(scale.clients * 40)
        return self._bulk.closed("saturated", asks, concurrency=scale.clients, limit_s=scale.saturated_s)

    def streams(self) -> tuple[int, list[dict[str, Any]]]:
        """Look for the most listeners in real time: upwards by doubling, then between; and tell of each try."""
        deadline = time.perf_counter() + self._scale.streams_s
        held, failed, tries = 0, self._scale.most_streams + 1, []
        count = self._scale.first_streams
        while held < count < failed and time.perf_counter() < deadline:
            level = self._listen(count)
            tries.append(level)
            held, failed = (count, failed) if level["held"] else (held, count)
            if failed > self._scale.most_streams:
                count = min(2 * count, self._scale.most_streams)
            elif failed - held > max(1, held // 10):
                count = (held + failed) // 2
            else:
                break
        return held, tries

    def _listen(self, count: int) -> dict[str, Any]:
        asks = self._asks(count * self._scale.rounds)
        load = listen_in_real_time(self._clients, asks, streams=count, length_s=self._length_s)
        underruns = sum(one.underruns_buffered for one in load.outcomes)
        first = load.figures["first_byte_ms"]["p95"]
        held = not load.failures and underruns == 0 and first is not None and first <= 1000 * LATE_S
        return {
            "streams": count,
            "held": held,
            "underruns_100ms": underruns,
            "failures": load.failures,
            "first_byte_ms": load.figures["first_byte_ms"],
            "audio_per_s": load.audio_per_s,
            "seconds": load.seconds,
        }

    def _asks(self, count: int) -> list[Ask]:
        """Return requests with new sentences."""
        self._asked += 1
        return make_workload(count, self._seed + self._asked, self._scale.max_new_tokens)


def listen_in_real_time(clients: Clients, asks: Sequence[Ask], *, streams: int, length_s: float) -> Load:
    """Start `streams` real-time clients one after the other within `length_s`, each with its share of the requests.

    Each asks again when it has heard its last answer to the end; it plays from 100 ms after the first chunk on.
    """
    tally, begun = Tally(len(asks)), time.perf_counter()

    def listen(number: int) -> None:
        planned = begun + number / streams * length_s
        for ask in asks[number::streams]:
            time.sleep(max(0.0, planned - time.perf_counter()))
            outcome = clients.ask(ask, planned)
            tally.add(outcome)
            planned += max(outcome.first_byte_s + BUFFER_S + outcome.audio_s, outcome.end_to_end_s)

    run_together(partial(listen, number) for number in range(streams))
    return tally.load(f"{streams} streams", concurrency=streams, begun=begun)


def measure_starts(config: EngineConfig) -> list[float]:
    """Seconds from the start of a process to its engine's being ready, twice: the second finds caches warm.

    Raises `ConfigurationError` if an engine does not start.
    """
    return [_start_once(config.model_dump_json(exclude_defaults=True)) for _ in range(2)]


def _start_once(settings: str) -> float:
    begun = time.perf_counter()
    command = [sys.executable, "-c", START, settings]
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process:  # noqa: S603 - ourselves
            watch = threading.Timer(START_LIMIT_S, process.kill)
            watch.start()
            assert process.stdout is not None
            said = process.stdout.readline().strip()
            seconds = time.perf_counter() - begun
            process.wait()
            watch.cancel()
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
    if said != b"ready":
        reason = lines[-1] if lines else f"it was not ready within {START_LIMIT_S:g} s"
        raise ConfigurationError(f"the engine did not start in a process of its own: {reason}")
    return seconds


def _config(plan: SuitePlan, scale: Scale) -> EngineConfig:
    given = {} if scale.slots is None else {"max_batch_size": scale.slots}
    return EngineConfig(
        checkpoint_path=find_checkpoint(plan.checkpoint).directory, device=plan.device, max_queue_size=QUEUE, **given
    )


def _floors(speaker: LoadedCheckpoint, loaded: LoadedS1, scale: Scale) -> dict[int, float]:
    """Return the floor of each number of rows on this machine's GPU, or nothing for an unknown GPU."""
    card = card_in(torch.cuda.get_device_name()) if loaded.model.device.type == "cuda" else None
    if card is None:
        return {}
    sizes = speaker.sizes(0)
    floors = Floors(sizes, card, scale.context + scale.frames // 2)
    return {rows: floors.time(rows).model_ms for rows in scale.rows}


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _facts(engine: ProductionTTSEngine, scale: Scale) -> dict[str, Any]:
    columns = engine.health_check()["slots"]["columns"]
    return describe_engine(engine) | {"columns": columns, "workload": asdict(scale)}


def main() -> int:
    """Measure all figures: a table, then one line of JSON; the same into a file if one is named."""
    parser = make_parser(__doc__)
    parser.add_argument("--slots", type=int, help="[as the engine chooses]")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same sentences and arrivals")
    parser.add_argument("--output", "-o", type=Path, help="file for the JSON")
    options = parser.parse_args()
    if options.output is not None:
        check_writable(options.output)
    plan = SuitePlan(checkpoint=options.checkpoint, device=options.device, seed=options.seed, slots=options.slots)
    result = run_suite(plan, lambda part: print(f"measuring: {part}", file=sys.stderr))
    facts = result.facts
    work = facts["workload"]
    print(
        f"{facts['machine']}, torch {facts['torch']}, commit {facts['commit']}, {facts['precision']}, "
        f"checkpoint {options.checkpoint or 'that ships'}"
    )
    print(
        f"{work['name']} workload: {facts['slots']} slots of {facts['columns']} positions; frames after "
        f"{work['context']} positions; voice of {work['reference_s']:g} s, at most {work['max_new_tokens']} frames; "
        f"{work['rate']:g} requests/s; {work['clients']} clients; seed {options.seed}; {facts['seconds']:g} s in all"
    )
    print(lay_out(result.figures))
    if result.details["floor_ms"]:
        floors = ", ".join(f"{ms:.2f} at {rows}" for rows, ms in result.details["floor_ms"].items())
        print(f"floor of a frame on this card, ms: {floors} rows")
    for name, failures in result.details["failures"].items():
        print(f"{name}: failed {failures}")
    if options.output is not None:
        options.output.write_text(json.dumps(result.data(), indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result.data()))
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
