"""The codec: codes to audio and audio to codes, with the same layers for whole and streamed audio.

decode: codes -> vectors -> decoder -> samples
encode: samples -> encoder -> vectors -> codes
With `encodes=False`, the encoder, which has half of the weights, is not built.
Parameters have the names of transformers' checkpoints, with plain weights instead of weight norm.
Shapes: B rows, K codebooks, F frames, C channels, T samples or steps.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from s1_mini.codecs.causal.layers import CausalConv1d, CausalConvTranspose1d, Chain, Elu
from s1_mini.codecs.encodec.config import EncodecConfig
from s1_mini.codecs.encodec.stream_state import StreamChunk, WholeStream
from s1_mini.layers.convolution import conv1d

Past = WholeStream | StreamChunk  # state of all layers


class Network(nn.Module):
    """A `Chain` named `layers`, as in the checkpoint's tensor names."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = Chain(*layers)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        return self.layers(x, past)


class MirroredConv1d(CausalConv1d):
    """Causal convolution whose padding mirrors the stream: T steps become T / stride steps, rounded up."""

    def forward(self, x: Tensor, past: Past) -> Tensor:  # type: ignore[override]
        conv, stride = self.conv, self.conv.stride[0]
        x = past.mirror(self, x, self.context, stride)
        return conv1d(x, conv.weight, conv.bias, stride=stride, dilation=conv.dilation[0], groups=1)


class UpsamplingConv1d(CausalConvTranspose1d):
    """Causal transposed convolution with 2 * stride taps: T steps become T * stride steps."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(inputs, outputs, 2 * stride, stride=stride)

    def forward(self, x: Tensor, past: Past) -> Tensor:  # type: ignore[override]
        out = super().forward(x, past)
        past.grow(self.stride)
        return out


class ResidualUnit(nn.Module):
    """A dilated convolution to fewer channels and a pointwise convolution back, with a skip connection around both."""

    def __init__(self, config: EncodecConfig, channels: int, dilation: int) -> None:
        super().__init__()
        hidden = channels // config.compress
        first = MirroredConv1d(channels, hidden, config.residual_kernel_size, dilation=dilation)
        self.block = Chain(Elu(), first, Elu(), MirroredConv1d(hidden, channels, 1))
        self.shortcut = MirroredConv1d(channels, channels, 1) if config.use_conv_shortcut else None

    def forward(self, x: Tensor, past: Past) -> Tensor:
        branch = self.block(x, past)
        return (x if self.shortcut is None else self.shortcut(x, past)) + branch


class Recurrence(nn.Module):
    """LSTM layers with a skip connection."""

    def __init__(self, channels: int, num_layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(channels, channels, num_layers)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        steps = x.permute(2, 0, 1).contiguous()
        return (past.recur(self.lstm, steps) + steps).permute(1, 2, 0).contiguous()


class Codebook(nn.Module):
    """Entries [N, C]; the code of a vector is the index of its nearest entry."""

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.empty(size, dim))

    def decode(self, codes: Tensor) -> Tensor:
        """Return vectors [B, F, C] of codes [B, F], which are clamped to the codebook."""
        return F.embedding(codes.clamp(0, len(self.embed) - 1), self.embed)

    def encode(self, x: Tensor) -> Tensor:
        """Return codes [B, F] of vectors [B, F, C]."""
        return self.distances(x).argmin(-1)

    def distances(self, x: Tensor) -> Tensor:
        """Return squared distances [B, F, N] from vectors [B, F, C] to all entries, rounded as in the original."""
        return x.square().sum(-1, keepdim=True) - 2 * x @ self.embed.T + self.embed.square().sum(-1)


class Quantizer(nn.Module):
    """A stack of codebooks, each of which encodes the residual that the codebooks before it leave."""

    def __init__(self, count: int, size: int, dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict({"codebook": Codebook(size, dim)}) for _ in range(count))

    @property
    def books(self) -> list[Codebook]:
        return [cast("nn.ModuleDict", layer)["codebook"] for layer in self.layers]  # type: ignore[misc]

    def decode(self, codes: Tensor) -> Tensor:
        """Return the sum [B, C, F] of the vectors of codes [B, K, F] over the first K codebooks."""
        first, *others = (book.decode(codes[:, at]) for at, book in enumerate(self.books[: codes.shape[1]]))
        return sum(others, start=first).transpose(1, 2)

    def encode(self, x: Tensor, count: int) -> Tensor:
        """Return the codes [B, `count`, F] of vectors [B, C, F] in the first `count` codebooks."""
        rest, codes = x.transpose(1, 2), []
        for book in self.books[:count]:
            codes.append(book.encode(rest))
            rest = rest - book.decode(codes[-1])
        return torch.stack(codes, dim=1)


def _residual_units(config: EncodecConfig, channels: int) -> list[ResidualUnit]:
    return [ResidualUnit(config, channels, config.dilation_growth_rate**at) for at in range(config.num_residual_layers)]


def _encoder(config: EncodecConfig) -> Network:
    """Build the encoder: samples [B, 1, T] to vectors [B, C, F]."""
    channels = config.num_filters
    layers: list[nn.Module] = [MirroredConv1d(1, channels, config.kernel_size)]
    for ratio in reversed(config.upsampling_ratios):
        layers += [*_residual_units(config, channels), Elu()]
        layers.append(MirroredConv1d(channels, 2 * channels, 2 * ratio, stride=ratio))
        channels *= 2
    layers += [Recurrence(channels, config.num_lstm_layers), Elu()]
    return Network(*layers, MirroredConv1d(channels, config.hidden_size, config.last_kernel_size))


def _decoder(config: EncodecConfig) -> Network:
    """Build the decoder: vectors [B, C, F] to samples [B, 1, T]."""
    channels = config.width
    layers: list[nn.Module] = [MirroredConv1d(config.hidden_size, channels, config.kernel_size)]
    layers.append(Recurrence(channels, config.num_lstm_layers))
    for ratio in config.upsampling_ratios:
        layers += [Elu(), UpsamplingConv1d(channels, channels // 2, ratio)]
        channels //= 2
        layers += _residual_units(config, channels)
    return Network(*layers, Elu(), MirroredConv1d(channels, 1, config.last_kernel_size))


class Encodec(nn.Module):
    """One loaded codec."""

    def __init__(self, config: EncodecConfig, *, encodes: bool = True) -> None:
        super().__init__()
        self.config = config
        self.encodes = encodes
        self.sample_rate = config.sampling_rate
        self.samples_per_frame = config.samples_per_frame
        self.num_codebooks = config.num_codebooks
        self.quantizer = Quantizer(config.num_codebooks, config.codebook_size, config.hidden_size)
        self.decoder = _decoder(config)
        if encodes:
            self.encoder = _encoder(config)

    def prepare(self, dtype: torch.dtype | None = None) -> None:
        """Convert encoder and decoder to `dtype` and flatten LSTM weights. Call this once, on the final device.

        The codebooks stay in fp32, because with fewer bits some entries would become equal.
        """
        for network in (self.decoder, self.encoder) if self.encodes else (self.decoder,):
            network.to(dtype)
            for module in network.modules():
                if isinstance(module, nn.LSTM):
                    module.flatten_parameters()
        weight = next(self.decoder.parameters())
        self.device, self.dtype = weight.device, weight.dtype

    def encode(self, waves: Tensor, codebooks: int | None = None) -> Tensor:
        """Encode waves [B, T] to codes [B, K, F] of the first `codebooks` codebooks, or of all."""
        return self.quantize(self.latents(waves), codebooks)

    def quantize(self, latents: Tensor, codebooks: int | None = None) -> Tensor:
        """Return the codes [B, K, F] of vectors [B, C, F] in the first `codebooks` codebooks, or in all."""
        return self.quantizer.encode(latents.float(), codebooks or self.num_codebooks)

    def latents(self, waves: Tensor, past: Past | None = None) -> Tensor:
        """Return vectors [B, C, F] of samples [B, T].

        Chunks of a stream must consist of whole frames. The end of a whole wave is mirrored to complete the last frame.
        """
        assert self.encodes, "this codec was loaded for decoding only"
        return self.encoder(waves.unsqueeze(1).to(self.dtype), past or WholeStream())

    def decode(self, codes: Tensor, past: Past | None = None) -> Tensor:
        """Decode codes [B, K, F] of the first K codebooks to samples [B, T]."""
        return self.decoder(self.quantizer.decode(codes).to(self.dtype), past or WholeStream()).squeeze(1)
