"""The DAC codec: codes to audio and audio to codes, with the same code for whole and streamed audio.

decode: codes -> vectors -> post_module -> upsample -> decoder -> samples
encode: samples -> encoder -> downsample -> pre_module -> codes
With `encodes=False`, the layers for encoding, which have more than half of the weights, are not built.
Shapes: B rows, K codebooks, F frames, C channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from s1_mini.codecs.blocks import Blocks
from s1_mini.codecs.causal.codec import CausalCodec, DecoderParts
from s1_mini.codecs.causal.layers import (
    DILATIONS,
    Block,
    CausalConv1d,
    CausalConvTranspose1d,
    Chain,
    ConvNeXtBlock,
    Decoder,
    ResidualUnit,
    Snake,
    WindowTransformer,
)
from s1_mini.codecs.dac.config import ROPE_BASE, DacConfig
from s1_mini.codecs.stream_state import StreamState
from s1_mini.layers.transformer import BlockConfig

ENCODE_BLOCK = 256  # frames that `encode` processes at once, so that its memory does not grow with the length
# The same on a CPU: cancelled work and the steps of other requests wait for one block (0.3 s instead of 3 s of CPU time
# with the built-in voice), and small tensors stay in the CPU's caches (20 s of audio: 3.0 instead of 3.8 s).
CPU_ENCODE_BLOCK = 32


class EncoderBlock(Block):
    """Residual units, a strided convolution that doubles the channels, and `num_layers` transformer layers."""

    def __init__(self, config: DacConfig, dim: int, stride: int, num_layers: int) -> None:
        layers: list[nn.Module] = [ResidualUnit(dim // 2, dilation) for dilation in DILATIONS]
        layers += [Snake(dim // 2), CausalConv1d(dim // 2, dim, 2 * stride, stride=stride)]
        if num_layers:
            layers.append(
                WindowTransformer(
                    config.encoder_block(dim),
                    layers=num_layers,
                    window=config.enc_window,
                    max_steps=config.enc_block_size,
                    rope_base=ROPE_BASE,
                    rope_dtype=torch.bfloat16,
                )
            )
        super().__init__(*layers)


class Encoder(Block):
    """Converts samples [B, 1, T] to vectors [B, C, T / product of the rates]."""

    def __init__(self, config: DacConfig) -> None:
        dim = config.encoder_dim
        layers: list[nn.Module] = [CausalConv1d(1, dim, 7)]
        for stride, num_layers in zip(config.encoder_rates, config.encoder_transformer_layers, strict=True):
            dim *= 2
            layers.append(EncoderBlock(config, dim, stride, num_layers))
        super().__init__(*layers, Snake(dim), CausalConv1d(dim, config.input_dim, 3))


class Bound(nn.Module):
    """Bounds samples: ceiling · tanh(drive · x)."""

    def __init__(self, drive: float, ceiling: float) -> None:
        super().__init__()
        self._drive, self._ceiling = drive, ceiling

    def forward(self, x: Tensor, _state: StreamState | None = None) -> Tensor:
        if self._drive == self._ceiling == 1:
            return x.tanh()
        return (self._drive * x).tanh() * self._ceiling


class VectorQuantizer(nn.Module):
    """One codebook with its projections; `in_proj` exists only in codecs that encode."""

    def __init__(self, dim: int, size: int, code_dim: int, *, encodes: bool) -> None:
        super().__init__()
        self.codebook = nn.Embedding(size, code_dim)
        self.out_proj = nn.Conv1d(code_dim, dim, 1)
        if encodes:
            self.in_proj = nn.Conv1d(dim, code_dim, 1)

    @property
    def projected(self) -> Tensor:
        """The vectors [N, C] of all entries, in fp32."""
        out = self.out_proj
        assert out.bias is not None
        return F.linear(self.codebook.weight.float(), out.weight.squeeze(2).float(), out.bias.float())

    def decode(self, codes: Tensor) -> Tensor:
        """Return vectors [B, C, F] of codes [B, F]. As in the original, codes are clamped to the codebook."""
        last = self.codebook.num_embeddings - 1
        return self.out_proj(self.codebook(codes.clamp(0, last)).transpose(1, 2))

    def encode(self, x: Tensor) -> Tensor:
        """Return codes [B, F] of vectors [B, C, F]."""
        return self.nearest(self.in_proj(x))

    def nearest(self, projected: Tensor) -> Tensor:
        """Return the codes [B, F] of the entries with the smallest angle to projected vectors [B, code_dim, F]."""
        query = F.normalize(projected.transpose(1, 2), dim=-1)
        entries = F.normalize(self.codebook.weight, dim=-1)
        # For unit vectors, the arg max of the product would be equivalent, but it rounds differently than the original.
        distance = query.square().sum(-1, keepdim=True) - 2 * query @ entries.T + entries.square().sum(-1)
        return distance.argmin(-1)


class QuantizerStack(nn.Module):
    """A stack of codebooks, each of which encodes the residual that the codebooks before it leave."""

    def __init__(self, count: int, dim: int, size: int, code_dim: int, *, encodes: bool) -> None:
        super().__init__()
        self.quantizers = nn.ModuleList(VectorQuantizer(dim, size, code_dim, encodes=encodes) for _ in range(count))

    @property
    def books(self) -> list[VectorQuantizer]:
        return cast("list[VectorQuantizer]", self.quantizers)

    def decode(self, codes: Tensor) -> Tensor:
        """Return the sum [B, C, F] of the vectors of codes [B, K, F] over all codebooks."""
        first, *others = (book.decode(codes[:, index]) for index, book in enumerate(self.books))
        return sum(others, start=first)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return codes [B, K, F] of vectors [B, C, F], and the residual vectors."""
        codes = []
        for book in self.books:
            codes.append(book.encode(x))
            x = x - book.decode(codes[-1])
        return torch.stack(codes, dim=1), x


def _window_transformer(config: DacConfig, block: BlockConfig, layers: int) -> WindowTransformer:
    return WindowTransformer(
        block,
        layers=layers,
        window=config.q_window,
        max_steps=config.q_block_size,
        rope_base=ROPE_BASE,
        rope_dtype=torch.bfloat16,
    )


class Quantizer(nn.Module):
    """All codebooks, and the layers between the codebooks and the convolutions."""

    def __init__(self, config: DacConfig, *, encodes: bool) -> None:
        super().__init__()
        dim, code_dim = config.input_dim, config.codebook_dim
        self.semantic_quantizer = QuantizerStack(1, dim, config.semantic_codebook_size, code_dim, encodes=encodes)
        self.quantizer = QuantizerStack(config.n_codebooks, dim, config.codebook_size, code_dim, encodes=encodes)
        self.post_module = _window_transformer(config, config.post_block(), config.post_n_layer or config.q_n_layer)
        factors = config.downsample_factor
        self.upsample = Chain(
            *(Chain(CausalConvTranspose1d(dim, dim, f, stride=f), ConvNeXtBlock(dim)) for f in reversed(factors))
        )
        if encodes:
            self.pre_module = _window_transformer(config, config.pre_block(), config.q_n_layer)
            self.downsample = Chain(*(Chain(CausalConv1d(dim, dim, f, stride=f), ConvNeXtBlock(dim)) for f in factors))

    def decode(self, codes: Tensor) -> Tensor:
        """Return the input of the post module [B, C, F] for codes [B, K, F]."""
        return self.semantic_quantizer.decode(codes[:, :1]) + self.quantizer.decode(codes[:, 1:])

    def encode(self, x: Tensor) -> Tensor:
        """Return codes [B, K, F] for the output `x` of the pre module [B, C, F]."""
        semantic, rest = self.semantic_quantizer.encode(x)
        residual, _ = self.quantizer.encode(rest)
        return torch.cat((semantic, residual), dim=1)


class Dac(CausalCodec):
    """One loaded codec."""

    def __init__(self, config: DacConfig, *, encodes: bool = True) -> None:
        super().__init__()
        self.config = config
        self.encodes = encodes
        self.sample_rate = config.sample_rate
        self.samples_per_frame = config.samples_per_frame
        self.num_codebooks = config.num_codebooks
        self.max_frames = config.q_block_size
        self.quantizer = Quantizer(config, encodes=encodes)
        bound = Bound(config.drive, config.ceiling)
        self.decoder = Decoder(config.input_dim, config.decoder_dim, config.decoder_rates, bound)
        if encodes:
            self.encoder = Encoder(config)

    def share_decoding(self, other: Dac) -> None:
        """Use the decoding layers of `other`, whose weights are equal, so that they are in memory only once."""
        self.decoder = other.decoder
        self.quantizer.post_module = other.quantizer.post_module
        self.quantizer.upsample = other.quantizer.upsample

    @property
    def parts(self) -> DecoderParts:
        return DecoderParts(None, self.quantizer.post_module, self.quantizer.upsample, self.decoder)

    def tables(self) -> list[Tensor]:
        return [book.projected for book in self.quantizer.semantic_quantizer.books + self.quantizer.quantizer.books]

    def frames(self, codes: Tensor, state: StreamState) -> Tensor:
        # `post_module` may be shared with a codec of another dtype.
        vectors = self.quantizer.decode(codes).to(self.quantizer.post_module.norm.weight.dtype)
        return self.quantizer.post_module(vectors, state)

    def encode(self, wave: Tensor) -> Tensor:
        """Encode one wave [T] to codes [K, F]; the last frame is padded with silence.

        Raises `CapacityError` for more than `max_frames` frames.
        """
        return self.encode_rows(wave.unsqueeze(0))[0]

    def encode_rows(self, waves: Tensor) -> Tensor:
        """Encode waves [B, T] to codes [B, K, F].

        Shorter waves may be padded with silence, which does not change the frames before it.
        Raises `CapacityError` for more than `max_frames` frames.
        """
        return torch.cat(list(self._encode_blocks(waves)), dim=-1)

    def encode_by_blocks(self, wave: Tensor) -> Blocks[Tensor]:
        """Do the work of `encode` with a `yield` after each block of frames; the generator returns the codes."""
        blocks = []
        for block in self._encode_blocks(wave.unsqueeze(0)):
            blocks.append(block[0])
            yield
        return torch.cat(blocks, dim=-1)

    def _encode_blocks(self, waves: Tensor) -> Iterator[Tensor]:
        assert self.encodes, "this codec was loaded for decoding only"
        self.check_length(-(-waves.shape[-1] // self.samples_per_frame))
        waves, state = F.pad(waves, (0, -waves.shape[-1] % self.samples_per_frame)), StreamState()
        num_frames = min(CPU_ENCODE_BLOCK, ENCODE_BLOCK) if waves.device.type == "cpu" else ENCODE_BLOCK
        for block in waves.unsqueeze(1).split(num_frames * self.samples_per_frame, dim=-1):
            yield self.quantizer.encode(self.latents(block, state))

    def latents(self, waves: Tensor, state: StreamState) -> Tensor:
        """Return vectors [B, C, F] of samples [B, 1, T], before quantization; T is a whole number of frames."""
        x = self.quantizer.downsample(self.encoder(waves, state), state)
        return self.quantizer.pre_module(x, state)
