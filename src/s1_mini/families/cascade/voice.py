"""A voice of the cascade: the semantic tokens and codes of a few seconds of speech, in the formats that suno publishes.

`semantic_prompt` [n], `coarse_prompt` [2, m] and `fine_prompt` [8, m] are in one `.npz` file, or in files
`NAME_KEY.npy` that `speaker_embeddings_path.json` lists. torch is imported only by functions that return tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from s1_mini.exceptions import CheckpointFileError
from s1_mini.families.base import Description
from s1_mini.families.cascade.config import NUM_COARSE, CascadeConfig, Numbers, read_cascade_config
from s1_mini.voices.arrays import read_arrays
from s1_mini.voices.format import TensorFormat, Tensors, VoiceBeside, VoiceFormat
from s1_mini.weights.directory import read_json, read_whole

if TYPE_CHECKING:
    from torch import Tensor

KEYS = ("semantic_prompt", "coarse_prompt", "fine_prompt")
INDEX = "speaker_embeddings_path.json"
MAX_BYTES = 2 * 2**20  # limit of a file; the largest published file is 80 kB
MAX_FRAMES = 2**14  # limit of frames, and of semantic tokens, in a voice
ENCODER = "bark"  # of all checkpoints: each voice fits all of them, because they share codec and semantic tokens


def describe(directory: Path) -> Description:
    config = read_cascade_config(directory)
    return Description(config.codec.sampling_rate, voice_format(config), ("temperature", "top_p", "top_k"))


def voice_format(config: CascadeConfig) -> VoiceFormat:
    """Return the format of the voices of a checkpoint with this config."""
    numbers = config.numbers
    return VoiceFormat(
        tensors=_tensors(numbers),
        encoder=ENCODER,
        sample_rate=config.codec.sampling_rate,
        seconds=lambda shapes: shapes["coarse_prompt"][-1] / numbers.coarse_rate,
        fault=partial(fault, numbers),
        clones=False,
        from_arrays=partial(from_arrays, numbers),
        beside=partial(_beside, numbers),
    )


def _tensors(numbers: Numbers) -> dict[str, TensorFormat]:
    shapes = ((None,), (NUM_COARSE, None), (numbers.num_books, None))
    return {key: TensorFormat(shape, is_integer=True) for key, shape in zip(KEYS, shapes, strict=True)}


def fault(numbers: Numbers, tensors: Tensors | Mapping[str, np.ndarray]) -> str:
    """Return why a voice is invalid, in words that continue a sentence after its name; empty if the voice is valid."""
    parts = {key: np.asarray(tensors[key]) for key in KEYS}
    semantic, coarse, fine = (parts[key] for key in KEYS)
    if coarse.shape[1] != fine.shape[1] or not np.array_equal(coarse, fine[:2]):
        return "has a fine_prompt that does not match its coarse_prompt: the first two rows must be equal"
    expected, ratio = numbers.ratio / 2, coarse.shape[1] / len(semantic)
    if round(ratio, 1) != round(expected, 1):
        return (
            f"has {len(semantic)} semantic tokens for {coarse.shape[1]} frames of codes; "
            f"it needs {expected:.2f} frames per token"
        )
    for key, limit in zip(KEYS, (numbers.semantic_size, numbers.codebook_size, numbers.codebook_size), strict=True):
        low, high = int(parts[key].min()), int(parts[key].max())
        if low < 0 or high >= limit:
            return f"has a {key} with the id {low if low < 0 else high}; use 0 to {limit - 1}"
    return ""


def from_arrays(numbers: Numbers, arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Convert the arrays of an `.npz` file to the tensors of a voice. Raises `ValueError` for an invalid voice."""
    import torch

    lacking = [key for key in KEYS if key not in arrays]
    if lacking:
        raise ValueError(f"it lacks {', '.join(lacking)}; a voice file needs {', '.join(KEYS)}")
    for key, expected in _tensors(numbers).items():
        array = arrays[key]
        is_integer = array.dtype.kind in "iu"
        if not is_integer or not expected.fits(array.shape, is_integer=True) or array.shape[-1] > MAX_FRAMES:
            raise ValueError(
                f"its {key} is {array.dtype} {list(array.shape)}; expected {expected}, at most {MAX_FRAMES} long"
            )
    return {key: torch.from_numpy(arrays[key].astype(np.int64)) for key in KEYS}


def published_voices(directory: Path) -> dict[str, dict[str, Path]]:
    """Return the files of a checkpoint's published voices, by voice name and key. Raises `CheckpointFileError`."""
    index = directory / INDEX
    if not index.is_file():
        return {}
    voices: dict[str, dict[str, Path]] = {}
    for title, places in read_json(index).items():
        if title == "repo_or_path":
            continue
        name = title.lower().replace("/", "-")
        if not isinstance(places, Mapping) or any(not isinstance(places.get(key), str) for key in KEYS):
            raise CheckpointFileError(f"{index}: {title[:80]!r} must name a file for each of {', '.join(KEYS)}")
        voices[name] = {key: directory / places[key] for key in KEYS}
        for file in voices[name].values():
            if not file.is_relative_to(directory) or ".." in file.relative_to(directory).parts:
                raise CheckpointFileError(f"{index}: {title[:80]!r} names a file outside the checkpoint")
    return voices


def _beside(numbers: Numbers, directory: Path) -> dict[str, VoiceBeside]:
    return {
        name: VoiceBeside(partial(_read_shapes, files, name), partial(read_published, numbers, files, name))
        for name, files in published_voices(directory).items()
    }


def _read_published(files: Mapping[str, Path], name: str) -> dict[str, np.ndarray]:
    try:
        return {key: read_arrays(read_whole(file, MAX_BYTES))[""] for key, file in files.items()}
    except (ValueError, KeyError) as error:
        raise CheckpointFileError(f"the checkpoint's voice {name} cannot be read: {error}") from None


def _read_shapes(files: Mapping[str, Path], name: str) -> dict[str, tuple[int, ...]]:
    return {key: array.shape for key, array in _read_published(files, name).items()}


def read_published(numbers: Numbers, files: Mapping[str, Path], name: str) -> dict[str, Tensor]:
    """Read one of a checkpoint's published voices. Raises `CheckpointFileError`."""
    try:
        voice = from_arrays(numbers, _read_published(files, name))
    except ValueError as error:
        raise CheckpointFileError(f"the checkpoint's voice {name} is invalid: {error}") from None
    if reason := fault(numbers, voice):
        raise CheckpointFileError(f"the checkpoint's voice {name} {reason}")
    return voice
