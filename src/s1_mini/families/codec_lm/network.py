"""The two transformers of a codec language model.

Each family adds embeddings and heads, with its own parameter names.
Shapes: B rows, T positions, K codebooks, S attended positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from s1_mini.alignment.head import AlignmentHead
from s1_mini.kernels.linear import linear, norm_linear
from s1_mini.kernels.weight import Weight
from s1_mini.layers.kv_cache import CachePositions, KVCache, KVStore
from s1_mini.layers.transformer import BlockConfig, RMSNorm, TransformerBlock, rope_table

# Samples the code of a codebook (1 … K-1) for every row: (codebook, logits [B, V], embeddings [codes, dim]) -> the
# embedded codes [B, dim].
SampleCode = Callable[[int, Tensor, Tensor], Tensor]


class FrameConfig(Protocol):
    """The architecture of a codec language model."""

    @property
    def backbone(self) -> BlockConfig: ...
    @property
    def depth(self) -> BlockConfig: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_depth_layers(self) -> int: ...
    @property
    def num_codebooks(self) -> int: ...
    @property
    def max_seq_len(self) -> int: ...
    @property
    def rope_base(self) -> float: ...
    @property
    def norm_fastlayer_input(self) -> bool: ...
    @property
    def alignment(self) -> AlignmentHead | None: ...


class Pairs(NamedTuple):
    """The first two positions of every row in the depth transformer, which are the same in every frame."""

    position: Tensor  # [2 B] 0, 1, 0, 1 …
    rope: Tensor  # [2 B, D / 2, 2]
    mask: Tensor  # [2 B, 1, 1, 2]
    slots: Tensor  # [2 B] 0, 0, 1, 1 …

    def cache_positions(self, rows: int) -> CachePositions:
        position, rope, mask, slots = (tensor[: 2 * rows] for tensor in self)
        return CachePositions(position, position, 2, rope, mask, slots)


class FrameNetwork(nn.Module):
    """Embedded positions in, logits out; no sampling, and no state except weights. Subclasses create the modules."""

    layers: nn.ModuleList  # of the backbone
    norm: RMSNorm
    output: nn.Linear  # head of the first code
    fast_project_in: nn.Module  # linear, or the identity
    fast_layers: nn.ModuleList  # of the depth transformer
    fast_norm: RMSNorm

    def __init__(self, config: FrameConfig) -> None:
        super().__init__()
        self.config = config

    def depth_embeddings(self, codebook: int) -> Tensor:
        """Return the depth transformer's embeddings [codes, dim] of a codebook."""
        raise NotImplementedError

    def depth_head(self, codebook: int) -> Weight:
        """Return the weights [V, dim] of a codebook's logits."""
        raise NotImplementedError

    def make_tables(self, device: torch.device, rounded_to: torch.dtype, depth_base: float | None = None) -> None:
        """Compute rotary tables and step numbers, which checkpoints do not store."""
        config = self.config
        table = partial(rope_table, device=device, rounded_to=rounded_to)
        # One extra position: a row generates one more frame before the host sees its end.
        self.rope = table(config.max_seq_len + 1, config.backbone.head_dim, config.rope_base)
        self.depth_rope = table(config.num_codebooks, config.depth.head_dim, depth_base or config.rope_base)
        self.steps = torch.arange(config.num_codebooks, device=device).unsqueeze(1)

    def pairs(self, rows: int) -> Pairs:
        """Return positions 0 and 1 of every row, side by side, as `depth` needs them."""
        target = self.steps[:2, 0].repeat(rows)
        slots = torch.arange(rows, device=target.device).repeat_interleave(2)
        mask = (self.steps[:2, 0] <= target.unsqueeze(1))[:, None, None]
        return Pairs(target, self.depth_rope[target], mask, slots)

    def backbone(self, x: Tensor, positions: Tensor, mask: Tensor, store: Callable[[int], KVStore]) -> Tensor:
        """Run x [B, T, dim] at `positions` [B or 1, T]; `store` returns the keys and values of a layer.

        Returns the output before the norm.
        """
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
        project, norms = self.fast_project_in, self.config.norm_fastlayer_input
        if isinstance(project, nn.Linear):
            parameters = project.weight, project.bias
            start = norm_linear(hidden, None, self.norm.spec, *parameters)[1] if norms else linear(hidden, *parameters)
        else:
            start = self.norm(hidden) if norms else hidden
        x = torch.stack((start, first), dim=1).flatten(0, 1)
        logits = self._depth_step(1, x, pairs.cache_positions(len(first)), cache)[1::2]
        for codebook in range(1, self.config.num_codebooks):
            x = sample(codebook, logits, self.depth_embeddings(codebook))
            if codebook + 1 < self.config.num_codebooks:
                logits = self._depth_step(codebook + 1, x, self._depth_positions(codebook + 1, len(first)), cache)

    def _depth_positions(self, position: int, rows: int) -> CachePositions:
        target = self.steps[position].expand(rows)
        return CachePositions(target, target, position + 1, self.depth_rope[position].expand(rows, -1, -1), mask=None)

    def _depth_step(self, codebook: int, x: Tensor, positions: CachePositions, cache: KVCache) -> Tensor:
        """Run one position of each row, or two in the first call, x [N, dim]; return logits [N, V] of `codebook`."""
        branch: Tensor | None = None
        for index, layer in enumerate(self.blocks(self.fast_layers)):
            x, branch = layer.step(x, branch, cache.rows(index), positions)
        return norm_linear(x, branch, self.fast_norm.spec, self.depth_head(codebook))[1]
