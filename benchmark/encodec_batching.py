"""Encodec throughput over hours of utterances: one by one, in padded batches, and in lanes with streaming state.

The input is 5.4 hours of synthetic audio in 2,628 files with the lengths of LibriSpeech's test-clean. Each method
encodes all files, and decodes random codes of the same lengths. Random weights do not affect the time. `--share 0.01`
uses every 100th file.

python -m benchmark.encodec_batching --device cuda --lanes 128 --batch 32
python -m benchmark.encodec_batching --device cpu --share 0.01 --lanes 4 --batch 8
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmark.command import make_parser, names, report, run
from benchmark.encodec_lanes import DecodeLanes, EncodeLanes, Lanes
from s1_mini.bench.clients import resident_bytes
from s1_mini.bench.report import describe_machine, table
from s1_mini.codecs.encodec.config import EncodecConfig
from s1_mini.codecs.encodec.model import Encodec
from s1_mini.codecs.encodec.weights import TINY, random_encodec
from s1_mini.runtime.loader import choose_device

# Files by length: the count of each bin, from the shortest on.
HISTOGRAM, SHORTEST_S, BIN_S = (970, 800, 375, 230, 125, 70, 30, 15, 8, 5), 1.3, 3.37
SIZES = {"published": EncodecConfig(), "tiny": TINY}
SOUND_S = 60  # length of the audio from which all files are cut
WARM_UP = 2  # files, or padded batches, that each way processes before it is timed
WAYS = ("single", "padded", "sorted", "lanes", "longest first")
HEADS = {
    "direction": "",
    "way": "way",
    "files": "files",
    "seconds": "seconds",
    "audio_per_s": "audio s/s",
    "useful": "useful work",  # share of the computed frames that are not padding
    "peak_mb": "peak MB",  # in addition to the weights; on a CPU, includes the results
    "allocations": "allocations",  # of device memory after the warm-up; None on a CPU
    "agreement": "agreement",  # encoding: share of codes that equal those of "single"
    "max_difference": "max. diff.",  # decoding: largest difference between a sample and that of "single"
}

Arrays = list[np.ndarray]


@dataclass(frozen=True)
class Direction:
    """Encoding or decoding. `call` takes rows of one length."""

    name: str
    call: Callable[[Tensor], Tensor]
    files: Sequence[np.ndarray]
    steps_of_frame: int  # input steps per frame
    made_of_frame: int  # output steps per frame
    lanes: type[EncodeLanes | DecodeLanes]

    def frames(self, file: np.ndarray) -> int:
        """Return the number of frames of a file; the last one may be incomplete."""
        return -(-file.shape[-1] // self.steps_of_frame)


def draw_lengths(share: float, seed: int) -> list[float]:
    """Return the lengths of a share of the files in seconds, in random order; every share has the same histogram."""
    random = np.random.default_rng(seed)
    lengths = np.concatenate([SHORTEST_S + BIN_S * (at + random.random(count)) for at, count in enumerate(HISTOGRAM)])
    step = max(1, round(1 / share))
    return list(random.permutation(np.sort(lengths)[step // 2 :: step]))


def make_files(lengths: Sequence[float], config: EncodecConfig, codebooks: int, seed: int) -> tuple[Arrays, Arrays]:
    """Return waves [samples] of noise with the envelope of speech, and as many frames of random codes [K, F]."""
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


class Way:
    """One way to process the files of a direction. Counts the frames that it computes."""

    def __init__(self, name: str, direction: Direction, options: Namespace, codec: Encodec) -> None:
        self.frames = 0
        self._name, self._direction, self._options, self._device = name, direction, options, codec.device
        self._lanes: Lanes | None = None
        if name in ("lanes", "longest first"):
            self._lanes = direction.lanes(
                codec, lanes=options.lanes, frames=options.frames, codebooks=options.codebooks
            )
            self._lanes.capture(tunes=options.tunes)

    def work(self, files: Sequence[np.ndarray]) -> Arrays:
        """Return the results of files in their order."""
        if self._lanes is not None:
            before = self._lanes.frames_computed
            # "longest first" knows all files beforehand; "lanes" takes them in their order
            made = self._lanes.all(files) if self._name == "longest first" else _in_order(self._lanes.run(files))
            self.frames += self._lanes.frames_computed - before
            return made
        order = list(range(len(files)))
        if self._name == "sorted":
            order.sort(key=lambda at: files[at].shape[-1])
        size = 1 if self._name == "single" else self._options.batch
        batches = [order[start : start + size] for start in range(0, len(order), size)]
        results = [zip(batch, self._call([files[at] for at in batch]), strict=True) for batch in batches]
        return _in_order(itertools.chain(*results))

    def _call(self, files: Arrays) -> Arrays:
        """Compute a batch, padded to its longest file."""
        longest, direction = max(file.shape[-1] for file in files), self._direction
        rows = np.zeros((len(files), *files[0].shape[:-1], longest), files[0].dtype)
        for row, file in zip(rows, files, strict=True):
            row[..., : file.shape[-1]] = file
        made = direction.call(torch.from_numpy(rows).to(self._device)).cpu().numpy()
        self.frames += len(files) * -(-longest // direction.steps_of_frame)
        lengths = [direction.frames(file) * direction.made_of_frame for file in files]
        return [row[..., :length] for row, length in zip(made, lengths, strict=True)]


def _in_order(results: Iterable[tuple[int, np.ndarray]]) -> Arrays:
    return [made for _, made in sorted(results, key=lambda result: result[0])]


class Memory:
    """Peak memory since construction, in bytes: reserved by torch on a GPU, otherwise resident memory."""

    def __init__(self, device: torch.device) -> None:
        self._is_gpu = device.type == "cuda"
        gc.collect()
        if self._is_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        elif sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)  # otherwise memory freed by one way would hide the use of the next
            with suppress(OSError):  # kernels without this file report the peak since the start
                Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        self._before = torch.cuda.memory_reserved() if self._is_gpu else resident_bytes()

    @property
    def peak_bytes(self) -> int:
        """Largest growth."""
        return (torch.cuda.max_memory_reserved() if self._is_gpu else peak_resident_bytes()) - self._before

    def allocations(self) -> int:
        """Return the number of device allocations so far."""
        return int(torch.cuda.memory_stats()["allocation.all.allocated"]) if self._is_gpu else 0


def peak_resident_bytes() -> int:
    """Return the peak of this process's resident memory; without /proc, the result of `resident_bytes`."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return resident_bytes()


@torch.inference_mode()
def measure(codec: Encodec, direction: Direction, name: str, options: Namespace) -> tuple[dict[str, Any], Arrays]:
    """Run one way ("single" only on every `options.step`-th file); return its figures and results."""
    memory, is_gpu = Memory(codec.device), codec.device.type == "cuda"
    files = list(direction.files[:: options.step if name == "single" else 1])
    way = Way(name, direction, options, codec)
    way.work(files[: WARM_UP * options.batch] if name in ("padded", "sorted") else files[:WARM_UP])
    if is_gpu:
        torch.cuda.synchronize()
    way.frames, before = 0, memory.allocations()
    begun = time.perf_counter()
    results = way.work(files)
    if is_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    frames = sum(map(direction.frames, files))
    figures = {
        "direction": direction.name,
        "way": name,
        "files": len(files),
        "seconds": seconds,
        "audio_per_s": frames * codec.samples_per_frame / codec.sample_rate / seconds,
        "useful": frames / way.frames,
        "peak_mb": memory.peak_bytes / 1e6,
        "allocations": memory.allocations() - before if is_gpu else None,
        "agreement": None,
        "max_difference": None,
    }
    return figures, results


def compare(direction: str, results: Arrays, single: Arrays, step: int) -> dict[str, float]:
    """Compare results with those of "single", which has every `step`-th file."""
    pairs = list(zip(results if len(results) == len(single) else results[::step], single, strict=True))
    if direction == "encode":
        return {"agreement": sum(int((a == b).sum()) for a, b in pairs) / sum(b.size for _, b in pairs)}
    return {"max_difference": float(max(np.abs(a - b).max() for a, b in pairs))}


def share(text: str) -> float:
    """Parse a number above 0 and up to 1. Raises `ValueError`."""
    number = float(text)
    if not 0 < number <= 1:
        raise ValueError(text)
    return number


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    parser = make_parser(__doc__, opens=False)
    parser.add_argument("--device", default="auto", help="device: auto, cpu, cuda or cuda:1 [auto]")
    parser.add_argument(
        "--size", choices=SIZES, default="published", help="size of the codec, which has random weights"
    )
    parser.add_argument("--precision", choices=("float32", "tf32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--codebooks", type=int, default=8, help="codes per frame, 0.75 kbit/s each [8]")
    parser.add_argument("--share", type=share, default=1.0, help="fraction of the files to use [1]")
    parser.add_argument(
        "--single-share", type=share, default=1.0, help="fraction of the used files to process one by one [1]"
    )
    parser.add_argument("--ways", type=names(WAYS), default=WAYS, help=f"methods to measure, from {', '.join(WAYS)}")
    parser.add_argument("--lanes", type=int, default=128)
    parser.add_argument(
        "--chunk", dest="frames", type=int, default=75, help="frames per chunk of a lane, 75 per second [75]"
    )
    parser.add_argument("--batch", type=int, default=16, help="files per padded batch [16]")
    parser.add_argument("--tune", dest="tunes", action="store_true", help="let cuDNN autotune the lanes' shapes")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    config, device = SIZES[options.size], torch.device(choose_device(options.device).value)
    books = options.codebooks
    options.step = max(1, round(1 / options.single_share))
    codec = random_encodec(config).to(device)
    codec.prepare(torch.float32 if options.precision == "tf32" else getattr(torch, options.precision))
    lengths = draw_lengths(options.share, options.seed)
    waves, codes = make_files(lengths, config, books, options.seed)
    facts = describe_machine(device.type) | {"threads": torch.get_num_threads(), "precision": options.precision}
    facts |= {"files": len(waves), "hours": sum(lengths) / 3600}
    facts |= {name: getattr(options, name) for name in ("codebooks", "lanes", "frames", "batch", "tunes")}
    print(json.dumps(facts, indent=1), flush=True)

    rate, found = codec.samples_per_frame, []
    directions = (
        Direction("encode", lambda rows: codec.encode(rows, books), waves, rate, 1, EncodeLanes),
        Direction("decode", lambda rows: codec.decode(rows).float(), codes, 1, rate, DecodeLanes),
    )
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=options.precision == "tf32"):
        for direction in directions:
            single: Arrays | None = None
            for name in options.ways:
                figures, results = measure(codec, direction, name, options)
                single = results if name == "single" else single
                if single is not None:
                    figures |= compare(direction.name, results, single, options.step)
                del results
                found.append(figures)
                row = table([*HEADS.values()], [list(figures.values())]).splitlines()[-1]
                print(row, file=sys.stderr, flush=True)
    report([*HEADS.values()], [list(each.values()) for each in found], facts | {"ways": found})


if __name__ == "__main__":
    sys.exit(run(main))
