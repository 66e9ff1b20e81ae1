"""Find the files of a checkpoint directory and read its small files, without torch."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from s1_mini.exceptions import CheckpointFileError
from s1_mini.files import open_regular

DEFAULT_MODEL = Path(__file__).parents[1] / "default_model"

INDEX_SUFFIX = ".safetensors.index.json"
TENSOR_SUFFIXES = (".safetensors", ".pth", ".bin")
WORKING_SHARE = 2.0  # bytes of memory of a loaded checkpoint per byte of its tensors: float16 may become float32

_MAX_JSON_BYTES = 4 * 2**20  # the largest JSON file of S1-mini is 0.15 MB


# Names that transformers gives to a model file, in order of preference.
MODEL_NAMES = ("model.safetensors", f"model{INDEX_SUFFIX}", "pytorch_model.bin")


def names_of(stem: str) -> tuple[str, str, str]:
    """Return the possible names of the file with `stem`'s tensors, in order of preference."""
    return f"{stem}.safetensors", f"{stem}{INDEX_SUFFIX}", f"{stem}.pth"


def find_tensors(directory: Path, stem: str) -> Path:
    """Return the file with `stem`'s tensors. Raises `CheckpointFileError` if none exists."""
    return _find(directory, names_of(stem), f"{stem} weights")


def find_model(directory: Path) -> Path:
    """Return the file with a model's tensors, one of `MODEL_NAMES`. Raises `CheckpointFileError` if none exists."""
    return _find(directory, MODEL_NAMES, "weights")


def _find(directory: Path, names: Sequence[str], what: str) -> Path:
    for name in names:
        if (directory / name).is_file():
            return directory / name
    raise CheckpointFileError(f"{directory} has no {what}: expected one of {', '.join(names)}")


def tensor_bytes(directory: Path) -> int:
    """Return the size of the files of tensors in a checkpoint directory and its subfolders."""
    files = (path for path in directory.rglob("*") if path.suffix in TENSOR_SUFFIXES and path.is_file())
    return sum(path.stat().st_size for path in files)


def read_whole(path: Path, max_bytes: int) -> bytes:
    """Read a small file. Raises `CheckpointFileError` if it is missing, not regular, or larger than `max_bytes`."""
    try:
        with open_regular(path) as file:
            content = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise CheckpointFileError(f"{path} is missing") from None
    except OSError as error:
        raise CheckpointFileError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > max_bytes:
        raise CheckpointFileError(f"{path} is {path.stat().st_size:,} bytes; the limit is {max_bytes:,}")
    return content


def read_json(path: Path, max_bytes: int = _MAX_JSON_BYTES) -> dict[str, Any]:
    """Read a JSON object, by default of up to 4 MiB. Raises `CheckpointFileError` if it is missing or invalid."""
    content = read_whole(path, max_bytes)
    try:
        value = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise CheckpointFileError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointFileError(f"{path} must contain a JSON object, not a {type(value).__name__}")
    return value


def pick_files(names: Collection[str], needed: Sequence[Sequence[str]], optional: Sequence[str] = ()) -> list[str]:
    """Return the first name of each group in `needed` that is in `names`, and all `names` that match `optional`.

    `optional` has patterns. If the first name of a group is an index, its shards `STEM-….safetensors` are included.
    """
    patterns = list(optional)
    for name in (next((name for name in group if name in names), "") for group in needed):
        patterns += [name, name.replace(INDEX_SUFFIX, "-*.safetensors")]
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
