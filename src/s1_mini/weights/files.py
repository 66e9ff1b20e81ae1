"""Read the tensors of a checkpoint directory, whatever published form they have.

A `.pth` file is only ever read with `weights_only=True`, so it can hold tensors and nothing that runs. Both forms
are memory-mapped: a tensor that nobody asks for is never read from disk. What a `.pth` says of itself is looked
through before torch reads it (`pth`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from s1_mini.exceptions import CheckpointFileError
from s1_mini.files import open_regular
from s1_mini.weights import pth
from s1_mini.weights.directory import INDEX_SUFFIX, read_json

Tensors = Mapping[str, Tensor]

_WRAPPERS = ("state_dict", "model", "generator")
_MAX_TOLD = 80  # characters of a name in an error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a file (or of the shards an index names), memory-mapped and unwrapped.

    Raises `CheckpointFileError` for a file that is missing, truncated, foreign, or holds anything but tensors.
    """
    if path.name.endswith(INDEX_SUFFIX):
        return _read_shards(path)
    return _read_safetensors(path) if path.suffix == ".safetensors" else _unwrap(path, read_object(path))


def read_object(path: Path) -> Any:
    """Read whatever plain data and tensors a `.pth` file holds, memory-mapped, never running anything in it.

    Raises `CheckpointFileError` for a file that is missing, truncated, was packed again, or holds other objects.
    """
    with _named_errors(path):
        records = pth.inspect(path)
        if records is None:  # only the zip form (torch >= 1.6) can be memory-mapped
            return torch.load(path, map_location="cpu", weights_only=True)
        return torch.load(path, map_location=records.claim, weights_only=True, mmap=True)


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    try:
        open_regular(path).close()  # the libraries that read weights would wait for a FIFO's writer
        yield
    except CheckpointFileError as error:
        raise CheckpointFileError(f"{path} {error}") from None
    except FileNotFoundError:
        raise CheckpointFileError(f"{path} is missing") from None
    except Exception as error:  # others' parsers raise whatever damaged bytes lead them into
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
    for _ in _WRAPPERS:  # no oftener: a dictionary may hold itself
        if isinstance(content, dict):
            content = next((content[name] for name in _WRAPPERS if isinstance(content.get(name), dict)), content)
    if not isinstance(content, dict) or not content:
        raise CheckpointFileError(f"{path} holds no dictionary of tensors")
    foreign = [name for name, value in content.items() if not _is_name(name) or not _is_plain(value)]
    if foreign:
        raise CheckpointFileError(
            f"{path} holds entries that are no plain tensors: {', '.join(map(_told, foreign[:5]))}"
        )
    return {name: _aligned(tensor) for name, tensor in content.items()}


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.isprintable()


def _told(name: object) -> str:
    return ascii(name[:_MAX_TOLD]) if isinstance(name, str) else f"a {type(name).__name__}"


def _is_plain(value: Any) -> bool:
    """Whether it is a tensor of numbers in memory, and no small one that says it is large."""
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and value.nbytes <= value.untyped_storage().nbytes()
    )


def _aligned(tensor: Tensor) -> Tensor:
    """Give it as it is, or a copy where a program that packed the file again has put it between two addresses."""
    return tensor.clone() if tensor.data_ptr() % tensor.element_size() else tensor
