"""The Qwen3-TTS network: a backbone (talker) over frames, a depth transformer (code predictor) with its own tables.

Names of parameters are this engine's; `weights.py` translates the published names and folds projections into tables.
Shapes: K codebooks, V codes each.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from s1_mini.families.codec_lm.network import FrameNetwork
from s1_mini.families.qwen3.config import NUM_CONTROLS, Qwen3Config
from s1_mini.kernels.positions import Embedding
from s1_mini.kernels.weight import Weight
from s1_mini.layers.transformer import RMSNorm, TransformerBlock

ZERO_ROWS = 2  # of the table of all codes: see `prompt.Columns`
ANY_TOKEN = (0, 2**62)  # codes are added to all tokens


class Qwen3Network(FrameNetwork):
    """Embedded positions in, logits out; no sampling, and no state except weights."""

    config: Qwen3Config

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__(config)
        backbone, depth, books, size = config.backbone, config.depth, config.num_codebooks, config.code_size
        self.text_embeddings = nn.Embedding(config.text_vocab_size, backbone.dim)
        self.code_embeddings = nn.Embedding(books * size + NUM_CONTROLS + ZERO_ROWS, backbone.dim)
        self.layers = nn.ModuleList(TransformerBlock(backbone) for _ in range(config.num_layers))
        self.norm = RMSNorm(backbone.dim, backbone.norm_eps)
        self.output = nn.Linear(backbone.dim, size + 1, bias=False)  # the codes, then the end
        self.fast_project_in = nn.Linear(backbone.dim, depth.dim) if backbone.dim != depth.dim else nn.Identity()
        # The embeddings of codes 0 … K - 2 after `fast_project_in`.
        self.fast_embeddings = nn.Parameter(torch.empty((books - 1) * size, depth.dim))
        self.fast_layers = nn.ModuleList(TransformerBlock(depth) for _ in range(config.num_depth_layers))
        self.fast_norm = RMSNorm(depth.dim, depth.norm_eps)
        self.fast_output = nn.Parameter(torch.empty((books - 1) * size, depth.dim))  # heads of codes 1 … K - 1

    def prepare(self, device: torch.device) -> None:
        """Compute rotary tables and step numbers, which checkpoints do not store."""
        # Cosine and sine have the dtype of the activations, as in the original.
        self.make_tables(device, rounded_to=self.norm.weight.dtype, depth_base=self.config.depth_rope_base)

    def embedding(self) -> Embedding:
        tables = self.text_embeddings.weight, self.code_embeddings.weight
        return Embedding(*tables, ANY_TOKEN, other_rows=NUM_CONTROLS + ZERO_ROWS)

    def depth_embeddings(self, codebook: int) -> Tensor:
        """Return the embeddings of a codebook; for the last, which needs none, those of the codebook before it."""
        return self._of(self.fast_embeddings, min(codebook, self.config.num_codebooks - 2))

    def depth_head(self, codebook: int) -> Weight:
        return self._of(self.fast_output, codebook - 1)

    def _of(self, tables: Tensor, index: int) -> Tensor:
        size = self.config.code_size
        return tables[index * size : (index + 1) * size]
