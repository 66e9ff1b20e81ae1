"""Train the dual-AR model on encoded speech. Resumable by seconds.

python -m training.model --work DIR --seconds 480 --total 960

Reads `DIR/tokens.npz`; `DIR/model.pt` is what the next call goes on from, `DIR/model.safetensors` the mean weights at
the best validation so far. Every training window is a prompt as the engine writes it: the utterances of one speaker,
in random order, each a reference for those after it; so speaking with no, one or several references is one task.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from s1_mini.layers.kv_cache import KVStore
from s1_mini.layers.transformer import Attention, FeedForward
from s1_mini.models.s1.config import S1Config
from s1_mini.models.s1.network import S1Network
from s1_mini.models.s1.prompt import SPEAKER
from s1_mini.models.s1.tokenizer import S1Tokenizer
from training.graph import capture, use_capture_stream
from training.vocabulary import write_vocabulary

CONFIG: dict[str, Any] = {
    "model_type": "dual_ar",
    "dim": 256,
    "n_layer": 8,
    "n_head": 4,
    "n_local_heads": 2,
    "head_dim": 64,
    "intermediate_size": 768,
    "n_fast_layer": 2,
    "fast_dim": 256,
    "fast_n_head": 4,
    "fast_n_local_heads": 2,
    "fast_head_dim": 64,
    "fast_intermediate_size": 512,
    "attention_qk_norm": True,
    "fast_attention_qk_norm": False,
    "codebook_size": 1024,
    "num_codebooks": 8,
    "rope_base": 10_000,
    "norm_eps": 1e-6,
    "max_seq_len": 2048,
    "tie_word_embeddings": False,
    "scale_codebook_embeddings": True,
}


@dataclass(frozen=True)
class Plan:
    """How long and how hard to train."""

    total_s: float = 900.0
    rows: int = 24
    columns: int = 1024
    frames: int = 8192  # of each step, drawn at random, on which the fast transformer is trained
    rate: float = 1.5e-3
    warm_up: int = 400
    dropout: float = 0.1
    weight_decay: float = 0.05
    mean_decay: float = 0.999
    validate_every: int = 1000
    held_back: float = 0.01  # share of speakers for validation


class Corpus:
    """All utterances as prompt segments on the device, grouped by speaker."""

    def __init__(self, path: Path, tokenizer: S1Tokenizer, num_books: int, device: torch.device) -> None:
        with np.load(path) as file:
            data = {name: file[name] for name in file.files}
        tag, end = tokenizer.encode(SPEAKER), tokenizer.control("im_end")
        text_ends, frame_ends = np.cumsum(data["text_lengths"]), np.cumsum(data["frames"])
        text, lengths = data["text"].tobytes(), []
        main = np.empty(int(frame_ends[-1] + text_ends[-1] + len(data["frames"]) * (len(tag) + 1)), np.int32)
        codes = np.zeros((num_books, len(main)), np.int16)
        cursor = 0
        for index, (text_end, frame_end) in enumerate(zip(text_ends, frame_ends, strict=True)):
            words = text[text_end - data["text_lengths"][index] : text_end].decode()
            frames = data["codes"][:, frame_end - data["frames"][index] : frame_end]
            head = tag + tokenizer.encode(words)
            begin, stop = cursor + len(head), cursor + len(head) + frames.shape[1]
            main[cursor:begin] = head
            main[begin:stop] = frames[0].astype(np.int32) + tokenizer.semantic_begin
            main[stop] = end
            codes[:, begin:stop] = frames
            lengths.append(stop + 1 - cursor)
            cursor = stop + 1
        self.main = torch.from_numpy(main[:cursor]).to(device)
        self.codes = torch.from_numpy(codes[:, :cursor]).to(device)
        self._group(data["speaker"], np.array(lengths), device)
        self.interleave = tokenizer.control("interleave")

    def _group(self, speaker: np.ndarray, lengths: np.ndarray, device: torch.device, width: int = 8) -> None:
        """Table of up to `width` utterances per speaker: where each starts and how long it is (0: none)."""
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        change = np.flatnonzero(np.diff(speaker)) + 1
        groups = np.split(np.arange(len(speaker)), change)
        groups = [part for group in groups for part in np.split(group, range(width, len(group), width))]
        groups = [group for group in groups if len(group) > 1]
        self.starts = torch.zeros(len(groups), width, dtype=torch.int64)
        self.lengths = torch.zeros(len(groups), width, dtype=torch.int64)
        for row, group in enumerate(groups):
            self.starts[row, : len(group)] = torch.from_numpy(starts[group])
            self.lengths[row, : len(group)] = torch.from_numpy(lengths[group])
        self.starts, self.lengths = self.starts.to(device), self.lengths.to(device)

    def windows(self, groups: Tensor, columns: int) -> tuple[Tensor, Tensor]:
        """Prompts of these groups, utterances in random order: columns [B, K + 1, T] and which are there [B, T]."""
        starts, lengths = self.starts[groups], self.lengths[groups]
        order = torch.rand(lengths.shape, device=lengths.device).argsort(-1)
        starts, lengths = starts.gather(1, order), lengths.gather(1, order)
        ends = lengths.cumsum(-1)
        position = torch.arange(columns - 1, device=ends.device)
        segment = (position.view(1, -1, 1) >= ends.unsqueeze(1)).sum(-1)  # segments that end at or before it
        there = segment < lengths.shape[1]
        segment = segment.clamp_max(lengths.shape[1] - 1)
        index = starts.gather(1, segment) + position - (ends - lengths).gather(1, segment)
        index = torch.where(there, index, 0)
        body = torch.cat((self.main[index].long().unsqueeze(1), self.codes[:, index].transpose(0, 1).long()), dim=1)
        first = torch.zeros_like(body[:, :, :1])
        first[:, 0] = self.interleave
        return torch.cat((first, body), dim=-1), F.pad(there, (1, 0), value=True)


class Trainer:
    """The network, its optimiser and the steps."""

    def __init__(self, work: Path, plan: Plan, device: torch.device) -> None:
        self.work, self.plan, self.device = work, plan, device
        values = CONFIG | {"vocab_size": write_vocabulary(work)}
        (work / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        self.tokenizer = S1Tokenizer.from_directory(work)
        config = S1Config.from_json(values)
        self.network = S1Network(config, main_rows=config.vocab_size, residual_rows=config.codebook_size)
        self._initialise()
        self.network.to(device).prepare(device)
        self._add_dropout()
        self.corpus = Corpus(work / "tokens.npz", self.tokenizer, config.num_codebooks, device)
        self.held_back = max(1, int(len(self.corpus.starts) * plan.held_back))
        self.mean = [parameter.detach().clone() for parameter in self.network.parameters()]
        self.rate = torch.tensor(0.0, device=device)
        on_gpu = device.type == "cuda"
        decayed = [p for p in self.network.parameters() if p.dim() > 1]
        plain = [p for p in self.network.parameters() if p.dim() <= 1]
        self.optimiser = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": plan.weight_decay}, {"params": plain, "weight_decay": 0.0}],
            lr=self.rate,
            betas=(0.9, 0.95),
            fused=on_gpu,
            capturable=on_gpu,
        )
        self.mask = torch.ones(plan.columns, plan.columns, dtype=torch.bool, device=device).tril()
        books = config.num_codebooks
        self.fast_mask = torch.ones(books, books, dtype=torch.bool, device=device).tril()
        self.spent, self.steps, self.best = 0.0, 0, math.inf
        self.report = torch.zeros(2, device=device)  # running means: slow and fast cross entropy

    def _initialise(self) -> None:
        for name, parameter in self.network.named_parameters():
            if parameter.dim() <= 1:
                nn.init.ones_(parameter)
            else:
                closing = name.endswith(("wo.weight", "w2.weight"))  # what is added to the skip starts small
                nn.init.normal_(parameter, 0.0, 0.01 if closing else 0.03)

    def _add_dropout(self) -> None:
        def drop(module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
            return F.dropout(output, self.plan.dropout, module.training)

        for module in self.network.modules():
            if isinstance(module, Attention | FeedForward):
                module.register_forward_hook(drop)

    def losses(self, groups: Tensor, frames: int) -> tuple[Tensor, Tensor]:
        """Cross entropy of the next main token and of a random share of the other codes, over speech only."""
        network, begin, end = self.network, self.tokenizer.semantic_begin, self.tokenizer.semantic_end
        columns, there = self.corpus.windows(groups, self.plan.columns)
        semantic = (columns[:, 0] >= begin) & (columns[:, 0] <= end)
        positions = torch.arange(self.plan.columns, device=self.device).unsqueeze(0)
        hidden = network.slow(network.embed(columns, semantic), positions, self.mask, lambda _: self._keep(network))
        target, hidden = columns[:, 0, 1:].flatten(), hidden[:, :-1].flatten(0, 1)
        is_frame = (semantic & there)[:, 1:].flatten()
        spoken = is_frame | ((target == self.tokenizer.control("im_end")) & there[:, 1:].flatten())
        logits = network.main_logits(hidden).float()
        slow = (F.cross_entropy(logits, target, reduction="none") * spoken).sum() / spoken.sum()

        chosen = (torch.rand(is_frame.shape, device=self.device) + is_frame).topk(frames).indices
        codes = columns[:, 1:, 1:].transpose(1, 2).flatten(0, 1)[chosen]
        fast_logits = self._fast(hidden[chosen], codes).float()
        weight = is_frame[chosen].float()
        fast = F.cross_entropy(fast_logits.flatten(0, 1), codes[:, 1:].flatten(), reduction="none")
        return slow, (fast.view(frames, -1).mean(-1) * weight).sum() / weight.sum()

    def _fast(self, hidden: Tensor, codes: Tensor) -> Tensor:
        """Logits [N, K - 1, V] of codes 1 … K - 1, all positions at once."""
        network = self.network
        x = torch.cat((network.fast_project_in(hidden).unsqueeze(1), network.fast_embeddings(codes[:, :-1])), dim=1)
        for layer in network.fast_layers:
            x = layer(x, network.fast_rope.unsqueeze(0), self.fast_mask, self._keep(network))
        return network.fast_output(network.fast_norm(x[:, 1:]))

    @staticmethod
    def _keep(network: S1Network) -> KVStore:
        """Attend to the given keys and values alone, one copy for every query head."""
        copies = network.config.slow.num_heads // network.config.slow.num_kv_heads

        def store(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
            return key.repeat_interleave(copies, dim=1), value.repeat_interleave(copies, dim=1)

        return store

    def step(self) -> None:
        """One step on random speakers."""
        last = len(self.corpus.starts) - self.held_back
        groups = torch.randint(0, last, (self.plan.rows,), device=self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda", cache_enabled=False):
            slow, fast = self.losses(groups, self.plan.frames)
        self.optimiser.zero_grad(set_to_none=True)
        (slow + fast).backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0, foreach=True)
        self.optimiser.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.mean, list(self.network.parameters()), 1 - self.plan.mean_decay)
        self.report.lerp_(torch.stack((slow.detach(), fast.detach())), 0.02)

    @torch.no_grad()
    def validate(self) -> tuple[float, float]:
        """Losses of the mean weights on speakers held back; keeps those weights if they are the best so far."""
        parameters: list[Tensor] = list(self.network.parameters())
        live = [parameter.detach().clone() for parameter in parameters]
        torch._foreach_copy_(parameters, self.mean)
        self.network.eval()
        first = len(self.corpus.starts) - self.held_back
        totals = []
        for begin in range(first, len(self.corpus.starts), self.plan.rows)[:8]:
            groups = torch.arange(begin, begin + self.plan.rows, device=self.device) % self.held_back + first
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                totals.append(torch.stack(self.losses(groups, self.plan.frames)))
        self.network.train()
        torch._foreach_copy_(parameters, live)
        slow, fast = torch.stack(totals).mean(0).tolist()
        if slow + fast < self.best:
            self.best = slow + fast
            self.export()
        return slow, fast

    def export(self) -> None:
        """Write the mean weights as the checkpoint's model."""
        names = [name for name, _ in self.network.named_parameters()]
        tensors = {name: tensor.bfloat16().cpu().contiguous() for name, tensor in zip(names, self.mean, strict=True)}
        save_file(tensors, self.work / "model.safetensors")

    def save(self) -> None:
        """Write what the next call goes on from."""
        state = {
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "mean": self.mean,
            "spent": self.spent,
            "steps": self.steps,
            "best": self.best,
        }
        torch.save(state, self.work / "model.tmp")
        (self.work / "model.tmp").replace(self.work / "model.pt")

    def resume(self) -> None:
        """Go on from the last `save`, if there is one."""
        path = self.work / "model.pt"
        if not path.exists():
            return
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.network.load_state_dict(state["network"])
        self.optimiser.load_state_dict(state["optimiser"])
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate  # keep the tensor that set_rate writes to
        for mean, saved in zip(self.mean, state["mean"], strict=True):
            mean.copy_(saved)
        self.spent, self.steps, self.best = state["spent"], state["steps"], state["best"]

    def set_rate(self) -> None:
        """Warm up, then fall by half a cosine to a twentieth."""
        done = min(1.0, self.spent / self.plan.total_s)
        rate = self.plan.rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))
        self.rate.fill_(rate * min(1.0, (self.steps + 1) / self.plan.warm_up))

    def run(self, seconds: float) -> None:
        """Train for `seconds` or to the end of the plan, then save."""
        began, before = time.monotonic(), self.spent
        seconds = min(seconds, self.plan.total_s - self.spent)
        self.set_rate()
        replay = capture(self.step, self.device)
        print(f"captured in {time.monotonic() - began:.1f} s", flush=True)
        marked, first = time.monotonic(), self.steps
        while time.monotonic() - began < seconds:
            self.spent = before + time.monotonic() - began
            self.set_rate()
            replay()
            self.steps += 1
            if self.steps % self.plan.validate_every == 0:
                self._tell((self.steps - first) / (time.monotonic() - marked))
                marked, first = time.monotonic(), self.steps
        self._tell((self.steps - first) / (time.monotonic() - marked))
        self.spent = before + time.monotonic() - began
        self.save()

    def _tell(self, speed: float) -> None:
        slow, fast = self.report.tolist()
        held = self.validate()
        told = f"slow {slow:.3f} fast {fast:.3f}, held back {held[0]:.3f} {held[1]:.3f}, {speed:.1f} it/s"
        print(f"model {self.steps}: {told}", flush=True)


def main() -> None:
    """Train for some seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--total", type=float, default=Plan.total_s)
    parser.add_argument("--rows", type=int, default=Plan.rows)
    parser.add_argument("--columns", type=int, default=Plan.columns)
    parser.add_argument("--frames", type=int, default=Plan.frames)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(0)
    use_capture_stream(device)
    plan = Plan(total_s=options.total, rows=options.rows, columns=options.columns, frames=options.frames)
    trainer = Trainer(options.work, plan, device)
    trainer.resume()
    hours = int(trainer.corpus.codes.shape[1]) / 25 / 3600
    parameters = sum(p.numel() for p in trainer.network.parameters())
    print(f"{parameters} parameters, {len(trainer.corpus.starts)} speakers, < {hours:.0f} h", flush=True)
    trainer.run(options.seconds)


if __name__ == "__main__":
    main()
