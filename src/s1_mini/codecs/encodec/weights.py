"""The tensors of an Encodec: from its own checkpoint, from another model's checkpoint under a prefix, or random.

Random weights behave like trained weights: layers preserve loudness, LSTMs have memory, and all codes occur.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from s1_mini.codecs.encodec.config import EncodecConfig
from s1_mini.codecs.encodec.model import Encodec, MirroredConv1d, Network
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.weights.fit import below_prefix, check_fit, fit, skeleton
from s1_mini.weights.weight_norm import NEW, fold_weight_norm, unfolded

_TRAINING = (".codebook.inited", ".codebook.cluster_size", ".codebook.embed_avg")  # training statistics
_ENCODER = "encoder."

TINY = EncodecConfig(num_filters=4, hidden_size=16)  # rates, codebooks and bandwidths are as published
_LOUDNESS = 0.1  # standard deviation of decoded samples
_LATENT_SPREAD = 0.3  # standard deviation of the encoder's vectors before quantization
_NOISE_SAMPLES = 48_000  # length of the noise that is encoded to set the scale of random codebooks


def translate(
    tensors: Mapping[str, Tensor], *, prefix: str = "", encodes: bool = True, source: str = "codec weights"
) -> dict[str, Tensor]:
    """Return the tensors under `prefix` with the names of `Encodec`.

    Weight norm is replaced by plain weights, and training statistics are dropped. With `encodes=False`, encoder weights
    are dropped too. Raises `CheckpointMismatchError` for an incomplete weight norm.
    """
    dropped = () if encodes else (_ENCODER,)
    named = below_prefix(tensors, prefix)
    kept = {name: one for name, one in named.items() if not name.endswith(_TRAINING) and not name.startswith(dropped)}
    return fold_weight_norm(kept, source)


def can_encode(tensors: Mapping[str, Tensor], prefix: str = "") -> bool:
    return any(name.startswith(prefix + _ENCODER) for name in tensors)


def build_encodec(
    config: EncodecConfig,
    tensors: Mapping[str, Tensor],
    *,
    prefix: str = "",
    encodes: bool,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
    source: str,
) -> Encodec:
    """Build the codec from the tensors under `prefix`, with its encoder only if `encodes`.

    Encoder and decoder have `dtype`; the codebooks are fp32. Raises `CheckpointMismatchError`, naming `source` and the
    tensors, if config and weights contradict each other.
    """
    if encodes and not can_encode(tensors, prefix):
        raise CheckpointMismatchError(f"{source} has no encoder weights, so it can only decode")
    codec = skeleton(lambda: Encodec(config, encodes=encodes))
    named = translate(tensors, prefix=prefix, encodes=encodes, source=source)
    fit(codec, named, source=source, dtype=torch.float32, device=device or torch.device("cpu"))
    codec.prepare(dtype)
    return codec


def check(config: EncodecConfig, tensors: Mapping[str, Tensor], *, prefix: str = "", source: str = "the codec") -> None:
    """Raise `CheckpointMismatchError` unless the shapes of the tensors under `prefix` fit `config`."""
    codec = skeleton(lambda: Encodec(config, encodes=can_encode(tensors, prefix)))
    check_fit(codec, translate(tensors, prefix=prefix, source=source), source=source)


@torch.no_grad()
def random_encodec(config: EncodecConfig, seed: int = 0) -> Encodec:
    generator = torch.Generator().manual_seed(seed)
    codec = Encodec(config).requires_grad_(False).eval()
    for module in codec.modules():
        if isinstance(module, nn.Conv1d | nn.ConvTranspose1d):
            # Taps that contribute to an output: all of a convolution, but only two of a transposed convolution.
            taps = 2 if isinstance(module, nn.ConvTranspose1d) else module.kernel_size[0]
            module.weight.normal_(0, 1.2 / math.sqrt(module.in_channels * taps), generator=generator)
            assert module.bias is not None
            module.bias.normal_(0, 0.05, generator=generator)
        elif isinstance(module, nn.LSTM):
            for parameter in module.parameters():
                parameter.normal_(0, 1.2 / math.sqrt(module.hidden_size), generator=generator)
    codec.prepare()
    _sample_codebooks(codec, generator)
    return codec


def random_tensors(
    config: EncodecConfig, seed: int = 0, *, norms: tuple[str, str] | None = NEW, prefix: str = ""
) -> dict[str, Tensor]:
    """Return the tensors of a random checkpoint, with `prefix` before their names.

    `norms` are the names of weight norm's tensors, `weight_norm.OLD` or `NEW`; None: plain weights.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in random_encodec(config, seed).named_parameters():
        stem, value = prefix + name.removesuffix(".weight"), parameter.detach()
        if name.endswith(".embed"):
            statistics = (torch.ones(1), torch.ones(len(value)), value.clone())
            tensors |= dict(
                zip((stem.removesuffix(".codebook.embed") + name for name in _TRAINING), statistics, strict=True)
            )
        if name.endswith(".conv.weight") and norms is not None:
            tensors |= unfolded(stem, value, norms)
        else:
            tensors[prefix + name] = value
    return tensors


def _sample_codebooks(codec: Encodec, generator: torch.Generator) -> None:
    """Sample each codebook with the spread of the residual at its place; scale the last layers of both networks."""
    noise = torch.randn(1, _NOISE_SAMPLES, generator=generator) * torch.linspace(0.02, 0.5, _NOISE_SAMPLES)
    rest = codec.latents(noise).transpose(1, 2)
    rest = rest * _scale(codec.encoder, _LATENT_SPREAD / rest.std())
    # This scale minimizes the expected residual of the nearest entry.
    nearness = min(1.0, math.sqrt(2 * math.log(codec.config.codebook_size) / codec.config.hidden_size))
    codes = []
    for book in codec.quantizer.books:
        spread, mean = rest.std((0, 1)), rest.mean((0, 1))
        book.embed.copy_(mean + nearness * spread * torch.randn(book.embed.shape, generator=generator))
        codes.append(book.encode(rest))
        rest = rest - book.decode(codes[-1])
    _scale(codec.decoder, _LOUDNESS / codec.decode(torch.stack(codes, 1)).std())


def _scale(network: Network, factor: Tensor) -> Tensor:
    """Multiply the weights of a network's last layer by `factor`; return `factor`."""
    last = cast("MirroredConv1d", network.layers[-1]).conv
    assert last.bias is not None
    last.weight.mul_(factor)
    last.bias.mul_(factor)
    return factor
