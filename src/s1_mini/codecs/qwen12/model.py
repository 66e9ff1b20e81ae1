"""The codec's decoder: codes to audio, with the same code for whole and streamed audio.

codes -> vectors -> convolution -> window transformer -> upsampling -> residual convolutions -> samples
The original decodes long utterances in pieces of 300 frames, which changes the audio near their boundaries. This
decoder carries the state of all layers from chunk to chunk, so that boundaries change nothing.
Shapes: B rows, K codebooks, N entries, F frames, C channels.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from s1_mini.codecs.causal.codec import CausalCodec, DecoderParts
from s1_mini.codecs.causal.layers import (
    CausalConv1d,
    CausalConvTranspose1d,
    Chain,
    ConvNeXtBlock,
    Decoder,
    Snake,
    WindowTransformer,
)
from s1_mini.codecs.qwen12.config import Qwen12Config
from s1_mini.codecs.stream_state import StreamState


class Clamp(nn.Module):
    """Clamps samples to [-1, 1]."""

    def forward(self, x: Tensor, _state: StreamState | None = None) -> Tensor:
        return x.clamp(-1, 1)


class Qwen12(CausalCodec):
    """One loaded codec, without its encoder."""

    def __init__(self, config: Qwen12Config) -> None:
        super().__init__()
        sizes = config.decoder
        self.config = config
        self.sample_rate, self.samples_per_frame = config.sample_rate, config.samples_per_frame
        self.num_codebooks, self.max_frames = config.num_codebooks, sizes.max_position_embeddings
        # The projected vectors of all entries; a frame is the sum of its codes' vectors.
        self.table = nn.Parameter(torch.empty(config.num_codebooks, sizes.codebook_size, sizes.codebook_dim))
        self.front = CausalConv1d(sizes.codebook_dim, sizes.latent_dim, 3)
        self.transformer = WindowTransformer(
            sizes.block_of(sizes.rms_norm_eps),
            layers=sizes.num_hidden_layers,
            window=sizes.sliding_window,
            max_steps=sizes.max_position_embeddings,
            rope_base=sizes.rope_theta,
            width=sizes.latent_dim,
        )
        dim = sizes.latent_dim
        self.upsample = Chain(
            *(Chain(CausalConvTranspose1d(dim, dim, r, stride=r), ConvNeXtBlock(dim)) for r in sizes.upsampling_ratios)
        )
        self.decoder = Decoder(dim, sizes.decoder_dim, sizes.upsample_rates, Clamp(), partial(Snake, has_beta=True))

    @property
    def parts(self) -> DecoderParts:
        return DecoderParts(self.front, self.transformer, self.upsample, self.decoder)

    def tables(self) -> list[Tensor]:
        return list(self.table.float())

    def frames(self, codes: Tensor, state: StreamState) -> Tensor:
        """Return the transformer's output [B, C, F] of codes [B, K, F], which are clamped to the codebooks."""
        books, size, _ = self.table.shape
        first = size * torch.arange(books, device=codes.device)
        entries = codes.clamp(0, size - 1) + first.unsqueeze(1)
        vectors = F.embedding(entries, self.table.flatten(0, 1)).sum(1)
        return self.transformer(self.front(vectors.transpose(1, 2), state), state)
