"""The cost of writing a corpus: throughput of a saturated engine if the audio is written, and if it is discarded.

The mode `corpus` writes the audio, and `engine` discards it. Both run one process per device, all concurrently. The
mode `apart` discards the audio of one engine whose codec is on the last device. All modes get the same texts. With
`--rounds`, the modes alternate, and the totals are means over the rounds. Texts are 0.5 to 1.5 times `--frames` long,
so that they do not end together. Throughput is measured between the first and the last quarter of the audio; `cores` is
the number of CPU cores that a process uses during that time.

python -m benchmark.corpora --checkpoint full-size --devices cuda:0,cuda:1 --texts 5000
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from benchmark.command import make_parser, names, report, run
from s1_mini.bench.report import describe_engine
from s1_mini.bench.workload import sentence
from s1_mini.config import EngineConfig
from s1_mini.corpus.job import Job, for_many, make_header
from s1_mini.corpus.manifest import Layout, open_manifest
from s1_mini.corpus.output import open_output
from s1_mini.corpus.rows import CorpusRow, Defaults
from s1_mini.corpus.source import Source, open_source
from s1_mini.corpus.workers import Worker, work_by
from s1_mini.engine import ProductionTTSEngine
from s1_mini.exceptions import EngineError
from s1_mini.types import AudioFormat, SharedOptions

WAYS = ("engine", "corpus", "apart")
START_LIMIT_S = 300.0  # timeout of engines that wait for each other
SAMPLE_INTERVAL_S = 0.1  # sample interval of an engine's counters
FIRST, LAST = 0.25, 0.75  # shares of all audio between which the throughput is measured


@dataclass(frozen=True)
class Work:
    """The task of one process."""

    way: str
    config: EngineConfig
    texts: Path
    shard_size: int
    layout: Layout
    audio_format: AudioFormat


class Look(NamedTuple):
    """The counters of an engine at one moment."""

    at_s: float
    audio_s: float
    cpu_s: float  # of its process

    @classmethod
    def at(cls, engine: ProductionTTSEngine) -> Look:
        """Read the counters."""
        return cls(time.monotonic(), engine.metrics.audio_s, time.process_time())


@dataclass(frozen=True)
class Outcome:
    """The figures of one process."""

    way: str
    device: str
    machine: str
    texts: int
    audio_s: float
    seconds: float  # from the first text to the last file
    audio_per_s: float  # while the engine is full
    cores: float


def write_texts(path: Path, count: int, frames: int, seed: int) -> None:
    """Write sentences, each with its number of frames."""
    chance = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            length = int(chance.integers(frames // 2, frames * 3 // 2, endpoint=True))
            file.write(json.dumps({"text": sentence(number), "parameters": {"max_new_tokens": length}}) + "\n")


def speak(worker: Worker, source: Source) -> None:
    """Generate all texts from as many threads as a corpus uses, and discard the audio."""

    def generate(row: CorpusRow) -> None:
        options: SharedOptions = {**row.options, "voice": row.voice, "chunk_profile": "throughput"}
        worker.engine.generate(row.text, **options)

    rows = [line for shard in source.shards() for line in shard.lines if isinstance(line, CorpusRow)]
    with ThreadPoolExecutor(worker.in_flight) as pool:
        list(pool.map(generate, rows))


@contextmanager
def looks(worker: Worker) -> Iterator[list[Look]]:
    """Sample the counters of an engine until the block ends."""
    seen, over = [Look.at(worker.engine)], threading.Event()

    def sample() -> None:
        while not over.wait(SAMPLE_INTERVAL_S):
            seen.append(Look.at(worker.engine))

    watch = threading.Thread(target=sample)
    watch.start()
    try:
        yield seen
    finally:
        over.set()
        watch.join()
        seen.append(Look.at(worker.engine))


def speed(seen: list[Look]) -> tuple[float, float]:
    """Return seconds of audio per second, and cores, while the engine was full; over the whole run if it is short."""
    total = seen[-1].audio_s
    first, last = (next(look for look in seen if look.audio_s >= share * total) for share in (FIRST, LAST))
    if first is last:
        first, last = seen[0], seen[-1]
    spent = last.at_s - first.at_s
    return (last.audio_s - first.audio_s) / spent, (last.cpu_s - first.cpu_s) / spent


def sums_by_way(outcomes: Sequence[Outcome], rounds: int) -> dict[str, float]:
    """Return the total throughput of all processes for each way, as a mean over its rounds."""
    ways = dict.fromkeys(each.way for each in outcomes)
    return {way: sum(each.audio_per_s for each in outcomes if each.way == way) / rounds for way in ways}


def work(task: Work, together: Barrier, results: Connection) -> None:
    """Generate the texts in one process, and send its figures."""
    with (
        tempfile.TemporaryDirectory() as folder,
        open_source(str(task.texts), {}, Defaults(), task.shard_size) as texts,
    ):
        header = make_header(texts, task.config, task.layout, task.audio_format)
        open_manifest(open_output(folder), header)
        worker = Worker(Job(task.config, folder, task.layout, task.audio_format, header, shard_size=task.shard_size))
        with closing(worker):
            facts = describe_engine(worker.engine)
            together.wait(START_LIMIT_S)
            with looks(worker) as seen:
                if task.way == "corpus":
                    list(work_by(worker, texts.shards()))
                else:
                    speak(worker, texts)
                seconds = time.monotonic() - seen[0].at_s
        figures = (facts.pop("machine"), texts.num_lines, seen[-1].audio_s, seconds, *speed(seen))
        results.send((facts, Outcome(task.way, task.config.device, *figures)))


def measure(tasks: list[Work]) -> list[tuple[dict[str, Any], Outcome]]:
    """Run all tasks at the same time, each in its own process."""
    context = multiprocessing.get_context("spawn")
    together, started, found = context.Barrier(len(tasks)), [], []
    for task in tasks:
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(task, together, theirs))
        process.start()
        theirs.close()
        started.append((process, ours))
    for process, ours in started:
        try:
            found.append(ours.recv())
        except EOFError:
            raise EngineError("a process exited before it had processed its texts; see its messages above") from None
        process.join()
    return found


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    parser = make_parser(__doc__, opens=False)
    parser.add_argument("--checkpoint", type=Path, help="checkpoint directory [the built-in model]")
    parser.add_argument(
        "--devices",
        type=lambda text: text.split(","),
        default=["auto"],
        help="comma-separated devices, one per process",
    )
    parser.add_argument("--ways", type=names(WAYS), default=WAYS[:2], help=f"modes to compare, from {', '.join(WAYS)}")
    parser.add_argument("--rounds", type=int, default=1, help="number of runs per mode")
    parser.add_argument("--texts", type=int, default=200, help="number of texts per process")
    parser.add_argument("--frames", type=int, default=100, help="mean length of a text in frames")
    parser.add_argument("--slots", type=int, help="concurrent sentences [chosen by the engine]")
    parser.add_argument("--shard-size", type=int, default=256)
    parser.add_argument("--layout", choices=("files", "parquet"), default="files")
    parser.add_argument("--format", choices=get_args(AudioFormat), default="wav")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()

    outcomes: list[Outcome] = []
    facts: dict[str, Any] = {}
    make = partial(EngineConfig, checkpoint_path=given.checkpoint, max_batch_size=given.slots)
    configs = [make(device=device) for device in given.devices]
    apart = [make(device=given.devices[0], placement={"codec": given.devices[-1]})] if "apart" in given.ways else []
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder) / "texts.jsonl"
        write_texts(texts, given.texts, given.frames, given.seed)
        for way in given.ways * given.rounds:
            found = measure(
                [
                    Work(way, for_many(config), texts, given.shard_size, given.layout, given.format)
                    for config in (apart if way == "apart" else configs)
                ]
            )
            for facts, outcome in found:  # noqa: B007 - all have the same facts
                outcomes.append(outcome)
                print(outcome, file=sys.stderr, flush=True)
    sums = sums_by_way(outcomes, given.rounds)
    for way, total in sums.items():
        print(f"{way}: {total:,.0f} seconds of audio per second, {total / sums[given.ways[0]]:.3f} of {given.ways[0]}")
    workload, rows = {name: str(value) for name, value in vars(given).items()}, [asdict(each) for each in outcomes]
    result = {**facts, "workload": workload, "outcomes": rows, "sums": sums}
    report(list(Outcome.__annotations__), [list(row.values()) for row in rows], result, given.output)


if __name__ == "__main__":
    sys.exit(run(main))
