"""Convert a tensor file while it is written: the header first, then one tensor after another, in small pieces.

Nothing is held whole and nothing is written twice. Pages of a memory-mapped file count as memory once they were
touched, so the file is mapped anew whenever enough of it was.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from s1_mini.exceptions import CheckpointFileError, CheckpointMismatchError
from s1_mini.weights.eight import SCALE, SUFFIX, narrowed
from s1_mini.weights.files import read_tensors
from s1_mini.weights.members import Chunk, Member

Translate = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
Together = Callable[[str], str]  # gives the same for tensors of the file that become one

PIECE_BYTES = 2**20
WINDOW_BYTES = 16 * 2**20  # of a file, mapped before it is mapped anew
_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int8: "I8"}


class TensorFile:
    """The tensors of one file or of its shards, read by rows. Raises `CheckpointFileError` where it is none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _read_ahead(path)
        self._tensors = read_tensors(path)
        self._shapes = {name: tensor.to("meta") for name, tensor in self._tensors.items()}
        self._touched = 0
        self._plain: PlainFile | None = None
        if path.suffix == ".safetensors":
            self._plain, self._tensors = PlainFile(path), {}

    def shapes(self) -> dict[str, Tensor]:
        """Give every tensor without its values, on the meta device."""
        return self._shapes

    def rows(self, names: tuple[str, ...], rows: slice) -> dict[str, Tensor]:
        """Give the same rows of several tensors. They are to be let go of before the next call."""
        if self._plain is not None:
            return {name: self._plain.rows(self._shapes[name], name, rows) for name in names}
        if self._touched > WINDOW_BYTES:
            self._tensors = {}
            self._tensors, self._touched = read_tensors(self.path), 0
        given = {name: self._whole_or(name, rows) for name in names}
        self._touched += sum(tensor.nbytes for tensor in given.values())
        return given

    def _whole_or(self, name: str, rows: slice) -> Tensor:
        tensor = self._tensors[name]
        return tensor[rows] if tensor.dim() else tensor


class PlainFile:
    """A `.safetensors` file, known to be whole, read into memory of its own: what is mapped counts until unmapped.

    Eight bytes, the length of the header; the header, JSON with each tensor's place after it; the numbers (format of
    safetensors 0.4).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        self._begins = {
            name: 8 + length + entry["data_offsets"][0] for name, entry in header.items() if name != "__metadata__"
        }

    def rows(self, shape: Tensor, name: str, rows: slice) -> Tensor:
        """Read rows of a tensor of this `shape`, all of a tensor without any."""
        first, last, _ = rows.indices(len(shape) if shape.dim() else 1)
        wanted = shape[first:last] if shape.dim() else shape
        content = bytearray(wanted.nbytes)
        with self._path.open("rb", buffering=0) as file:
            file.seek(self._begins[name] + first * (shape.nbytes // max(1, len(shape)) if shape.dim() else 0))
            view = memoryview(content)
            while view:
                count = file.readinto(view)
                if not count:
                    raise CheckpointFileError(f"{self._path} has become shorter while it was read")
                view = view[count:]
        if not content:
            return torch.empty(wanted.shape, dtype=shape.dtype)
        return torch.frombuffer(content, dtype=shape.dtype).reshape(wanted.shape)


def _read_ahead(path: Path) -> None:
    """Ask the system to have a file ready: reading it fault by fault is many times slower from a cold disk."""
    if sys.platform == "linux":
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


@dataclass(frozen=True)
class Target:
    """A tensor as it will be written, and the tensors of the file that it is made from."""

    name: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    rows_per_piece: int

    @property
    def num_elements(self) -> int:
        """How many numbers it has."""
        return torch.Size(self.shape).numel()


def plan(file: TensorFile, translate: Translate, together: Together = str) -> list[Target]:
    """Say what `translate` makes of a file, tensor by tensor, without reading one; what goes `together` at once.

    Raises `CheckpointMismatchError` as `translate` does.
    """
    shapes = file.shapes()
    groups: dict[str, list[str]] = {}
    for name in shapes:
        groups.setdefault(together(name), []).append(name)
    whole = translate(shapes)
    targets = []
    for names in groups.values():
        sources = {name: shapes[name] for name in names}
        for name, tensor in translate(sources).items():
            used = tuple(sources)
            targets.append(Target(name, tuple(tensor.shape), used, _rows_per_piece(tensor, sources)))
    if {target.name: target.shape for target in targets} != {name: tuple(one.shape) for name, one in whole.items()}:
        raise CheckpointMismatchError(f"{file.path.name} mixes ways of naming; run `s1-mini convert` on it first")
    return targets


def _rows_per_piece(tensor: Tensor, sources: Mapping[str, Tensor]) -> int:
    """Give how many rows to make at once: all of them where a row is not made from the same row of each source."""
    if not tensor.dim() or any(not source.dim() or len(source) != len(tensor) for source in sources.values()):
        return max(1, len(tensor) if tensor.dim() else 1)
    row_bytes = sum(source.nbytes for source in sources.values()) // max(1, len(tensor))
    return max(1, PIECE_BYTES // max(1, row_bytes))


def read_pieces(file: TensorFile, target: Target, translate: Translate) -> Iterator[Tensor]:
    """Make one tensor, translated, a few rows at a time."""
    count = target.shape[0] if target.shape else 1
    if count <= target.rows_per_piece:
        yield from translate(file.rows(target.sources, slice(None))).values()
        return
    for start in range(0, count, target.rows_per_piece):
        yield from translate(file.rows(target.sources, slice(start, start + target.rows_per_piece))).values()


@contextmanager
def steady_arithmetic() -> Iterator[None]:
    """Let sums be added up in one order, however many cores there are: the same inputs give the same bytes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class _Entry:
    """A tensor of the file that is written: what `make` does of each piece of a target."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    target: Target
    make: Callable[[Tensor], Tensor]

    @property
    def num_bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def _entries(target: Target, dtype: torch.dtype) -> list[_Entry]:
    """List what is written of a target: in eight bits (int8) it is read twice, for its values and for their scales."""
    if dtype != torch.int8:
        return [_Entry(target.name, target.shape, dtype, target, lambda piece: piece.to(dtype))]
    return [
        _Entry(target.name, target.shape, dtype, target, lambda piece: narrowed(piece)[0]),
        _Entry(target.name + SUFFIX, target.shape[:1], SCALE, target, lambda piece: narrowed(piece)[1]),
    ]


class ConvertedFile:
    """A `.safetensors` file that is about to be written. Its size is known before a tensor is read."""

    def __init__(self, file: TensorFile, translate: Translate, dtypes: Mapping[Target, torch.dtype]) -> None:
        self._file, self._translate = file, translate
        entries = [entry for target, dtype in dtypes.items() for entry in _entries(target, dtype)]
        self._entries = sorted(entries, key=lambda entry: (-entry.dtype.itemsize, entry.name))
        self._header = self._make_header()
        self.size = len(self._header) + sum(entry.num_bytes for entry in self._entries)

    def member(self, name: str) -> Member:
        """Let it be a member."""
        return Member(name, self.size, self.chunks)

    def chunks(self) -> Iterator[Chunk]:
        """Give the file from its first byte to its last. A chunk is to be let go of before the next one."""
        yield self._header
        with steady_arithmetic():
            for entry in self._entries:
                for piece in read_pieces(self._file, entry.target, self._translate):
                    yield entry.make(piece).contiguous().reshape(-1).view(torch.uint8).numpy().data

    def _make_header(self) -> bytes:
        entries, offset = {}, 0
        for entry in self._entries:
            end = offset + entry.num_bytes
            entries[entry.name] = {"dtype": _DTYPES[entry.dtype], "shape": entry.shape, "data_offsets": (offset, end)}
            offset = end
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of eight
        return len(text).to_bytes(8, "little") + text
