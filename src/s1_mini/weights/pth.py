"""Look through a `.pth` file before torch reads it: what its pickle asks for, and where its numbers lie.

torch maps the file and takes each tensor's numbers from where its record begins. It looks neither at whether that
record is compressed nor at how long it is, so a file that another program packed again gives other numbers, without
an error. And it goes through a pickle step by step, 3 µs each, however many there are.
"""

from __future__ import annotations

import io
import pickletools
import zipfile
from collections import Counter
from pathlib import Path
from typing import IO, Any

import torch

from s1_mini.exceptions import CheckpointFileError

_MAX_PICKLE_BYTES = 2**20  # the pickle of S1-mini's model, without its numbers, has 30 kB
_MAX_STEPS = 2**17  # of all pickles of a file; a tensor takes about 20
_NUM_OLD_PICKLES = 5  # before torch 1.6: magic number, version, system, content, keys of storages
_LOCAL_HEADER_BYTES = 30
_HAS_DESCRIPTOR = 8  # the flag of a record after which its sizes stand once more

_NUMBERS = (
    *("Float", "Double", "Half", "BFloat16", "ComplexFloat", "ComplexDouble"),
    *("Long", "Int", "Short", "Char", "Byte", "Bool"),
)
# What plain data and tensors need. torch allows more with `weights_only`: a bytearray of any size, sparse tensors whose
# check is left over for the next file.
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


class Records:
    """Where the numbers of a zip-form file lie: how many records there are of each size in bytes."""

    def __init__(self, sizes: Counter[int]) -> None:
        self._left = sizes

    def claim(self, storage: Any, location: str) -> Any:  # noqa: ARG002 - torch's map_location, called for each storage
        """Keep a storage in memory, once a record of just its size is there. Raises `CheckpointFileError`."""
        size = storage.nbytes()
        if size and not self._left[size]:
            raise CheckpointFileError(f"is damaged: a tensor has {size:,} bytes, and no record has")
        self._left[size] -= 1
        return storage


def inspect(path: Path) -> Records | None:
    """Give the records of a file in zip form, None for the form before torch 1.6.

    Raises `CheckpointFileError`, whose text goes on from the file's name, or whatever a damaged zip leads to.
    """
    with path.open("rb") as file:
        if file.read(2) == b"PK":
            return _inspect_zip(file)
        file.seek(0)
        _inspect_pickles(file.read(_MAX_PICKLE_BYTES), _NUM_OLD_PICKLES)
        return None


def _inspect_zip(file: IO[bytes]) -> Records:
    with zipfile.ZipFile(file) as archive:
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        names = Counter(entry.filename for entry in entries)
        folder = archive.infolist()[0].filename.partition("/")[0] if entries else ""
        for entry in entries:
            if names[entry.filename] > 1:
                raise CheckpointFileError(f"is damaged: it holds {entry.filename[:80]!r} twice")
            if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
                raise CheckpointFileError(
                    "is compressed, and weights are read from where they lie in the file: another program packed it "
                    "again. Take it as torch saved it, or unpack it and pack it without compression (zip -0 -r)"
                )
        _check_places(file, entries)
        content = archive.getinfo(f"{folder}/data.pkl")
        if content.file_size > _MAX_PICKLE_BYTES:
            raise _too_long()
        _inspect_pickles(archive.read(content), 1)  # which checks its CRC, too
    return Records(Counter(one.file_size for one in entries if one.filename.startswith(f"{folder}/data/")))


def _check_places(file: IO[bytes], entries: list[zipfile.ZipInfo]) -> None:
    """Raise `CheckpointFileError` where a record does not lie between its header and the next, as torch believes."""
    free_from = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        file.seek(entry.header_offset)
        header = file.read(_LOCAL_HEADER_BYTES)
        begin = (
            entry.header_offset + len(header) + sum(int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        )
        file.seek(begin + entry.file_size)
        follows = (b"PK\7\x08",) if entry.flag_bits & _HAS_DESCRIPTOR and entry.file_size else (b"PK",)
        if entry.header_offset < free_from or header[:4] != b"PK\3\4" or not file.read(4).startswith(follows):
            raise CheckpointFileError(f"is damaged: {entry.filename[:80]!r} does not lie where the file says")
        free_from = begin + entry.file_size


def _inspect_pickles(content: bytes, count: int) -> None:
    """Raise `CheckpointFileError` for pickles that have too many steps, or name what is neither data nor a tensor."""
    steps, file = 0, io.BytesIO(content)
    for _ in range(count):
        for step, argument, _ in pickletools.genops(file):
            steps += 1
            if steps > _MAX_STEPS:
                raise _too_long()
            if step.name == "GLOBAL" and argument not in _ALLOWED:
                told = ascii(str(argument).replace(" ", ".", 1)[:80])
                raise CheckpointFileError(
                    f"cannot be read as weights: it holds {told}, not only plain data and tensors"
                )


def _too_long() -> CheckpointFileError:
    return CheckpointFileError(
        f"cannot be read: its list of tensors has more than {_MAX_PICKLE_BYTES:,} bytes or {_MAX_STEPS:,} "
        "steps; save the tensors alone, without optimizer and the like"
    )
