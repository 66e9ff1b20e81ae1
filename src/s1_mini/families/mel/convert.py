"""The files of a SpeechT5 checkpoint in the compact form: safetensors, dead buffers gone, projections joined.

The model keeps the precision it is stored in, or its layers get another; prenet, heads and post-net stay in float32.
Of the vocoder, the large kernels become float16.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from s1_mini.codecs.hifigan import weights as vocoder_weights
from s1_mini.families.base import Conversion
from s1_mini.families.mel import weights
from s1_mini.families.mel.config import MelConfig
from s1_mini.families.mel.files import FOLDERS, KEY, VocoderFiles, read_configs
from s1_mini.families.mel.tokenizer import FILE, CharTokenizer
from s1_mini.families.mel.voice import vectors_beside
from s1_mini.voices.format import for_file
from s1_mini.voices.library import FOLDER as VOICES
from s1_mini.voices.library import SUFFIX
from s1_mini.weights.directory import find_model, read_json
from s1_mini.weights.members import Member, copied, written
from s1_mini.weights.stream import ConvertedFile, TensorFile, plan

_SMALL = 2**16  # elements; smaller tensors are not worth rounding
_LAYERS = (".wrapped_encoder.layers.", ".wrapped_decoder.layers.")


def compact_files(checkpoint: Path, conversion: Conversion) -> list[Member]:
    """Give all files but voices, the weights read when their chunks are asked for. Raises `CheckpointError`."""
    conversion.check_wide("SpeechT5")
    config, vocoder = read_configs(checkpoint)
    CharTokenizer.from_directory(checkpoint, config)
    told = read_json(checkpoint / "config.json")
    inside = told.pop(KEY, None)
    folder = vocoder.weights.parent
    sizes = inside if vocoder.prefix else read_json(folder / "config.json")
    return [
        written("config.json", json.dumps(told, indent=2) + "\n"),
        copied(checkpoint / FILE, FILE),
        _model(checkpoint, config, conversion).member("model.safetensors"),
        written(f"{FOLDERS[0]}/config.json", json.dumps(sizes, indent=2) + "\n"),
        _vocoder(vocoder, conversion).member(f"{FOLDERS[0]}/model.safetensors"),
        *_vectors(checkpoint, config.speaker_size),
    ]


def _vectors(checkpoint: Path, size: int) -> Iterator[Member]:
    """Give the voices that lie there as .npy as the engine keeps them."""
    for name, voice in vectors_beside(size, checkpoint).items():
        if not (checkpoint / VOICES / f"{name}{SUFFIX}").exists():
            content = save(for_file(voice.read()), metadata={"text": ""})
            yield Member(f"{VOICES}/{name}{SUFFIX}", len(content), partial(iter, [content]))


def _model(checkpoint: Path, config: MelConfig, conversion: Conversion) -> ConvertedFile:
    file = TensorFile(find_model(checkpoint))
    targets = plan(file, weights.translate, weights.joined_name)
    named = weights.translate(file.shapes())
    weights.check(config, named, file.path)
    stored = {target: named[target.name].dtype for target in targets}
    if conversion.precision != "keep":
        wanted = getattr(torch, conversion.precision)
        stored = {
            target: wanted if any(part in f".{target.name}" for part in _LAYERS) else torch.float32
            for target in targets
        }
    return ConvertedFile(file, weights.translate, stored)


def _vocoder(files: VocoderFiles, conversion: Conversion) -> ConvertedFile:
    def translate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        prefix = files.prefix
        return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}

    file = TensorFile(files.weights)
    vocoder_weights.check(files.config, translate(file.shapes()), str(files.weights))
    targets = plan(file, translate)
    rounds = conversion.codec_precision == "float16"
    return ConvertedFile(
        file,
        translate,
        {target: torch.float16 if rounds and target.num_elements >= _SMALL else torch.float32 for target in targets},
    )
