"""CPU time of the calls of a checkpoint's codec, with torch and compiled in turn, on one thread.

python -m benchmark.codec_calls src/s1_mini/default_model --frames 1,4,25
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmark.command import make_parser, numbers, report, run
from s1_mini.bench.report import describe_machine
from s1_mini.codecs.causal.stage import CausalDecoder
from s1_mini.config import EngineConfig
from s1_mini.core.messages import Begin, Conditions
from s1_mini.runtime.loader import load
from s1_mini.types import SamplingParams

HEADS = ("frames", "torch: CPU ms per s of audio", "compiled")


def _parse(arguments: list[str] | None) -> Namespace:
    parser = make_parser(__doc__, opens=False)
    parser.add_argument("checkpoint", type=Path, help="checkpoint directory")
    parser.add_argument("--frames", type=numbers, default=(1, 4, 25), help="frames of a call [1,4,25]")
    parser.add_argument("--rounds", type=int, default=9, help="measurements, whose median is reported [9]")
    return parser.parse_args(arguments)


def _cpu_s(stage: CausalDecoder, slot: int, codes: np.ndarray) -> float:
    """Return the CPU time of decoding codes [F, K] as a stream that begins."""
    conditions = Conditions(SamplingParams(), seed=0, utterance=0, max_steps=len(codes), voice={})
    stage.begin([Begin(slot, 0, codes, None, 0, 1, len(codes), 0, len(codes), conditions)])
    start = time.thread_time()
    stage.step([slot], len(codes))()
    return time.thread_time() - start


def main(arguments: list[str] | None = None) -> None:
    """Measure both ways in turn and print the medians."""
    options = _parse(arguments)
    torch.set_num_threads(1)
    loaded = load(EngineConfig(checkpoint_path=options.checkpoint, device="cpu")).loaded
    plain, compiled = (loaded.chain(1, 64).stages[-1] for _ in range(2))
    assert isinstance(plain, CausalDecoder)
    assert isinstance(compiled, CausalDecoder)
    work = compiled.compilable()
    assert work is not None, "the codec is not in float32"
    rows: list[list[Any]] = []
    with torch.inference_mode():
        work.use()
        for frames in options.frames:
            codes = np.zeros((frames, plain._codec.num_codebooks), np.int64)
            audio_s = frames * plain._codec.samples_per_frame / plain._codec.sample_rate
            times = [[_cpu_s(stage, 0, codes) for stage in (plain, compiled)] for _ in range(options.rounds + 1)]
            rows.append([frames, *(round(1000 * float(each) / audio_s, 1) for each in np.median(times[1:], axis=0))])
    calls = [dict(zip(("frames", "torch_ms", "compiled_ms"), row, strict=True)) for row in rows]
    report(HEADS, rows, describe_machine("cpu") | {"calls": calls})


if __name__ == "__main__":
    sys.exit(run(main))
