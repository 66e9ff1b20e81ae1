"""Translate the published tensors of the codec, and load them strictly. Only tensors in use are read from disk.

A codebook is published as the sum and the count of the vectors of each entry; an entry is their quotient. In the
original, rows i and i + D / 2 of a head are a rotary pair; in this engine, neighbouring rows are. The rows of queries
and keys are therefore reordered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from s1_mini.codecs.qwen12.config import FOLDER, Qwen12Config, TransformerConfig, read_qwen12_config
from s1_mini.codecs.qwen12.encoder import Encoder
from s1_mini.codecs.qwen12.model import Qwen12
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.weights.directory import find_model
from s1_mini.weights.files import read_tensors
from s1_mini.weights.fit import as_pairs, check_shapes, fit, skeleton

SMALLEST_COUNT = 1e-5  # lower limit of an entry's count, as in the original
Shapes = dict[str, tuple[int, ...]]

# Regular expressions for parts of this engine's names, and their replacements in published names.
_DECODER = {
    r"^front\.": "decoder.pre_conv.",
    r"^transformer\.": "decoder.pre_transformer.",
    r"^upsample\.": "decoder.upsample.",
    r"^decoder\.model\.": "decoder.decoder.",
    r"(\.block\.\d+)\.block\.0\.": r"\1.act1.",
    r"(\.block\.\d+)\.block\.1\.": r"\1.conv1.",
    r"(\.block\.\d+)\.block\.2\.": r"\1.act2.",
    r"(\.block\.\d+)\.block\.3\.": r"\1.conv2.",
}
_ENCODER = {
    r"^convolutions\.": "encoder.encoder.layers.",
    r"^layers\.": "encoder.encoder_transformer.layers.",
    r"^downsample\.": "encoder.downsample.conv.",
}
_BLOCK = {
    r"\.attention\.wqkv\.": ".self_attn.q_proj.",
    r"\.attention\.wo\.": ".self_attn.o_proj.",
    r"\.attention_layer_scale\.gamma$": ".self_attn_layer_scale.scale",
    r"\.ffn_layer_scale\.gamma$": ".mlp_layer_scale.scale",
    r"\.attention_norm\.": ".input_layernorm.",
    r"\.ffn_norm\.": ".post_attention_layernorm.",
    r"\.feed_forward\.w1\.": ".mlp.gate_proj.",
    r"\.feed_forward\.w3\.": ".mlp.up_proj.",
    r"\.feed_forward\.w2\.": ".mlp.down_proj.",
    r"\.(fc[12])\.": r".mlp.\1.",
}
_QUERY = ".q_proj."
_LOGARITHMS = (".alpha", ".beta")  # published as logarithms
# Projections that only training uses, and flags of initialized codebooks.
_UNUSED = re.compile(
    r"decoder\.quantizer\..*\.input_proj\.weight|encoder\.quantizer\..*(\.output_proj\.weight|\.initialized)"
)


def decoder_shapes(config: Qwen12Config) -> Shapes:
    """Return the published name and shape of each tensor that decoding needs."""
    sizes = config.decoder
    shapes = _shapes(skeleton(lambda: Qwen12(config)), _DECODER, sizes)
    for name, count in (("rvq_first", 1), ("rvq_rest", sizes.num_quantizers - 1)):
        stem, half = f"decoder.quantizer.{name}.", sizes.codebook_dim // 2
        shapes[f"{stem}output_proj.weight"] = (sizes.codebook_dim, half, 1)
        shapes |= _books(f"{stem}vq.layers.{{}}._codebook.embedding_sum", count, sizes.codebook_size, half)
    return shapes


def encoder_shapes(config: Qwen12Config) -> Shapes:
    """Return the published name and shape of each tensor of the encoder, including unused codebooks."""
    sizes = config.encoder
    shapes = _shapes(skeleton(lambda: Encoder(config)), _ENCODER, sizes)
    for name, count in (("semantic", 1), ("acoustic", sizes.num_quantizers - 1)):
        stem = f"encoder.quantizer.{name}_residual_vector_quantizer."
        shapes[f"{stem}input_proj.weight"] = (sizes.codebook_dim, sizes.hidden_size, 1)
        shapes |= _books(f"{stem}layers.{{}}.codebook.embed_sum", count, sizes.codebook_size, sizes.codebook_dim)
    return shapes


def _published(module: nn.Module, names: Mapping[str, str]) -> Iterator[tuple[str, str, nn.Parameter]]:
    """Yield name, published name and value of each parameter, except tables of codebooks, whose names have no dot.

    For joined projections, the published name is that of the queries.
    """
    for name, parameter in module.named_parameters():
        published = name
        for pattern, replacement in {**names, **_BLOCK}.items():
            published = re.sub(pattern, replacement, published)
        if "." in name:
            yield name, published, parameter


def _shapes(module: nn.Module, names: Mapping[str, str], sizes: TransformerConfig) -> Shapes:
    """Return the published names and shapes of a module on the meta device."""
    rows = {"q": sizes.num_attention_heads, "k": sizes.num_key_value_heads, "v": sizes.num_key_value_heads}
    shapes: Shapes = {}
    for _, name, parameter in _published(module, names):
        if _QUERY in name:
            joined = {each: (count * sizes.head_dim, sizes.hidden_size) for each, count in rows.items()}
            shapes |= {name.replace(_QUERY, f".{each}_proj."): shape for each, shape in joined.items()}
        else:
            shapes[name] = (parameter.numel(),) if name.endswith(_LOGARITHMS) else tuple(parameter.shape)
    return shapes


def _books(sums: str, count: int, size: int, dim: int) -> Shapes:
    """Return the shapes of `count` codebooks; `sums` is the name of their sums, with {} for the codebook's number."""
    counts = sums.rpartition(".")[0] + ".cluster_usage"
    shapes: Shapes = {}
    for book in range(count):
        shapes |= {sums.format(book): (size, dim), counts.format(book): (size,)}
    return shapes


def check(config: Qwen12Config, tensors: Mapping[str, Tensor], *, encodes: bool, source: str) -> None:
    """Raise `CheckpointMismatchError` unless the published tensors fit `config`.

    The encoder is checked if it is present or if `encodes`, so that its faults are found before the first reference.
    """
    expected = decoder_shapes(config)
    if encodes or can_encode(tensors):
        expected |= encoder_shapes(config)
    check_shapes(expected, {name: each for name, each in tensors.items() if not _UNUSED.fullmatch(name)}, source=source)


def can_encode(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether the file has an encoder."""
    return any(name.startswith("encoder.") for name in tensors)


def _translate(
    module: nn.Module, tensors: Mapping[str, Tensor], names: Mapping[str, str], sizes: TransformerConfig
) -> dict[str, Tensor]:
    """Return the tensors of decoder or encoder, except the codebooks, with this engine's names."""
    named = {}
    for name, published, _ in _published(module, names):
        if _QUERY in published:
            query, key, value = (tensors[published.replace(_QUERY, f".{each}_proj.")] for each in "qkv")
            named[name] = torch.cat((as_pairs(query, sizes.head_dim), as_pairs(key, sizes.head_dim), value))
        elif name.endswith(_LOGARITHMS):
            named[name] = tensors[published].float().exp().view(1, -1, 1)
        else:
            named[name] = tensors[published]
    return named


def _entries(tensors: Mapping[str, Tensor], stem: str, sums: str) -> Tensor:
    """Return the entries [N, D] of a codebook in fp32."""
    counts = tensors[f"{stem}cluster_usage"].float().clamp_min(SMALLEST_COUNT)
    return tensors[f"{stem}{sums}"].float() / counts.unsqueeze(1)


def build_decoder(
    config: Qwen12Config, tensors: Mapping[str, Tensor], *, dtype: torch.dtype, device: torch.device, source: str
) -> Qwen12:
    """Build the codec's decoder from published tensors. Raises `CheckpointMismatchError` if they do not fit."""
    check(config, tensors, encodes=False, source=source)
    if device.type == "meta":  # nothing is read
        tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
    tables = []
    for book in range(config.num_codebooks):
        part, at = ("rvq_rest", book - 1) if book else ("rvq_first", 0)
        entries = _entries(tensors, f"decoder.quantizer.{part}.vq.layers.{at}._codebook.", "embedding_sum")
        tables.append(F.linear(entries, tensors[f"decoder.quantizer.{part}.output_proj.weight"].float().squeeze(2)))
    codec = skeleton(lambda: Qwen12(config))
    named = _translate(codec, tensors, _DECODER, config.decoder) | {"table": torch.stack(tables)}
    fit(codec, named, source=source, dtype=dtype, device=device)
    codec.prepare()
    return codec


def build_encoder(config: Qwen12Config, tensors: Mapping[str, Tensor], *, device: torch.device, source: str) -> Encoder:
    """Build the codec's encoder in fp32 from published tensors. Raises `CheckpointMismatchError` if they do not fit."""
    if not can_encode(tensors):
        raise CheckpointMismatchError(
            f"{source} has no encoder weights, so it cannot encode a reference; name a voice, or convert the "
            "checkpoint without --decode-only"
        )
    check(config, tensors, encodes=True, source=source)
    stems = [f"encoder.quantizer.{name}_residual_vector_quantizer." for name in ("semantic", "acoustic")]
    books = [f"{stems[0]}layers.0.", *(f"{stems[1]}layers.{at}." for at in range(config.num_codebooks - 1))]
    encoder = skeleton(lambda: Encoder(config))
    named = _translate(encoder, tensors, _ENCODER, config.encoder)
    named["projections"] = torch.stack([tensors[f"{stem}input_proj.weight"].squeeze(2) for stem in stems])
    named["books"] = torch.stack([_entries(tensors, f"{stem}codebook.", "embed_sum") for stem in books])
    return fit(encoder, named, source=source, dtype=torch.float32, device=device)


def open_decoder(folder: Path, *, dtype: torch.dtype = torch.float32, device: torch.device | None = None) -> Qwen12:
    """Load the decoder of the codec in `folder`. Raises `CheckpointError`."""
    path = find_model(folder)
    return build_decoder(
        read_qwen12_config(folder),
        read_tensors(path),
        dtype=dtype,
        device=device or torch.device("cpu"),
        source=f"{FOLDER}/{path.name}",
    )


def open_encoder(folder: Path, *, device: torch.device | None = None) -> Encoder:
    """Load the encoder of the codec in `folder`. Raises `CheckpointError`."""
    path = find_model(folder)
    return build_encoder(
        read_qwen12_config(folder),
        read_tensors(path),
        device=device or torch.device("cpu"),
        source=f"{FOLDER}/{path.name}",
    )
