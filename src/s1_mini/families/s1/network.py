"""The S1 network: embeddings, the slow transformer over frames, the fast one over the codebooks of a frame.

Parameter names are those of the published checkpoint. Only the head rows that can be sampled are kept.
Shapes: B rows, T columns, K codebooks, S attended columns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from s1_mini.families.s1.config import S1Config
from s1_mini.families.s1.kernels.columns import Embedding, embed, enter_columns
from s1_mini.kernels.linear import linear, norm_linear
from s1_mini.layers.kv_cache import CachePositions, KVCache, KVStore
from s1_mini.layers.transformer import RMSNorm, TransformerBlock, rope_table

# Chooses the code of a codebook (1 … K-1) for every row: (codebook, logits [B, V], embeddings [codes, dim]) -> the
# codes' rows of these [B, dim].
PickCode = Callable[[int, Tensor, Tensor], Tensor]


class Pairs(NamedTuple):
    """The first two positions of every row in the fast transformer: the same in every frame, so they are made once."""

    position: Tensor  # [2 B] 0, 1, 0, 1 …
    rope: Tensor  # [2 B, D / 2, 2]
    mask: Tensor  # [2 B, 1, 1, 2]
    slots: Tensor  # [2 B] 0, 0, 1, 1 …

    def columns(self, rows: int) -> CachePositions:
        position, rope, mask, slots = (tensor[: 2 * rows] for tensor in self)
        return CachePositions(position, position, 2, rope, mask, slots)


class S1Network(nn.Module):
    """Tensors in, logits out; no sampling, and no state except weights."""

    def __init__(self, config: S1Config, *, main_rows: int, residual_rows: int) -> None:
        super().__init__()
        self.config = config
        slow, fast = config.slow, config.fast
        self.embeddings = nn.Embedding(config.vocab_size, slow.dim)
        self.codebook_embeddings = nn.Embedding(config.codebook_size * config.num_codebooks, slow.dim)
        self.layers = nn.ModuleList(TransformerBlock(slow) for _ in range(config.num_layers))
        self.norm = RMSNorm(slow.dim, slow.norm_eps)
        self.output = nn.Linear(slow.dim, main_rows, bias=False)
        self.fast_project_in = nn.Linear(slow.dim, fast.dim) if slow.dim != fast.dim else nn.Identity()
        self.fast_embeddings = nn.Embedding(config.codebook_size, fast.dim)
        self.fast_layers = nn.ModuleList(TransformerBlock(fast) for _ in range(config.num_fast_layers))
        self.fast_norm = RMSNorm(fast.dim, fast.norm_eps)
        self.fast_output = nn.Linear(fast.dim, residual_rows, bias=False)

    def prepare(self, device: torch.device) -> None:
        """Compute what is not stored: rotary tables and steps."""
        config = self.config
        # One row more than a sequence has: a row whose end the host has not seen yet makes one frame too many.
        # Tables are rounded to bf16 whatever the model's dtype: a finer one is a different model and speaks garbled,
        # overlong audio (sglang-omni README, "BF16 RoPE Precision Mismatch").
        table = partial(rope_table, base=config.rope_base, device=device, rounded_to=torch.bfloat16)
        self.rope = table(config.max_seq_len + 1, config.slow.head_dim)
        self.fast_rope = table(config.num_codebooks, config.fast.head_dim)
        self.steps = torch.arange(config.num_codebooks, device=device).unsqueeze(1)

    def pairs(self, rows: int) -> Pairs:
        """Return positions 0 and 1 of every row, side by side, as `fast` wants them."""
        target = self.steps[:2, 0].repeat(rows)
        slots = torch.arange(rows, device=target.device).repeat_interleave(2)
        seen = (self.steps[:2, 0] <= target.unsqueeze(1))[:, None, None]
        return Pairs(target, self.fast_rope[target], seen, slots)

    def enter(
        self, columns: Tensor, position: Tensor, active: Tensor | None, spare: int, semantic: tuple[int, int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run `enter_columns` with the slow layers' tables."""
        return enter_columns(columns, position, active, spare, self._embedding(semantic), self.rope)

    def embed(self, columns: Tensor, semantic: tuple[int, int]) -> Tensor:
        """Embed columns [..., K + 1], main token before codes: [..., dim]."""
        return embed(columns, *self._embedding(semantic))

    def _embedding(self, semantic: tuple[int, int]) -> Embedding:
        main, codes = self.embeddings.weight, self.codebook_embeddings.weight
        return Embedding(main, codes, semantic, self.config.scale_codebook_embeddings)

    def slow(self, x: Tensor, positions: Tensor, mask: Tensor, store: Callable[[int], KVStore]) -> Tensor:
        """Run x [B, T, dim] at `positions` [B or 1, T]; `store` gives each layer its keys and values. Pre-norm."""
        rope = self.rope[positions]
        for index, layer in enumerate(self.layers):
            x = layer(x, rope, mask, store(index))
        return x

    def slow_step(self, x: Tensor, cache: KVCache, columns: CachePositions) -> tuple[Tensor, Tensor | None]:
        """Run one column of each row x [B, dim]. Return the output before the norm, as `branch_sum` takes it."""
        branch: Tensor | None = None
        for index, layer in enumerate(self.blocks(self.layers)):
            x, branch = layer.step(x, branch, cache.rows(index), columns)
        return x, branch

    @staticmethod
    def blocks(layers: nn.ModuleList) -> list[TransformerBlock]:
        return cast("list[TransformerBlock]", layers)

    def sum_and_logits(self, x: Tensor, branch: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return what `slow_step` gave, summed [B, dim], and its logits as `main_logits` does."""
        return norm_linear(x, branch, self.norm.spec, self.output.weight)

    def main_logits(self, hidden: Tensor) -> Tensor:
        """Logits of the kept main head rows from the slow transformer's pre-norm output [B, dim]."""
        return self.sum_and_logits(hidden, None)[1]

    def fast(self, hidden: Tensor, first: Tensor, cache: KVCache, pairs: Pairs, pick: PickCode) -> None:
        """Compute the codes 1 … K-1 of a frame from the slow output and the embedded first code, [B, dim] both.

        Positions 0 (the hidden state) and 1 (the first code) are both known at the start and run as one pass; `pairs`
        are those of B rows or more.
        """
        start = self.norm(hidden) if self.config.norm_fastlayer_input else hidden
        project = self.fast_project_in
        if isinstance(project, nn.Linear):
            start = linear(start, project.weight, project.bias)
        x = torch.stack((start, first), dim=1).flatten(0, 1)
        logits = self._fast_step(x, pairs.columns(len(first)), cache)[1::2]
        for codebook in range(1, self.config.num_codebooks):
            x = pick(codebook, logits, self.fast_embeddings.weight)
            if codebook + 1 < self.config.num_codebooks:
                logits = self._fast_step(x, self._fast_columns(codebook + 1, len(first)), cache)

    def _fast_columns(self, position: int, rows: int) -> CachePositions:
        target = self.steps[position].expand(rows)
        return CachePositions(target, target, position + 1, self.fast_rope[position].expand(rows, -1, -1), mask=None)

    def _fast_step(self, x: Tensor, columns: CachePositions, cache: KVCache) -> Tensor:
        """Run one position of each row, x [B, dim]; logits [B, V] of the codebook that it is about."""
        branch: Tensor | None = None
        for index, layer in enumerate(self.blocks(self.fast_layers)):
            x, branch = layer.step(x, branch, cache.rows(index), columns)
        return norm_linear(x, branch, self.fast_norm.spec, self.fast_output.weight)[1]
