"""The stages of the codec's training: how long, how fast, and with what."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from recipes.voice.books import Books, initialise, use_fast_kernels
from recipes.voice.channels import ChannelsLast
from recipes.voice.loop import Group, Schedule, TimedTraining, use_capture_stream
from recipes.voice.losses import Adversary, MelLoss
from recipes.voice.sizes import CODECS
from s1_mini.codecs.dac.config import DacConfig
from s1_mini.codecs.dac.model import Dac


@dataclass(frozen=True)
class Stage:
    """How long and how fast a stage trains, and with what."""

    schedule: Schedule
    rows: int
    bypass: float  # share of rows that are not quantised (Défossez et al. 2024, Mimi)
    dropout: float  # share of rows that use only the first few codebooks, so that those carry the most
    is_adversarial: bool = True
    keeps_codes: bool = False
    breadth: int = 1  # of the discriminators
    patience: int = 0  # steps that new discriminators have before the codec learns from them


STAGES = {
    "spectral": Stage(Schedule(290.0, 8e-4, 600), 12, 0.5, 0.15, is_adversarial=False),
    "adversarial": Stage(Schedule(980.0, 4e-4, 1000, 0.9995), 6, 0.0, 0.0),
    "decoder": Stage(Schedule(1000.0, 3e-4, 300, 0.9995), 24, 0.0, 0.0, keeps_codes=True, breadth=2, patience=1000),
}


class SpeechPool:
    """One long wave made of all utterances, which grows while shards appear in `directory`."""

    def __init__(self, directory: Path, *, max_samples: int, device: torch.device) -> None:
        self._directory = directory
        self.part, self.parts = 0, 1  # of several processes, each reads its own share of the shards
        self._read: set[Path] = set()
        self._wave = torch.zeros(max_samples, dtype=torch.int16, device=device)
        self._filled = 0
        self._end = torch.zeros((), dtype=torch.float64, device=device)  # read inside captured steps

    @property
    def num_samples(self) -> int:
        """Samples read so far."""
        return self._filled

    def refill(self, max_shards: int = 64) -> None:
        """Read shards that are new, while there is room."""
        found = (path for path in sorted(self._directory.glob("shard_*.npz")) if path not in self._read)
        new = [path for path in found if sha256(path.name.encode()).digest()[0] % self.parts == self.part]
        for path in new[:max_shards]:
            self._read.add(path)
            with np.load(path) as shard:
                samples = torch.from_numpy(shard["samples"])
            room = len(self._wave) - self._filled
            if room < len(samples):
                return
            self._wave[self._filled : self._filled + len(samples)] = samples.to(self._wave.device)
            self._filled += len(samples)
            self._end.fill_(self._filled)

    def wait(self, min_samples: int, max_wait_s: float) -> None:
        """Wait until there are so many samples to begin with; raises `SystemExit` if they do not come in time."""
        began = time.monotonic()
        while self.num_samples < min_samples:
            if time.monotonic() - began > max_wait_s:
                raise SystemExit(f"too little speech came into {self._directory} within {max_wait_s:.0f} s")
            self.refill()
            time.sleep(0.2)

    def batch(self, rows: int, length: int) -> Tensor:
        """Return `rows` random slices [rows, 1, length], float in [-1, 1]; safe inside a captured step."""
        device = self._wave.device
        start = torch.rand(rows, 1, dtype=torch.float64, device=device) * (self._end - length)
        index = start.long() + torch.arange(length, device=device)
        return (self._wave[index].float() / 32768).unsqueeze(1)


SCALES = ((64, 10, 0.5), (128, 20, 0.5), (256, 40, 1.0), (512, 80, 1.0), (1024, 100, 1.0), (2048, 160, 1.0))
FLOOR = 2e-3  # some -70 dB: a fifth of the teacher's frames is softer than that, and nobody hears them
MEL, VERDICT, FEATURES = 15.0, 1.0, 0.7  # weights of the losses
REVIVE_EVERY, REVIVE_UNTIL = 500, 0.6  # steps; share of a stage
CROP_S = 0.5  # of every row: what the discriminators see
LENIENT_UNTIL = 0.6  # share of a stage; after it every row is quantised by all books
SAVE_EVERY_S, PUBLISH_EVERY_S = 300.0, 60.0
SOFTER_SHARE, SOFTEST = 0.5, 0.3  # of rows are made softer, down to this
POOL_S = 110 * 3600  # of speech on the device at most
MIN_POOL_S, MAX_WAIT_S = 60, 120
DECODING = ("decoder.", "quantizer.post_module.", "quantizer.upsample.")


class CodecTraining(TimedTraining):
    """The codec, its discriminators if any, the speech it learns from, and its steps."""

    report_every = 1000

    def __init__(
        self, name: str, size: str, work: Path, stage: Stage, device: torch.device, *, compiles: bool = True
    ) -> None:
        self.name, self.stage, self.size = name, stage, size
        config = DacConfig.from_json(CODECS[size])
        self.codec = Dac(config)
        initialise(self.codec)
        self.codec.to(device).prepare()
        super().__init__(work, stage.schedule, device, self.codec)
        if stage.keeps_codes:
            for parameter_name, parameter in self.codec.named_parameters():
                parameter.requires_grad_(parameter_name.startswith(DECODING))
        self._optimiser = self.adam([{"params": self.parameters, "weight_decay": 1e-3}], betas=(0.8, 0.99))
        self.adversary = Adversary(stage.breadth).to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._judges = [parameter for parameter in self.adversary.parameters() if parameter.requires_grad]
        self._judges_optimiser = self.adam([{"params": self._judges, "weight_decay": 1e-3}], betas=(0.8, 0.99))
        self._judges_rate = torch.tensor(0.0, device=device)  # the codec's own waits until new judges have learnt
        self._let_judges_follow()
        self._patience = stage.patience if stage.is_adversarial else 0
        self.samples_per_row = config.q_window * self.codec.samples_per_frame
        self.mel = MelLoss(config.sample_rate, SCALES, FLOOR).to(device)
        self.pool = SpeechPool(work / "speech", max_samples=POOL_S * config.sample_rate, device=device)
        self._books = Books(self.codec.quantizer, device)
        self._report = torch.zeros(5, device=device)  # running means: mel, commitment, verdict, features, judges'
        self._lenient = torch.ones((), device=device)  # 0 once every row is to be quantised by all books
        self._saved = self._published = 0.0  # seconds of the schedule
        compiles = compiles and device.type == "cuda"
        self._halves = ChannelsLast(self.codec, compiles=compiles)
        if compiles:
            torch._dynamo.config.recompile_limit = 64
            for part in (self.mel, self._books):
                part.compile_parts()

    @property
    def optimiser(self) -> torch.optim.Optimizer:
        return self._optimiser

    def step(self) -> None:
        """Encode, quantise and decode random speech, and bring it nearer to the original."""
        wave = self._softened(self.pool.batch(self.stage.rows, self.samples_per_row))
        vectors, commitment = self._coded(wave)
        with self.half():
            decoded = self._halves.synthesise(vectors).float()
        mel = self.mel(wave, decoded)
        loss = MEL * mel + commitment
        zero = mel.new_zeros(())
        told = [mel, commitment, zero, zero, zero]
        if self.stage.is_adversarial:
            real, false = self._cropped(torch.cat((wave, decoded), dim=1)).split(1, dim=1)
            judged, features = self.adversary.loss(real.detach(), false)
            self._judges_optimiser.zero_grad(set_to_none=True)
            judged.backward()
            verdict, distance = self._deceive(false, features)
            loss = loss + VERDICT * verdict + FEATURES * distance
            told = [mel, commitment, verdict, distance, judged]
        self.derive(loss)
        self._report.lerp_(torch.stack([one.detach().float() for one in told]), 0.02)

    @property
    def learners(self) -> list[Tensor]:
        return [*self.parameters, *self._judges]

    def move(self) -> None:
        """Update the codec and its discriminators."""
        super().move()
        if self.stage.is_adversarial:
            nn.utils.clip_grad_norm_(self._judges, 10.0, foreach=True)
            self._judges_optimiser.step()

    def _deceive(self, false: Tensor, features: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The decoder's loss. The judges' gradients, which are there already, stay as they are."""
        for judge in self._judges:
            judge.requires_grad_(False)
        verdict, distance = self.adversary.deceive(false, features)
        for judge in self._judges:
            judge.requires_grad_(True)
        return verdict, distance

    def _softened(self, wave: Tensor) -> Tensor:
        random = torch.rand(2, len(wave), 1, 1, device=self.device)
        return wave * torch.where(random[0] < SOFTER_SHARE, SOFTEST + (1 - SOFTEST) * random[1], 1.0)

    def _cropped(self, waves: Tensor) -> Tensor:
        """A random piece of every row [B, C, T]."""
        length = min(round(CROP_S * self.codec.sample_rate), waves.shape[-1])
        start = (torch.rand(len(waves), 1, 1, device=self.device) * (waves.shape[-1] - length + 1)).long()
        index = start + torch.arange(length, device=self.device)
        return waves.gather(2, index.expand(-1, waves.shape[1], -1))

    def _coded(self, wave: Tensor) -> tuple[Tensor, Tensor]:
        """Quantised vectors of waves, and what is lost by quantising them."""
        with self.half():
            exact = self._halves.latents(wave)
        exact = exact.float()
        if self.stage.keeps_codes:
            with torch.no_grad():
                vectors = self.codec.quantizer.decode(self.codec.quantizer.encode(exact))
            return vectors, vectors.new_zeros(())
        return self._quantise(exact)

    def _quantise(self, exact: Tensor) -> tuple[Tensor, Tensor]:
        return self._books.quantise(exact, self.stage.dropout * self._lenient, self.stage.bypass * self._lenient)

    def _let_judges_follow(self) -> None:
        for group in self._judges_optimiser.param_groups:
            group["lr"] = self._judges_rate

    def _set_rate(self) -> None:
        super()._set_rate()
        self._judges_rate.copy_(self.rate)
        if self._patience:
            self.rate.mul_(min(1.0, max(0.0, self.steps / self._patience - 1)))

    def wait(self) -> None:
        """Wait for the first speech; raises `SystemExit` if it does not come in time."""
        self.pool.wait(MIN_POOL_S * self.codec.sample_rate, MAX_WAIT_S)

    def between(self) -> None:
        if self.steps % 200 == 0:
            self.pool.refill()
            if self.spent > LENIENT_UNTIL * self.schedule.total_s:
                self._lenient.zero_()
            if self.spent - self._saved > SAVE_EVERY_S:
                self._saved = self._published = self.spent
                if self.group.leads:
                    self.save()
            if self.spent - self._published > PUBLISH_EVERY_S:
                self._published = self.spent
                if self.group.leads:
                    self.publish()
        revives = not self.stage.keeps_codes and self.spent < REVIVE_UNTIL * self.schedule.total_s
        if revives and self.steps % REVIVE_EVERY == 0:
            self._books.revive(self.group)

    def tell(self, steps_per_s: float) -> None:
        names = ("mel", "commitment", "verdict", "features", "judges")
        told = ", ".join(f"{name} {value:.3f}" for name, value in zip(names, self._report.tolist(), strict=True))
        hours = self.pool.num_samples / self.codec.sample_rate / 3600
        used = self._books.num_used
        at = f"{self.spent:.0f} of {self.schedule.total_s:.0f} s"
        print(
            f"{self.size} {self.name} {self.steps}: {told}; {steps_per_s:.1f} it/s, {at}, {hours:.1f} h, {used}",
            flush=True,
        )

    def state(self) -> dict[str, Any]:
        judges = {"adversary": self.adversary.state_dict(), "judges": self._judges_optimiser.state_dict()}
        return {**super().state(), **judges}

    def save(self) -> None:
        """Write what the next call goes on from, and the codec of the mean weights."""
        super().save()
        torch.save(self.adversary.state_dict(), self._judges_path)
        self.publish()

    @property
    def _judges_path(self) -> Path:
        """Discriminators of this breadth, which a later stage or another machine goes on with."""
        return self.work / f"adversary_{self.stage.breadth}.pt"

    def publish(self) -> None:
        """Write the codec of the mean weights."""
        self.export(torch.float32)
        (self.work / f"{self.name}.safetensors").replace(self.work / "codec.safetensors")
        config = json.dumps(CODECS[self.size], indent=2) + "\n"
        (self.work / "codec_config.json").write_text(config, encoding="utf-8")

    def resume(self) -> None:
        """Go on from the stage's own state, or else from the codec and the discriminators of the stage before."""
        path = self.work / f"{self.name}.pt"
        if path.exists():
            state = torch.load(path, map_location=self.device, weights_only=True)
            self.restore(state)
            self.adversary.load_state_dict(state["adversary"])
            self._judges_optimiser.load_state_dict(state["judges"])
            self._let_judges_follow()
            return
        if (self.work / "codec.safetensors").exists():
            tensors = load_file(self.work / "codec.safetensors")
            values = [tensors[name] for name in self.names]
            self.fill(values, values)
        if self.stage.is_adversarial and self._judges_path.exists():
            self.adversary.load_state_dict(torch.load(self._judges_path, weights_only=True))
            self._patience = 0


def main() -> None:
    """Train one stage for some seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--size", choices=CODECS, default="fast")
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--total", type=float, help="seconds of all calls of this stage together")
    parser.add_argument("--rate", type=float, help="the peak of the stage")
    parser.add_argument("--rows", type=int, help="of a batch, in every process")
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    group, device = Group.join(use_fast_kernels())
    use_capture_stream(device)
    stage = STAGES[options.stage]
    given = {"total_s": options.total, "rate": options.rate}
    schedule = replace(stage.schedule, **{name: value for name, value in given.items() if value})
    stage = replace(stage, schedule=schedule, rows=options.rows or stage.rows)
    training = CodecTraining(options.stage, options.size, options.work, stage, device, compiles=not options.no_compile)
    training.group = group
    training.pool.part, training.pool.parts = group.rank, group.size
    training.resume()
    group.share([*training.parameters, *training.mean, *training.adversary.parameters()])
    sizes = {name: sum(p.numel() for p in child.parameters()) for name, child in training.codec.named_children()}
    if group.leads:
        print("parameters", sizes, sum(sizes.values()), flush=True)
    training.run(options.seconds)
    group.leave()


if __name__ == "__main__":
    main()
