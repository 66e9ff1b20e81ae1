"""Translate the published tensors of a Qwen3-TTS checkpoint, and write its compact form.

The text projection is folded into the rows of the text embeddings, and the projection into the depth transformer into
the rows of its tables. The original rotates the pairs (i, i + D / 2), and this engine the pairs (2 i, 2 i + 1), so the
rows of queries and keys are reordered.

The compact form has the same files with fewer bytes. By default, the model keeps its stored precision, and large
kernels of the codec's decoder become float16. The codec's encoder is stored in float32; `decode_only` drops it and the
speaker encoder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.codecs.qwen12 import weights as codec_weights
from s1_mini.codecs.qwen12.config import read_qwen12_config
from s1_mini.codecs.qwen12.speaker import PREFIX as SPEAKER_PREFIX
from s1_mini.exceptions import ParameterError
from s1_mini.families.base import Conversion
from s1_mini.families.qwen3.config import Qwen3Config, read_config
from s1_mini.families.qwen3.network import ZERO_ROWS, Qwen3Network
from s1_mini.families.qwen3.settings import CODEC_FOLDER, OPTIONAL_FILES, SMALL_FILES
from s1_mini.families.qwen3.tokenizer import Qwen2Tokenizer
from s1_mini.layers.transformer import TransformerBlock
from s1_mini.weights.convert import is_large, tensor_file
from s1_mini.weights.directory import find_model
from s1_mini.weights.files import read_tensors
from s1_mini.weights.fit import as_pairs, check_shapes, fit, skeleton
from s1_mini.weights.write import ArchiveEntry, copied

FOLD_ROWS = 16_384  # rows of a table that are projected at once
_PARTS = {"talker.model.": "", "talker.code_predictor.model.": "fast_"}
_BLOCK = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attention.wo",
    "self_attn.q_norm": "attention.q_norm",
    "self_attn.k_norm": "attention.k_norm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}
_LAYER = re.compile(r"layers\.(\d+)\.(.+)\.weight")


def published_shapes(config: Qwen3Config) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of `model.safetensors`, except those of the speaker encoder."""
    backbone, depth, books = config.backbone, config.depth, config.num_codebooks
    shapes: dict[str, tuple[int, ...]] = {
        "talker.model.text_embedding.weight": (config.text_vocab_size, config.text_dim),
        "talker.text_projection.linear_fc1.weight": (config.text_dim, config.text_dim),
        "talker.text_projection.linear_fc1.bias": (config.text_dim,),
        "talker.text_projection.linear_fc2.weight": (backbone.dim, config.text_dim),
        "talker.text_projection.linear_fc2.bias": (backbone.dim,),
        "talker.model.codec_embedding.weight": (config.vocab_size, backbone.dim),
        "talker.codec_head.weight": (config.vocab_size, backbone.dim),
    }
    predictor = "talker.code_predictor."
    for book in range(books - 1):
        shapes[f"{predictor}model.codec_embedding.{book}.weight"] = (config.code_size, backbone.dim)
        shapes[f"{predictor}lm_head.{book}.weight"] = (config.code_size, depth.dim)
    if backbone.dim != depth.dim:
        shapes[f"{predictor}small_to_mtp_projection.weight"] = (depth.dim, backbone.dim)
        shapes[f"{predictor}small_to_mtp_projection.bias"] = (depth.dim,)
    for prefix, block, layers in zip(
        _PARTS, (backbone, depth), (config.num_layers, config.num_depth_layers), strict=True
    ):
        shapes[f"{prefix}norm.weight"] = (block.dim,)
        own = dict(skeleton(partial(TransformerBlock, block)).named_parameters())
        layer = {name: tuple(own[f"{ours}.weight"].shape) for name, ours in _BLOCK.items()}
        for each, heads in zip("qkv", (block.num_heads, block.num_kv_heads, block.num_kv_heads), strict=True):
            layer[f"self_attn.{each}_proj"] = heads * block.head_dim, block.dim
        shapes |= {f"{prefix}layers.{at}.{name}.weight": shape for at in range(layers) for name, shape in layer.items()}
    return shapes


def check(config: Qwen3Config, tensors: Mapping[str, Tensor], source: str) -> None:
    """Raise `CheckpointMismatchError` unless the tensors of the language model fit its config."""
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith(SPEAKER_PREFIX)}
    check_shapes(published_shapes(config), own, source=source)


def build_network(
    config: Qwen3Config, tensors: Mapping[str, Tensor], *, dtype: torch.dtype, device: torch.device, source: str
) -> Qwen3Network:
    """Build the network from the published tensors. Raises `CheckpointMismatchError` if they do not fit the config."""
    check(config, tensors, source)
    network = skeleton(lambda: Qwen3Network(config))
    return fit(network, translate(config, tensors, dtype, device), source=source, dtype=dtype, device=device)


def translate(
    config: Qwen3Config, tensors: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device
) -> dict[str, Tensor]:
    """Return the tensors of the network by its names; folded tensors are computed in `dtype` on `device`."""
    size, books = config.code_size, config.num_codebooks
    take = partial(_take, tensors, dtype, device)
    predictor = "talker.code_predictor."
    first = take("talker.model.codec_embedding.weight")
    others = [take(f"{predictor}model.codec_embedding.{book}.weight") for book in range(books - 1)]
    zeros = first.new_zeros(ZERO_ROWS, first.shape[1])
    head = take("talker.codec_head.weight")
    named = {
        "text_embeddings.weight": _project_text(take, tensors["talker.model.text_embedding.weight"]),
        "code_embeddings.weight": torch.cat((first[:size], *others, first[size:], zeros)),
        "output.weight": torch.cat((head[:size], head[config.codec.end : config.codec.end + 1])),
        "fast_output": torch.cat([take(f"{predictor}lm_head.{book}.weight") for book in range(books - 1)]),
    }
    tables = torch.cat((first[:size], *others[:-1]))
    if config.backbone.dim != config.depth.dim:
        project = take(f"{predictor}small_to_mtp_projection.weight"), take(f"{predictor}small_to_mtp_projection.bias")
        named["fast_project_in.weight"], named["fast_project_in.bias"] = project
        tables = F.linear(tables, *project)
    named["fast_embeddings"] = tables
    for (prefix, part), block in zip(_PARTS.items(), (config.backbone, config.depth), strict=True):
        named[f"{part}norm.weight"] = take(f"{prefix}norm.weight")
        for name in tensors:
            found = _LAYER.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
            if found is None:
                continue
            layer, field = f"{part}layers.{found[1]}", found[2]
            if field == "self_attn.q_proj":
                query, key, value = (take(name.replace("q_proj", f"{each}_proj")) for each in "qkv")
                rotated = as_pairs(torch.cat((query, key)), block.head_dim)
                named[f"{layer}.attention.wqkv.weight"] = torch.cat((rotated, value))
            elif field in _BLOCK:
                is_head_norm = field in {"self_attn.q_norm", "self_attn.k_norm"}
                named[f"{layer}.{_BLOCK[field]}.weight"] = (
                    as_pairs(take(name), block.head_dim) if is_head_norm else take(name)
                )
    return named


def _take(tensors: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device, name: str) -> Tensor:
    return tensors[name].to(device=device, dtype=dtype)


def _project_text(take: partial[Tensor], table: Tensor) -> Tensor:
    prefix = "talker.text_projection.linear_fc"
    first, second = ((take(f"{prefix}{layer}.weight"), take(f"{prefix}{layer}.bias")) for layer in "12")
    rows = [F.linear(F.silu(F.linear(part.to(first[0]), *first)), *second) for part in table.split(FOLD_ROWS)]
    return torch.cat(rows)


def compact_files(checkpoint: Path, conversion: Conversion) -> list[ArchiveEntry]:
    """Return all files.

    Raises `CheckpointError`, or `ParameterError` for int8, or for float16 as the model's precision.
    """
    conversion.check_not_int8("Qwen3-TTS")
    if conversion.precision == "float16":
        reason = "is not available for Qwen3-TTS, which overflows in float16; use keep, bfloat16 or float32"
        raise ParameterError("precision", f"'float16' {reason}")
    Qwen2Tokenizer.from_directory(checkpoint)
    optional = [name for name in OPTIONAL_FILES if (checkpoint / name).is_file()]
    return [
        *(copied(checkpoint / name, name) for name in (*SMALL_FILES, *optional)),
        _model(checkpoint, conversion),
        _codec(checkpoint / CODEC_FOLDER, conversion),
    ]


def _model(checkpoint: Path, conversion: Conversion) -> ArchiveEntry:
    path = find_model(checkpoint)
    tensors = read_tensors(path)
    check(read_config(checkpoint), tensors, path.name)
    dtype = None if conversion.precision == "keep" else getattr(torch, conversion.precision)
    kept = _without(SPEAKER_PREFIX, tensors) if conversion.decode_only else tensors
    return tensor_file("model.safetensors", kept, lambda _, tensor: dtype or tensor.dtype)


def _codec(folder: Path, conversion: Conversion) -> ArchiveEntry:
    path = find_model(folder)
    name, tensors = f"{CODEC_FOLDER}/model.safetensors", read_tensors(path)
    codec_weights.check(read_qwen12_config(folder), tensors, encodes=False, source=f"{CODEC_FOLDER}/{path.name}")

    def dtype_of(name: str, tensor: Tensor) -> torch.dtype:
        decodes = name.startswith("decoder.") and "codebook" not in name
        rounds = conversion.codec_precision == "float16" and decodes and is_large(tensor)
        return torch.float16 if rounds else torch.float32

    return tensor_file(name, _without("encoder.", tensors) if conversion.decode_only else tensors, dtype_of)


def _without(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(prefix)}
