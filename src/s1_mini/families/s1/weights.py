"""Load the tensors of an S1 checkpoint strictly, and write its compact form.

The compact form has plain weights instead of weight norm, and no unused buffers. By default, the model keeps its stored
precision, and large kernels of the codec become float16; small tensors, and tensors that determine codes, become
float16 only if that is lossless. S1-mini's codec shrinks from 1.87 GB to 0.8 GB. With `int8`, large tables and
kernels are quantized with one scale per row.
"""

from __future__ import annotations

import dataclasses
import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from s1_mini.codecs.dac import weights as dac_weights
from s1_mini.codecs.dac.config import DacConfig
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.families.base import CodecPrecision, Conversion, ModelPrecision
from s1_mini.families.s1.config import S1Config, read_configs
from s1_mini.families.s1.network import S1Network
from s1_mini.families.s1.settings import AUDIO8_OPTIONAL, Heads
from s1_mini.families.s1.tokenizer import S1Tokenizer, Vocabulary, read_vocabulary
from s1_mini.weights.convert import is_large, steady_arithmetic, tensor_file
from s1_mini.weights.directory import find_tensors, read_json
from s1_mini.weights.files import read_tensors
from s1_mini.weights.fit import check_fit, fit, rename, skeleton, strip_prefix
from s1_mini.weights.int8 import SUFFIX
from s1_mini.weights.write import ArchiveEntry, copied, written

_MIN_QUANTIZED = 2**14  # elements; quantizing smaller tensors saves too little
_JOINED = ("wq", "wk", "wv")


def translate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors with the network's names: wrapper prefixes removed, `audio_*` dropped, legacy wq/wk/wv joined.

    Tensors that already have these names are returned unchanged. Prefixes of related models (`text_model.model.`,
    `audio_decoder.`) are translated as in the reference implementation's loader for S2.
    """
    named = strip_prefix(strip_prefix(tensors, "text_model.model."), "model.")
    if not any(name.startswith("fast_") for name in named):
        named = rename(named, _sibling_name)
    named = {name: tensor for name, tensor in named.items() if "audio_" not in name}
    for name in [name for name in named if ".wq." in name]:
        named[name.replace(".wq.", ".wqkv.")] = _join(named, name)
    return named


def _join(named: dict[str, Tensor], name: str) -> Tensor:
    parts = [name.replace(".wq.", f".{part}.") for part in _JOINED]
    missing = [part for part in parts if part not in named]
    if missing:
        raise CheckpointMismatchError(f"legacy attention weights are incomplete: {', '.join(missing)} missing")
    if name.replace(".wq.", ".wqkv.") in named:
        raise CheckpointMismatchError(f"attention weights exist both joined and as {name}")
    tensors = [named.pop(part) for part in parts]
    if len({tensor.shape[1:] for tensor in tensors}) > 1 or tensors[0].dim() == 0:
        raise CheckpointMismatchError(f"legacy attention weights {', '.join(parts)} have incompatible shapes")
    return torch.cat(tensors)


def _sibling_name(name: str) -> str:
    if not name.startswith("audio_decoder."):
        return name
    rest = name.removeprefix("audio_decoder.")
    return rest if rest.startswith("codebook_embeddings.") else f"fast_{rest}"


def _tie(config: S1Config, named: dict[str, Tensor], source: str) -> None:
    """If head and embeddings are tied, use the embeddings as the head. Raise if the file has a different head."""
    if not config.tie_word_embeddings or "embeddings.weight" not in named:
        return
    if "output.weight" not in named and "embeddings.weight" + SUFFIX in named:
        named["output.weight" + SUFFIX] = named["embeddings.weight" + SUFFIX]
    own = named.setdefault("output.weight", named["embeddings.weight"])
    if own is not named["embeddings.weight"] and not torch.equal(own, named["embeddings.weight"]):
        raise CheckpointMismatchError(
            f"{source}: config.json ties the head to the embeddings, but the file has a different head"
        )


def build_network(
    config: S1Config,
    tokenizer: S1Tokenizer,
    tensors: Mapping[str, Tensor],
    *,
    heads: Heads,
    residual_codes: int | None,
    dtype: torch.dtype,
    device: torch.device,
    source: str,
) -> S1Network:
    """Build the network, with restricted heads unless `heads` is full.

    `residual_codes` is the size of the codec's residual codebooks; the model's may be larger.
    Raises `CheckpointMismatchError` if config, vocabulary and weights contradict each other.
    """
    _check_vocabulary(config, tokenizer)
    named = translate(tensors)
    _tie(config, named, source)
    semantic_rows, residual_rows = config.vocab_size, config.residual_codebook_size
    if heads == "restricted":
        rows = [*range(tokenizer.semantic_begin, tokenizer.semantic_end + 1), tokenizer.control("im_end")]
        semantic_rows, residual_rows = len(rows), min(residual_rows, residual_codes or residual_rows)
        _keep_rows(named, "output.weight", config.vocab_size, rows, source)
    _keep_rows(named, "fast_output.weight", config.codebook_size, slice(residual_rows), source)
    network = skeleton(lambda: S1Network(config, semantic_rows=semantic_rows, residual_rows=residual_rows))
    return fit(network, named, source=source, dtype=dtype, device=device)


def check(directory: Path, translated: Mapping[str, Tensor]) -> None:
    """Raise `CheckpointError` unless the tensors from `translate` fit the directory's config and vocabulary."""
    config = S1Config.from_json(read_json(directory / "config.json"))
    _check_vocabulary(config, read_vocabulary(directory, config.dialect.files))
    named = dict(translated)
    _tie(config, named, f"the model of {directory}")
    check_fit(full_network(config), named, source=f"the model of {directory}")


def full_network(config: S1Config) -> S1Network:
    """Return the network with all rows of its heads, on the meta device."""
    return skeleton(lambda: S1Network(config, semantic_rows=config.vocab_size, residual_rows=config.codebook_size))


def _check_vocabulary(config: S1Config, tokenizer: S1Tokenizer | Vocabulary) -> None:
    begin, end = tokenizer.semantic_begin, tokenizer.semantic_end
    stated = (config.semantic_begin, config.semantic_end)
    if any(value is not None for value in stated) and stated != (begin, end):
        raise CheckpointMismatchError(
            f"config.json puts semantic tokens at {reprlib.repr(stated)}, but {tokenizer.source} at {(begin, end)}"
        )
    im_end = tokenizer.special_tokens.get("<|im_end|>")
    if config.end not in (None, im_end):
        raise CheckpointMismatchError(
            f"config.json: eos_token_id={reprlib.repr(config.end)} must be {im_end}, the id of <|im_end|> in "
            f"{tokenizer.source}"
        )
    if tokenizer.highest_id >= config.vocab_size:
        raise CheckpointMismatchError(
            f"the vocabulary has id {tokenizer.highest_id}, but config.json's vocab_size is {config.vocab_size}"
        )
    if end - begin + 1 > config.codebook_size:
        raise CheckpointMismatchError(
            f"{tokenizer.source} has {end - begin + 1} semantic tokens, but "
            f"config.json's codebook_size is {config.codebook_size}"
        )


def _keep_rows(named: dict[str, Tensor], name: str, stored: int, rows: slice | list[int], source: str) -> None:
    """Reduce a head to `rows`. Raise unless it has `stored` rows, which is the number in the config."""
    if name not in named:
        return  # `fit` will raise an error that names the missing head
    if named[name].dim() != 2 or len(named[name]) != stored:
        raise CheckpointMismatchError(
            f"{source} does not match its config: {name} {tuple(named[name].shape)} must have {stored} rows"
        )
    for part in (name, name + SUFFIX):
        if part in named and named[part].dim():
            named[part] = named[part][rows]


@steady_arithmetic()
def compact_files(checkpoint: Path, conversion: Conversion) -> list[ArchiveEntry]:
    """Return all files of the compact form except voices. Raises `CheckpointError`."""
    config, codec = read_configs(checkpoint)
    generation = [AUDIO8_OPTIONAL] if config.dialect.chat and (checkpoint / AUDIO8_OPTIONAL).is_file() else []
    return [
        *(copied(checkpoint / name, name) for name in (*config.dialect.files, *generation)),
        written("codec_config.json", json.dumps(dataclasses.asdict(codec), indent=2) + "\n"),
        _model(checkpoint, conversion.precision),
        _codec(checkpoint, codec, conversion.codec_precision, decode_only=conversion.decode_only),
    ]


def _model(checkpoint: Path, precision: ModelPrecision) -> ArchiveEntry:
    named = translate(read_tensors(find_tensors(checkpoint, "model")))
    check(checkpoint, named)

    def dtype_of(_: str, tensor: Tensor) -> torch.dtype:
        if precision not in ("keep", "int8"):
            return cast("torch.dtype", getattr(torch, precision))
        return torch.int8 if precision == "int8" and _can_quantize(tensor) else tensor.dtype

    return tensor_file("model.safetensors", named, dtype_of)


def _can_quantize(tensor: Tensor) -> bool:
    """Return whether int8 saves enough bytes: the tensor has at least two axes, and enough elements.

    Rows of one or two numbers would grow, because each row gets a scale.
    """
    return tensor.dim() > 1 and tensor.numel() >= max(_MIN_QUANTIZED, 3 * len(tensor))


def _codec(checkpoint: Path, config: DacConfig, precision: CodecPrecision, *, decode_only: bool) -> ArchiveEntry:
    stored = read_tensors(find_tensors(checkpoint, "codec"))
    encodes = dac_weights.can_encode(stored) and not decode_only
    named = dac_weights.translate(stored, encodes=encodes)
    dac_weights.check(config, named, encodes=encodes)

    def dtype_of(name: str, tensor: Tensor) -> torch.dtype:
        determines_codes = "codebook" in name or "in_proj" in name
        quantizes = precision == "int8" and _can_quantize(tensor) and not determines_codes
        if precision != "float32" and (quantizes or tensor.dtype == torch.int8):
            return torch.int8
        rounds = precision != "float32" and _may_round(tensor, determines_codes=determines_codes)
        return torch.float16 if rounds else torch.float32

    return tensor_file("codec.safetensors", named, dtype_of)


def _may_round(tensor: Tensor, *, determines_codes: bool) -> bool:
    """Return whether a codec tensor may become float16: this is lossless, or it is large and determines no codes."""
    if is_large(tensor) and not determines_codes and bool(tensor.abs().max() < torch.finfo(torch.float16).max):
        return True
    return torch.equal(tensor.half().to(tensor.dtype), tensor)
