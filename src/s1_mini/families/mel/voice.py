"""A voice of SpeechT5: a speaker vector (x-vector). This engine cannot compute speaker vectors from recordings.

Vectors are published as `.npy` files. Each such file in a checkpoint's `voices/` is a voice with the name of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from s1_mini.exceptions import CheckpointFileError
from s1_mini.voices.arrays import read_arrays
from s1_mini.voices.format import TensorFormat, Tensors, VoiceBeside, VoiceFormat
from s1_mini.weights.directory import read_whole

if TYPE_CHECKING:
    from torch import Tensor

SPEAKER = "speaker"
NOT_FINITE = "contains NaN or infinity"
MAX_BYTES = 2**20  # limit of a file with one vector


def voice_format(size: int, sample_rate: int) -> VoiceFormat:
    return VoiceFormat(
        tensors={SPEAKER: TensorFormat((size,), is_integer=False)},
        encoder=f"vectors of {size}",
        sample_rate=sample_rate,
        seconds=lambda _: 0.0,
        fault=_fault,
        clones=False,
        from_arrays=lambda arrays: _as_voice(_vector(size, arrays)),
        beside=partial(vectors_beside, size),
    )


def _vector(size: int, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the only array of a file, [size] or [1, size]. Raises `ValueError` for other content."""
    if len(arrays) != 1:
        raise ValueError(f"it contains {len(arrays)} arrays, not one speaker vector")
    (vector,) = arrays.values()
    if vector.dtype.kind != "f" or vector.shape not in {(size,), (1, size)}:
        raise ValueError(f"it contains {vector.dtype} {list(vector.shape)}, not floats [{size}]")
    return vector.reshape(size).astype(np.float32)


def vectors_beside(size: int, directory: Path) -> dict[str, VoiceBeside]:
    """Return the voices of a checkpoint that are `.npy` files, by name."""
    files = sorted((directory / "voices").glob("*.npy"))
    return {file.stem: _beside(size, file) for file in files}


def _beside(size: int, file: Path) -> VoiceBeside:
    return VoiceBeside(lambda: {SPEAKER: _read(size, file).shape}, lambda: _as_voice(_read(size, file)))


def _as_voice(vector: np.ndarray) -> dict[str, Tensor]:
    import torch

    return {SPEAKER: torch.from_numpy(vector)}


def _read(size: int, file: Path) -> np.ndarray:
    try:
        vector = _vector(size, read_arrays(read_whole(file, MAX_BYTES)))
    except ValueError as error:
        raise CheckpointFileError(f"{file.name} is not a valid voice: {error}") from None
    if not np.isfinite(vector).all():
        raise CheckpointFileError(f"{file.name} {NOT_FINITE}")
    return vector


def _fault(tensors: Tensors) -> str:
    return "" if bool(tensors[SPEAKER].isfinite().all()) else NOT_FINITE
