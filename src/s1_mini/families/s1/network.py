"""The S1 network: embeddings, the backbone over frames, the depth transformer over the codebooks of a frame.

Parameters have the names of the published checkpoint. Heads may have only the rows of tokens that can be sampled.
Shapes: K codebooks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from s1_mini.families.codec_lm.network import FrameNetwork
from s1_mini.families.s1.config import S1Config
from s1_mini.kernels.positions import Embedding
from s1_mini.kernels.weight import Weight
from s1_mini.layers.transformer import RMSNorm, TransformerBlock


class S1Network(FrameNetwork):
    """Computes logits. It does not sample, and has no state except weights."""

    config: S1Config

    def __init__(self, config: S1Config, *, semantic_rows: int, residual_rows: int) -> None:
        super().__init__(config)
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
        # Rotary tables are rounded to bf16, whatever the dtype of the model: with more precise tables, the audio is
        # garbled and too long (sglang-omni README, "BF16 RoPE Precision Mismatch").
        self.make_tables(device, rounded_to=torch.bfloat16)

    def embedding(self, semantic: tuple[int, int]) -> Embedding:
        tables = self.embeddings.weight, self.codebook_embeddings.weight
        return Embedding(*tables, semantic, self.config.scale_codebook_embeddings)

    def depth_embeddings(self, codebook: int) -> Tensor:  # noqa: ARG002 - all codebooks share one table
        return self.fast_embeddings.weight

    def depth_head(self, codebook: int) -> Weight:  # noqa: ARG002 - all codebooks share one head
        return self.fast_output.weight
