"""CPU time of calls of DAC codecs: with torch, and compiled. Several checkpoints are measured in turn.

python -m benchmark.codec_calls src/s1_mini/default_model other-checkpoint --streams 1,8 --frames 1,4,25
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmark.command import make_parser, numbers, report, run
from s1_mini.bench.report import describe_machine
from s1_mini.codecs.causal.stage import CausalDecoder, call_limits
from s1_mini.codecs.dac.model import Dac
from s1_mini.codecs.dac.weights import open_dac
from s1_mini.core.messages import Begin, Conditions
from s1_mini.core.stage import Chunks, Spec
from s1_mini.types import SamplingParams

HEADS = ("checkpoint", "kernels", "streams", "frames", "CPU ms per s of audio")


def _parse(arguments: list[str] | None) -> Namespace:
    parser = make_parser(__doc__, opens=False)
    parser.add_argument("checkpoints", nargs="+", type=Path, help="checkpoint directories")
    parser.add_argument("--streams", type=numbers, default=(1, 8), help="numbers of streams [1,8]")
    parser.add_argument("--frames", type=numbers, default=(1, 4, 25), help="frames of each stream in a call [1,4,25]")
    parser.add_argument("--rounds", type=int, default=9, help="measurements, whose median is reported [9]")
    return parser.parse_args(arguments)


class Measured:
    """A codec whose calls are measured, on one thread."""

    def __init__(self, codec: Dac, streams: int, frames: int, *, compiles: bool) -> None:
        rows, most = call_limits(codec, codec.device, streams)
        books = Spec("int64", (codec.num_codebooks,))
        policy = Chunks(
            name="codec", input=books, output=Spec("float32"), slots=streams, sizes={"ttfa": (frames,)}, rows=rows,
            max_items=most,
        )  # fmt: skip
        self._stage, self._streams, self._frames = CausalDecoder(codec, policy, number=1), streams, frames
        self._together, self._codes = policy.most_together(frames), np.zeros((frames, codec.num_codebooks), np.int64)
        self._conditions = Conditions(SamplingParams(), seed=0, utterance=0, max_steps=frames, voice={})
        self.audio_s = streams * frames * codec.samples_per_frame / codec.sample_rate
        work = self._stage.compilable() if compiles else None
        if work is not None:
            work.use()

    def cpu_ms(self) -> float:
        """Return the CPU time of decoding a chunk of each stream, in ms per second of audio."""
        slots, frames = range(self._streams), self._frames
        self._stage.begin([Begin(s, 0, self._codes, None, 0, 1, frames, 0, frames, self._conditions) for s in slots])
        start = time.thread_time()
        for first in range(0, self._streams, self._together):
            self._stage.step(slots[first : first + self._together], frames)()
        return 1000 * (time.thread_time() - start) / self.audio_s


def main(arguments: list[str] | None = None) -> None:
    """Measure all checkpoints in turn and print the medians."""
    options = _parse(arguments)
    torch.set_num_threads(1)
    codecs = {path.name: open_dac(path, encodes=False) for path in options.checkpoints}
    rows: list[list[Any]] = []
    for streams, frames in product(options.streams, options.frames):
        ways = {
            (name, "compiled" if compiles else "torch"): Measured(codec, streams, frames, compiles=compiles)
            for name, codec in codecs.items()
            for compiles in (False, True)
        }
        with torch.inference_mode():
            times = np.array([[way.cpu_ms() for way in ways.values()] for _ in range(options.rounds + 1)])
        medians = np.median(times[1:], axis=0)
        rows += [[*way, streams, frames, round(float(ms), 1)] for way, ms in zip(ways, medians, strict=True)]
    calls = [dict(zip(("checkpoint", "kernels", "streams", "frames", "cpu_ms"), row, strict=True)) for row in rows]
    report(HEADS, rows, describe_machine("cpu") | {"calls": calls})


if __name__ == "__main__":
    sys.exit(run(main))
