"""Train the codec: first by spectrum alone, then against an adversary. Resumable by seconds.

python -m training.codec --work DIR --seconds 540

`DIR/speech` holds the shards (more may appear meanwhile); `DIR/codec.pt` is what the next call goes on from and
`DIR/codec.safetensors` the exponential mean of the weights so far, in the codec's own layout.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from s1_mini.codecs.carry import NoCarry
from s1_mini.codecs.dac.config import DacConfig
from s1_mini.codecs.dac.model import Dac
from s1_mini.codecs.dac.quantizer import VectorQuantizer
from training.adversary import Adversary, deception_loss, feature_loss, own_loss
from training.graph import capture, use_capture_stream
from training.losses import MelLoss
from training.pool import SpeechPool

# 16 kHz like the teacher; 640 samples a frame, 25 frames/s; one semantic and seven residual books of 1024: 2 kbit/s.
CONFIG: dict[str, Any] = {
    "sample_rate": 16_000,
    "encoder_dim": 16,
    "encoder_rates": [2, 4, 4, 5],
    "encoder_transformer_layers": [0, 0, 0, 0],
    "enc_block_size": 8192,
    "input_dim": 192,
    "n_codebooks": 7,
    "codebook_size": 1024,
    "semantic_codebook_size": 1024,
    "codebook_dim": 8,
    "downsample_factor": [2, 2],
    "decoder_dim": 384,
    "decoder_rates": [5, 4, 4, 2],
    "q_block_size": 2048,
    "q_n_layer": 2,
    "q_n_head": 3,
    "q_dim": 192,
    "q_inter": 512,
    "q_window": 32,
}


MAX_WAIT_S = 120  # for the first minute of speech


@dataclass(frozen=True)
class Plan:
    """How long and how hard to train."""

    plain_s: float = 540.0
    adversarial_s: float = 540.0
    rows: int = 32
    frames: int = 32  # 1.28 s: as long as the transformers' window
    plain_rate: float = 1e-3
    adversarial_rate: float = 3e-4
    warm_up: int = 300  # steps
    mel_weight: float = 15.0
    feature_weight: float = 1.0
    dropout: float = 0.15  # share of rows that use only the first few books, so that those carry the most
    mean_decay: float = 0.999  # of the exponential mean of the weights
    revive_every: int = 200  # steps; entries that nothing used are moved to where something is
    compiles: bool = True
    encoder_dim: int = CONFIG["encoder_dim"]
    residual_books: int = CONFIG["n_codebooks"]


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


class Trainer:
    """The codec, its adversary, their optimisers and the steps."""

    def __init__(self, work: Path, plan: Plan, device: torch.device) -> None:
        self.work, self.plan, self.device = work, plan, device
        self.values = CONFIG | {"encoder_dim": plan.encoder_dim, "n_codebooks": plan.residual_books}
        config = DacConfig.from_json(self.values)
        self.codec = Dac(config)
        initialise(self.codec)
        self.codec.to(device).prepare()
        self.adversary = Adversary().to(device)
        self.mel = MelLoss(config.sample_rate).to(device)
        self.pool = SpeechPool(work / "speech", max_samples=100 * 3600 * config.sample_rate, device=device)
        self.mean = [parameter.detach().clone() for parameter in self.codec.parameters()]
        self.rate = torch.tensor(0.0, device=device)
        self.adversary_rate = torch.tensor(0.0, device=device)
        self.optimiser = self._adam(self.codec, self.rate)
        self.adversary_optimiser = self._adam(self.adversary, self.adversary_rate)
        self.spent = {"plain": 0.0, "adversarial": 0.0}
        self.steps = 0
        self.report = torch.zeros(5, device=device)  # running means: mel, commitment, deception, features, adversary
        self.used = torch.zeros(config.num_codebooks, config.codebook_size, device=device)
        self.projected: list[Tensor] = []
        self.latents, self.synthesise = self.codec.latents, self.codec.synthesise
        if plan.compiles and device.type == "cuda":
            torch._dynamo.config.recompile_limit = 64
            self.latents = torch.compile(self.codec.latents, dynamic=False, fullgraph=True)
            self.synthesise = torch.compile(self.codec.synthesise, dynamic=False, fullgraph=True)

    def _adam(self, module: nn.Module, rate: Tensor) -> torch.optim.AdamW:
        on_gpu = self.device.type == "cuda"
        return torch.optim.AdamW(
            module.parameters(), lr=rate, betas=(0.8, 0.99), weight_decay=1e-3, fused=on_gpu, capturable=on_gpu
        )

    def plain_step(self) -> None:
        """One step by spectrum alone."""
        wave, decoded, commitment = self._forward()
        mel = self.mel(wave, decoded)
        self._descend(self.plan.mel_weight * mel + commitment)
        self._note(mel, commitment)

    def adversarial_step(self) -> None:
        """One step of the adversary, then one of the codec against it."""
        wave, decoded, commitment = self._forward()
        self.adversary.requires_grad_(True)
        with self._half():
            own = own_loss(self.adversary(wave), self.adversary(decoded.detach()))
        self.adversary_optimiser.zero_grad(set_to_none=True)
        own.backward()
        nn.utils.clip_grad_norm_(self.adversary.parameters(), 10.0, foreach=True)
        self.adversary_optimiser.step()

        self.adversary.requires_grad_(False)
        with self._half():
            with torch.no_grad():
                real = self.adversary(wave)
            opinions = self.adversary(decoded)
        deception, features = deception_loss(opinions), feature_loss(real, opinions)
        mel = self.mel(wave, decoded)
        self._descend(self.plan.mel_weight * mel + commitment + deception + self.plan.feature_weight * features)
        self._note(mel, commitment, deception, features, own)

    def revive(self) -> int:
        """Move codebook entries that nothing used to random vectors of the last batch; give how many."""
        moved = 0
        for used, book, projected in zip(self.used, self._books(), self.projected, strict=True):
            dead = (used < 1).nonzero()[:, 0]
            vectors = projected.transpose(1, 2).flatten(0, 1)
            chosen = torch.randint(len(vectors), (len(dead),), device=self.device)
            with torch.no_grad():
                book.codebook.weight[dead] = vectors[chosen]
            moved += len(dead)
        self.used.zero_()
        return moved

    def set_rates(self, phase: str) -> None:
        """Warm up, then fall by half a cosine to a twentieth over the phase."""
        budget = self.plan.plain_s if phase == "plain" else self.plan.adversarial_s
        peak = self.plan.plain_rate if phase == "plain" else self.plan.adversarial_rate
        done = min(1.0, self.spent[phase] / budget)
        rate = peak * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))
        if phase == "plain":
            rate *= min(1.0, (self.steps + 1) / self.plan.warm_up)
        self.rate.fill_(rate)
        self.adversary_rate.fill_(rate)

    def _forward(self) -> tuple[Tensor, Tensor, Tensor]:
        codec, carry = self.codec, NoCarry()
        wave = self.pool.batch(self.plan.rows, self.plan.frames * codec.samples_per_frame)
        with self._half():
            vectors = self.latents(wave, carry)
        vectors, commitment = self._quantise(vectors.float())
        with self._half():
            decoded = self.synthesise(vectors, carry)
        return wave, decoded.float(), commitment

    def _quantise(self, rest: Tensor) -> tuple[Tensor, Tensor]:
        """Residual quantisation with straight-through gradients (van den Oord et al. 2017); vectors and commitment."""
        books = self._books()
        rows = len(rest)
        drops = torch.rand(rows, device=self.device) < self.plan.dropout
        kept = torch.where(drops, torch.randint(1, len(books) + 1, (rows,), device=self.device), len(books))
        total, commitment = torch.zeros_like(rest), rest.new_zeros(())
        self.projected = []
        for index, book in enumerate(books):
            projected = book.in_proj(rest)
            codes = book.nearest(projected)
            entry = book.codebook(codes).transpose(1, 2)
            inside = (index < kept).float()
            pull = (entry - projected.detach()).square().mean((1, 2))
            push = (entry.detach() - projected).square().mean((1, 2))
            commitment = commitment + ((pull + 0.25 * push) * inside).mean()
            vector = book.out_proj(projected + (entry - projected).detach())
            total = total + vector * inside.view(-1, 1, 1)
            rest = rest - vector
            self.used[index].scatter_add_(0, codes.flatten(), torch.ones_like(codes.flatten(), dtype=torch.float32))
            self.projected.append(projected.detach())
        return total, commitment

    def _descend(self, loss: Tensor) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.codec.parameters(), 1.0, foreach=True)
        self.optimiser.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.mean, list(self.codec.parameters()), 1 - self.plan.mean_decay)

    def _note(self, *values: Tensor) -> None:
        padded = [*values, *[self.report.new_zeros(())] * (5 - len(values))]
        self.report.lerp_(torch.stack([value.detach().float() for value in padded]), 0.02)

    def _half(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda", cache_enabled=False)

    def _books(self) -> list[VectorQuantizer]:
        quantizer = self.codec.quantizer
        return [*quantizer.semantic_quantizer.books, *quantizer.quantizer.books]

    def save(self) -> None:
        """Write what the next call goes on from, and the mean weights as a codec of their own."""
        state = {
            "codec": self.codec.state_dict(),
            "adversary": self.adversary.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "adversary_optimiser": self.adversary_optimiser.state_dict(),
            "mean": self.mean,
            "spent": self.spent,
            "steps": self.steps,
        }
        torch.save(state, self.work / "codec.tmp")
        (self.work / "codec.tmp").replace(self.work / "codec.pt")
        names = [name for name, _ in self.codec.named_parameters()]
        save_file(
            {name: tensor.cpu().contiguous() for name, tensor in zip(names, self.mean, strict=True)},
            self.work / "codec.safetensors",
        )
        (self.work / "codec_config.json").write_text(json.dumps(self.values, indent=2) + "\n", encoding="utf-8")

    def resume(self) -> None:
        """Go on from the last `save`, if there is one."""
        path = self.work / "codec.pt"
        if not path.exists():
            return
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.codec.load_state_dict(state["codec"])
        self.adversary.load_state_dict(state["adversary"])
        for name in ("optimiser", "adversary_optimiser"):
            optimiser, rate = getattr(self, name), getattr(self, name).param_groups[0]["lr"]
            optimiser.load_state_dict(state[name])
            optimiser.param_groups[0]["lr"] = rate  # keep the tensor that set_rates writes to
        for mean, saved in zip(self.mean, state["mean"], strict=True):
            mean.copy_(saved)
        self.spent, self.steps = state["spent"], state["steps"]

    def run(self, seconds: float) -> None:
        """Train for `seconds`, or until both phases are over, then save."""
        deadline = time.monotonic() + seconds
        for phase, budget, step in (
            ("plain", self.plan.plain_s, self.plain_step),
            ("adversarial", self.plan.adversarial_s, self.adversarial_step),
        ):
            left = min(budget - self.spent[phase], deadline - time.monotonic())
            if left > 0:
                self._run_phase(phase, step, left)
        self.save()

    def _run_phase(self, phase: str, step: Any, seconds: float) -> None:
        began = time.monotonic()
        before = self.spent[phase]
        self.set_rates(phase)
        replay = capture(step, self.device)
        print(f"{phase}: captured in {time.monotonic() - began:.1f} s", flush=True)
        marked, first = time.monotonic(), self.steps
        while time.monotonic() - began < seconds:
            self.spent[phase] = before + time.monotonic() - began
            self.set_rates(phase)
            replay()
            self.steps += 1
            if self.steps % 100 == 0:
                self.pool.refill()
            early = phase == "plain" and self.spent[phase] < 0.6 * self.plan.plain_s
            if early and self.steps % self.plan.revive_every == 0:
                self.revive()
            if self.steps % 500 == 0:
                self._tell(phase, (self.steps - first) / (time.monotonic() - marked))
                marked, first = time.monotonic(), self.steps
        self._tell(phase, (self.steps - first) / (time.monotonic() - marked))
        self.spent[phase] = before + time.monotonic() - began

    def _tell(self, phase: str, speed: float) -> None:
        values = [round(value, 3) for value in self.report.tolist()]
        hours = self.pool.num_samples / self.codec.sample_rate / 3600
        print(f"{phase} {self.steps}: {values} {speed:.1f} it/s, {hours:.1f} h", flush=True)


def main() -> None:
    """Train for some seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--plain-s", type=float, default=Plan.plain_s)
    parser.add_argument("--adversarial-s", type=float, default=Plan.adversarial_s)
    parser.add_argument("--rows", type=int, default=Plan.rows)
    parser.add_argument("--encoder-dim", type=int, default=Plan.encoder_dim)
    parser.add_argument("--books", type=int, default=Plan.residual_books + 1)
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    use_capture_stream(device)
    plan = Plan(
        plain_s=options.plain_s,
        adversarial_s=options.adversarial_s,
        rows=options.rows,
        compiles=not options.no_compile,
        encoder_dim=options.encoder_dim,
        residual_books=options.books - 1,
    )
    trainer = Trainer(options.work, plan, device)
    trainer.resume()
    waited = time.monotonic()
    while trainer.pool.num_samples < 60 * 16_000:
        if time.monotonic() - waited > MAX_WAIT_S:
            raise SystemExit(f"no minute of speech came into {options.work / 'speech'} within {MAX_WAIT_S} s")
        trainer.pool.refill()
        time.sleep(0.2)
    sizes = {name: sum(p.numel() for p in child.parameters()) for name, child in trainer.codec.named_children()}
    print("parameters", sizes, "adversary", sum(p.numel() for p in trainer.adversary.parameters()), flush=True)
    trainer.run(options.seconds)


if __name__ == "__main__":
    main()
