"""Configs and random tensors of the codec, with the published names.

Random weights behave like trained weights: layers preserve loudness, samples are rarely clamped, and all codes occur.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from s1_mini.codecs.qwen12.config import MODEL_TYPE, Qwen12Config
from s1_mini.codecs.qwen12.weights import decoder_shapes, encoder_shapes

LOUDNESS = 0.1  # gain of the last convolution


_COMMON = ("codebook_size", "codebook_dim", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim")
_HEADS = ("num_attention_heads", "num_key_value_heads")
_DECODER = (*_COMMON, *_HEADS, "latent_dim", "sliding_window", "decoder_dim")
_ENCODER = (*_COMMON, *_HEADS, "num_filters", "num_quantizers")


def _config(books: int, decoder: tuple[int, ...], encoder: tuple[int, ...]) -> dict[str, Any]:
    """Return the codec's `config.json` with the sizes `decoder` and `encoder`, in the order of the keys above."""
    rates = {"rope_theta": 10_000, "max_position_embeddings": 8000, "num_semantic_quantizers": 1}
    return {
        "model_type": MODEL_TYPE,
        "encoder_valid_num_quantizers": books,
        **dict.fromkeys(("input_sample_rate", "output_sample_rate"), 24_000),
        **dict.fromkeys(("decode_upsample_rate", "encode_downsample_rate"), 1920),
        "decoder_config": rates
        | {"num_quantizers": books, "rms_norm_eps": 1e-5, "upsampling_ratios": [2, 2], "upsample_rates": [8, 5, 4, 3]}
        | dict(zip(_DECODER, decoder, strict=True)),
        "encoder_config": rates
        | {"norm_eps": 1e-5, "upsampling_ratios": [8, 6, 5, 4], "compress": 2, "num_residual_layers": 1}
        | {"kernel_size": 7, "last_kernel_size": 3, "residual_kernel_size": 3, "sliding_window": 250}
        | {"use_causal_conv": True, "use_conv_shortcut": False, "pad_mode": "constant"}
        | dict(zip(_ENCODER, encoder, strict=True)),
    }


TINY_BOOKS = 6  # with 16, a frame takes twice as long: each code is a step of the depth transformer
TINY = _config(TINY_BOOKS, (64, 16, 16, 24, 2, 6, 4, 4, 32, 9, 64), (64, 8, 16, 28, 2, 8, 2, 2, 4, 8))
PUBLISHED = _config(
    16, (2048, 512, 512, 1024, 8, 64, 16, 16, 1024, 72, 1536), (2048, 256, 512, 2048, 8, 64, 8, 8, 64, 32)
)


def random_tensors(config: Qwen12Config, seed: int = 0) -> dict[str, Tensor]:
    """Return random fp32 tensors of decoder and encoder, with the published names."""
    generator = torch.Generator().manual_seed(seed)
    shapes = decoder_shapes(config) | encoder_shapes(config)
    return {name: _random(name, shape, config, generator) for name, shape in sorted(shapes.items())}


def _random(name: str, shape: tuple[int, ...], config: Qwen12Config, generator: torch.Generator) -> Tensor:
    tensor, kind = torch.empty(shape), name.rpartition(".")[2]
    if kind == "cluster_usage" or (kind == "weight" and "norm" in name):
        return tensor.uniform_(0.9, 1.1, generator=generator)
    if kind in {"scale", "gamma"}:
        return tensor.uniform_(0.1, 0.3, generator=generator)
    if kind in {"alpha", "beta", "bias"}:
        return tensor.normal_(0.0, 0.02 if kind == "bias" else 0.2, generator=generator)
    if kind in {"embedding_sum", "embed_sum"}:
        return tensor.normal_(0.0, 1 / math.sqrt(config.num_codebooks), generator=generator)
    is_up = ".block.1.conv." in name and name.startswith("decoder.")  # transposed, halves the channels
    is_transposed = is_up or (".upsample." in name and ".0.conv." in name)
    taps = 2 if is_up else 1 if is_transposed else math.prod(shape[2:])
    is_branch = ".conv2." in name or ".block.3." in name
    # Branches get a smaller gain, because their outputs add up on the skip connections of a block.
    gain = LOUDNESS if shape[0] == 1 else 0.4 if is_branch else 0.7 if is_up else 1.0
    return tensor.normal_(0.0, gain / math.sqrt(shape[0 if is_transposed else 1] * taps), generator=generator)
