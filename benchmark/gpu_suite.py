"""All performance figures with one command: frame time, throughput, time to first audio, streams, startup time.

On a GPU, the figures are compared with targets, which are for a checkpoint of S1-mini's size in bfloat16 on one H200.
Without CUDA, the same parts run on a small scale, as a smoke test.

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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmark.agreement import loaded_s1, measure_agreement
from benchmark.command import make_parser, run
from benchmark.frames import measure_frames
from s1_mini.audio.container import check_writable
from s1_mini.bench.clients import BUFFER_S, Clients, Load
from s1_mini.bench.report import NONE, describe_engine, table
from s1_mini.bench.workload import TEXT, Ask, make_workload, planned_arrivals, tone
from s1_mini.capacity.cards import card_in
from s1_mini.capacity.plan import Floors
from s1_mini.config import EngineConfig
from s1_mini.engine import ProductionTTSEngine
from s1_mini.exceptions import ConfigurationError
from s1_mini.families.find import find_checkpoint
from s1_mini.families.s1.config import read_configs
from s1_mini.runtime.loader import load
from s1_mini.runtime.process import frozen, prepare_process

VOICE = "suite"
LATE_S = (
    1.0  # limit for p95 of the time to first audio of real-time streams; above it, listeners wait between sentences
)
STARTS = 2  # the second start has warm caches
START_LIMIT_S = 120.0
START = """
import sys
from s1_mini import EngineConfig, ProductionTTSEngine
engine = ProductionTTSEngine(EngineConfig.model_validate_json(sys.argv[1]))
engine.start()
print("ready", flush=True)
engine.stop()
"""


class Target(NamedTuple):
    """Limit (`must`) and goal (`aim`) of a figure."""

    title: str
    must: float
    aim: float
    less_is_better: bool = True


TARGETS = {
    "frame_1": Target("ms per frame, 1 row", 1.5, 0.65),
    "frame_64": Target("ms per frame, 64 rows", 2.5, 1.4),
    "frame_128": Target("ms per frame, 128 rows", 3.5, 2.2),
    "audio_per_s": Target("seconds of audio per second, saturated", 600, 1500, less_is_better=False),
    "first_idle": Target("first audio, idle, voice cached, p50, ms", 20, 8),
    "first_busy": Target("first audio under load, p95, ms", 50, 20),
    "underruns_busy": Target("underruns under that load", 0, 0),
    "streams": Target("real-time streams without underruns (100 ms)", 300, 1000, less_is_better=False),
    "same_captured": Target("share of equal tokens, captured and eager", 0.99, 1.0, less_is_better=False),
    "same_alone": Target("share of equal tokens, alone and among 64", 0.999, 1.0, less_is_better=False),
    "same_cached": Target("share of equal tokens, cached and computed prefix", 0.999, 1.0, less_is_better=False),
    "same_torch": Target("share of equal greedy tokens, kernels and torch", 0.9, 1.0, less_is_better=False),
    "start": Target("start to ready, caches warm, s", 40, 15),
}
SAME = {  # figure: its name in `measure_agreement`
    "same_captured": "captured and eager",
    "same_alone": "alone and in a batch",
    "same_cached": "cached and computed prefix, in different batches",
    "same_torch": "kernels and torch",
}


def judge(name: str, value: float | None, *, is_full: bool) -> dict[str, Any]:
    """Return a figure for the JSON output, with target and verdict (aim, must, missed) if `is_full`."""
    target = TARGETS.get(name)
    title = target.title if target else f"ms per frame, {name.removeprefix('frame_')} rows"
    figure = {"name": name, "title": title, "value": value}
    if target is None or not is_full:
        return figure
    sign = 1 if target.less_is_better else -1
    verdict = "missed"
    if value is None:
        verdict = NONE
    elif sign * value <= sign * target.must:
        verdict = "aim" if sign * value <= sign * target.aim else "must"
    return figure | {"must": target.must, "aim": target.aim, "verdict": verdict}


def lay_out(figures: Sequence[dict[str, Any]]) -> str:
    """Return a table of figures and their targets."""
    rows = []
    for each in figures:
        sign = "≤" if "must" not in each or TARGETS[each["name"]].less_is_better else "≥"
        limits = [f"{sign} {each[name]:g}" if name in each else None for name in ("must", "aim")]
        rows.append([each["title"], each["value"], *limits, each.get("verdict")])
    return table(["figure", "measured", "must", "aim", "reached"], rows)


@dataclass(frozen=True)
class Scale:
    """Sizes of the workload."""

    name: str = "full"
    rows: tuple[int, ...] = (1, 64, 128)
    context: int = 300  # positions before the timed frames
    frames: int = 100  # timed frames
    reference_s: float = 10.0  # length of the recording from which the voice is encoded
    max_new_tokens: int = 100
    idle: int = 32  # requests to the idle engine
    rate: float = 20.0  # requests per second
    rate_s: float = 12.0
    clients: int = 512  # clients that saturate the engine
    saturated_s: float = 20.0
    first_streams: int = 128
    most_streams: int = 4096
    rounds: int = 2  # requests of each stream
    streams_s: float = 100.0
    slots: int | None = None  # None: as the engine chooses
    company: int = 64  # rows of the batch whose tokens are compared
    alone: int = 8  # the first of these rows, which are also generated alone
    compared: int = 40  # frames of each


FULL = Scale()
SMALL = Scale(
    name="small",
    rows=(1, 4, 8),
    frames=20,
    reference_s=1.0,
    max_new_tokens=10,
    idle=4,
    rate=4.0,
    rate_s=2.0,
    clients=8,
    saturated_s=3.0,
    first_streams=1,
    most_streams=8,
    streams_s=15.0,
    slots=4,
    company=4,
    alone=2,
    compared=5,
)


def run_suite(config: EngineConfig, scale: Scale, seed: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure all parts, one after the other; return facts, figures and their details.

    `progress` is called with the name of each part. Raises `ConfigurationError` if the engine does not start, and
    `CheckpointMismatchError` if the checkpoint is not of S1.
    """
    begun, details = time.perf_counter(), dict[str, Any]()
    progress("start to ready")
    details["start_s"] = measure_starts(config)
    progress("frames")
    speaker = load(config)
    loaded = loaded_s1(speaker)
    model, times = loaded.model, measure_frames(loaded, scale.rows, context=scale.context, frames=scale.frames)
    details["frames"] = [each.data() for each in times]
    card = card_in(torch.cuda.get_device_name()) if model.device.type == "cuda" else None
    floors = None if card is None else Floors(speaker.sizes(), card, scale.context + scale.frames // 2)
    details["floor_ms"] = {} if floors is None else {rows: floors.time(rows).model_ms for rows in scale.rows}
    progress("agreement of tokens")
    same = details["agreement"] = measure_agreement(
        model, rows=scale.company, context=scale.context, frames=scale.compared, alone=scale.alone
    )
    del speaker, loaded, model
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    prepare_process()
    with ProductionTTSEngine(config) as engine, frozen():
        parts = Parts(engine, seed, scale)
        columns = engine.health_check()["slots"]["columns"]
        facts = describe_engine(engine) | {"columns": columns, "workload": asdict(scale)}
        progress("first audio, idle")
        idle = parts.idle()
        progress("first audio under load")
        busy = parts.busy()
        progress("saturated")
        full = parts.saturated()
        progress("streams")
        streams, levels = parts.streams()
    loads = (idle, busy, full)
    details["loads"] = {each.name: each.figures for each in loads}
    details["failures"] = {each.name: each.failures for each in loads if each.failures}
    details["streams"] = levels
    values: dict[str, float | None] = {
        **{f"frame_{each.rows}": each.device_ms for each in times},
        "audio_per_s": full.audio_per_s,
        "first_idle": idle.figures["first_byte_ms"]["p50"],
        "first_busy": busy.figures["first_byte_ms"]["p95"],
        "underruns_busy": sum(one.underruns for one in busy.outcomes),
        "streams": streams,
        **{name: min(same[way][kind] for kind in ("main", "codes")) for name, way in SAME.items()},
        "start": details["start_s"][-1],
    }
    figures = [judge(name, value, is_full=scale.name == FULL.name) for name, value in values.items()]
    seconds = round(time.perf_counter() - begun, 1)
    return {**facts, "seconds": seconds, "figures": figures, "details": details}


class Parts:
    """The parts that need a whole engine."""

    def __init__(self, engine: ProductionTTSEngine, seed: int, scale: Scale) -> None:
        self._seed, self._scale = seed, scale
        self._workloads = 0
        engine.add_voice(VOICE, tone(engine.sample_rate, scale.reference_s), TEXT)
        self._clients, self._bulk = (
            Clients(engine, lambda _: {"voice": VOICE}, "ttfa"),
            Clients(engine, lambda _: {"voice": VOICE}, "balanced"),
        )
        _, codec = read_configs(find_checkpoint(engine.config.checkpoint_path).directory)
        self._length_s = scale.max_new_tokens * codec.samples_per_frame / codec.sample_rate
        self._clients.warm_up(self._asks(2))

    def idle(self) -> Load:
        """Send one request at a time."""
        return self._clients.closed("idle", self._asks(self._scale.idle), concurrency=1)

    def busy(self) -> Load:
        """Send requests at random times, at `Scale.rate`."""
        asks = self._asks(round(self._scale.rate * self._scale.rate_s))
        arrivals = planned_arrivals(len(asks), self._scale.rate, self._seed)
        return self._clients.open(f"{self._scale.rate:g} a second", asks, arrivals, rate=self._scale.rate)

    def saturated(self) -> Load:
        """Keep `Scale.clients` requests of one voice in flight, more than there are slots, for `Scale.saturated_s`."""
        scale = self._scale
        asks = self._asks(scale.clients * 40)
        return self._bulk.closed("saturated", asks, concurrency=scale.clients, limit_s=scale.saturated_s)

    def streams(self) -> tuple[int, list[dict[str, Any]]]:
        """Find the most real-time listeners by doubling, then bisection; return their number and each try's figures."""
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
        underruns, first = sum(one.underruns_buffered for one in load.outcomes), load.figures["first_byte_ms"]
        is_held = not load.failures and underruns == 0 and first["p95"] is not None and first["p95"] <= 1000 * LATE_S
        return {
            "streams": count,
            "held": is_held,
            "underruns_100ms": underruns,
            "failures": load.failures,
            "first_byte_ms": first,
            "audio_per_s": load.audio_per_s,
            "seconds": load.seconds,
        }

    def _asks(self, count: int) -> list[Ask]:
        """Return requests with new sentences."""
        self._workloads += 1
        return make_workload(count, self._seed + self._workloads, self._scale.max_new_tokens)


def listen_in_real_time(clients: Clients, asks: Sequence[Ask], *, streams: int, length_s: float) -> Load:
    """Start `streams` real-time clients one after the other within `length_s`, each with its share of the requests.

    Playback starts 100 ms after the first chunk; a client sends its next request when playback has ended.
    """
    load = Load(f"{streams} streams", len(asks), concurrency=streams)

    def listen(number: int) -> None:
        planned = load.begun + number / streams * length_s
        for ask in asks[number::streams]:
            time.sleep(max(0.0, planned - time.perf_counter()))
            outcome = clients.ask(ask, planned)
            load.add(outcome)
            planned += max(outcome.first_byte_s + BUFFER_S + outcome.audio_s, outcome.end_to_end_s)

    with ThreadPoolExecutor(streams) as pool:
        list(pool.map(listen, range(streams)))
    return load


def measure_starts(config: EngineConfig) -> list[float]:
    """Return the seconds of each start, from the beginning of a process to a ready engine.

    Raises `ConfigurationError` if an engine does not start.
    """
    return [_start_once(config.model_dump_json(exclude_defaults=True)) for _ in range(STARTS)]


def _start_once(settings: str) -> float:
    begun = time.perf_counter()
    with tempfile.TemporaryFile() as errors:
        command = [sys.executable, "-c", START, settings]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process:  # noqa: S603 - ourselves
            watch = threading.Timer(START_LIMIT_S, process.kill)
            watch.start()
            assert process.stdout is not None
            line = process.stdout.readline().strip()
            seconds = time.perf_counter() - begun
            process.wait()
            watch.cancel()
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
    if line != b"ready":
        reason = lines[-1] if lines else f"it was not ready within {START_LIMIT_S:g} s"
        raise ConfigurationError(f"the engine did not start in a separate process: {reason}")
    return seconds


def main() -> None:
    """Measure all figures, print a table and a line of JSON, and write the JSON to `--output` if given."""
    parser = make_parser(__doc__)
    parser.add_argument("--slots", type=int, help="concurrent sentences [chosen by the engine]")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sentences and arrival times")
    parser.add_argument("--output", "-o", type=Path, help="write the results to this JSON file")
    options = parser.parse_args()
    if options.output is not None:
        check_writable(options.output)
    device = options.device
    has_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    scale = FULL if has_gpu else SMALL
    if options.slots is not None:
        scale = replace(scale, slots=options.slots)
    config = EngineConfig(
        checkpoint_path=find_checkpoint(options.checkpoint).directory,
        device=device,
        max_queue_size=8192,
        max_batch_size=scale.slots,
    )
    result = run_suite(config, scale, options.seed, lambda part: print(f"measuring: {part}", file=sys.stderr))
    details = result["details"]
    print(
        f"{result['machine']}, torch {result['torch']}, commit {result['commit']}, {result['precision']}, "
        f"checkpoint {options.checkpoint or 'built-in'}\n"
        f"{scale.name} workload: {result['slots']} slots of {result['columns']} positions; frames after "
        f"{scale.context} positions; voice of {scale.reference_s:g} s, at most {scale.max_new_tokens} frames; "
        f"{scale.rate:g} requests/s; {scale.clients} clients; seed {options.seed}; {result['seconds']:g} s in all"
    )
    print(lay_out(result["figures"]))
    if details["floor_ms"]:
        floors = ", ".join(f"{ms:.2f} at {rows}" for rows, ms in details["floor_ms"].items())
        print(f"lower bound of the frame time on this GPU, ms: {floors} rows")
    for name, failures in details["failures"].items():
        print(f"{name}: failed {failures}")
    if options.output is not None:
        options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    sys.exit(run(main))
