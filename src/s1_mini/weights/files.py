"""Read tensors and JSON of a checkpoint directory, whatever published form they have.

A `.pth` file is only ever read with `weights_only=True`, so it can hold tensors and nothing that runs. Both forms
are memory-mapped: a tensor that nobody asks for is never read from disk.
"""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from s1_mini.exceptions import CheckpointFileError

Tensors = Mapping[str, Tensor]

INDEX_SUFFIX = ".safetensors.index.json"
_WRAPPERS = ("state_dict", "model", "generator")
_READ_ERRORS = (
    SafetensorError,
    pickle.UnpicklingError,
    struct.error,
    RuntimeError,
    ValueError,
    KeyError,
    EOFError,
    OSError,
)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises `CheckpointFileError` if it is missing or is something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointFileError(f"{path} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointFileError(f"{path} is not readable JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointFileError(f"{path} holds a JSON {type(value).__name__}, not an object")
    return value


def find_tensors(directory: Path, stem: str) -> Path:
    """Give the file that holds `stem`'s tensors: safetensors first, then sharded safetensors, then `.pth`."""
    names = (f"{stem}.safetensors", f"{stem}{INDEX_SUFFIX}", f"{stem}.pth")
    for name in names:
        if (directory / name).is_file():
            return directory / name
    raise CheckpointFileError(f"{directory} holds no {stem} weights: expected one of {', '.join(names)}")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a file (or of the shards an index names), memory-mapped and unwrapped.

    Raises `CheckpointFileError` for a file that is missing, truncated, foreign, or holds anything but tensors.
    """
    if path.name.endswith(INDEX_SUFFIX):
        return _read_shards(path)
    return _read_safetensors(path) if path.suffix == ".safetensors" else _unwrap(path, read_object(path))


def read_object(path: Path) -> Any:
    """Read whatever plain data and tensors a `.pth` file holds, memory-mapped, never running anything in it.

    Raises `CheckpointFileError` for a file that is missing, truncated, or holds other objects.
    """
    with _named_errors(path):
        with path.open("rb") as file:
            zipped = file.read(2) == b"PK"  # only the zip form (torch >= 1.6) can be memory-mapped
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise CheckpointFileError(f"{path} is missing") from None
    except _READ_ERRORS as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise CheckpointFileError(f"{path} cannot be read as weights; is it complete? ({reason})") from None


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    with _named_errors(path), safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict


def _read_shards(index: Path) -> dict[str, Tensor]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointFileError(f"{index} has no weight_map")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(map(str, weight_map.values()))):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointFileError(f"{index} names the shard {name!r}, which is not a safetensors file beside it")
        tensors |= _read_safetensors(index.parent / name)
    return tensors


def _unwrap(path: Path, content: Any) -> dict[str, Tensor]:
    while isinstance(content, dict):
        inner = next((content[name] for name in _WRAPPERS if isinstance(content.get(name), dict)), None)
        if inner is None:
            break
        content = inner
    if not isinstance(content, dict) or not content:
        raise CheckpointFileError(f"{path} holds no dictionary of tensors")
    foreign = [name for name, value in content.items() if not isinstance(name, str) or not _is_plain(value)]
    if foreign:
        raise CheckpointFileError(f"{path} holds entries that are no plain tensors: {', '.join(map(str, foreign[:5]))}")
    return content


def _is_plain(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided and value.device.type == "cpu"
