"""Write checkpoint directories so that nothing half-written is ever left behind."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from s1_mini.exceptions import CheckpointFileError
from s1_mini.files import files


@contextmanager
def new_directory(directory: Path) -> Iterator[Path]:
    """Give a folder to write into; it becomes `directory` at the end, or vanishes if anything fails.

    Raises `CheckpointFileError` if `directory` exists and is not empty, or cannot be written.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise CheckpointFileError(f"{directory} exists already; name a new directory")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        target = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    except OSError as error:
        raise CheckpointFileError(f"{directory} cannot be written: {error.strerror}") from None
    try:
        yield target
        for path in (target, *target.rglob("*")):  # made private by tempfile and safetensors
            path.chmod(0o755 if path.is_dir() else 0o644)
        if directory.exists():
            directory.rmdir()
        files.rename(target, directory)
    except OSError as error:
        raise CheckpointFileError(f"{directory} cannot be written: {error}") from None
    finally:
        shutil.rmtree(target, ignore_errors=True)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object, readable."""
    path.write_bytes((json.dumps(value, indent=2) + "\n").encode())  # not as text: the same bytes on every system


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as `.safetensors` or, by suffix, as a flat `.pth`."""
    if path.suffix == ".pth":
        torch.save(dict(tensors), path)
    else:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
