"""The codec: codes to sound and sound to codes, whole or streamed through the same layers.

decode: codes -> vectors -> decoder -> samples
encode: samples -> encoder -> vectors -> codes
Without `encodes` the encoder is not built at all: it is half of the weights.
Shapes: B rows, K codebooks, F frames, C channels, T samples.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from s1_mini.codecs.encodec.carry import Carry, Memory, Whole
from s1_mini.codecs.encodec.config import EncodecConfig
from s1_mini.codecs.encodec.layers import CausalConv1d, CausalConvTranspose1d, Chain, Elu, Recurrence, ResidualUnit


class Codebook(nn.Module):
    """Entries [N, C], of which the nearest is a vector's code."""

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.empty(size, dim))

    def decode(self, codes: Tensor) -> Tensor:
        """Vectors [B, F, C] of codes [B, F]; a code past the book means its last entry."""
        return F.embedding(codes.clamp(0, len(self.embed) - 1), self.embed)

    def encode(self, x: Tensor) -> Tensor:
        """Codes [B, F] of vectors [B, F, C]."""
        return self.distances(x).argmin(-1)

    def distances(self, x: Tensor) -> Tensor:
        """Squared distances [B, F, N] of vectors [B, F, C]; written as the original's, for its rounding."""
        return x.square().sum(-1, keepdim=True) - 2 * x @ self.embed.T + self.embed.square().sum(-1)


class _Layer(nn.Module):
    """Gives a book the name that it has in a checkpoint."""

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.codebook = Codebook(size, dim)


class Quantizer(nn.Module):
    """Codebooks one upon another, each coding what those before it left."""

    def __init__(self, count: int, size: int, dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(size, dim) for _ in range(count))

    @property
    def books(self) -> list[Codebook]:
        return [cast("_Layer", layer).codebook for layer in self.layers]

    def decode(self, codes: Tensor) -> Tensor:
        """Sum of the vectors [B, C, F] of codes [B, K, F]; K may be fewer than all books."""
        first, *others = (book.decode(codes[:, at]) for at, book in enumerate(self.books[: codes.shape[1]]))
        return sum(others, start=first).transpose(1, 2)

    def encode(self, x: Tensor, count: int) -> Tensor:
        """Codes [B, `count`, F] of vectors [B, C, F] in the first books."""
        rest, codes = x.transpose(1, 2), []
        for book in self.books[:count]:
            codes.append(book.encode(rest))
            rest = rest - book.decode(codes[-1])
        return torch.stack(codes, dim=1)


def _residual_units(config: EncodecConfig, channels: int) -> list[nn.Module]:
    return [
        ResidualUnit(
            channels,
            config.residual_kernel_size,
            config.dilation_growth_rate**at,
            compress=config.compress,
            has_shortcut=config.use_conv_shortcut,
        )
        for at in range(config.num_residual_layers)
    ]


def _encoder(config: EncodecConfig) -> Chain:
    """Samples [B, 1, T] to vectors [B, C, F]."""
    channels = config.num_filters
    layers: list[nn.Module] = [CausalConv1d(1, channels, config.kernel_size)]
    for ratio in reversed(config.upsampling_ratios):
        layers += [*_residual_units(config, channels), Elu()]
        layers.append(CausalConv1d(channels, 2 * channels, 2 * ratio, stride=ratio))
        channels *= 2
    layers += [Recurrence(channels, config.num_lstm_layers), Elu()]
    return Chain(*layers, CausalConv1d(channels, config.hidden_size, config.last_kernel_size))


def _decoder(config: EncodecConfig) -> Chain:
    """Vectors [B, C, F] to samples [B, 1, T]."""
    channels = config.width
    layers: list[nn.Module] = [CausalConv1d(config.hidden_size, channels, config.kernel_size)]
    layers.append(Recurrence(channels, config.num_lstm_layers))
    for ratio in config.upsampling_ratios:
        layers += [Elu(), CausalConvTranspose1d(channels, channels // 2, ratio)]
        channels //= 2
        layers += _residual_units(config, channels)
    return Chain(*layers, Elu(), CausalConv1d(channels, 1, config.last_kernel_size))


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
        """Convert both networks to a format and lay out weights as the device likes them; once, when they are on it.

        The codebooks stay in fp32: in fewer bits their entries are too close to each other.
        """
        for network in (self.decoder, self.encoder) if self.encodes else (self.decoder,):
            network.to(dtype)
            for module in network.modules():
                if isinstance(module, nn.LSTM):
                    module.flatten_parameters()
        weight = next(self.decoder.parameters())
        self.device, self.dtype = weight.device, weight.dtype

    def encode(self, waves: Tensor, codebooks: int | None = None) -> Tensor:
        """Encode waves [B, T] of one length to codes [B, K, F] of the first `codebooks`, or of all."""
        return self.quantize(self.latents(waves), codebooks)

    def quantize(self, latents: Tensor, codebooks: int | None = None) -> Tensor:
        """Codes [B, K, F] of vectors [B, C, F] in the first `codebooks`, or in all."""
        return self.quantizer.encode(latents.float(), codebooks or self.num_codebooks)

    def latents(self, waves: Tensor, carry: Whole | None = None) -> Tensor:
        """Vectors [B, C, F] of samples [B, T], the last frame mirrored to its end; a carry takes whole frames only."""
        assert self.encodes, "this codec was loaded for decoding only"
        return self.encoder(waves.unsqueeze(1).to(self.dtype), carry or Whole())

    def decode(self, codes: Tensor) -> Tensor:
        """Decode codes [B, K, F] of the first K codebooks to samples [B, T]."""
        return self.push(codes, Whole())

    def push(self, codes: Tensor, carry: Whole) -> Tensor:
        """Decode the next frames [B, K, F] of the streams that `carry` holds, to samples [B, T]."""
        return self.decoder(self.quantizer.decode(codes).to(self.dtype), carry).squeeze(1)

    def open(self, rows: int) -> EncodecStream:
        return EncodecStream(self, rows)


class EncodecStream:
    """Streams of R rows; each moves on when it has something to decode.

    A stream's first chunk has `EncodecConfig.first_frames` frames at the least, or all that there are.
    """

    def __init__(self, codec: Encodec, rows: int) -> None:
        self._codec, self._memory = codec, Memory(rows)

    def push_where(self, codes: Tensor, chosen: Tensor, fresh: Tensor, lengths: Tensor) -> Tensor:
        """Decode the next frames [n, K, F] of the rows `chosen` [n], those that are `fresh` [n] from their beginning.

        Of each row `lengths` [n] frames count: all, unless its stream ends. All of it lies on the device, so that a
        graph can be made of it. Gives samples [n, T].
        """
        carry = Carry(self._memory, fresh, lengths, chosen)
        samples = self._codec.push(codes, carry)
        carry.commit()
        return samples

    def push(self, codes: Tensor, row: int = 0, *, is_first: bool) -> Tensor:
        """Decode the next frames [K, F] of one row, to samples [T]."""
        device = codes.device
        chosen, fresh = torch.tensor([row], device=device), torch.tensor([is_first], device=device)
        lengths = torch.tensor([codes.shape[-1]], device=device)
        return self.push_where(codes.unsqueeze(0), chosen, fresh, lengths)[0]

    @property
    def num_bytes(self) -> int:
        return self._memory.num_bytes
