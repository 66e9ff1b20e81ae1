"""The files of a SpeechT5 checkpoint in the compact form: safetensors, dead buffers gone, projections joined.

The model keeps the precision it is stored in, or its layers get another; prenet, heads and post-net stay in float32.
Of the vocoder, the large kernels become float16.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from s1_mini.codecs.hifigan.model import check_hifigan
from s1_mini.families.base import Conversion
from s1_mini.families.mel import weights
from s1_mini.families.mel.config import FOLDERS, KEY, MelConfig, VocoderFiles, read_configs
from s1_mini.families.mel.tokenizer import FILE, CharTokenizer
from s1_mini.families.mel.voice import vectors_beside
from s1_mini.voices.format import for_file
from s1_mini.voices.library import FOLDER as VOICES
from s1_mini.voices.library import SUFFIX
from s1_mini.weights.convert import ConvertedFile, TensorFile, plan
from s1_mini.weights.directory import find_model, read_json
from s1_mini.weights.write import Member, copied, voice_file, written

_LAYERS = (".wrapped_encoder.layers.", ".wrapped_decoder.layers.")


def compact_files(checkpoint: Path, conversion: Conversion) -> list[Member]:
    """Return all files; the weights are read with their chunks. Raises `CheckpointError`."""
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
    """Yield the voices of `.npy` files in the engine's format."""
    for name, voice in vectors_beside(size, checkpoint).items():
        if not (checkpoint / VOICES / f"{name}{SUFFIX}").exists():
            yield voice_file(f"{VOICES}/{name}{SUFFIX}", for_file(voice.read()))


def _model(checkpoint: Path, config: MelConfig, conversion: Conversion) -> ConvertedFile:
    file = TensorFile(find_model(checkpoint))
    targets = plan(file, weights.translate, weights.joined_name)
    weights.check(config, weights.translate(file.shapes()), file.path)
    if conversion.precision == "keep":
        return ConvertedFile({target: target.dtype for target in targets})
    dtype = getattr(torch, conversion.precision)
    return ConvertedFile(
        {one: dtype if any(part in f".{one.name}" for part in _LAYERS) else torch.float32 for one in targets}
    )


def _vocoder(files: VocoderFiles, conversion: Conversion) -> ConvertedFile:
    def translate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        prefix = files.prefix
        return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}

    file = TensorFile(files.weights)
    check_hifigan(files.config, translate(file.shapes()), str(files.weights))
    rounds = conversion.codec_precision == "float16"
    return ConvertedFile(
        {one: torch.float16 if rounds and one.is_large else torch.float32 for one in plan(file, translate)}
    )
