"""Random weights that do something: layers keep the loudness of what they get, the LSTMs remember, all codes occur."""

from __future__ import annotations

import math
from typing import Literal, cast

import torch
from torch import Tensor, nn

from s1_mini.codecs.encodec.config import EncodecConfig
from s1_mini.codecs.encodec.layers import CausalConv1d, Chain
from s1_mini.codecs.encodec.model import Encodec

Spelling = Literal["parametrizations", "weight_g", "folded"]

TINY = EncodecConfig(num_filters=4, hidden_size=16)  # with the published rates, books and bandwidths

_SUFFIXES = {
    "parametrizations": (".parametrizations.weight.original0", ".parametrizations.weight.original1"),
    "weight_g": (".weight_g", ".weight_v"),
}
_LOUDNESS = 0.1  # standard deviation of the samples that decoding gives
_LATENT_SPREAD = 0.3  # of the vectors that encoding quantizes
_HEARD_SAMPLES = 48_000  # of noise, after whose vectors the books are drawn


@torch.no_grad()
def random_encodec(config: EncodecConfig, seed: int = 0) -> Encodec:
    """Make a codec with random weights."""
    draws = torch.Generator().manual_seed(seed)
    codec = Encodec(config).requires_grad_(False).eval()
    for module in codec.modules():
        if isinstance(module, nn.Conv1d | nn.ConvTranspose1d):
            # What reaches one output: all taps of a convolution, two of a transposed one.
            taps = 2 if isinstance(module, nn.ConvTranspose1d) else module.kernel_size[0]
            module.weight.normal_(0, 1.2 / math.sqrt(module.in_channels * taps), generator=draws)
            assert module.bias is not None
            module.bias.normal_(0, 0.05, generator=draws)
        elif isinstance(module, nn.LSTM):
            for parameter in module.parameters():
                parameter.normal_(0, 1.2 / math.sqrt(module.hidden_size), generator=draws)
    codec.prepare()
    _draw_books(codec, draws)
    return codec


def random_tensors(
    config: EncodecConfig, seed: int = 0, *, spelling: Spelling = "parametrizations", prefix: str = ""
) -> dict[str, Tensor]:
    """Make the tensors of a checkpoint with random weights, under `prefix` and with weight norm as transformers'."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in random_encodec(config, seed).named_parameters():
        stem, value = prefix + name.removesuffix(".weight"), parameter.detach()
        if name.endswith(".embed"):
            stem = prefix + name.removesuffix("embed")
            tensors[stem + "inited"] = torch.ones(1)
            tensors[stem + "cluster_size"] = torch.ones(len(value))
            tensors[stem + "embed_avg"] = value.clone()
        if name.endswith(".conv.weight") and spelling != "folded":
            scale, direction = _SUFFIXES[spelling]
            tensors[stem + scale] = torch.linalg.vector_norm(value, dim=(1, 2), keepdim=True)
            tensors[stem + direction] = value
        else:
            tensors[prefix + name] = value
    return tensors


def _draw_books(codec: Encodec, draws: torch.Generator) -> None:
    """Draw each book as what the books before it leave is spread; set how loud both networks' last layers are."""
    noise = torch.randn(1, _HEARD_SAMPLES, generator=draws) * torch.linspace(0.02, 0.5, _HEARD_SAMPLES)
    rest = codec.latents(noise).transpose(1, 2)
    rest = rest * _scale(codec.encoder, _LATENT_SPREAD / rest.std())
    # As near to the origin as the nearest of so many entries leaves least of a vector, on average.
    nearness = min(1.0, math.sqrt(2 * math.log(codec.config.codebook_size) / codec.config.hidden_size))
    codes = []
    for book in codec.quantizer.books:
        spread, mean = rest.std((0, 1)), rest.mean((0, 1))
        book.embed.copy_(mean + nearness * spread * torch.randn(book.embed.shape, generator=draws))
        codes.append(book.encode(rest))
        rest = rest - book.decode(codes[-1])
    _scale(codec.decoder, _LOUDNESS / codec.decode(torch.stack(codes, 1)).std())


def _scale(network: Chain, factor: Tensor) -> Tensor:
    """Multiply what a network gives."""
    last = cast("CausalConv1d", network.layers[-1]).conv
    assert last.bias is not None
    last.weight.mul_(factor)
    last.bias.mul_(factor)
    return factor
