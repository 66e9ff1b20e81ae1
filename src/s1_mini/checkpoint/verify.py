"""Verify that this engine computes the same tensors from a checkpoint as the original implementation.

An oracle file holds tensors that the original implementation computed from one checkpoint. Each model family defines
which tensors these are. The engine recomputes all tensors of the file in fp32 and compares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from s1_mini.exceptions import CheckpointFileError, VerificationError
from s1_mini.families.base import Check
from s1_mini.families.registry import family_of
from s1_mini.kernels.backend import current
from s1_mini.runtime.loader import choose_device
from s1_mini.weights.files import read_object, read_tensors

TOLERANCE = 1e-4  # largest absolute difference in fp32; the order of sums differs between implementations


def verify_checkpoint(
    directory: Path, oracle: Path, *, tolerance: float = TOLERANCE, device: str = "cpu"
) -> Iterator[Check]:
    """Yield the result of each check of a checkpoint directory.

    Raises `CheckpointError` if the checkpoint cannot be read, `VerificationError` if the oracle is invalid or empty,
    `RequestError` if the model rejects the oracle's inputs, and `ConfigurationError` if the device is missing.
    """
    content = _read_oracle(oracle)
    chosen = torch.device(choose_device(device).value)
    checks = family_of(directory).verify(directory, content, chosen, tolerance)
    if checks is None:
        raise VerificationError(f"{oracle} is not an oracle of this model family: none of its tensors is known")
    # By default, convolutions on a GPU round to TF32, which causes differences of 1e-3 in the audio.
    with torch.inference_mode(), _named_faults(oracle), torch.backends.cudnn.flags(allow_tf32=False), current(chosen):
        yield from checks


def _read_oracle(path: Path) -> Mapping[str, Any]:
    try:
        content = read_tensors(path) if path.suffix == ".safetensors" else read_object(path)
    except CheckpointFileError as error:
        raise VerificationError(f"the oracle cannot be read: {error}") from None
    return content if isinstance(content, Mapping) else {}


@contextmanager
def _named_faults(path: Path) -> Iterator[None]:
    """Raise `VerificationError` in place of the errors that unexpected tensors in an oracle cause."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise VerificationError(
            f"{path} is not an oracle for this checkpoint: {type(error).__name__}: {reason}"
        ) from None
