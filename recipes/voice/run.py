"""Generate speech and train the codec on it, on all GPUs of a machine, with one command.

python -m recipes.voice.run --work DIR --teacher DIR --phonemes FILE --seconds 1500 [--stages spectral,adversarial]

`codec.py` describes the stages. If `DIR` already holds a codec, it is trained further, for example with
`--stages adversarial` or `decoder`.
`--makers` processes generate speech during the first stage, which spends its first minute compiling; use `--makers 0`
if the speech exists. `--rate` replaces the peak learning rate of every stage. `codec.py` describes `--frames` and
`--perceptual`.
The result is `DIR/codec.safetensors`, and a copy in half precision, `DIR/codec_half.safetensors`.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from recipes.voice.codec import STAGES
from recipes.voice.shared import parser


def share(seconds: float, stages: list[str]) -> dict[str, float]:
    whole = sum(STAGES[stage].schedule.total_s for stage in stages)
    return {stage: seconds * STAGES[stage].schedule.total_s / whole for stage in stages}


def make_speech(options: argparse.Namespace, num_gpus: int) -> list[subprocess.Popen[bytes]]:
    speech = options.work / "speech"
    speech.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "recipes.voice.speech", "--teacher", options.teacher, "--output", speech]
    command += ["--phonemes", options.phonemes, "--seconds", str(options.speech_seconds)]
    makers = []
    for part in range(options.makers):
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": str(part % max(1, num_gpus))}
        numbered = ["--part", str(part), "--parts", str(options.makers)]
        makers.append(subprocess.Popen([*map(str, command), *numbered], env=environment))
    return makers


def train(stage: str, seconds: float, options: argparse.Namespace, num_gpus: int) -> None:
    """Run one stage of the codec on all GPUs; raises `SystemExit` if it fails."""
    command = [sys.executable, "-m", "recipes.voice.codec", stage, "--work", str(options.work), "--size", options.size]
    command += ["--seconds", str(seconds), "--total", str(seconds)]
    for name in ("rate", "frames", "perceptual"):
        if getattr(options, name) is not None:
            command += [f"--{name}", str(getattr(options, name))]
    running = [subprocess.Popen(command, env=os.environ | told) for told in environments(num_gpus)]
    try:
        while any(process.poll() is None for process in running) and not any(process.poll() for process in running):
            time.sleep(0.5)
        if any(process.poll() for process in running):
            raise SystemExit(f"the stage {stage} failed; its messages are above")
    finally:
        for process in running:
            process.kill()
            process.wait()


def environments(num_gpus: int) -> list[dict[str, str]]:
    """Return the environment of each process of a training run.

    Each process sees only its own GPU, as number 0, so that all can use the kernels that torch compiles for one GPU.
    """
    if num_gpus < 2:
        return [{}]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    return [
        meeting | {"RANK": str(rank), "WORLD_SIZE": str(num_gpus), "LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": str(rank)}
        for rank in range(num_gpus)
    ]


def main() -> None:
    options = parser(
        __doc__,
        work=Path,
        teacher=Path,
        phonemes=Path,
        size="fast",
        seconds=1500.0,
        stages="spectral,adversarial",
        rate=float | None,
        frames=int | None,
        perceptual=Path | None,
        makers=2,
        speech_seconds=60.0,
    ).parse_args()
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
