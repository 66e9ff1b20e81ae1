"""Make speech and train the codec on it, on all GPUs of a machine, with one command.

python -m recipes.voice.run --work DIR --teacher DIR --phonemes FILE --seconds 1500 [--stages spectral,adversarial]

A codec that is in `DIR` already is trained further, with `--stages adversarial` or `decoder` say.
Speech is made in `--makers` processes beside the first stage, which compiles for its first hundred seconds anyway.
`DIR/codec.safetensors` is the result, in half precision in `DIR/codec_half.safetensors`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from recipes.voice.generator import RATE
from recipes.voice.speech import write_shard
from recipes.voice.stages import STAGES

FIRST_S = 65  # of noise, so that the first stage can compile before there is speech


def share(seconds: float, stages: list[str]) -> dict[str, float]:
    """Divide the time among the stages as their schedules do."""
    whole = sum(STAGES[stage].schedule.total_s for stage in stages)
    return {stage: seconds * STAGES[stage].schedule.total_s / whole for stage in stages}


def make_speech(options: argparse.Namespace, num_gpus: int) -> list[subprocess.Popen[bytes]]:
    """Begin to make speech; gives the processes."""
    speech = options.work / "speech"
    speech.mkdir(parents=True, exist_ok=True)
    if not any(speech.glob("shard_*.npz")):
        noise = (np.random.default_rng(0).standard_normal(FIRST_S * RATE) * 300).astype(np.int16)
        write_shard(speech / "shard_first.npz", [(0, 0, noise)])
    command = [sys.executable, "-m", "recipes.voice.speech", "--teacher", options.teacher, "--output", speech]
    command += ["--phonemes", options.phonemes, "--seconds", str(options.speech_seconds)]
    makers = []
    for part in range(options.makers):
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": str(part % max(1, num_gpus))}
        numbered = ["--part", str(part), "--parts", str(options.makers)]
        makers.append(subprocess.Popen([*map(str, command), *numbered], env=environment))
    return makers


def train(stage: str, seconds: float, options: argparse.Namespace, num_gpus: int) -> None:
    """Run one stage of the codec on all GPUs."""
    start = [sys.executable, "-m"]
    if num_gpus > 1:
        start += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(num_gpus), "-m"]
    limits = ["--seconds", str(seconds), "--total", str(seconds)]
    if options.rate is not None:
        limits += ["--rate", str(options.rate)]
    command = [*start, "recipes.voice.codec", stage, "--work", str(options.work), "--size", options.size, *limits]
    subprocess.run(command, check=True)


def main() -> None:
    """Make speech, then train stage after stage, for some seconds in all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--teacher", type=Path, required=True)
    parser.add_argument("--phonemes", type=Path, required=True)
    parser.add_argument("--size", default="fast")
    parser.add_argument("--seconds", type=float, default=1500.0)
    parser.add_argument("--stages", default="spectral,adversarial")
    parser.add_argument("--rate", type=float, help="the peak of every stage, instead of its own")
    parser.add_argument("--makers", type=int, default=2, help="processes that make speech; 0 if it is there")
    parser.add_argument("--speech-seconds", type=float, default=60.0)
    options = parser.parse_args()
    ends = time.monotonic() + options.seconds
    num_gpus = torch.cuda.device_count()
    makers = make_speech(options, num_gpus)
    try:
        stages = options.stages.split(",")
        while stages:
            train(stages[0], share(ends - time.monotonic(), stages)[stages[0]], options, num_gpus)
            stages.pop(0)
            weights = {name: tensor.half() for name, tensor in load_file(options.work / "codec.safetensors").items()}
            save_file(weights, options.work / "codec_half.safetensors")
    finally:
        for maker in makers:
            maker.terminate()


if __name__ == "__main__":
    main()
