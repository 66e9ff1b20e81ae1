"""The output queue delivers chunks in order, once, to threads and event loops, and cancels when its consumer stops."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from s1_mini.core.output_queue import OutputQueue
from s1_mini.exceptions import GenerationError
from s1_mini.types import AudioChunk


def chunk(value: float) -> AudioChunk:
    return AudioChunk(np.full(4, value, np.float32), 16_000, 1)


@pytest.fixture
def closings() -> list[int]:
    return []


@pytest.fixture
def queue(closings: list[int]) -> OutputQueue:
    return OutputQueue(lambda: closings.append(1))


def deliver(queue: OutputQueue, error: Exception | None = None) -> threading.Thread:
    def work() -> None:
        for value in (0.1, 0.2, 0.3):
            queue.put(chunk(value))
        queue.end(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_chunks_come_in_order_and_end(queue: OutputQueue, closings: list[int]) -> None:
    thread = deliver(queue)

    assert [float(each.audio[0]) for each in queue] == pytest.approx([0.1, 0.2, 0.3])
    thread.join()
    assert closings == []


def test_an_event_loop_receives_the_same(queue: OutputQueue) -> None:
    async def listen() -> list[float]:
        return [float(each.audio[0]) async for each in queue]

    thread = deliver(queue)

    assert asyncio.run(listen()) == pytest.approx([0.1, 0.2, 0.3])
    thread.join()


def test_chunks_of_many_requests_wake_an_event_loop_once() -> None:
    queues, calls = [OutputQueue(lambda: None) for _ in range(5)], list[object]()

    async def listen() -> list[float]:
        loop = asyncio.get_running_loop()
        call_soon = loop.call_soon_threadsafe
        listening = [asyncio.ensure_future(anext(aiter(queue))) for queue in queues]
        await asyncio.sleep(0)  # all wait
        loop.call_soon_threadsafe = lambda *call: (calls.append(call), call_soon(*call))[1]  # type: ignore[method-assign]
        for value, queue in enumerate(queues):
            queue.put(chunk(value))
        return [float(each.audio[0]) for each in await asyncio.gather(*listening)]

    assert asyncio.run(listen()) == [0, 1, 2, 3, 4]
    assert len(calls) == 1


def test_a_consumer_gets_the_error_of_a_request_that_was_ended_for_it(queue: OutputQueue, closings: list[int]) -> None:
    async def listen() -> None:
        output = aiter(queue)
        asyncio.get_running_loop().call_soon(lambda: output.fail(GenerationError("too late")))
        await anext(output)

    with pytest.raises(GenerationError, match="too late"):
        asyncio.run(listen())
    assert closings


def test_a_non_streaming_consumer_is_woken_once() -> None:
    queue, wakes = OutputQueue(lambda: None, whole=True), list[bool]()

    async def listen() -> list[float]:
        return [float(each.audio[0]) async for each in queue]

    async def speak() -> list[float]:
        listening = asyncio.create_task(listen())
        await asyncio.sleep(0)
        wake = queue._wake
        assert wake is not None
        queue._wake = lambda: wakes.append(queue.has_ended) or wake()
        for value in (0.1, 0.2, 0.3):
            queue.put(chunk(value))
            await asyncio.sleep(0)
            assert not wakes
        queue.end()
        return await listening

    assert asyncio.run(speak()) == pytest.approx([0.1, 0.2, 0.3])
    assert wakes == [True]


def test_an_error_comes_after_the_chunks_before_it(queue: OutputQueue) -> None:
    deliver(queue, GenerationError("broken")).join()
    heard: list[float] = []

    def listen() -> None:
        for each in queue:
            heard.append(float(each.audio[0]))

    with pytest.raises(GenerationError, match="broken"):
        listen()

    assert heard == pytest.approx([0.1, 0.2, 0.3])
    assert queue.has_ended


def test_closing_the_iterator_cancels_the_request_once(queue: OutputQueue, closings: list[int]) -> None:
    queue.put(chunk(0.1))
    listener = iter(queue)
    next(listener)

    listener.close()

    assert closings == [1]


def test_nothing_may_end_twice(queue: OutputQueue) -> None:
    queue.end()

    with pytest.raises(AssertionError, match="twice"):
        queue.end()


def test_an_iterator_that_was_never_started_cancels_its_request(queue: OutputQueue, closings: list[int]) -> None:
    listener = iter(queue)

    del listener

    assert closings == [1]


def test_unread_audio_is_counted_until_it_is_taken(queue: OutputQueue) -> None:
    taken: list[int] = []
    queue.on_take, queue.is_paused = lambda: taken.append(queue.unread_bytes), True
    for value in (0.1, 0.2):
        queue.put(chunk(value))
    assert queue.unread_bytes == 2 * chunk(0.1).audio.nbytes

    queue.wait()
    queue.wait()

    assert taken == [chunk(0.1).audio.nbytes, 0]
