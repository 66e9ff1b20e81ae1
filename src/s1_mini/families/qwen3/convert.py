"""The compact form of a Qwen3-TTS checkpoint: its files under the same names, with fewer bytes.

By default, the model keeps its stored precision, and large kernels of the codec's decoder become float16. The codec's
encoder is stored in float32; `decode_only` drops it and the speaker encoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from s1_mini.codecs.qwen12 import weights as codec_weights
from s1_mini.codecs.qwen12.config import read_qwen12_config
from s1_mini.codecs.qwen12.speaker import PREFIX as SPEAKER_PREFIX
from s1_mini.exceptions import ParameterError
from s1_mini.families.base import CodecPrecision, Conversion
from s1_mini.families.qwen3.config import read_config
from s1_mini.families.qwen3.settings import CODEC_FOLDER, OPTIONAL_FILES, SMALL_FILES
from s1_mini.families.qwen3.tokenizer import Qwen2Tokenizer
from s1_mini.families.qwen3.weights import check
from s1_mini.weights.convert import ConvertedFile, Target, TensorFile, plan
from s1_mini.weights.directory import find_model
from s1_mini.weights.write import ArchiveEntry, copied


def compact_files(checkpoint: Path, conversion: Conversion) -> list[ArchiveEntry]:
    """Return all files; weights are read while the files are written.

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
        _model(checkpoint, conversion).member("model.safetensors"),
        _codec(checkpoint / CODEC_FOLDER, conversion).member(f"{CODEC_FOLDER}/model.safetensors"),
    ]


def _model(checkpoint: Path, conversion: Conversion) -> ConvertedFile:
    file, config = TensorFile(find_model(checkpoint)), read_config(checkpoint)
    check(config, file.shapes(), file.path.name)
    dropped = SPEAKER_PREFIX if conversion.decode_only else None
    targets = plan(file, lambda tensors: _without(tensors, dropped))
    dtype = None if conversion.precision == "keep" else getattr(torch, conversion.precision)
    return ConvertedFile({target: dtype or target.dtype for target in targets})


def _codec(folder: Path, conversion: Conversion) -> ConvertedFile:
    file, config = TensorFile(find_model(folder)), read_qwen12_config(folder)
    codec_weights.check(config, file.shapes(), encodes=False, source=f"{CODEC_FOLDER}/{file.path.name}")
    dropped = "encoder." if conversion.decode_only else None
    targets = plan(file, lambda tensors: _without(tensors, dropped))
    return ConvertedFile({target: _codec_dtype(target, conversion.codec_precision) for target in targets})


def _without(tensors: Mapping[str, Tensor], prefix: str | None) -> dict[str, Tensor]:
    return {name: x for name, x in tensors.items() if prefix is None or not name.startswith(prefix)}


def _codec_dtype(target: Target, precision: CodecPrecision) -> torch.dtype:
    """Return float16 for the decoder's large tensors if that is `precision`, otherwise float32."""
    decodes = target.name.startswith("decoder.") and "codebook" not in target.name
    return torch.float16 if precision == "float16" and decodes and target.is_large else torch.float32
