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
from torch import Tensor

from s1_mini.codecs.encodec import weights as codec_weights
from s1_mini.families.base import Conversion
from s1_mini.families.cascade.config import COMPACT
from s1_mini.families.cascade.tokenizer import find_vocabulary
from s1_mini.families.cascade.voice import published_voices, read_published
from s1_mini.families.cascade.weights import (
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
from s1_mini.weights.convert import ConvertedFile, Target, TensorFile, plan
from s1_mini.weights.directory import read_json
from s1_mini.weights.weight_norm import folded_name
from s1_mini.weights.write import Member, copied, voice_file, written

_UNUSED_HEAD = PREFIXES["fine"] + "lm_heads.0.weight"


def compact_files(checkpoint: Path, conversion: Conversion) -> list[Member]:
    """Return all files; the weights are read with their chunks. Raises `CheckpointError`."""
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
        tensors = for_file(read_published(config.numbers, files, name))
        members.append(voice_file(f"{VOICES}/{name}.safetensors", tensors))
    return members


def _converted(stage: str, path: Path, conversion: Conversion) -> ConvertedFile:
    file = TensorFile(path)
    translate = partial(_translate, stage, decode_only=conversion.decode_only)
    return ConvertedFile({one: _dtype(stage, one, conversion) for one in plan(file, translate, folded_name)})


def _dtype(stage: str, target: Target, conversion: Conversion) -> torch.dtype:
    """Return the format to write; of the codec, what is small or decides on codes stays in float32."""
    if stage == "codec":
        decides = ".quantizer." in target.name or ".encoder." in target.name
        rounds = conversion.codec_precision == "float16" and not decides and target.is_large
        return torch.float16 if rounds else torch.float32
    return target.dtype if conversion.precision == "keep" else getattr(torch, conversion.precision)


def _translate(stage: str, tensors: Mapping[str, Tensor], *, decode_only: bool) -> dict[str, Tensor]:
    """Return the tensors of a stage by their published names, without what is never read."""
    prefix = PREFIXES[stage]
    named = {name: tensor for name, tensor in named_as_published(stage, tensors).items() if name.startswith(prefix)}
    if stage != "codec":
        return {name: value for name, value in named.items() if not is_mask(name, value) and name != _UNUSED_HEAD}
    translated = codec_weights.translate(named, prefix=prefix, encodes=not decode_only)
    return {prefix + name: tensor for name, tensor in translated.items()}
