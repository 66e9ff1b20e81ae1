"""The S1 network: embeddings, the backbone over frames, the depth transformer over the codebooks of a frame.

Parameter names are those of the published checkpoint. Only the head rows that can be sampled are kept.
Shapes: B rows, T positions, K codebooks, S attended positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from s1_mini.families.s1.config import S1Config
from s1_mini.families.s1.kernels.positions import Embedding, embed, embed_positions
from s1_mini.kernels.linear import linear, norm_linear
from s1_mini.layers.kv_cache import CachePositions, KVCache, KVStore
from s1_mini.layers.transformer import RMSNorm, TransformerBlock, rope_table

# Samples the code of a codebook (1 … K-1) for every row: (codebook, logits [B, V], embeddings [codes, dim]) -> the
# embedded codes [B, dim].
SampleCode = Callable[[int, Tensor, Tensor], Tensor]


class Pairs(NamedTuple):
    """The first two positions of every row in the depth transformer: the same in every frame."""

    position: Tensor  # [2 B] 0, 1, 0, 1 …
    rope: Tensor  # [2 B, D / 2, 2]
    mask: Tensor  # [2 B, 1, 1, 2]
    slots: Tensor  # [2 B] 0, 0, 1, 1 …

    def cache_positions(self, rows: int) -> CachePositions:
        position, rope, mask, slots = (tensor[: 2 * rows] for tensor in self)
        return CachePositions(position, position, 2, rope, mask, slots)


class S1Network(nn.Module):
    """Tensors in, logits out; no sampling, and no state except weights."""

    def __init__(self, config: S1Config, *, semantic_rows: int, residual_rows: int) -> None:
        super().__init__()
        self.config = config
        backbone, depth = config.backbone, config.depth
        self.embeddings = nn.Embedding(config.vocab_size, backbone.dim)
        self.codebook_embeddings = nn.Embedding(config.codebook_size * config.num_codebooks, backbone.dim)
        self.layers = nn.ModuleList(TransformerBlock(backbone) for _ in range(config.num_layers))
        self.norm = RMSNorm(backbone.dim, backbone.norm_eps)
        self.output = nn.Linear(backbone.dim, semantic_rows, bias=False)
        self.fast_project_in = nn.Linear(backbone.dim, depth.dim) if backbone.dim != depth.dim else nn.Identity()
        self.fast_embeddings = nn.Embedding(config.codebook_size, depth.dim)
        self.fast_layers = nn.ModuleList(TransformerBlock(depth) for _ in range(config.num_depth_layers))
        self.fast_norm = RMSNorm(depth.dim, depth.norm_eps)
        self.fast_output = nn.Linear(depth.dim, residual_rows, bias=False)

    def prepare(self, device: torch.device) -> None:
        """Compute rotary tables and step numbers, which checkpoints do not store."""
        config = self.config
        # One position more than a sequence has: a row generates one more frame before the host sees its end.
        # Tables are rounded to bf16 for every dtype of the model: with finer ones the audio is garbled and too long
        # (sglang-omni README, "BF16 RoPE Precision Mismatch").
        table = partial(rope_table, base=config.rope_base, device=device, rounded_to=torch.bfloat16)
        self.rope = table(config.max_seq_len + 1, config.backbone.head_dim)
        self.depth_rope = table(config.num_codebooks, config.depth.head_dim)
        self.steps = torch.arange(config.num_codebooks, device=device).unsqueeze(1)

    def pairs(self, rows: int) -> Pairs:
        """Return positions 0 and 1 of every row, side by side, as `depth` needs them."""
        target = self.steps[:2, 0].repeat(rows)
        slots = torch.arange(rows, device=target.device).repeat_interleave(2)
        mask = (self.steps[:2, 0] <= target.unsqueeze(1))[:, None, None]
        return Pairs(target, self.depth_rope[target], mask, slots)

    def embed_positions(
        self, tokens: Tensor, position: Tensor, active: Tensor | None, padding: int, semantic: tuple[int, int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Call `positions.embed_positions` with the backbone's tables."""
        return embed_positions(tokens, position, active, padding, self._embedding(semantic), self.rope)

    def embed(self, tokens: Tensor, semantic: tuple[int, int]) -> Tensor:
        """Embed tokens [..., K + 1], semantic token before codes: [..., dim]."""
        return embed(tokens, *self._embedding(semantic))

    def _embedding(self, semantic: tuple[int, int]) -> Embedding:
        tables = self.embeddings.weight, self.codebook_embeddings.weight
        return Embedding(*tables, semantic, self.config.scale_codebook_embeddings)

    def backbone(self, x: Tensor, positions: Tensor, mask: Tensor, store: Callable[[int], KVStore]) -> Tensor:
        """Run x [B, T, dim] at `positions` [B or 1, T]; `store` returns each layer's keys and values. Pre-norm."""
        rope = self.rope[positions]
        for index, layer in enumerate(self.layers):
            x = layer(x, rope, mask, store(index))
        return x

    def backbone_step(self, x: Tensor, cache: KVCache, positions: CachePositions) -> tuple[Tensor, Tensor | None]:
        """Run one position of each row x [B, dim]. Return the output before the norm, as two summands."""
        branch: Tensor | None = None
        others = replace(positions, kept=())
        for index, layer in enumerate(self.blocks(self.layers)):
            kept = [each for each in positions.kept if each.layer == index]
            x, branch = layer.step(x, branch, cache.rows(index), replace(others, kept=kept) if kept else others)
        return x, branch

    @staticmethod
    def blocks(layers: nn.ModuleList) -> list[TransformerBlock]:
        return cast("list[TransformerBlock]", layers)

    def sum_and_logits(self, x: Tensor, branch: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the sum [B, dim] of the results of `backbone_step`, and its logits as in `semantic_logits`."""
        return norm_linear(x, branch, self.norm.spec, self.output.weight)

    def semantic_logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of the loaded head rows from the backbone's pre-norm output [B, dim]."""
        return self.sum_and_logits(hidden, None)[1]

    def depth(self, hidden: Tensor, first: Tensor, cache: KVCache, pairs: Pairs, sample: SampleCode) -> None:
        """Generate the codes 1 … K-1 of a frame from the backbone's output and the embedded first code, both [B, dim].

        Positions 0 (the hidden state) and 1 (the first code) are known at the start and run as one pass; `pairs` has
        B rows or more.
        """
        start = self.norm(hidden) if self.config.norm_fastlayer_input else hidden
        project = self.fast_project_in
        if isinstance(project, nn.Linear):
            start = linear(start, project.weight, project.bias)
        x = torch.stack((start, first), dim=1).flatten(0, 1)
        logits = self._depth_step(x, pairs.cache_positions(len(first)), cache)[1::2]
        for codebook in range(1, self.config.num_codebooks):
            x = sample(codebook, logits, self.fast_embeddings.weight)
            if codebook + 1 < self.config.num_codebooks:
                logits = self._depth_step(x, self._depth_positions(codebook + 1, len(first)), cache)

    def _depth_positions(self, position: int, rows: int) -> CachePositions:
        target = self.steps[position].expand(rows)
        return CachePositions(target, target, position + 1, self.depth_rope[position].expand(rows, -1, -1), mask=None)

    def _depth_step(self, x: Tensor, positions: CachePositions, cache: KVCache) -> Tensor:
        """Run one position of each row x [B, dim]; logits [B, V] of the next codebook."""
        branch: Tensor | None = None
        for index, layer in enumerate(self.blocks(self.fast_layers)):
            x, branch = layer.step(x, branch, cache.rows(index), positions)
        return norm_linear(x, branch, self.fast_norm.spec, self.fast_output.weight)[1]
