"""Train the codec in stages on speech, with learned codebooks; can be interrupted and resumed (`loop.py`).

python -m recipes.voice.codec STAGE --work DIR [--size fast] [--seconds 540] [--total SECONDS] …
    [--perceptual DIR] [--networks whisper/speaker] [--frames 24] [--shares 0.20/0.65/0.15] [--judges-rate 3] …

The stages are `spectral` (mel and commitment losses only), `adversarial` (with discriminators) and `decoder` (the same,
but encoder and codebooks keep their weights). Reads the shards of `DIR/speech` (more may appear during the training).
`--seconds` limits this run, `--total` is the duration of the stage. `--perceptual` adds the losses of `perceptual.py`,
and names the output of `packages.py`; they need rows of 36 to 48 `--frames` (1.8 to 2.4 s) instead of the codec's
window. `--networks` selects some of its networks. In the stage `decoder`, the mel loss, the discriminators and the
frozen networks have fixed `--shares` of the gradient at the decoder's output; the last one is for `--perceptual` only.
`--judges-rate` is the factor of the discriminators' learning rate, and `--patience` the number of steps in which new
ones learn alone. They are saved in half precision, and a stage uses those that it finds in `DIR`.
The result is `DIR/codec.safetensors`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from recipes.voice.channels import ChannelsLast
from recipes.voice.loop import Group, Schedule, TimedTraining
from recipes.voice.losses import Adversary, MelLoss
from recipes.voice.perceptual import WEIGHTS, Perceptual
from recipes.voice.shared import NewShards, fast_device, parser, wait_until
from recipes.voice.sizes import CODECS
from s1_mini.codecs.dac.config import DacConfig
from s1_mini.codecs.dac.model import Dac, Quantizer, VectorQuantizer


@dataclass(frozen=True)
class Stage:
    """Duration, learning rate and options of a training stage."""

    schedule: Schedule
    rows: int
    bypass: float  # share of rows that are not quantised (Défossez et al. 2024, Mimi)
    dropout: float  # share of rows that use only the first few codebooks, so that these carry most information
    is_adversarial: bool = True
    keeps_codes: bool = False
    breadth: int = 1  # of the discriminators
    patience: int = 0  # steps in which new discriminators learn before the codec does
    shares: tuple[float, ...] = ()  # of the gradient: mel, discriminators, frozen networks; if the encoder learns, none
    judges_rate: float = 1.0  # the discriminators' learning rate, relative to the codec's


STAGES = {
    "spectral": Stage(Schedule(290.0, 8e-4, 600), 12, 0.5, 0.15, is_adversarial=False),
    "adversarial": Stage(Schedule(980.0, 4e-4, 1000, 0.9995), 6, 0.0, 0.0),
    "decoder": Stage(
        Schedule(1000.0, 3e-4, 300, 0.9995),
        24,
        0.0,
        0.0,
        keeps_codes=True,
        breadth=2,
        patience=1500,
        shares=(0.20, 0.65, 0.15),
        judges_rate=3.0,
    ),
}


class SpeechPool:
    """One long wave made of all utterances, which grows while shards appear in `directory`."""

    def __init__(
        self, directory: Path, *, max_samples: int, device: torch.device, part: int = 0, parts: int = 1
    ) -> None:
        """Each of several processes reads its own share of the shards."""
        self._shards = NewShards(directory, lambda name: sha256(name.encode()).digest()[0] % parts == part)
        self._wave = torch.zeros(max_samples, dtype=torch.int16, device=device)
        self.num_samples = 0
        self._end = torch.zeros((), dtype=torch.float64, device=device)  # read inside captured steps

    def refill(self) -> None:
        for shard in self._shards.read():
            samples = torch.from_numpy(shard["samples"])
            end = self.num_samples + len(samples)
            if end > len(self._wave):
                return
            self._wave[self.num_samples : end] = samples.to(self._wave.device)
            self.num_samples = end
            self._end.fill_(end)

    def wait(self, min_samples: int, max_wait_s: float) -> None:
        """Wait for `min_samples`; raise `SystemExit` if they do not come in time."""

        def is_ready() -> bool:
            self.refill()
            return self.num_samples >= min_samples

        wait_until(
            is_ready, max_wait_s, f"too little speech in {self._shards.directory}: fewer than {min_samples} samples"
        )

    def batch(self, rows: int, length: int) -> Tensor:
        """Return `rows` random slices [rows, 1, length], float in [-1, 1]; safe inside a captured step."""
        device = self._wave.device
        start = torch.rand(rows, 1, dtype=torch.float64, device=device) * (self._end - length)
        index = start.long() + torch.arange(length, device=device)
        return (self._wave[index].float() / 32768).unsqueeze(1)


class Books:
    """All codebooks of a codec, of equal sizes, the semantic one first; and how often their entries were used."""

    def __init__(self, quantizer: Quantizer, device: torch.device, *, compiles: bool = False) -> None:
        self._books: list[VectorQuantizer] = [*quantizer.semantic_quantizer.books, *quantizer.quantizer.books]
        self._used = torch.zeros(len(self._books), len(self._books[0].codebook.weight), device=device)
        self._projected: list[Tensor] = []  # the last inputs of the books, [B, F, D] each
        self._residual: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor, list[Tensor]]] = self._sum
        if compiles:
            self._residual = torch.compile(self._sum, dynamic=False, fullgraph=True)

    @property
    def num_used(self) -> list[int]:
        """Number of entries of each book that were used since the last revival."""
        used: list[int] = (self._used > 0).sum(1).tolist()
        return used

    def quantise(self, exact: Tensor, dropout: Tensor | float, bypass: Tensor | float) -> tuple[Tensor, Tensor]:
        """Quantise residually, with straight-through gradients (van den Oord et al. 2017): vectors and commitment loss.

        A share `dropout` of the rows uses only the first few books, a share `bypass` is not quantised.
        """
        rows, device = len(exact), exact.device
        shortened = torch.rand(rows, device=device) < dropout
        some = torch.randint(1, len(self._books) + 1, (rows,), device=device)
        kept = torch.where(shortened, some, len(self._books))
        total, commitment, codes, self._projected = self._residual(exact, kept)
        numbers = codes + torch.arange(len(self._books), device=device).view(-1, 1, 1) * self._used.shape[1]
        self._used.view(-1).scatter_add_(0, numbers.flatten(), self._ones(numbers.numel()))
        skips = torch.rand(rows, 1, 1, device=device) < bypass
        return torch.where(skips, exact, total), commitment

    def _ones(self, count: int) -> Tensor:
        return torch.ones(count, device=self._used.device)

    def _sum(self, exact: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """Sum of the first `kept` [B] books' vectors, commitment, codes [K, B, F], and the inputs of the books."""
        rest = exact.transpose(1, 2)  # [B, F, C]
        total, commitment = torch.zeros_like(rest), exact.new_zeros(())
        all_codes, all_projected = [], []
        for index, book in enumerate(self._books):
            projected = F.linear(rest, book.in_proj.weight.squeeze(2), book.in_proj.bias)
            codes = book.nearest(projected.transpose(1, 2))
            entry = book.codebook(codes)
            inside = (index < kept).float()
            pull = (entry - projected.detach()).square().mean((1, 2))
            push = (entry.detach() - projected).square().mean((1, 2))
            commitment = commitment + ((pull + 0.25 * push) * inside).mean()
            straight = projected + (entry - projected).detach()
            vector = F.linear(straight, book.out_proj.weight.squeeze(2), book.out_proj.bias)
            total = total + vector * inside.view(-1, 1, 1)
            rest = rest - vector
            all_codes.append(codes)
            all_projected.append(projected.detach())
        return total.transpose(1, 2), commitment, torch.stack(all_codes), all_projected

    def revive(self, group: Group) -> None:
        """Replace the entries that no process of `group` has used by random vectors of the last batch."""
        group.add(self._used)
        for used, book, projected in zip(self._used, self._books, self._projected, strict=True):
            dead = (used < 1).nonzero()[:, 0]
            vectors = projected.flatten(0, 1)
            chosen = torch.randint(len(vectors), (len(dead),), device=vectors.device)
            with torch.no_grad():
                book.codebook.weight[dead] = vectors[chosen]
        group.share([book.codebook.weight for book in self._books])
        self._used.zero_()


def initialise(module: nn.Module) -> None:
    """Initialise parameters that the codec's layers leave empty."""
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


SCALES = ((64, 10, 0.5), (128, 20, 0.5), (256, 40, 1.0), (512, 80, 1.0), (1024, 100, 1.0), (2048, 160, 1.0))
FLOOR = 2e-3  # mel amplitude, about -70 dB; a fifth of the teacher's frames are softer, and inaudible
MEL, VERDICT, FEATURES = 15.0, 1.0, 0.7  # weights of the losses where they have no shares; mel, adversarial, features
REVIVE_EVERY, REVIVE_UNTIL = 500, 0.6  # steps; share of a stage
CROP_S = 0.5  # length of the part of every row that the discriminators get
LENIENT_UNTIL = 0.6  # share of a stage; afterwards, every row is quantised with all books
SAVE_EVERY_S, PUBLISH_EVERY_S = 300.0, 60.0
SOFTER_SHARE, SOFTEST = 0.5, 0.3  # share of rows that are made softer, and the smallest factor
POOL_S = 110 * 3600  # maximum duration of speech on the device
MIN_POOL_S, MAX_WAIT_S = 60, 120
DECODING = ("decoder.", "quantizer.post_module.", "quantizer.upsample.")


class CodecTraining(TimedTraining):
    """The codec, its discriminators if any, its training speech, and its steps."""

    report_every = 1000

    def __init__(
        self,
        name: str,
        size: str,
        work: Path,
        stage: Stage,
        device: torch.device,
        *,
        group: Group | None = None,
        compiles: bool = True,
        perceptual: Perceptual | None = None,
        frames: int = 0,
    ) -> None:
        """`frames` is the length of a row, by default that of the codec's window."""
        self.name, self.stage, self.size = name, stage, size
        config = DacConfig.from_json(CODECS[size])
        self.codec = Dac(config)
        initialise(self.codec)
        self.codec.to(device).prepare()
        super().__init__(work, stage.schedule, device, self.codec, group)
        if stage.keeps_codes:
            for parameter_name, parameter in self.codec.named_parameters():
                parameter.requires_grad_(parameter_name.startswith(DECODING))
        self.optimiser = self.adam([{"params": self.parameters, "weight_decay": 1e-3}], betas=(0.8, 0.99))
        self.adversary = Adversary(stage.breadth).to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._judges = [parameter for parameter in self.adversary.parameters() if parameter.requires_grad]
        self._judges_optimiser = self.adam([{"params": self._judges, "weight_decay": 1e-3}], betas=(0.8, 0.99))
        self._judges_rate = torch.tensor(0.0, device=device)  # separate, because the codec's rate is 0 at first
        self._let_judges_follow()
        self._patience = stage.patience if stage.is_adversarial else 0
        self.samples_per_row = (frames or config.q_window) * self.codec.samples_per_frame
        compiles = compiles and device.type == "cuda"
        if compiles:
            torch._dynamo.config.recompile_limit = 64
        self.mel = MelLoss(config.sample_rate, SCALES, FLOOR, compiles=compiles).to(device)
        self.perceptual = perceptual
        named = perceptual.loss_names if perceptual else []
        self._perceptual_weights = torch.tensor([WEIGHTS[name] for name in named], device=device)
        self._norms = torch.zeros(3, device=device)  # running means, of the losses' gradients at the decoder's output
        self.pool = SpeechPool(
            work / "speech",
            max_samples=POOL_S * config.sample_rate,
            device=device,
            part=self.group.rank,
            parts=self.group.size,
        )
        self._books = Books(self.codec.quantizer, device, compiles=compiles)
        self._loss_names = ["mel", "commitment", "verdict", "features", "judges", *named]
        self._report = torch.zeros(len(self._loss_names), device=device)  # running means
        self._lenient = torch.ones((), device=device)  # 0 once every row is quantised with all books
        self._saved = self._published = 0.0  # seconds of the schedule
        self._halves = ChannelsLast(self.codec, compiles=compiles)

    def round_trip(self) -> tuple[Tensor, Tensor, Tensor]:
        """Encode, quantise and decode random speech; return it, the decoded waves, and the loss from quantising."""
        wave = self._softened(self.pool.batch(self.stage.rows, self.samples_per_row))
        vectors, commitment = self._coded(wave)
        with self.half():
            return wave, self._halves.synthesise(vectors).float(), commitment

    def step(self) -> None:
        """Compute gradients of the distance of decoded speech to the original."""
        wave, output, commitment = self.round_trip()
        decoded = output.detach().requires_grad_() if self.stage.shares else output
        mel = self.mel(wave, decoded)
        zero = mel.new_zeros(())
        parts, losses = [MEL * mel], [mel, commitment, zero, zero, zero]
        if self.stage.is_adversarial:
            real, false = self._cropped(torch.cat((wave, decoded), dim=1)).split(1, dim=1)
            judged, features = self.adversary.loss(real.detach(), false)
            self._judges_optimiser.zero_grad(set_to_none=True)
            judged.backward()
            verdict, distance = self._deceive(false, features)
            parts.append(VERDICT * verdict + FEATURES * distance)
            losses = [mel, commitment, verdict, distance, judged]
        if self.perceptual is not None:
            compared = self.perceptual(wave, decoded)
            parts.append(self._perceptual_weights @ compared)
            losses += compared.unbind()
        if self.stage.shares:
            self.optimiser.zero_grad(set_to_none=True)
            output.backward(self._balanced(parts, decoded))
        else:
            self.derive(torch.stack(parts).sum() + commitment)
        self._report.lerp_(torch.stack([each.detach().float() for each in losses]), 0.02)

    def _balanced(self, parts: list[Tensor], decoded: Tensor) -> Tensor:
        """Return a gradient of `decoded` in which each loss has its share, whatever its size (Défossez et al. 2022)."""
        gradients = [torch.autograd.grad(part, decoded)[0] for part in parts]
        norms = self._norms[: len(parts)]
        measured = torch.stack([gradient.norm() for gradient in gradients])
        norms.copy_(torch.where(norms > 0, norms.lerp(measured, 0.02), measured))
        shares = zip(self.stage.shares, gradients, norms.unbind(), strict=False)  # frozen networks may be absent
        return torch.stack([share * gradient / (norm + 1e-6) for share, gradient, norm in shares]).sum(0)

    @property
    def learners(self) -> list[Tensor]:
        return [*self.parameters, *self._judges]

    def move(self) -> None:
        super().move()
        if self.stage.is_adversarial:
            nn.utils.clip_grad_norm_(self._judges, 10.0, foreach=True)
            self._judges_optimiser.step()

    def _deceive(self, false: Tensor, features: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the decoder's adversarial and feature losses, without changing the gradients of the discriminators."""
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
        """Quantised vectors of waves, and the loss from quantising them."""
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
        self._judges_rate.copy_(self.rate * self.stage.judges_rate)
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
            if self.spent - self._published > PUBLISH_EVERY_S:
                self._published = self.spent
                is_due = self.spent - self._saved > SAVE_EVERY_S
                self._saved = self.spent if is_due else self._saved
                if self.group.leads:
                    self.save() if is_due else self.publish()
        revives = not self.stage.keeps_codes and self.spent < REVIVE_UNTIL * self.schedule.total_s
        if revives and self.steps % REVIVE_EVERY == 0:
            self._books.revive(self.group)

    def print_progress(self, steps_per_s: float) -> None:
        named = zip(self._loss_names, self._report.tolist(), strict=True)
        losses = ", ".join(f"{name} {value:.3f}" for name, value in named)
        hours = self.pool.num_samples / self.codec.sample_rate / 3600
        time = f"{self.spent:.0f} of {self.schedule.total_s:.0f} s"
        speed = f"{steps_per_s:.1f} it/s, {time}, {hours:.1f} h, {self._books.num_used}"
        norms = f"; norms {[round(norm, 3) for norm in self._norms.tolist()]}" if self.stage.shares else ""
        print(f"{self.size} {self.name} {self.steps}: {losses}; {speed}{norms}", flush=True)

    def state(self) -> dict[str, Any]:
        judges = {"adversary": self.adversary.state_dict(), "judges": self._judges_optimiser.state_dict()}
        return super().state() | judges | {"patience": self._patience}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.adversary.load_state_dict(state["adversary"])
        self._judges_optimiser.load_state_dict(state["judges"])
        self._let_judges_follow()
        self._patience = state.get("patience", 0)  # states of before 2026-11-29 have none

    def save(self) -> None:
        super().save()
        judges = {name: tensor.half().cpu().contiguous() for name, tensor in self.adversary.state_dict().items()}
        for path, group in zip(self._judges_paths, self._halved(judges), strict=True):
            save_file(group, path)
        self.publish()

    @property
    def _judges_paths(self) -> tuple[Path, Path]:
        """Discriminators of this breadth, for a later stage or another machine: two files of about 11 MiB."""
        first, second = (self.work / f"adversary_{self.stage.breadth}_{part}.safetensors" for part in (0, 1))
        return first, second

    @staticmethod
    def _halved(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Divide tensors into two groups of similar size."""
        groups: tuple[dict[str, Tensor], dict[str, Tensor]] = {}, {}
        for name in sorted(tensors, key=lambda name: -tensors[name].numel()):
            min(groups, key=lambda group: sum(each.numel() for each in group.values()))[name] = tensors[name]
        return groups

    @property
    def weights_path(self) -> Path:
        return self.work / "codec.safetensors"

    def publish(self) -> None:
        self.export(torch.float32)
        config = json.dumps(CODECS[self.size], indent=2) + "\n"
        (self.work / "codec_config.json").write_text(config, encoding="utf-8")

    def resume(self) -> bool:
        """Continue from the stage's own state, otherwise from the codec and discriminators of the previous stage."""
        has_state = super().resume()
        missing = [path for path in self._judges_paths if not path.exists()]
        if not has_state and self.stage.is_adversarial and len(missing) < 2:
            if missing:
                raise SystemExit(f"{missing[0]} is missing: the discriminators are in two files")
            self.adversary.load_state_dict({n: t for path in self._judges_paths for n, t in load_file(path).items()})
            self._patience = 0
        return has_state


def main() -> None:
    default = ("fast", *CODECS)
    command = parser(
        __doc__,
        STAGES,
        work=Path,
        size=default,
        seconds=540.0,
        total=0.0,
        rate=0.0,
        rows=0,
        frames=0,
        perceptual=Path | None,
        networks="whisper/speaker",
        shares="",
        judges_rate=0.0,
        patience=0,
        no_compile=False,
    )
    options = command.parse_args()
    torch.backends.cudnn.benchmark = True
    group, device = Group.join(fast_device())
    stage = STAGES[options.verb]
    schedule = replace(
        stage.schedule, total_s=options.total or stage.schedule.total_s, rate=options.rate or stage.schedule.rate
    )
    shares = tuple(float(share) for share in options.shares.split("/") if share) or stage.shares
    if len(shares) != len(stage.shares):
        raise SystemExit("--shares needs the stage decoder, and three shares: mel, discriminators, frozen networks")
    given = {name: getattr(options, name) or getattr(stage, name) for name in ("rows", "judges_rate", "patience")}
    stage = replace(stage, schedule=schedule, shares=shares, **given)
    perceptual = None
    if options.perceptual:
        rate = CODECS[options.size]["sample_rate"]
        perceptual = Perceptual.load(options.perceptual, rate, device, options.networks.split("/"))
    training = CodecTraining(
        options.verb,
        options.size,
        options.work,
        stage,
        device,
        group=group,
        compiles=not options.no_compile,
        perceptual=perceptual,
        frames=options.frames,
    )
    training.train(options.seconds)


if __name__ == "__main__":
    main()
