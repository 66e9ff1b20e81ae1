"""Copy from the host to a device without waiting for the device."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from s1_mini.arrays import copy_bytes
from s1_mini.kernels.backend import runs_triton
from s1_mini.kernels.writes import FIELDS, write_all
from s1_mini.layers.randomness import uniforms

NUMPY_DTYPES = {
    torch.bool: np.bool_,
    torch.uint8: np.uint8,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.float16: np.float16,
    torch.float32: np.float32,
}
ALIGNMENT = 16  # alignment of arrays in a packed buffer, in bytes


def stage(x: Tensor, device: torch.device) -> Tensor:
    """Return x on `device`. A copy to a GPU goes through pinned memory, which torch reuses only after the copy."""
    if device.type != "cuda" or x.is_cuda:
        return x.to(device)
    return x.contiguous().pin_memory().to(device, non_blocking=True)


class Writes:
    """Writes to tensors of one device that are carried out together: on a GPU, by one kernel that reads pinned memory.

    The writes between two calls of `run` are carried out in any order, and must not overlap except where stated. Arrays
    and sources must not change before `run`.
    """

    def __init__(self, device: torch.device) -> None:
        self._empty = torch.empty(0, device=device)
        self._device = self._empty.device  # with an index
        self._buffers = _buffers(self._device)
        self._clear()

    def _clear(self) -> None:
        self._rows: list[tuple[Tensor, Sequence[int], np.ndarray]] = []  # values as bytes, [1 or n, bytes]
        self._firsts: dict[int, tuple[Tensor, np.ndarray]] = {}  # by address
        self._uniforms: list[tuple[Tensor, int, int]] = []
        self._copies: list[tuple[Tensor, Tensor]] = []

    def rows(self, tensor: Tensor, rows: Sequence[int], values: np.ndarray) -> None:
        """Set the first elements of each of `rows` [n] of a contiguous `tensor` [B, …].

        `values` [n, …] has the elements of each row; [1, …] has the same elements for all rows.
        """
        self._rows.append((tensor, rows, _bytes_for(tensor, values, len(values), tensor.stride(0))))

    def first(self, tensor: Tensor, values: np.ndarray) -> None:
        """Set the first numbers of a contiguous `tensor`; this replaces a pending `first` for the same tensor."""
        self._firsts[tensor.data_ptr()] = tensor, _bytes_for(tensor, values, 1, tensor.numel())

    def uniforms(self, numbers: Tensor, seed: int, piece: int) -> None:
        """Set contiguous `numbers` [frames, samples] fp32 to the result of `randomness.uniforms`."""
        self._uniforms.append((numbers, seed, piece))

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy a contiguous `source` to a `target` of the same shape and dtype on the same device."""
        self._copies.append((target, source))

    def run(self) -> None:
        """Carry out the writes without waiting for the device. After an error, the next call carries them out."""
        if not (self._rows or self._firsts or self._uniforms or self._copies):
            return
        if runs_triton(self._empty):
            self._run_packed()
        else:
            self._run_each()
        self._clear()

    def _all_rows(self) -> list[tuple[Tensor, Sequence[int], np.ndarray]]:
        return [*self._rows, *((tensor.view(1, -1), [0], array) for tensor, array in self._firsts.values())]

    def _run_each(self) -> None:
        for tensor, rows, array in self._all_rows():
            flat = tensor.view(len(tensor), -1).view(torch.uint8)
            if flat.is_cpu:
                flat.numpy()[rows, : array.shape[1]] = array
                continue
            for row, values in zip(rows, np.broadcast_to(array, (len(rows), array.shape[1])), strict=True):
                flat[row, : len(values)].copy_(stage(torch.tensor(values), self._device))
        for numbers, seed, piece in self._uniforms:
            numbers.copy_(stage(uniforms(seed, piece, *numbers.shape), self._device))
        for target, source in self._copies:
            target.copy_(source)

    def _run_packed(self) -> None:
        """Pack a table of the writes, and the arrays that they copy, into one buffer."""
        tables, arrays, end = [], [], 0
        for tensor, rows, array in self._all_rows():
            targets = tensor.data_ptr() + np.array(rows, np.int64) * (tensor.stride(0) * tensor.element_size())
            offsets = np.arange(len(rows)) * array.shape[1] if len(array) > 1 else 0
            tables.append(_lines(len(rows), targets, end + offsets, array.shape[1]))
            arrays.append(array.ravel())
            end += _aligned(array.size)
        num_packed = sum(map(len, tables))
        for numbers, seed, piece in self._uniforms:
            tables.append(_lines(1, numbers.data_ptr(), 0, numbers.nbytes))
            tables[-1][:, 3:] = np.array([seed, piece], np.uint64).view(np.int64)
        for target, source in self._copies:
            addresses, size = _contiguous_parts(target)
            count = len(addresses)
            tables.append(_lines(count, addresses, source.data_ptr() + np.arange(count) * size, size))
        table = np.concatenate(tables)
        begin = _aligned(table.nbytes)
        buffer = self._buffers.take(begin + end)
        table[:num_packed, 1] += buffer.memory.data_ptr() + begin
        packed = buffer.memory.numpy()
        copy_bytes(packed[: table.nbytes], table)
        for array in arrays:
            copy_bytes(packed[begin : begin + array.size], array)
            begin += _aligned(array.size)
        write_all(buffer.memory.view(torch.int64), len(table), int(table[:, 2].max()), self._device)
        if buffer.was_read is not None:
            buffer.was_read.record(torch.cuda.current_stream(self._device))
        self._buffers.give_back(buffer)


class _Buffer(NamedTuple):
    memory: Tensor
    was_read: torch.cuda.Event | None  # None on a CPU, whose kernels have ended when they return


class Buffers:
    """Pinned memory from which kernels of one GPU read, for all threads. It is never freed.

    torch knows which copies, but not which kernels, still read a pinned tensor, and would reuse its memory too soon.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._lock = device, threading.Lock()
        self._returned: list[_Buffer] = []

    def take(self, num_bytes: int) -> _Buffer:
        """Return memory of at least this size that no kernel reads."""
        with self._lock:
            for at, buffer in enumerate(self._returned):
                if buffer.memory.numel() >= num_bytes and (buffer.was_read is None or buffer.was_read.query()):
                    return self._returned.pop(at)
        size, is_cuda = 1 << (num_bytes - 1).bit_length(), self._device.type == "cuda"
        memory = torch.empty(size, dtype=torch.uint8, pin_memory=is_cuda)
        return _Buffer(memory, torch.cuda.Event() if is_cuda else None)

    def give_back(self, buffer: _Buffer) -> None:
        """Allow a buffer to be taken again after its event, which has been recorded."""
        with self._lock:
            self._returned.append(buffer)


_buffers = lru_cache(Buffers)  # by device


def _bytes_for(tensor: Tensor, values: np.ndarray, rows: int, room: int) -> np.ndarray:
    """Return `values` in the dtype of `tensor` as bytes [rows, bytes].

    Raises `ValueError` if a row has more than `room` numbers, which kernels do not check.
    """
    kind = NUMPY_DTYPES.get(tensor.dtype)
    if kind is None:  # numpy has no such dtype
        numbers = torch.from_numpy(np.ascontiguousarray(values)).to(tensor.dtype).view(torch.uint8).numpy()
    else:
        numbers = np.ascontiguousarray(values, kind).reshape(rows, -1).view(np.uint8)
    count = numbers.size // (rows * tensor.element_size())
    if count > room:
        raise ValueError(f"{count} numbers do not fit in {room}")
    return numbers.reshape(rows, -1)


def _lines(count: int, targets: np.ndarray | int, sources: np.ndarray | int, size: int) -> np.ndarray:
    """Return `count` lines of the table in `kernels/writes.py`."""
    lines = np.zeros((count, FIELDS), np.int64)
    lines[:, 0], lines[:, 1], lines[:, 2] = targets, sources, size
    return lines


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _contiguous_parts(x: Tensor) -> tuple[np.ndarray, int]:
    """Return the addresses of the contiguous parts of x in order, and the bytes of each part."""
    addresses, size, axes = np.array([x.data_ptr()]), x.element_size(), x.dim()
    while axes and x.stride(axes - 1) * x.element_size() == size:
        axes -= 1
        size *= x.shape[axes]
    for axis in range(axes):
        offsets = np.arange(x.shape[axis]) * x.stride(axis) * x.element_size()
        addresses = (addresses[:, None] + offsets).ravel()
    return addresses, size
