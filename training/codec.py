"""Train the codec by how far its sound's spectrum is from the original's. Resumable by seconds (`loop.py`).

python -m training.codec --work DIR --seconds 540

`DIR/speech` holds the shards (more may appear meanwhile); the result is `DIR/codec.safetensors` in the codec's own
layout, with `DIR/codec_config.json`. There is no adversary: 4,700 steps against one left the word error where it was
and cost a fifth of DNSMOS, while the same time by spectrum alone lowers the error.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from s1_mini.codecs.carry import NoCarry
from s1_mini.codecs.dac.config import DacConfig
from s1_mini.codecs.dac.model import Dac
from training.books import Books
from training.graph import use_capture_stream
from training.loop import Schedule, TimedTraining
from training.losses import MelLoss
from training.pool import SpeechPool

# 16 kHz like the teacher; 640 samples a frame, 25 frames/s; one semantic and nine residual books of 1024: 2.5 kbit/s.
CONFIG: dict[str, Any] = {
    "sample_rate": 16_000,
    "encoder_dim": 24,
    "encoder_rates": [2, 4, 4, 5],
    "encoder_transformer_layers": [0, 0, 0, 0],
    "enc_block_size": 8192,
    "input_dim": 192,
    "n_codebooks": 9,
    "codebook_size": 1024,
    "semantic_codebook_size": 1024,
    "codebook_dim": 8,
    "downsample_factor": [2, 2],
    "decoder_dim": 512,
    "decoder_rates": [5, 4, 4, 2],
    "q_block_size": 2048,
    "q_n_layer": 2,
    "q_n_head": 3,
    "q_dim": 192,
    "q_inter": 512,
    "q_window": 32,
}
SCHEDULE = Schedule(total_s=1010.0, rate=8e-4, warm_up=1000)
ROWS = 16  # of a batch
FRAMES = 32  # of a row: 1.28 s, as long as the transformers' window
MEL_WEIGHT = 15.0
DROPOUT = 0.15  # share of rows that use only the first few books, so that those carry the most
BYPASS = 0.5  # share of rows that are not quantised, so that encoder and decoder learn from exact vectors
# (Défossez et al. 2024, Mimi); README.md tells what came of it
REVIVE_EVERY = 200  # steps; entries that nothing used are moved to where something is
REVIVE_UNTIL = 0.6  # of the schedule
POOL_HOURS = 100
MIN_POOL_S = 60
MAX_WAIT_S = 120  # for the first minute of speech


def initialise(module: nn.Module) -> None:
    """Set what the codec's layers leave empty."""
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif name.endswith("gamma"):
            nn.init.constant_(parameter, 0.1)
        elif parameter.dim() <= 1 or name.endswith("alpha"):
            nn.init.ones_(parameter)
        elif name.endswith("codebook.weight"):
            nn.init.normal_(parameter)
        else:
            nn.init.kaiming_uniform_(parameter, a=math.sqrt(5))


class CodecTraining(TimedTraining):
    """The codec, the speech it learns from and its steps."""

    name = "codec"
    report_every = 500

    def __init__(self, work: Path, schedule: Schedule, device: torch.device, *, compiles: bool = True) -> None:
        config = DacConfig.from_json(CONFIG)
        self.codec = Dac(config)
        initialise(self.codec)
        self.codec.to(device).prepare()
        super().__init__(work, schedule, device, self.codec)
        self._optimiser = self.adam([{"params": self.parameters, "weight_decay": 1e-3}], betas=(0.8, 0.99))
        self.samples_per_row = FRAMES * self.codec.samples_per_frame
        self.mel = MelLoss(config.sample_rate).to(device)
        self.pool = SpeechPool(work / "speech", max_samples=POOL_HOURS * 3600 * config.sample_rate, device=device)
        self.books = Books(self.codec.quantizer, device)
        self.report = torch.zeros(2, device=device)  # running means: mel, commitment
        self.latents, self.synthesise = self.codec.latents, self.codec.synthesise
        if compiles and device.type == "cuda":
            torch._dynamo.config.recompile_limit = 64
            self.latents = torch.compile(self.codec.latents, dynamic=False, fullgraph=True)
            self.synthesise = torch.compile(self.codec.synthesise, dynamic=False, fullgraph=True)

    @property
    def optimiser(self) -> torch.optim.Optimizer:
        return self._optimiser

    def step(self) -> None:
        """Encode, quantise and decode random speech, and bring its spectrum nearer to the original's."""
        carry = NoCarry()
        wave = self.pool.batch(ROWS, self.samples_per_row)
        with self.half():
            vectors = self.latents(wave, carry)
        vectors, commitment = self.books.quantise(vectors.float(), DROPOUT, BYPASS)
        with self.half():
            decoded = self.synthesise(vectors, carry)
        mel = self.mel(wave, decoded.float())
        self.derive(MEL_WEIGHT * mel + commitment)
        self.report.lerp_(torch.stack((mel.detach(), commitment.detach())), 0.02)

    def between(self) -> None:
        if self.steps % 100 == 0:
            self.pool.refill()
        if self.steps % REVIVE_EVERY == 0 and self.spent < REVIVE_UNTIL * self.schedule.total_s:
            self.revive()

    def revive(self) -> None:
        """Give codebook entries that nothing used a new place."""
        self.books.revive(self.group)

    def tell(self, steps_per_s: float) -> None:
        mel, commitment = self.report.tolist()
        hours = self.pool.num_samples / self.codec.sample_rate / 3600
        told = f"mel {mel:.3f}, commitment {commitment:.3f}, {steps_per_s:.1f} it/s, {hours:.1f} h"
        print(f"{self.name} {self.steps}: {told}", flush=True)

    def save(self) -> None:
        """Write what the next call goes on from, and the codec of the mean weights."""
        super().save()
        self.export(torch.float32)
        (self.work / "codec_config.json").write_text(json.dumps(CONFIG, indent=2) + "\n", encoding="utf-8")


def arguments(usage: str | None, schedule: Schedule) -> argparse.Namespace:
    """Read the options that both trainings of the codec have."""
    parser = argparse.ArgumentParser(description=usage, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--total", type=float, default=schedule.total_s, help="seconds of all calls together")
    parser.add_argument("--rate", type=float, default=schedule.rate)
    parser.add_argument("--no-compile", action="store_true")
    return parser.parse_args()


def use_fast_kernels() -> torch.device:
    """Allow what is fast and exact enough for training; give the best device there is."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main() -> None:
    """Train for some seconds."""
    options = arguments(__doc__, SCHEDULE)
    device = use_fast_kernels()
    use_capture_stream(device)
    schedule = replace(SCHEDULE, total_s=options.total, rate=options.rate)
    training = CodecTraining(options.work, schedule, device, compiles=not options.no_compile)
    training.resume()
    training.pool.wait(MIN_POOL_S * training.codec.sample_rate, MAX_WAIT_S)
    sizes = {name: sum(p.numel() for p in child.parameters()) for name, child in training.codec.named_children()}
    print("parameters", sizes, flush=True)
    training.run(options.seconds)


if __name__ == "__main__":
    main()
