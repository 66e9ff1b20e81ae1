"""Captured graphs: no output is lost, and unused graphs disturb no capture."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from kernel_checks import needs_gpu, on_gpu
from s1_mini.runtime.graphs import Buffer, GraphOptions, StepGraphs, capture, graph_stream, no_collections
from waiting import EVENTUALLY_S

CPU = torch.device("cpu")
DEVICES = [CPU, pytest.param(torch.device("cuda", 0), marks=needs_gpu)]


class Cycle:
    """An object that only Python's garbage collector frees."""

    def __init__(self, *owned: object) -> None:
        self.owned = owned
        self.itself = self


def test_the_garbage_collector_is_disabled_within_the_block_and_restored_after_it() -> None:
    with no_collections():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), no_collections():
        raise KeyError
    assert gc.isenabled()

    gc.disable()
    try:
        with no_collections():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_ahead", [False, True])
def test_calls_launched_ahead_of_reading_lose_no_output(device: torch.device, is_ahead: bool) -> None:
    count = torch.zeros((), dtype=torch.int64, device=device)

    def call(rows: int) -> list[Tensor]:
        return [count.add_(1).repeat(rows)]

    with torch.inference_mode():
        graphs = StepGraphs(
            call,
            [3, 2],
            lambda _: [],
            lambda rows: [Buffer((rows,))],
            device=device,
            options=replace(GraphOptions.of_stage(device, 0), is_ahead=is_ahead),
        )
        count.zero_()  # reset counts of the captures
        waits = [graphs.launch(rows) for rows in (2, 3, 2, 2, 3)]

    for number, wait in reversed(list(enumerate(waits, 1))):
        for _ in range(2):
            assert np.array_equal(wait()[0], np.full(3 if number in (2, 5) else 2, number))


@pytest.mark.parametrize("device", DEVICES)
def test_a_call_launched_before_the_last_is_read_keeps_that_calls_inputs(device: torch.device) -> None:
    slow = torch.randn(1024, 1024, device=device)

    def call(rows: int, numbers: Tensor) -> list[Tensor]:
        for _ in range(3):
            slow.mm(slow)
        return [numbers + 1]

    with torch.inference_mode():
        graphs = StepGraphs(
            call,
            [4, 2],
            lambda rows: [Buffer((rows,))],
            lambda rows: [Buffer((rows,))],
            device=device,
            options=GraphOptions.of_stage(device, 0),
        )
        waits = [graphs.launch(rows, np.full(rows, number)) for number, rows in enumerate((2, 4, 4, 2))]

    assert [wait()[0].tolist() for wait in waits] == [[1] * 2, [2] * 4, [3] * 4, [4] * 2]


@on_gpu
def test_a_launch_of_a_stage_delays_captures_but_no_launch_of_another_stage() -> None:
    device = torch.device("cuda", 0)
    totals = [torch.zeros((), dtype=torch.int64, device=device) for _ in range(3)]

    def graphs(stage: int) -> StepGraphs[int]:
        return StepGraphs(
            lambda _: [totals[stage].add_(1)],
            [1],
            lambda _: [],
            lambda _: [Buffer(())],
            device=device,
            options=GraphOptions.of_stage(device, stage),
        )

    first, second = graphs(0), graphs(1)
    torch.cuda.synchronize()
    called = [threading.Event(), threading.Event()]  # the warm-up and the capture

    def work() -> None:
        called[called[0].is_set()].set()
        totals[2].add_(1)

    begun = second.launch(1)()[0]
    with ThreadPoolExecutor(2) as pool:
        with first.on_stream():
            assert pool.submit(lambda: second.launch(1)()[0]).result(EVENTUALLY_S) == begun + 1
            captured = pool.submit(capture, work, graph_stream(device, 2), torch.cuda.graph_pool_handle())
            assert called[0].wait(EVENTUALLY_S)
            assert not called[1].wait(0.2)
        captured.result(EVENTUALLY_S)()
    torch.cuda.synchronize()

    assert totals[2] == 2


@on_gpu
def test_unused_graphs_are_not_destroyed_while_another_is_captured() -> None:
    device = torch.device("cuda", 0)
    stream, total = graph_stream(device, 0), torch.zeros(8, device=device)
    before = capture(lambda: total.add_(1), stream, torch.cuda.graph_pool_handle())
    collected = threading.Event()
    forgotten = Cycle(before, torch.cuda.Event())
    gc.callbacks.append(lambda phase, _: collected.set() if phase == "stop" else None)
    thresholds = gc.get_threshold()

    def work() -> None:
        if torch.cuda.is_current_stream_capturing():
            collected.clear()
            gc.set_threshold(1)
            _ = [Cycle() for _ in range(100)]  # enough to trigger a collection
            assert not collected.is_set()
        total.mul_(2)

    try:
        del before, forgotten
        replay = capture(work, stream, torch.cuda.graph_pool_handle())
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.pop()
    total.fill_(3)
    torch.cuda.synchronize()
    replay()
    torch.cuda.synchronize()
    assert total.tolist() == [6.0] * 8
