"""Encodec over hours of utterances: one by one, in padded batches, and in lanes that carry their state.

The work is 5.4 hours of synthetic sound in 2,628 files, as long as those of LibriSpeech's test-clean. Each way encodes
all files and decodes as many codes. Weights are random, which changes no time. `--share 0.01` takes every hundredth.

python -m benchmark.encodec_batching --device cuda --lanes 128 --batch 32
python -m benchmark.encodec_batching --device cpu --share 0.01 --lanes 4 --batch 8
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from benchmark.command import make_parser, names, run
from s1_mini.bench.clients import resident_bytes
from s1_mini.bench.report import describe_machine, table
from s1_mini.codecs.encodec.config import EncodecConfig
from s1_mini.codecs.encodec.lanes import DecodeLanes, EncodeLanes, Lanes
from s1_mini.codecs.encodec.model import Encodec
from s1_mini.codecs.encodec.weights import TINY, random_encodec
from s1_mini.runtime.loader import choose_device

# Files by length: so many in each bin of so many seconds, from the shortest on.
HISTOGRAM, SHORTEST_S, BIN_S = (970, 800, 375, 230, 125, 70, 30, 15, 8, 5), 1.3, 3.37
SIZES = {"published": EncodecConfig(), "tiny": TINY}
SOUND_S = 60  # of sound, of which every file is a piece
WARM_UP = 2  # calls of each way before its time is taken
SAMPLE_S = 0.005  # between two looks at the memory
WAYS = ("single", "padded", "sorted", "lanes", "longest first")
HEAD = ["", "way", "files", "seconds", "audio s/s", "useful work", "peak MB", "allocations", "agreement", "max. diff."]

Arrays = list[np.ndarray]


@dataclass(frozen=True)
class Options:
    """Options of the measurement."""

    codebooks: int
    lanes: int
    frames: int  # of a lane's chunk
    batch: int  # files of a padded batch
    tunes: bool = False  # whether cuDNN tries its ways for the lanes, whose shapes never change


@dataclass(frozen=True)
class Direction:
    """Encoding or decoding: a call for rows of one length, its files, and how many steps make a frame."""

    name: str
    call: Callable[[Tensor], Tensor]
    files: Sequence[np.ndarray]
    steps_of_frame: int
    made_of_frame: int
    lanes: Callable[[], Lanes]

    def frames(self, file: np.ndarray) -> int:
        """Frames of a file, the last filled up."""
        return -(-file.shape[-1] // self.steps_of_frame)


@dataclass(frozen=True)
class Outcome:
    """Figures of one method and direction."""

    direction: str
    way: str
    files: int
    seconds: float
    audio_per_s: float  # seconds of sound a second
    useful: float  # share of the computed frames that are the files'
    peak_mb: float  # beyond the weights; on a CPU with the results
    allocations: int | None  # of device memory after the warm-up
    agreement: float | None  # encoding: share of codes that are those of one by one
    max_difference: float | None  # decoding: of a sample

    def row(self) -> list[str | float | None]:
        """Return a line of the table."""
        return list(asdict(self).values())


def draw_lengths(share: float, seed: int) -> list[float]:
    """Draw the files' lengths in seconds, in random order; a share of them has the same histogram."""
    random = np.random.default_rng(seed)
    lengths = np.concatenate([SHORTEST_S + BIN_S * (at + random.random(count)) for at, count in enumerate(HISTOGRAM)])
    step = max(1, round(1 / share))
    return list(random.permutation(np.sort(lengths)[step // 2 :: step]))


def make_files(lengths: Sequence[float], config: EncodecConfig, codebooks: int, seed: int) -> tuple[Arrays, Arrays]:
    """Make waves [samples], noise that swells like speech, and as many frames of random codes [K, F]."""
    random, rate = np.random.default_rng(seed), config.sampling_rate
    time_s = np.arange(SOUND_S * rate, dtype=np.float32) / rate
    sound = 0.1 * random.standard_normal(len(time_s), np.float32) * (1 + np.sin(2 * np.pi * 3.7 * time_s))
    waves = []
    for length in lengths:
        samples = round(length * rate)
        start = random.integers(0, len(sound) - samples)
        waves.append(sound[start : start + samples])
    frames = [-(-len(wave) // config.samples_per_frame) for wave in waves]
    return waves, [random.integers(0, config.codebook_size, (codebooks, count)) for count in frames]


def directions(codec: Encodec, options: Options, waves: Arrays, codes: Arrays) -> list[Direction]:
    """Return encoding and decoding."""
    rate, books = codec.samples_per_frame, options.codebooks

    def encode(rows: Tensor) -> Tensor:
        return codec.encode(rows, books)

    def decode(rows: Tensor) -> Tensor:
        return codec.decode(rows).float()

    def make(kind: type[EncodeLanes | DecodeLanes]) -> Callable[[], Lanes]:
        return lambda: kind(codec, lanes=options.lanes, frames=options.frames, codebooks=books)

    return [
        Direction("encode", encode, waves, rate, 1, make(EncodeLanes)),
        Direction("decode", decode, codes, 1, rate, make(DecodeLanes)),
    ]


class Way:
    """One way through the files of a direction; counts the frames that it computes."""

    def __init__(self, name: str, direction: Direction, options: Options, device: torch.device) -> None:
        self.frames = 0
        self._name, self._direction, self._options, self._device = name, direction, options, device
        self._lanes = direction.lanes() if name in ("lanes", "longest first") else None
        if self._lanes is not None:
            self._lanes.capture(tunes=options.tunes)

    def work(self, files: Sequence[np.ndarray]) -> Arrays:
        """Return the results of files in their order."""
        if self._lanes is not None:
            before = self._lanes.frames_computed
            # As they come, or all known beforehand.
            made = self._lanes.all(files) if self._name == "longest first" else _in_order(self._lanes, files)
            self.frames += self._lanes.frames_computed - before
            return made
        order = list(range(len(files)))
        if self._name == "sorted":
            order.sort(key=lambda at: files[at].shape[-1])
        size = 1 if self._name == "single" else self._options.batch
        results: dict[int, np.ndarray] = {}
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            results |= zip(batch, self._call([files[at] for at in batch]), strict=True)
        return [results[at] for at in range(len(files))]

    def _call(self, files: Arrays) -> Arrays:
        """Compute a batch, padded to its longest."""
        longest = max(file.shape[-1] for file in files)
        rows = np.zeros((len(files), *files[0].shape[:-1], longest), files[0].dtype)
        for row, file in zip(rows, files, strict=True):
            row[..., : file.shape[-1]] = file
        direction = self._direction
        made = direction.call(torch.from_numpy(rows).to(self._device)).cpu().numpy()
        self.frames += len(files) * -(-longest // direction.steps_of_frame)
        lengths = [direction.frames(file) * direction.made_of_frame for file in files]
        return [row[..., :length] for row, length in zip(made, lengths, strict=True)]


def _in_order(lanes: Lanes, files: Sequence[np.ndarray]) -> Arrays:
    results = dict(lanes.run(files))
    return [results[at] for at in range(len(files))]


class Memory:
    """Peak memory since it was made, in bytes: what torch reserves on a GPU, else what is resident."""

    def __init__(self, device: torch.device) -> None:
        self._is_gpu = device.type == "cuda"
        gc.collect()
        if self._is_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        elif sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)  # else what one way has freed would hide what the next one takes
        self._before = torch.cuda.memory_reserved() if self._is_gpu else resident_bytes()
        self._most = self._before

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at what is resident again and again, where nobody counts."""
        over = threading.Event()

        def look() -> None:
            while not over.wait(SAMPLE_S):
                self._most = max(self._most, resident_bytes())

        thread = threading.Thread(target=look, daemon=True)
        if not self._is_gpu:
            thread.start()
        try:
            yield
        finally:
            over.set()
            if not self._is_gpu:
                thread.join()

    @property
    def peak_bytes(self) -> int:
        """Growth at its most."""
        return (torch.cuda.max_memory_reserved() if self._is_gpu else self._most) - self._before

    def allocations(self) -> int | None:
        """Return the number of device allocations so far, or None on a CPU."""
        return int(torch.cuda.memory_stats()["allocation.all.allocated"]) if self._is_gpu else None


@torch.inference_mode()
def measure(codec: Encodec, direction: Direction, name: str, options: Options, step: int) -> tuple[Outcome, Arrays]:
    """Run one method on every `step`-th file; return its figures and results."""
    memory = Memory(codec.device)
    files = list(direction.files[::step])
    way = Way(name, direction, options, codec.device)
    way.work(files[: WARM_UP * options.batch] if name in ("padded", "sorted") else files[:WARM_UP])
    _finish(codec.device)
    way.frames, before = 0, memory.allocations()
    with memory.watched():
        begun = time.perf_counter()
        results = way.work(files)
        _finish(codec.device)
        seconds = time.perf_counter() - begun
    after = memory.allocations()
    frames = sum(map(direction.frames, files))
    outcome = Outcome(
        direction.name,
        name,
        len(files),
        seconds,
        frames * codec.samples_per_frame / codec.sample_rate / seconds,
        frames / way.frames,
        memory.peak_bytes / 1e6,
        None if before is None or after is None else after - before,
        None,
        None,
    )
    return outcome, results


def compare(outcome: Outcome, results: Arrays, single: Arrays, step: int) -> Outcome:
    """Return the outcome with its agreement with one-by-one results of every `step`-th file."""
    facts = asdict(outcome)
    pairs = list(zip(results[::step] if len(results) != len(single) else results, single, strict=True))
    if outcome.direction == "encode":
        facts["agreement"] = sum(int((a == b).sum()) for a, b in pairs) / sum(b.size for _, b in pairs)
    else:
        facts["max_difference"] = float(max(np.abs(a - b).max() for a, b in pairs))
    return Outcome(**facts)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def share(text: str) -> float:
    """Read a number above 0 and up to 1. Raises `ValueError`."""
    number = float(text)
    if not 0 < number <= 1:
        raise ValueError(text)
    return number


def main() -> int:
    """Measure, and print a table and a line of JSON."""
    parser = make_parser(__doc__, opens=False)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1")
    parser.add_argument("--size", choices=SIZES, default="published", help="of the codec, whose weights are random")
    parser.add_argument("--precision", choices=("float32", "tf32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--bandwidth", type=float, default=6.0, help="kbit/s")
    parser.add_argument("--share", type=share, default=1.0, help="of the files")
    parser.add_argument("--single-share", type=share, default=1.0, help="of these, that are done one by one")
    parser.add_argument("--ways", type=names(WAYS), default=WAYS, help=f"of {', '.join(WAYS)}")
    parser.add_argument("--lanes", type=int, default=128)
    parser.add_argument("--chunk", type=int, default=75, help="frames of a lane's chunk; 75 are a second")
    parser.add_argument("--batch", type=int, default=16, help="files of a padded batch")
    parser.add_argument("--tune", action="store_true", help="let cuDNN choose among its ways for the lanes")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    config, device = SIZES[given.size], torch.device(choose_device(given.device).value)
    options = Options(config.codebooks_of(given.bandwidth), given.lanes, given.chunk, given.batch, given.tune)
    codec = random_encodec(config).to(device)
    codec.prepare(torch.float32 if given.precision == "tf32" else getattr(torch, given.precision))
    lengths = draw_lengths(given.share, given.seed)
    waves, codes = make_files(lengths, config, options.codebooks, given.seed)
    machine = describe_machine(device.type) | {"threads": torch.get_num_threads(), "precision": given.precision}
    work = {"files": len(waves), "hours": sum(lengths) / 3600, "bandwidth": given.bandwidth, **asdict(options)}
    print(json.dumps(machine | work, indent=1), flush=True)

    outcomes = []
    step = max(1, round(1 / given.single_share))
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=given.precision == "tf32"):
        for direction in directions(codec, options, waves, codes):
            single: Arrays | None = None
            for name in given.ways:
                outcome, results = measure(codec, direction, name, options, step if name == "single" else 1)
                single = results if name == "single" else single
                outcomes.append(outcome if single is None else compare(outcome, results, single, step))
                del results
                print(table(HEAD, [outcomes[-1].row()]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(HEAD, [each.row() for each in outcomes]))
    print(json.dumps(machine | work | {"ways": [asdict(each) for each in outcomes]}))
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
