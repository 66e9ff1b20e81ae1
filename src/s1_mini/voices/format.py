"""The tensors of a checkpoint's voices, as its family defines them, and how files store them.

Integers are int64 in memory; files store them in the smallest of int16, int32 and int64 that is large enough. Floating
point types are unchanged. Only reading and writing tensors loads torch.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from safetensors import safe_open

from s1_mini.exceptions import TextError
from s1_mini.files import name_of_open, open_regular
from s1_mini.voices.arrays import read_arrays

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Tensors: TypeAlias = "Mapping[str, Tensor]"
Shapes = Mapping[str, tuple[int, ...]]

PROBE_BYTES = 2**20  # the fingerprint hashes this much of the beginning and of the end of each codec file
MAX_FILE_BYTES = 2 * 2**20  # limit for a voice file; the longest reference takes 0.3 MB

_KINDS = {"I16": True, "I32": True, "I64": True, "U8": True, "F16": False, "BF16": False, "F32": False}


@dataclass(frozen=True)
class TensorFormat:
    """One tensor of a voice; None in its shape means any non-zero length."""

    shape: tuple[int | None, ...]
    is_integer: bool

    def __str__(self) -> str:
        lengths = ", ".join("any" if length is None else str(length) for length in self.shape)
        return f"{'integers' if self.is_integer else 'floats'} [{lengths}]"

    def fits(self, shape: tuple[int, ...], *, is_integer: bool) -> bool:
        if len(shape) != len(self.shape) or is_integer != self.is_integer:
            return False
        return all(
            length == expected if expected else length > 0 for length, expected in zip(shape, self.shape, strict=True)
        )


@dataclass(frozen=True)
class VoiceBeside:
    """A voice next to a checkpoint in its publisher's format. Both functions raise `CheckpointFileError`."""

    shapes: Callable[[], Shapes]  # returns the tensors' shapes
    read: Callable[[], Tensors]
    is_default: bool = False  # the voice of requests without a voice, unless a voice file is the default


@dataclass(frozen=True)
class VoiceFormat:
    """The tensors of a voice by name, their encoder, their duration and their checks."""

    tensors: Mapping[str, TensorFormat]
    encoder: str  # fingerprint of the codec; voices of other codecs cannot be used
    sample_rate: int  # Hz, of recordings
    seconds: Callable[[Shapes], float]  # duration of the recording; 0 if unknown
    fault: Callable[[Tensors], str] = lambda _: (
        ""
    )  # returns why values are invalid, as the predicate of a sentence; empty if they are valid
    clones: bool = True  # whether recordings can become voices; otherwise new ones come from `from_arrays`
    from_arrays: Callable[[Mapping[str, np.ndarray]], Tensors] | None = None  # reads a numpy file; raises `ValueError`
    needs_transcript: bool = False  # whether a named voice needs the words of its recording
    always_needs_transcript: bool = False  # whether the recording of a request needs them too
    beside: Callable[[Path], Mapping[str, VoiceBeside]] = (
        lambda _: {}
    )  # voices stored with a checkpoint; raises `CheckpointFileError`

    def check_transcript(self, text: str) -> None:
        """Raise `TextError` if a named voice needs a transcript, but has none."""
        if self.needs_transcript and not text:
            raise TextError(
                "reference_text", "is empty; provide the exact words of the recording, which this model needs"
            )

    def transcript_warning(self, transcripts: Iterable[str]) -> str | None:
        """Return a warning if one of a request's recordings lacks a transcript that the model needs."""
        if not self.needs_transcript or all(transcripts):
            return None
        return "The reference has no transcript; this model needs the exact words of the recording."

    def read(self, path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Read the tensors of a file and its metadata. Raises `SafetensorError`, `OSError` or `ValueError`."""
        with _opened(path, "pt") as file:
            self._check(file)
            metadata = file.metadata() or {}
            # Copied, because the file may be deleted while it is mapped.
            tensors = {name: _in_memory(file.get_tensor(name)) for name in self.tensors}
        if fault := self.fault(tensors):
            raise ValueError(f"it {fault}")
        return tensors, metadata

    def from_file(self, data: bytes) -> Tensors:
        """Read the tensors of another program's numpy file. Raises `ValueError`."""
        if self.from_arrays is None:
            raise ValueError("this checkpoint does not support voices in numpy files; send a recording")
        tensors = self.from_arrays(read_arrays(data))
        for name, expected in self.tensors.items():
            tensor = tensors[name]
            if not expected.fits(tuple(tensor.shape), is_integer=not tensor.is_floating_point()):
                raise ValueError(f"its tensor {name} is {tensor.dtype} {list(tensor.shape)}; expected {expected}")
        if fault := self.fault(tensors):
            raise ValueError(f"it {fault}")
        return tensors

    def read_shapes(self, path: Path) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Read the shapes of the tensors of a file and its metadata. Raises the errors of `read`."""
        with _opened(path, "numpy") as file:
            self._check(file)
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in self.tensors}
            return shapes, file.metadata() or {}

    def _check(self, file: safe_open) -> None:
        for name, expected in self.tensors.items():
            part = file.get_slice(name)
            shape, kind = tuple(part.get_shape()), part.get_dtype()
            if kind not in _KINDS or not expected.fits(shape, is_integer=_KINDS[kind]):
                raise ValueError(f"its tensor {name} is {kind} {list(shape)}; expected {expected}")


@contextmanager
def _opened(path: Path, framework: str) -> Iterator[safe_open]:
    """Open a safetensors file, memory-mapped, if it is a regular file of a voice's size."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_FILE_BYTES:
            raise ValueError(f"it is {size:,} bytes; the limit for a voice is {MAX_FILE_BYTES:,}")
        with safe_open(name_of_open(file), framework=framework) as tensors:
            yield tensors


def shapes_of(tensors: Tensors) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def num_bytes(tensors: Tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def for_file(tensors: Tensors) -> dict[str, Tensor]:
    return {name: _smallest(tensor).contiguous() for name, tensor in tensors.items()}


def _in_memory(tensor: Tensor) -> Tensor:
    return tensor.clone() if tensor.is_floating_point() else tensor.clone().long()


def _smallest(tensor: Tensor) -> Tensor:
    if tensor.is_floating_point() or not tensor.numel():
        return tensor
    most = max(-1 - int(tensor.min()), int(tensor.max()))
    return tensor.short() if most < 2**15 else tensor.int() if most < 2**31 else tensor.long()


def fingerprint(paths: Iterable[Path]) -> str:
    """Return a hash of the name, size, first and last MiB of a codec's files; hashing all bytes would take seconds."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(paths):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            digest.update(file.read(PROBE_BYTES))
            file.seek(max(0, size - PROBE_BYTES))
            digest.update(file.read(PROBE_BYTES))
    return digest.hexdigest()
