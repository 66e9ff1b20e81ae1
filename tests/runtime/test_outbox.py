"""What the engine delivers arrives in order, once, in threads and event loops, and a listener's leaving is told."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from s1_mini.exceptions import GenerationError
from s1_mini.runtime.outbox import Outbox
from s1_mini.types import AudioChunk


def chunk(value: float) -> AudioChunk:
    return AudioChunk(np.full(4, value, np.float32), 16_000, 1)


@pytest.fixture
def closings() -> list[int]:
    return []


@pytest.fixture
def outbox(closings: list[int]) -> Outbox:
    return Outbox(lambda: closings.append(1))


def deliver(outbox: Outbox, error: Exception | None = None) -> threading.Thread:
    def work() -> None:
        for value in (0.1, 0.2, 0.3):
            outbox.put(chunk(value))
        outbox.end(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_chunks_come_in_order_and_end(outbox: Outbox, closings: list[int]) -> None:
    thread = deliver(outbox)

    assert [float(each.audio[0]) for each in outbox] == pytest.approx([0.1, 0.2, 0.3])
    thread.join()
    assert closings == []


def test_an_event_loop_hears_the_same(outbox: Outbox) -> None:
    async def listen() -> list[float]:
        return [float(each.audio[0]) async for each in outbox]

    thread = deliver(outbox)

    assert asyncio.run(listen()) == pytest.approx([0.1, 0.2, 0.3])
    thread.join()


def test_an_error_comes_after_what_was_said_before_it(outbox: Outbox) -> None:
    deliver(outbox, GenerationError("broken")).join()
    heard: list[float] = []

    def listen() -> None:
        for each in outbox:
            heard.append(float(each.audio[0]))

    with pytest.raises(GenerationError, match="broken"):
        listen()

    assert heard == pytest.approx([0.1, 0.2, 0.3])
    assert outbox.has_ended


def test_a_listener_that_leaves_is_told_to_the_engine_once(outbox: Outbox, closings: list[int]) -> None:
    outbox.put(chunk(0.1))
    listener = iter(outbox)
    next(listener)

    listener.close()

    assert closings == [1]


def test_nothing_may_end_twice(outbox: Outbox) -> None:
    outbox.end()

    with pytest.raises(AssertionError, match="twice"):
        outbox.end()


def test_a_listener_that_never_began_leaves_too(outbox: Outbox, closings: list[int]) -> None:
    listener = iter(outbox)

    del listener

    assert closings == [1]
