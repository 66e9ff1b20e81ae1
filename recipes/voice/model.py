"""Train the dual-AR model on the codes of the voice's codec, on all GPUs; can be interrupted and resumed (`loop.py`).

python -m recipes.voice.model --work DIR [--size quick] [--seconds 540] …

Reads the shards of `DIR/tokens` (more may appear during training), one of which is held out; the result,
`DIR/model.safetensors`, is the running mean of the weights at the point where the loss on that shard was lowest. Every
training window is a prompt in the engine's format: the utterances of one speaker, in random order, each a reference for
the following ones, so that speaking with no, one or several references is one task. Start one process for each GPU
(`run.py` sets the variables by which they find each other); every step then uses the batches of all processes.

The training ends after `--total` seconds or `--epochs`, in runs of at most `--seconds`. `--rate` is the peak learning
rate, reached after `--warm-up` steps. `--rows` and `--columns` are the size of a batch of prompts, and `--frames` is
the number of its frames on which the depth transformer is trained. `--dropout` applies to the backbone, and
`--weight-decay` to all matrices. `--noise` is the share of residual codes in the backbone's input that are replaced by
random ones. `--best` is the loss by which the weights are chosen: of the backbone (slow), of the depth transformer
(fast), or their sum (both). With `--trains fast`, only the depth transformer is trained, and its loss chooses.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.voice.loop import Group, Schedule, TimedTraining
from recipes.voice.shared import fast_device, parser, wait_until
from recipes.voice.sizes import MODELS
from recipes.voice.tokens import Corpus, write_vocabulary
from s1_mini.families.s1.config import S1Config
from s1_mini.families.s1.network import S1Network
from s1_mini.families.s1.tokenizer import S1Tokenizer
from s1_mini.kernels.positions import embed
from s1_mini.layers.kv_cache import KVStore
from s1_mini.layers.transformer import Attention, BlockConfig, FeedForward

SCHEDULE = Schedule(total_s=1330.0, rate=1.5e-3, warm_up=400)
MAX_TOKENS, MAX_HELD_TOKENS = 2**28, 2**18  # text and frames; 5.4 GB with their codes
REFILL_EVERY = 100  # steps
HELD_BACK = "shard_held_00000.npz"  # for validation: texts and speakers that are in no other shard
MAX_WAIT_S = 300  # for the first shards of tokens


@dataclass(frozen=True)
class Batch:
    """Sizes and regularisation of one step."""

    rows: int = 24
    columns: int = 1024
    frames: int = 8192  # random frames of each step on which the depth transformer is trained
    dropout: float = 0.0  # of the backbone; 0.1 was worse on held-out data, also in word errors
    weight_decay: float = 0.05
    # Share of the residual codes that are random in the backbone's input. The exact codes of a frame identify the
    # frame, so that the backbone could memorize the training data.
    noise: float = 0.0
    epochs: float = math.inf  # maximum number of epochs; if set, tokens that appear after the start are not read


Half = Literal["both", "slow", "fast"]  # layers that are trained, or whose loss chooses the best weights


def uncached(block: BlockConfig) -> KVStore:
    """Return a store without memory: it returns only the given keys and values, copied for every query head."""
    copies = block.num_heads // block.num_kv_heads

    def store(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return key.repeat_interleave(copies, dim=1), value.repeat_interleave(copies, dim=1)

    return store


def depth_logits(network: S1Network, hidden: Tensor, codes: Tensor) -> Tensor:
    """Logits [N, K - 1, V] of codes 1 … K - 1 of frames with `codes` [N, K], from the backbone's output [N, dim]."""
    x = torch.cat((network.fast_project_in(hidden).unsqueeze(1), network.fast_embeddings(codes[:, :-1])), dim=1)
    books = codes.shape[1]
    mask = torch.ones(books, books, dtype=torch.bool, device=codes.device).tril()
    for layer in network.fast_layers:
        x = layer(x, network.depth_rope.unsqueeze(0), mask, uncached(network.config.depth))
    return network.fast_output(network.fast_norm(x[:, 1:]))


class ModelTraining(TimedTraining):
    """The network, its training prompts and its steps."""

    name = "model"
    report_every = 1000

    def __init__(
        self,
        work: Path,
        schedule: Schedule,
        batch: Batch,
        device: torch.device,
        *,
        sizes: Mapping[str, Any],
        held_back: str,
        group: Group | None = None,
        compiles: bool = True,
        trains: Half = "both",
        best: Half = "both",
    ) -> None:
        self.batch, self.trains, self.best_of = batch, trains, trains if trains == "fast" else best
        values = {**sizes, "vocab_size": write_vocabulary(work)}
        (work / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        self.tokenizer = S1Tokenizer.from_directory(work)
        config = S1Config.from_json(values)
        self.network = S1Network(config, semantic_rows=config.vocab_size, residual_rows=config.codebook_size)
        self._initialise()
        self.network.to(device).prepare(device)
        self._add_dropout()
        if trains == "fast":
            for parameter_name, parameter in self.network.named_parameters():
                parameter.requires_grad_(parameter_name.startswith("fast_"))
        super().__init__(work, schedule, device, self.network, group)
        groups = (
            {"params": [p for p in self.parameters if p.dim() > 1], "weight_decay": batch.weight_decay},
            {"params": [p for p in self.parameters if p.dim() <= 1], "weight_decay": 0.0},
        )
        self.optimiser = self.adam(groups, betas=(0.9, 0.95))
        corpus = partial(
            Corpus,
            work / "tokens",
            interleave=self.tokenizer.control("interleave"),
            num_books=config.num_codebooks,
            device=device,
        )
        self.corpus = corpus(lambda name: name != held_back, max_tokens=MAX_TOKENS)
        self.held_back = corpus(lambda name: name == held_back, max_tokens=MAX_HELD_TOKENS)
        self.mask = torch.ones(batch.columns, batch.columns, dtype=torch.bool, device=device).tril()
        self.best = math.inf
        self.report = torch.zeros(2, device=device)  # running means of both cross entropies
        self.losses = self._losses
        if compiles and device.type == "cuda":
            self.losses = torch.compile(self._losses, dynamic=False)

    def _initialise(self) -> None:
        for name, parameter in self.network.named_parameters():
            if parameter.dim() <= 1:
                nn.init.ones_(parameter)
            else:
                closing = name.endswith(("wo.weight", "w2.weight"))  # outputs that are added to the skip start small
                nn.init.normal_(parameter, 0.0, 0.01 if closing else 0.03)

    def _add_dropout(self) -> None:
        def drop(module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
            return F.dropout(output, self.batch.dropout, module.training)

        for module in self.network.layers.modules():
            if isinstance(module, Attention | FeedForward):
                module.register_forward_hook(drop)

    def _losses(self, columns: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cross entropies, over speech, of the next semantic token and of the other codes in some frames."""
        network, begin, end = self.network, self.tokenizer.semantic_begin, self.tokenizer.semantic_end
        frames = self.batch.frames
        semantic = (columns[:, 0] >= begin) & (columns[:, 0] <= end)
        positions = torch.arange(columns.shape[-1], device=self.device).unsqueeze(0)
        store = uncached(network.config.backbone)
        x = embed(self._noisy(columns).transpose(1, 2), network.embedding((begin, end)))
        hidden = network.backbone(x, positions, self.mask, lambda _: store)
        target, hidden = columns[:, 0, 1:].flatten(), hidden[:, :-1].flatten(0, 1)
        is_frame = (semantic & there)[:, 1:].flatten()
        spoken = is_frame | ((target == self.tokenizer.control("im_end")) & there[:, 1:].flatten())
        logits = network.semantic_logits(hidden).float()
        backbone = (F.cross_entropy(logits, target, reduction="none") * spoken).sum() / spoken.sum()

        frames = min(frames, len(is_frame))
        chosen = (torch.rand(is_frame.shape, device=self.device) + is_frame).topk(frames).indices
        codes = columns[:, 1:, 1:].transpose(1, 2).flatten(0, 1)[chosen]
        logits = depth_logits(network, hidden[chosen], codes).float()
        weight = is_frame[chosen].float()
        depth = F.cross_entropy(logits.flatten(0, 1), codes[:, 1:].flatten(), reduction="none")
        return backbone, (depth.view(frames, -1).mean(-1) * weight).sum() / weight.sum()

    def _noisy(self, columns: Tensor) -> Tensor:
        if not (self.batch.noise and self.network.training):
            return columns
        residual = columns[:, 2:]
        wrong = torch.rand(residual.shape, device=self.device) < self.batch.noise
        others = torch.randint_like(residual, self.network.config.codebook_size)
        return torch.cat((columns[:, :2], torch.where(wrong, others, residual)), dim=1)

    def step(self) -> None:
        windows = self.corpus.windows(self.corpus.random_groups(self.batch.rows), self.batch.columns)
        with self.half():
            backbone, depth = self.losses(*windows)
        self.derive(depth if self.trains == "fast" else backbone + depth)
        self.report.lerp_(torch.stack((backbone.detach(), depth.detach())), 0.02)

    def between(self) -> None:
        if self.steps % REFILL_EVERY == 0 and math.isinf(self.batch.epochs):
            self.corpus.refill()

    @property
    def done(self) -> float:
        """Progress by time or by epochs, whichever is further."""
        prompts = self.batch.epochs * max(1, self.corpus.num_groups)
        return min(1.0, max(super().done, self.steps * self.batch.rows * self.group.size / prompts))

    def wait_for_tokens(self) -> None:
        """Wait for the first tokens; raise `SystemExit` if they do not come."""

        def is_ready() -> bool:
            self.held_back.refill()
            self.corpus.refill(max_shards=10_000)
            return self.held_back.num_groups > 0 and self.corpus.num_groups >= self.batch.rows

        wait_until(
            is_ready,
            MAX_WAIT_S,
            f"too few shards in {self.work / 'tokens'}: no held-out shard or fewer than {self.batch.rows} prompts",
        )

    @torch.no_grad()
    def validate(self) -> tuple[float, float]:
        """Return the losses of the mean weights on held-out speakers; export these weights if they are the best."""
        live = [parameter.detach().clone() for parameter in self.parameters]
        torch._foreach_copy_(self.parameters, self.mean)
        self.network.eval()
        totals = []
        for begin in range(0, self.held_back.num_groups, self.batch.rows):
            groups = torch.arange(begin, begin + self.batch.rows, device=self.device) % self.held_back.num_groups
            windows = self.held_back.windows(groups, self.batch.columns)
            with self.half():
                totals.append(torch.stack(self._losses(*windows)))
        self.network.train()
        torch._foreach_copy_(self.parameters, live)
        backbone, depth = torch.stack(totals).mean(0).tolist()
        counted = {"both": backbone + depth, "slow": backbone, "fast": depth}[self.best_of]
        if counted < self.best:
            self.best = counted
            self.export(torch.bfloat16)
        return backbone, depth

    def print_progress(self, steps_per_s: float) -> None:
        backbone, depth = self.report.tolist()
        held = self.validate()
        losses = f"backbone {backbone:.3f} depth {depth:.3f}, held-out {held[0]:.3f} {held[1]:.3f}"
        speed = f"{steps_per_s:.1f} it/s, {self.corpus.num_utterances} utterances"
        print(f"model {self.steps}: {losses}, {speed}", flush=True)

    def state(self) -> dict[str, Any]:
        return super().state() | {"best": self.best}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.best = state["best"]


def main() -> None:
    halves = get_args(Half)
    options = parser(
        __doc__,
        work=Path,
        seconds=540.0,
        total=SCHEDULE.total_s,
        rate=SCHEDULE.rate,
        warm_up=SCHEDULE.warm_up,
        **asdict(Batch()),
        trains=halves,
        best=halves,
        report_every=ModelTraining.report_every,
        no_compile=False,
        size=("quick", *MODELS),
    ).parse_args()
    group, device = Group.join(fast_device())
    training = ModelTraining(
        options.work,
        replace(SCHEDULE, total_s=options.total, rate=options.rate, warm_up=options.warm_up),
        Batch(**{name: getattr(options, name) for name in asdict(Batch())}),
        device,
        sizes=MODELS[options.size],
        held_back=HELD_BACK,
        group=group,
        compiles=not options.no_compile,
        trains=options.trains,
        best=options.best,
    )
    training.report_every = options.report_every
    training.wait_for_tokens()
    training.train(options.seconds)


if __name__ == "__main__":
    main()
