"""The files of a cascade in the compact form: one of safetensors for each model, and voices as the engine keeps them.

Masks and what only training needs are left out, the codec's weight norm is folded. The models keep the precision that
they are stored in, or get another; the codec's is float32, or float16 where that holds its large kernels.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from s1_mini.codecs.encodec import weights as codec_weights
from s1_mini.families.base import CodecPrecision, Conversion
from s1_mini.families.cascade.tokenizer import find_vocabulary
from s1_mini.families.cascade.voice import published_voices, read_published
from s1_mini.families.cascade.weights import (
    COMPACT,
    PREFIXES,
    check,
    find_parts,
    is_mask,
    is_suno,
    named_as_published,
    read_config,
    read_models,
    read_suno,
    suno_sizes,
)
from s1_mini.voices.format import for_file
from s1_mini.voices.library import FOLDER as VOICES
from s1_mini.weights.directory import read_json
from s1_mini.weights.members import Member, copied, written
from s1_mini.weights.stream import ConvertedFile, TensorFile, plan
from s1_mini.weights.weight_norm import folded_name

_SMALL = 2**16  # elements; smaller tensors are not worth rounding
_UNUSED_HEAD = PREFIXES["fine"] + "lm_heads.0.weight"


def compact_files(checkpoint: Path, conversion: Conversion) -> list[Member]:
    """Give all files, the weights read when their chunks are asked for. Raises `CheckpointError`."""
    conversion.check_wide("a cascade")
    config, parts = read_config(checkpoint), find_parts(checkpoint)
    for file in {file for file in parts.values() if is_suno(file)}:
        read_suno(file)  # which tells a way out for what is more than tensors
    tensors = read_models(checkpoint)
    check(config, tensors, checkpoint.name)
    codec_weights.check(config.codec, tensors, prefix=PREFIXES["codec"], source=f"{PREFIXES['codec']}*")
    values = read_json(checkpoint / "config.json")
    for name, part in suno_sizes(checkpoint).items():  # which the new files do not tell
        values[name] = {**part, **values.get(name, {})}
    members = [written("config.json", json.dumps(values, indent=2) + "\n")]
    if (checkpoint / "generation_config.json").exists():
        members.append(copied(checkpoint / "generation_config.json", "generation_config.json"))
    vocabulary = find_vocabulary(checkpoint)
    members.append(copied(vocabulary, vocabulary.name))
    for stage, file in parts.items():
        members.append(_converted(stage, file, conversion).member(COMPACT[stage]))
    for name, files in published_voices(checkpoint).items():
        content = save(for_file(read_published(config.numbers, files, name)), metadata={"text": "", "default": "false"})
        members.append(Member(f"{VOICES}/{name}.safetensors", len(content), partial(iter, [content])))
    return members


def _converted(stage: str, path: Path, conversion: Conversion) -> ConvertedFile:
    file = TensorFile(path)
    translate = partial(_translate, stage, decode_only=conversion.decode_only)
    targets = plan(file, translate, folded_name)
    shapes = translate(file.shapes())
    stored = {target: shapes[target.name].dtype for target in targets}
    if stage == "codec":
        stored = {
            target: _codec_dtype(target.name, target.num_elements, conversion.codec_precision) for target in targets
        }
    elif conversion.precision != "keep":
        stored = dict.fromkeys(stored, getattr(torch, conversion.precision))
    return ConvertedFile(file, translate, stored)


def _codec_dtype(name: str, num_elements: int, precision: CodecPrecision) -> torch.dtype:
    """Give the format of a tensor of the codec: what decides on codes, or is small, stays as it is."""
    decides = ".quantizer." in name or ".encoder." in name
    if precision == "float16" and not decides and num_elements >= _SMALL:
        return torch.float16
    return torch.float32


def _translate(stage: str, tensors: Mapping[str, Tensor], *, decode_only: bool) -> dict[str, Tensor]:
    """Give the tensors of a stage their published names, without what is never read."""
    prefix = PREFIXES[stage]
    named = {name: tensor for name, tensor in named_as_published(stage, tensors).items() if name.startswith(prefix)}
    if stage != "codec":
        return {name: value for name, value in named.items() if not is_mask(name, value) and name != _UNUSED_HEAD}
    translated = codec_weights.translate(named, prefix=prefix, encodes=not decode_only)
    return {prefix + name: tensor for name, tensor in translated.items()}
