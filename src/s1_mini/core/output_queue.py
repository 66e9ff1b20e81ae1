"""The queue through which a request's audio passes from the engine's threads to the consumer.

The engine never waits for a consumer. If the consumer stops before the request has ended, `on_close` is called. While a
request is paused because of unread audio, `on_take` is called for each chunk that the consumer takes, so that the
request can continue.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from s1_mini.alignment.head import AlignedFrames
from s1_mini.audio.effects import Effects
from s1_mini.types import AudioChunk, Word


class WordSource(Protocol):
    """Computes word times from the attention scores of a request; see `alignment/words.py`."""

    def feed(self, frames: AlignedFrames | None, *, is_last: bool) -> tuple[Word, ...]:
        """Add the frames of a chunk; return the words whose times are now known."""


class Output(Protocol):
    """The consumer's interface to a request."""

    whole: bool  # see `OutputQueue`

    @property
    def unread_bytes(self) -> int:
        """Size of the audio that the consumer has not taken; readable from any thread."""

    def close(self) -> None:
        """Cancel the request if it has not ended."""

    def wait(self) -> AudioChunk | None:
        """Wait for the next chunk and return it; return None after the last. Raises the request's error."""

    def __iter__(self) -> OutputIterator:
        """Yield chunks as they arrive; raises the request's error. Closing the iterator cancels the request."""

    def __aiter__(self) -> AsyncIterator[AudioChunk]:
        """Yield chunks as they arrive; raises the request's error. Closing the iterator cancels the request."""


class OutputQueue:
    """The chunks of one request in order, then the end or an error. One consumer reads them, in any thread."""

    def __init__(self, on_close: Callable[[], None], *, whole: bool = False) -> None:
        """With `whole`, the consumer is woken only when the request has ended."""
        self._on_close, self.whole = on_close, whole
        self._chunks: deque[tuple[AudioChunk, AlignedFrames | None]] = deque()
        self._error: BaseException | None = None
        self._ended = False
        self.unread_bytes = 0  # size of the audio that the consumer has not taken; readable from any thread
        self.on_take: Callable[[], None] | None = None
        self.reports_takes = False  # whether to call `on_take`; true while the request is paused
        self._changed = threading.Condition()
        self._wake: Callable[[], None] | None = None  # see `watch`
        self._details: dict[str, Any] = {}  # sent with the first chunk
        self.effects: Effects | None = None  # applied to each chunk when the consumer takes it
        self.words: WordSource | None = None  # called when the consumer takes a chunk

    # Called by the engine.

    def put(self, chunk: AudioChunk, frames: AlignedFrames | None = None) -> None:
        """Deliver a chunk and its attention scores. If the request has ended, the chunk is dropped."""
        with self._changed:
            if not self._ended:
                self._chunks.append((chunk, frames))
                self.unread_bytes += chunk.audio.nbytes
                if not self.whole:
                    self._notify()

    def tell(self, **details: Any) -> None:
        self._details = details

    def end(self, error: BaseException | None = None) -> None:
        """End the stream, normally or with an error. Must be called exactly once."""
        with self._changed:
            assert not self._ended, "a request ended twice"
            self._ended, self._error = True, error
            self._on_close, self.on_take = _do_nothing, None  # they refer to the request, which refers to this queue
            self._notify()

    @property
    def has_ended(self) -> bool:
        return self._ended

    # Called by the consumer.

    def close(self) -> None:
        """Cancel the request if it has not ended."""
        if not self._ended:
            self._on_close()

    def __iter__(self) -> OutputIterator:
        """Yield chunks as they arrive; raises the request's error. Closing the iterator cancels the request."""
        return OutputIterator(self)

    async def __aiter__(self) -> AsyncIterator[AudioChunk]:
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        self.watch(partial(_set_in_loop, loop, changed))
        try:
            while True:
                changed.clear()
                chunk, is_over = self.poll()
                if chunk is not None:
                    yield chunk
                elif is_over:
                    return
                else:
                    await changed.wait()
        finally:
            self.watch(None)
            self.close()

    def watch(self, wake: Callable[[], None] | None) -> None:
        """Call `wake`, from any thread and with a lock held, when there is a new chunk or the request has ended."""
        with self._changed:
            self._wake = wake

    def poll(self) -> tuple[AudioChunk | None, bool]:
        """Return the next chunk, or None if there is none yet, and whether the request is over.

        Raises the request's error.
        """
        with self._changed:
            taken, is_over = self._take()
        if taken is None:
            return None, is_over
        if self.reports_takes and (on_take := self.on_take) is not None:  # None after the end
            on_take()
        return self._finished(*taken), False

    def wait(self) -> AudioChunk | None:
        """Wait for the next chunk and return it; return None after the last. Raises the request's error."""
        with self._changed:
            self._changed.wait_for(lambda: self._chunks or self._ended)
        return self.poll()[0]

    def _finished(self, chunk: AudioChunk, frames: AlignedFrames | None) -> AudioChunk:
        if chunk.finish_reason == "cancelled":
            return chunk
        is_last = chunk.finish_reason is not None
        if self.words is not None:
            chunk = replace(chunk, words=self.words.feed(frames, is_last=is_last))
        if self.effects is None:
            return chunk
        audio = self.effects.feed(chunk.audio, is_last=is_last)
        return replace(chunk, audio=audio, sample_rate=self.effects.sample_rate)

    def _take(self) -> tuple[tuple[AudioChunk, AlignedFrames | None] | None, bool]:
        if self._chunks:
            chunk, frames = self._chunks.popleft()
            details, self._details = self._details, {}
            self.unread_bytes -= chunk.audio.nbytes
            return (replace(chunk, **details) if details else chunk, frames), False
        if self._ended and self._error is not None:
            raise self._error
        return None, self._ended

    def _notify(self) -> None:
        self._changed.notify_all()
        if self._wake is not None:
            self._wake()


class OutputIterator(Iterator[AudioChunk]):
    """Iterates over the chunks of a queue. Closing or dropping it, even before the first chunk, cancels the request."""

    def __init__(self, queue: Output) -> None:
        self._queue, self._is_closed = queue, False

    def __next__(self) -> AudioChunk:
        with ExitStack() as cleanup:
            cleanup.callback(self.close)
            chunk = self._queue.wait()
            cleanup.pop_all()
        if chunk is None:
            raise StopIteration
        return chunk

    def close(self) -> None:
        """Cancel the request if it has not ended."""
        if not self._is_closed:
            self._is_closed = True
            self._queue.close()

    def __del__(self) -> None:
        self.close()


class AudioStream(AsyncIterator[AudioChunk]):
    """Iterates over the chunks of a request on an event loop.

    Closing the stream, or cancelling the task that reads it, cancels the request.
    """

    def __init__(self, begin: Callable[[], Awaitable[Output]]) -> None:
        """`begin` submits the request; it is called when the first chunk is awaited."""
        self._begin = begin
        self._queue: Output | None = None
        self._chunks = self._iterate()

    @property
    def unread_bytes(self) -> int:
        return 0 if self._queue is None else self._queue.unread_bytes

    async def __anext__(self) -> AudioChunk:
        return await anext(self._chunks)

    async def aclose(self) -> None:
        """Cancel the request if it has not ended."""
        await self._chunks.aclose()

    async def _iterate(self) -> AsyncGenerator[AudioChunk]:
        self._queue = await self._begin()
        self._queue.whole = False  # the server charges its clients for each chunk, also of complete HTTP responses
        async with aclosing(aiter(self._queue)) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                yield chunk


def _do_nothing() -> None:
    """Take the place of a callback that is no longer needed."""


def _set_in_loop(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the event loop is closed
        loop.call_soon_threadsafe(event.set)
