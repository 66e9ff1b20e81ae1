"""Translate the published tensors of the codec, and load them strictly. Only tensors in use are read from disk.

A codebook is published as the sum and the count of the vectors of each entry; an entry is their quotient. In the
original, rows i and i + D / 2 of a head are a rotary pair; in this engine, neighbouring rows are. The rows of queries
and keys are therefore reordered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.codecs.causal.layers import DILATIONS
from s1_mini.codecs.qwen12.config import FOLDER, Qwen12Config, TransformerConfig, read_qwen12_config
from s1_mini.codecs.qwen12.encoder import Encoder
from s1_mini.codecs.qwen12.model import Qwen12
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.weights.directory import find_model
from s1_mini.weights.files import read_tensors
from s1_mini.weights.fit import as_pairs, check_shapes, fit, skeleton

SMALLEST_COUNT = 1e-5  # lower limit of an entry's count, as in the original
Shapes = dict[str, tuple[int, ...]]

# Regular expressions for parts of published names, and their replacements in this engine's names.
_DECODER = {
    r"^decoder\.pre_conv\.": "front.",
    r"^decoder\.pre_transformer\.": "transformer.",
    r"^decoder\.upsample\.": "upsample.",
    r"^decoder\.decoder\.": "decoder.model.",
    r"\.act1\.": ".block.0.",
    r"\.conv1\.": ".block.1.",
    r"\.act2\.": ".block.2.",
    r"\.conv2\.": ".block.3.",
}
_ENCODER = {
    r"^encoder\.encoder\.layers\.": "convolutions.",
    r"^encoder\.encoder_transformer\.": "",
    r"^encoder\.downsample\.conv\.": "downsample.",
}
_BLOCK = {
    r"\.self_attn\.o_proj\.": ".attention.wo.",
    r"\.self_attn_layer_scale\.scale$": ".attention_layer_scale.gamma",
    r"\.mlp_layer_scale\.scale$": ".ffn_layer_scale.gamma",
    r"\.input_layernorm\.": ".attention_norm.",
    r"\.post_attention_layernorm\.": ".ffn_norm.",
    r"\.mlp\.gate_proj\.": ".feed_forward.w1.",
    r"\.mlp\.up_proj\.": ".feed_forward.w3.",
    r"\.mlp\.down_proj\.": ".feed_forward.w2.",
    r"\.mlp\.(fc[12])\.": r".\1.",
}
_QUERY = ".self_attn.q_proj.weight"
# Projections that only training uses, and flags of initialized codebooks.
_UNUSED = re.compile(
    r"decoder\.quantizer\..*\.input_proj\.weight|encoder\.quantizer\..*(\.output_proj\.weight|\.initialized)"
)


def decoder_shapes(config: Qwen12Config) -> Shapes:
    """Return the published name and shape of each tensor that decoding needs."""
    sizes = config.decoder
    latent, dim = sizes.latent_dim, sizes.decoder_dim
    shapes: Shapes = {}
    for name, count in (("rvq_first", 1), ("rvq_rest", sizes.num_quantizers - 1)):
        stem, half = f"decoder.quantizer.{name}.", sizes.codebook_dim // 2
        shapes[f"{stem}output_proj.weight"] = (sizes.codebook_dim, half, 1)
        shapes |= _books(f"{stem}vq.layers.{{}}._codebook.embedding_sum", count, sizes.codebook_size, half)
    stem = "decoder.pre_transformer."
    shapes |= _with_bias("decoder.pre_conv.conv", (latent, sizes.codebook_dim, 3))
    shapes |= _with_bias(f"{stem}input_proj", (sizes.hidden_size, latent))
    shapes |= _layers(f"{stem}layers.", sizes, {"gate_proj": False, "up_proj": False, "down_proj": True}, ("weight",))
    shapes |= _with_bias(f"{stem}output_proj", (latent, sizes.hidden_size))
    shapes[f"{stem}norm.weight"] = (sizes.hidden_size,)
    for at, ratio in enumerate(sizes.upsampling_ratios):
        stem = f"decoder.upsample.{at}."
        shapes |= _with_bias(f"{stem}0.conv", (latent, latent, ratio))
        shapes |= _with_bias(f"{stem}1.dwconv.conv", (latent, 1, 7)) | _with_bias(f"{stem}1.norm", (latent,))
        shapes |= _with_bias(f"{stem}1.pwconv1", (4 * latent, latent))
        shapes |= _with_bias(f"{stem}1.pwconv2", (latent, 4 * latent)) | {f"{stem}1.gamma": (latent,)}
    shapes |= _with_bias("decoder.decoder.0.conv", (dim, latent, 7))
    for at, rate in enumerate(sizes.upsample_rates, 1):
        stem = f"decoder.decoder.{at}.block."
        shapes |= _snake(f"{stem}0", dim) | _with_bias(f"{stem}1.conv", (dim, dim // 2, 2 * rate), dim // 2)
        dim //= 2
        for unit in range(2, 2 + len(DILATIONS)):
            shapes |= _snake(f"{stem}{unit}.act1", dim) | _with_bias(f"{stem}{unit}.conv1.conv", (dim, dim, 7))
            shapes |= _snake(f"{stem}{unit}.act2", dim) | _with_bias(f"{stem}{unit}.conv2.conv", (dim, dim, 1))
    end = len(sizes.upsample_rates) + 1
    return shapes | _snake(f"decoder.decoder.{end}", dim) | _with_bias(f"decoder.decoder.{end + 1}.conv", (1, dim, 7))


def encoder_shapes(config: Qwen12Config) -> Shapes:
    """Return the published name and shape of each tensor of the encoder, including unused codebooks."""
    sizes, stem = config.encoder, "encoder.encoder.layers."
    channels, hidden, at = sizes.num_filters, sizes.hidden_size, 1
    shapes = _with_bias(f"{stem}0.conv", (channels, 1, sizes.kernel_size))
    for ratio in reversed(sizes.upsampling_ratios):
        narrow = channels // sizes.compress
        shapes |= _with_bias(f"{stem}{at}.block.1.conv", (narrow, channels, sizes.residual_kernel_size))
        shapes |= _with_bias(f"{stem}{at}.block.3.conv", (channels, narrow, 1))
        shapes |= _with_bias(f"{stem}{at + 2}.conv", (2 * channels, channels, 2 * ratio))
        channels, at = 2 * channels, at + 3
    shapes |= _with_bias(f"{stem}{at + 1}.conv", (hidden, channels, sizes.last_kernel_size))
    shapes |= _layers("encoder.encoder_transformer.layers.", sizes, {"fc1": False, "fc2": True}, ("weight", "bias"))
    shapes["encoder.downsample.conv.weight"] = (hidden, hidden, 2 * config.encoder_stride)
    for name, count in (("semantic", 1), ("acoustic", sizes.num_quantizers - 1)):
        stem = f"encoder.quantizer.{name}_residual_vector_quantizer."
        shapes[f"{stem}input_proj.weight"] = (sizes.codebook_dim, hidden, 1)
        shapes |= _books(f"{stem}layers.{{}}.codebook.embed_sum", count, sizes.codebook_size, sizes.codebook_dim)
    return shapes


def _with_bias(name: str, shape: tuple[int, ...], outputs: int | None = None) -> Shapes:
    return {f"{name}.weight": shape, f"{name}.bias": (outputs or shape[0],)}


def _snake(name: str, channels: int) -> Shapes:
    return {f"{name}.alpha": (channels,), f"{name}.beta": (channels,)}


def _books(sums: str, count: int, size: int, dim: int) -> Shapes:
    """Return the shapes of `count` codebooks; `sums` is the name of their sums, with {} for the codebook's number."""
    counts = sums.rpartition(".")[0] + ".cluster_usage"
    shapes: Shapes = {}
    for book in range(count):
        shapes |= {sums.format(book): (size, dim), counts.format(book): (size,)}
    return shapes


def _layers(stem: str, sizes: TransformerConfig, products: Mapping[str, bool], norm: tuple[str, ...]) -> Shapes:
    """Return the shapes of all layers. `products` names the linear layers of the feed-forward; the last one is true."""
    dim, inner = sizes.hidden_size, sizes.intermediate_size
    queries, keys = sizes.num_attention_heads * sizes.head_dim, sizes.num_key_value_heads * sizes.head_dim
    layer: Shapes = {f"self_attn.{name}_proj.weight": (keys, dim) for name in "kv"}
    layer |= {"self_attn.q_proj.weight": (queries, dim), "self_attn.o_proj.weight": (dim, queries)}
    layer |= {f"mlp.{name}.weight": (dim, inner) if is_last else (inner, dim) for name, is_last in products.items()}
    layer |= {f"{name}_layernorm.{part}": (dim,) for name in ("input", "post_attention") for part in norm}
    layer |= {f"{name}_layer_scale.scale": (dim,) for name in ("self_attn", "mlp")}
    return {f"{stem}{at}.{name}": shape for at in range(sizes.num_hidden_layers) for name, shape in layer.items()}


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
    tensors: Mapping[str, Tensor], prefix: str, names: Mapping[str, str], sizes: TransformerConfig
) -> dict[str, Tensor]:
    """Return the tensors of decoder or encoder, except the codebooks, with this engine's names."""
    named = {}
    for name, tensor in tensors.items():
        if not name.startswith(prefix) or ".quantizer." in name or ".k_proj." in name or ".v_proj." in name:
            continue
        ours = name
        for pattern, ourselves in {**names, **_BLOCK}.items():
            ours = re.sub(pattern, ourselves, ours)
        if name.endswith(_QUERY):
            query, key, value = (tensors[name.replace("q_proj", f"{each}_proj")] for each in "qkv")
            joined = (as_pairs(query, sizes.head_dim), as_pairs(key, sizes.head_dim), value)
            named[ours.replace(_QUERY, ".attention.wqkv.weight")] = torch.cat(joined)
        elif name.endswith((".alpha", ".beta")):
            named[ours] = tensor.float().exp().view(1, -1, 1)
        else:
            named[ours] = tensor
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
    named = _translate(tensors, "decoder.", _DECODER, config.decoder) | {"table": torch.stack(tables)}
    codec = fit(skeleton(lambda: Qwen12(config)), named, source=source, dtype=dtype, device=device)
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
    named = _translate(tensors, "encoder.", _ENCODER, config.encoder)
    named["projections"] = torch.stack([tensors[f"{stem}input_proj.weight"].squeeze(2) for stem in stems])
    named["books"] = torch.stack([_entries(tensors, f"{stem}codebook.", "embed_sum") for stem in books])
    return fit(skeleton(lambda: Encoder(config)), named, source=source, dtype=torch.float32, device=device)


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
