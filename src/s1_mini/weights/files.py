"""Read the tensors of a checkpoint directory, in each published file format. Unused tensors are not read from disk.

A `.pth` file is only read with `weights_only=True`, so that nothing in it is executed. Before that, it is inspected,
for two reasons. torch maps the file into memory without checking compression, offset and size of its records, so that a
repacked file would give wrong numbers without an error. And torch takes 3 µs per opcode of a pickle without limiting
the number of opcodes.
"""

from __future__ import annotations

import io
import pickletools
import struct
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import safe_open
from torch import Tensor

from s1_mini.exceptions import CheckpointFileError
from s1_mini.files import open_regular
from s1_mini.weights.directory import INDEX_SUFFIX, read_json

Tensors = Mapping[str, Tensor]

_WRAPPERS = ("state_dict", "model", "generator")
_MAX_NAME = 80  # characters of a name in an error message

_MAX_PICKLE_BYTES = 2**20  # the pickle of S1-mini's model is 30 kB; tensor data is stored elsewhere
_MAX_STEPS = 2**17  # opcodes of all pickles of a file; each tensor takes about 20
_NUM_OLD_PICKLES = 5  # of a file from before torch 1.6: magic number, version, system, content, keys of storages
_LOCAL_HEADER_BYTES = 30
_HAS_DESCRIPTOR = 8  # flag of a record that is followed by a data descriptor

_NUMBERS = (
    *("Float", "Double", "Half", "BFloat16", "ComplexFloat", "ComplexDouble"),
    *("Long", "Int", "Short", "Char", "Byte", "Bool"),
)
# Pickle globals of plain data and tensors. torch's `weights_only` also allows bytearrays of any size, and sparse
# tensors, whose indices torch does not check by default.
_ALLOWED = {
    "collections OrderedDict",
    "torch Size",
    "torch device",
    "torch.nn.parameter Parameter",
    "torch.storage UntypedStorage",
    "torch._utils _rebuild_tensor",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_tensor_v3",
    "torch._utils _rebuild_parameter",
    "_codecs encode",
    *(f"torch {name}" for name, value in vars(torch).items() if isinstance(value, torch.dtype)),
    *(f"torch {name}Storage" for name in _NUMBERS),
}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a file, or of the shards in an index, memory-mapped; wrapping dictionaries are removed.

    Raises `CheckpointFileError` for a file that is missing, truncated or invalid, or contains other objects.
    """
    if path.name.endswith(INDEX_SUFFIX):
        return _read_shards(path)
    return _read_safetensors(path) if path.suffix == ".safetensors" else _unwrap(path, read_object(path))


def read_object(path: Path) -> Any:
    """Return the plain data and tensors of a `.pth` file, memory-mapped if it is from torch 1.6 or later.

    Raises `CheckpointFileError` for a file that is missing, truncated or repacked, or contains other objects. Code in
    the file is never executed.
    """
    with _named_errors(path), path.open("rb") as file:
        is_zip = file.read(2) == b"PK"
        file.seek(0)
        if is_zip:  # torch >= 1.6; only this format can be memory-mapped
            return torch.load(path, map_location=_claiming(_inspect_zip(file)), weights_only=True, mmap=True)
        _inspect_pickles(file.read(_MAX_PICKLE_BYTES), _NUM_OLD_PICKLES)
        return torch.load(path, map_location="cpu", weights_only=True)


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    try:
        open_regular(path).close()  # raises an error for a FIFO, on which the libraries would wait forever
        yield
    except CheckpointFileError as error:
        raise CheckpointFileError(f"{path} {error}") from None
    except FileNotFoundError:
        raise CheckpointFileError(f"{path} is missing") from None
    except Exception as error:  # third-party parsers raise arbitrary errors on damaged files
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise CheckpointFileError(f"{path} cannot be read as weights; it may be truncated ({reason})") from None


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
            raise CheckpointFileError(f"{index}: the shard {name!r} must be a .safetensors file in the same folder")
        tensors |= _read_safetensors(index.parent / name)
    return tensors


def _unwrap(path: Path, content: Any) -> dict[str, Tensor]:
    for _ in _WRAPPERS:  # not `while`, because a dictionary may contain itself
        if isinstance(content, dict):
            content = next((content[name] for name in _WRAPPERS if isinstance(content.get(name), dict)), content)
    if not isinstance(content, dict) or not content:
        raise CheckpointFileError(f"{path} does not contain a dictionary of tensors")
    foreign = [name for name, value in content.items() if not _is_plain(name, value)]
    if foreign:
        names = ", ".join(
            ascii(name[:_MAX_NAME]) if isinstance(name, str) else f"a {type(name).__name__}" for name in foreign[:5]
        )
        raise CheckpointFileError(f"{path} contains entries that are not plain tensors: {names}")
    # Tensors of a repacked file may be misaligned, so that only copies of them can be used.
    return {name: one.clone() if one.data_ptr() % one.element_size() else one for name, one in content.items()}


def _is_plain(name: object, value: Any) -> bool:
    """Return whether an entry has a printable name and is a dense CPU tensor within its storage."""
    return (
        isinstance(name, str)
        and name.isprintable()
        and isinstance(value, Tensor)
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and value.nbytes <= value.untyped_storage().nbytes()
    )


def _claiming(num_records: Counter[int]) -> Callable[[Any, str], Any]:
    """Return a `map_location` for torch that raises `CheckpointFileError` for a storage whose size no record has.

    `num_records` has the number of records of each size in bytes; each storage takes one of them.
    """

    def claim(storage: Any, _: str) -> Any:
        size = storage.nbytes()
        if size and not num_records[size]:
            raise CheckpointFileError(f"is damaged: a tensor is {size:,} bytes, but no record has that size")
        num_records[size] -= 1
        return storage

    return claim


def _inspect_zip(file: IO[bytes]) -> Counter[int]:
    """Return the number of records of each size in bytes.

    Raises `CheckpointFileError` with a message that continues the file's name, or zipfile's errors for a damaged file.
    """
    with zipfile.ZipFile(file) as archive:
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        names = Counter(entry.filename for entry in entries)
        folder = archive.infolist()[0].filename.partition("/")[0] if entries else ""
        for entry in entries:
            if names[entry.filename] > 1:
                raise CheckpointFileError(f"is damaged: it contains {entry.filename[:80]!r} twice")
            if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
                raise CheckpointFileError(
                    "is compressed, so its weights cannot be memory-mapped: another program repacked it. Use the file "
                    "as torch saved it, or unpack it and repack it without compression (zip -0 -r)"
                )
        _check_places(file, entries)
        content = archive.getinfo(f"{folder}/data.pkl")
        if content.file_size > _MAX_PICKLE_BYTES:
            raise _too_long()
        _inspect_pickles(archive.read(content), 1)  # also checks the CRC
    return Counter(entry.file_size for entry in entries if entry.filename.startswith(f"{folder}/data/"))


def _check_places(file: IO[bytes], entries: list[zipfile.ZipInfo]) -> None:
    """Raise `CheckpointFileError` unless each record lies between its own header and the next, as torch assumes."""
    free_from = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        file.seek(entry.header_offset)
        header = file.read(_LOCAL_HEADER_BYTES)
        name_bytes, extra_bytes = struct.unpack_from("<HH", header.ljust(_LOCAL_HEADER_BYTES, b"\0"), 26)
        begin = entry.header_offset + len(header) + name_bytes + extra_bytes
        file.seek(begin + entry.file_size)
        follows = (b"PK\7\x08",) if entry.flag_bits & _HAS_DESCRIPTOR and entry.file_size else (b"PK",)
        if entry.header_offset < free_from or header[:4] != b"PK\3\4" or not file.read(4).startswith(follows):
            raise CheckpointFileError(f"is damaged: the offset of {entry.filename[:80]!r} is wrong")
        free_from = begin + entry.file_size


def _inspect_pickles(content: bytes, count: int) -> None:
    """Raise `CheckpointFileError` for pickles with too many opcodes or with anything but plain data and tensors."""
    steps, file = 0, io.BytesIO(content)
    for _ in range(count):
        for step, argument, _ in pickletools.genops(file):
            steps += 1
            if steps > _MAX_STEPS:
                raise _too_long()
            if step.name == "GLOBAL" and argument not in _ALLOWED:
                name = ascii(str(argument).replace(" ", ".", 1)[:80])
                raise CheckpointFileError(
                    f"cannot be read as weights: it contains {name}, not only plain data and tensors"
                )


def _too_long() -> CheckpointFileError:
    return CheckpointFileError(
        f"cannot be read: its list of tensors has more than {_MAX_PICKLE_BYTES:,} bytes or {_MAX_STEPS:,} "
        "steps; save only the tensors, without the optimizer state"
    )
