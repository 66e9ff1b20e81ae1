"""Convert a tensor file while it is written: first the header, then one tensor after another in small pieces.

No file is written to a temporary copy or completely in memory, except a `.pth` file from before torch 1.6. The model
family chooses tensors and dtypes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from s1_mini.exceptions import CheckpointFileError, CheckpointMismatchError
from s1_mini.weights.files import read_tensors
from s1_mini.weights.int8 import SCALE, SUFFIX, quantized
from s1_mini.weights.write import ArchiveEntry, Chunk

Translate = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]

PIECE_BYTES = 2**20
WINDOW_BYTES = 16 * 2**20  # bytes read from a memory-mapped file before it is mapped again
SMALL = 2**16  # elements; smaller tensors are not rounded to float16, because that saves too little
_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int8: "I8"}


class TensorFile:
    """The tensors of one file or of its shards, read by rows. Raises `CheckpointFileError` for an unreadable file.

    Mapped pages count as used memory until they are unmapped. Rows of a `.safetensors` file are therefore read into
    new memory, and other files are unmapped and mapped again after every `WINDOW_BYTES`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        _read_ahead(path)
        self._tensors = read_tensors(path)
        self._shapes = {name: tensor.to("meta") for name, tensor in self._tensors.items()}
        self._touched = 0
        self._is_plain = path.suffix == ".safetensors"
        if self._is_plain:
            self._tensors, self._offsets = {}, _offsets(path)

    def shapes(self) -> dict[str, Tensor]:
        """Return all tensors on the meta device, that is, without values."""
        return self._shapes

    def rows(self, names: tuple[str, ...], rows: slice) -> dict[str, Tensor]:
        """Return the same rows of several tensors. The caller must drop them before the next call."""
        if self._is_plain:
            return {name: self._read(name, rows) for name in names}
        if self._touched > WINDOW_BYTES:
            self._tensors = {}
            self._tensors, self._touched = read_tensors(self.path), 0
        parts = {name: self._tensors[name][rows if self._shapes[name].dim() else ...] for name in names}
        self._touched += sum(tensor.nbytes for tensor in parts.values())
        return parts

    def _read(self, name: str, rows: slice) -> Tensor:
        whole = self._shapes[name]
        part, skipped = (whole[rows], whole[: rows.start or 0].nbytes) if whole.dim() else (whole, 0)
        content = np.fromfile(self.path, np.uint8, part.nbytes, offset=self._offsets[name] + skipped)
        if content.size < part.nbytes:
            raise CheckpointFileError(f"{self.path} was truncated while it was being read")
        return torch.from_numpy(content).view(part.dtype).reshape(part.shape)


def _offsets(path: Path) -> dict[str, int]:
    """Return the offset of each tensor in a valid `.safetensors` file, from the JSON header after its u64 length."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return {name: 8 + length + entry["data_offsets"][0] for name, entry in header.items()}


def _read_ahead(path: Path) -> None:
    """Prefetch a file, because reading an uncached file by page faults is many times slower."""
    if sys.platform == "linux":
        with suppress(OSError), path.open("rb") as file:  # `read_tensors` reports the error
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


@dataclass(frozen=True, eq=False)
class Target:
    """A tensor to write, and the tensors of the source file that it is made from."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype  # dtype in the source file
    sources: tuple[str, ...]
    file: TensorFile
    translate: Translate

    @property
    def num_elements(self) -> int:
        return torch.Size(self.shape).numel()

    @property
    def is_large(self) -> bool:
        """Whether the tensor is large enough to be rounded."""
        return self.num_elements >= SMALL

    def pieces(self) -> Iterator[Tensor]:
        """Yield the translated tensor, a few rows at a time."""
        count, rows = self.shape[0] if self.shape else 1, self._rows_per_piece()
        for start in range(0, count, rows) if rows < count else (None,):
            part = slice(None) if start is None else slice(start, start + rows)
            yield from self.translate(self.file.rows(self.sources, part)).values()

    def _rows_per_piece(self) -> int:
        """Return the number of rows per piece: all, if the rows of target and sources do not correspond one to one."""
        count, sources = self.shape[0] if self.shape else 0, [self.file.shapes()[name] for name in self.sources]
        if not count or any(not source.dim() or len(source) != count for source in sources):
            return max(1, count)
        return max(1, PIECE_BYTES // max(1, sum(source.nbytes for source in sources) // count))


def plan(file: TensorFile, translate: Translate, together: Callable[[str], str] = str) -> list[Target]:
    """Return the tensors that `translate` makes from a file, without reading their values.

    `together` returns the same name for all source tensors that become one target. Raises `CheckpointMismatchError`,
    also from `translate`.
    """
    shapes = file.shapes()
    groups: dict[str, list[str]] = {}
    for name in shapes:
        groups.setdefault(together(name), []).append(name)
    whole = translate(shapes)
    targets = [
        Target(name, tuple(tensor.shape), tensor.dtype, tuple(names), file, translate)
        for names in groups.values()
        for name, tensor in translate({name: shapes[name] for name in names}).items()
    ]
    if {target.name: target.shape for target in targets} != {name: tuple(one.shape) for name, one in whole.items()}:
        raise CheckpointMismatchError(
            f"{file.path.name} mixes two naming schemes of tensors and cannot be converted; use a file with one scheme"
        )
    return targets


@contextmanager
def steady_arithmetic() -> Iterator[None]:
    """Compute with one thread in this block, so that the order of sums, and with it the bytes, is always the same."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class _Entry:
    """A tensor of the new file, which consists of the results of `convert` for the pieces of `target`."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    target: Target
    convert: Callable[[Tensor], Tensor]


def _entries(target: Target, dtype: torch.dtype) -> list[_Entry]:
    """Return the new tensors of a target; for int8, these are values and scales, so the target is read twice."""
    if dtype != torch.int8:
        return [_Entry(target.name, target.shape, dtype, target, lambda piece: piece.to(dtype))]
    return [
        _Entry(target.name, target.shape, dtype, target, lambda piece: quantized(piece)[0]),
        _Entry(target.name + SUFFIX, target.shape[:1], SCALE, target, lambda piece: quantized(piece)[1]),
    ]


class ConvertedFile:
    """A `.safetensors` file to write, whose size is known before the values of any tensor are read."""

    def __init__(self, dtypes: Mapping[Target, torch.dtype]) -> None:
        entries = [entry for target, dtype in dtypes.items() for entry in _entries(target, dtype)]
        self._entries = sorted(entries, key=lambda entry: (-entry.dtype.itemsize, entry.name))
        header, offset = {}, 0
        for entry in self._entries:
            end = offset + torch.Size(entry.shape).numel() * entry.dtype.itemsize
            header[entry.name] = {"dtype": _DTYPES[entry.dtype], "shape": entry.shape, "data_offsets": (offset, end)}
            offset = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # tensors start at a multiple of eight bytes
        self._header = len(text).to_bytes(8, "little") + text
        self.size = len(self._header) + offset

    def member(self, name: str) -> ArchiveEntry:
        return ArchiveEntry(name, self.size, self.chunks)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the bytes of the file in order. The caller must drop each chunk before it takes the next one."""
        yield self._header
        with steady_arithmetic():
            for entry in self._entries:
                for piece in entry.target.pieces():
                    yield entry.convert(piece).contiguous().reshape(-1).view(torch.uint8).numpy().data
