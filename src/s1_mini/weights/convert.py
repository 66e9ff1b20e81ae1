"""Write tensors to a `.safetensors` file in other dtypes. The model family chooses tensors and dtypes.

Each tensor is converted while it is written, so that only int8 weights, and tensors that the family computes from
others, such as folded weight norm, are in memory all at once. Other tensors stay memory-mapped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from s1_mini.weights.int8 import SCALE, SUFFIX, dequantized, is_int8, quantized, without_scales
from s1_mini.weights.write import ArchiveEntry, Chunk

SMALL = 2**16  # elements; smaller tensors are not rounded to float16, because that saves too little
_CHUNK_BYTES = 2**20
_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int8: "I8"}


def is_large(tensor: Tensor) -> bool:
    """Return whether a tensor is large enough to be rounded."""
    return tensor.numel() >= SMALL


@contextmanager
def steady_arithmetic() -> Iterator[None]:
    """Compute with one thread in this block, so that the order of sums, and with it the bytes, is always the same."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def tensor_file(
    name: str, tensors: Mapping[str, Tensor], dtype_of: Callable[[str, Tensor], torch.dtype]
) -> ArchiveEntry:
    """Return a `.safetensors` file with each tensor in the dtype that `dtype_of` returns for its name and value.

    Weights that are already int8 keep their bytes if that dtype is int8. Raises `CheckpointMismatchError` for a scale
    that does not fit its weights.
    """
    held, dtypes = dict(tensors), dict[str, torch.dtype]()
    for key, tensor in without_scales(tensors, name).items():
        dtypes[key] = dtype_of(key, tensor)
        if dtypes[key] == torch.int8:
            dtypes[key + SUFFIX] = SCALE
            if not is_int8(key, tensors):
                held[key], held[key + SUFFIX] = quantized(tensor)
    keys = sorted(dtypes, key=lambda key: (-dtypes[key].itemsize, key))
    header, end = {}, 0
    for key in keys:
        start, end = end, end + held[key].numel() * dtypes[key].itemsize
        header[key] = {"dtype": _DTYPES[dtypes[key]], "shape": held[key].shape, "data_offsets": (start, end)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of eight bytes
    head = len(text).to_bytes(8, "little") + text

    def chunks() -> Iterator[Chunk]:
        yield head
        for key in keys:
            tensor = held[key] if dtypes[key] == torch.int8 else dequantized(held, key, dtypes[key])
            content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
            yield from (content[at : at + _CHUNK_BYTES] for at in range(0, len(content), _CHUNK_BYTES))

    return ArchiveEntry(name, len(head) + end, chunks)
