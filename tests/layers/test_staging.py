"""Collected writes have the same results one by one and packed into one buffer.

The kernel runs on a GPU or, where Triton is installed, in its interpreter (TRITON_INTERPRET=1, -m gpu). On a CPU, the
host carries out the packed writes instead.
"""

from __future__ import annotations

import ctypes
import os

import numpy as np
import pytest
import torch
from torch import Tensor

from s1_mini.kernels.backend import HAS_TRITON
from s1_mini.kernels.writes import FIELDS
from s1_mini.layers import staging
from s1_mini.layers.randomness import uniforms
from s1_mini.layers.staging import Buffers, Writes
from s1_mini.types import MAX_SEED

INTERPRETED = HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

packs = pytest.mark.parametrize(
    "way",
    [
        "one by one",
        "packed",
        pytest.param(
            "by the kernel",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(DEVICE.type == "cpu" and not INTERPRETED, reason="needs a GPU or the interpreter"),
            ],
        ),
    ],
)


def write_all(table: Tensor, count: int, largest: int, _device: torch.device) -> None:
    for target, source, size, seed, piece in table[: count * FIELDS].view(count, FIELDS).tolist():
        assert size <= largest
        numbers = uniforms(seed % 2**64, piece, 1, size // 4)
        ctypes.memmove(target, source or numbers.data_ptr(), size)


@pytest.fixture
def writes(way: str, monkeypatch: pytest.MonkeyPatch) -> Writes:
    monkeypatch.setattr(staging, "runs_triton", lambda _: way != "one by one")
    if way == "packed":
        if DEVICE.type != "cpu":
            pytest.skip("the host cannot write to a GPU's memory")
        monkeypatch.setattr(staging, "write_all", write_all)
    return Writes(DEVICE)


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


@packs
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("width", [1, 6, 7])
def test_rows_get_their_numbers_and_others_keep_theirs(writes: Writes, dtype: torch.dtype, width: int) -> None:
    ours, theirs = zeros(5, 7, dtype=dtype), zeros(5, 7, dtype=dtype)
    values = np.arange(1, 2 * width + 1).reshape(2, width)

    writes.rows(ours, [3, 1], values)
    writes.rows(ours, [0, 4], np.ones((1, 7)))
    writes.run()

    theirs[[3, 1], :width] = torch.from_numpy(values).to(DEVICE, dtype)
    theirs[[0, 4]] = 1
    assert torch.equal(ours, theirs)


@packs
def test_the_last_of_several_first_numbers_wins(writes: Writes) -> None:
    flags = zeros(9, dtype=torch.bool)

    writes.first(flags, np.ones(9, np.bool_))
    writes.first(flags, np.array([False, True]))
    writes.run()
    writes.run()

    assert flags.tolist() == [False, True] + 7 * [False]


@packs
@pytest.mark.parametrize("frames", [1, 7, 300])
@pytest.mark.parametrize(("seed", "piece"), [(0, 0), (5, 2), (MAX_SEED, 3)])
def test_random_numbers_are_those_of_the_host_bit_for_bit(writes: Writes, frames: int, seed: int, piece: int) -> None:
    table = zeros(3, 300, 9)

    writes.uniforms(table[1, :frames], seed, piece)
    writes.run()

    assert torch.equal(table[1, :frames].cpu(), uniforms(seed, piece, frames, 9))
    assert not table[[0, 2]].any()
    assert not table[1, frames:].any()


@packs
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 16), (torch.bfloat16, 8), (torch.float8_e4m3fn, 5)])
def test_a_copy_fills_a_part_of_a_cache(writes: Writes, dtype: torch.dtype, size: int) -> None:
    cache, source = zeros(2, 3, 2, 9, size, dtype=dtype), torch.randn(2, 2, 4, size).to(DEVICE, dtype)

    writes.copy(cache[:, 1, :, :4], source)
    writes.run()

    raw = cache.view(torch.uint8)
    assert torch.equal(raw[:, 1, :, :4], source.view(torch.uint8))
    assert not raw[:, [0, 2]].any()
    assert not raw[:, 1, :, 4:].any()


@pytest.mark.parametrize("way", ["one by one"])
def test_numbers_that_do_not_fit_are_refused(writes: Writes) -> None:
    with pytest.raises(ValueError, match="8 numbers do not fit in 7"):
        writes.rows(zeros(5, 7), [2], np.zeros((1, 8)))


@packs
def test_writes_that_failed_are_carried_out_by_the_next_run(writes: Writes, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Writes) -> None:
        raise torch.OutOfMemoryError

    tensor = zeros(2, 3)
    writes.rows(tensor, [1], np.ones((1, 3)))
    with monkeypatch.context() as patch:
        for name in ("_run_each", "_run_packed"):
            patch.setattr(Writes, name, fail)
        with pytest.raises(torch.OutOfMemoryError):
            writes.run()

    writes.run()

    assert tensor.tolist() == [[0, 0, 0], [1, 1, 1]]


class Event:
    """An event of a kernel that has not run yet."""

    has_run = False

    def query(self) -> bool:
        return self.has_run


def test_pinned_memory_is_used_again_only_after_the_kernel_that_reads_it_has_run() -> None:
    buffers, event = Buffers(torch.device("cpu")), Event()
    first = buffers.take(100)._replace(was_read=event)  # type: ignore[arg-type]
    buffers.give_back(first)

    second = buffers.take(100)
    event.has_run = True
    third, larger = buffers.take(100), buffers.take(1000)

    assert second.memory.data_ptr() != first.memory.data_ptr() == third.memory.data_ptr()
    assert larger.memory.numel() >= 1000
