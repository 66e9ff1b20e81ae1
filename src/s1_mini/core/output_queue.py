"""The way of a request's audio from the engine's threads to its consumer.

The engine writes to an `OutputQueue` and never waits for a consumer, who holds an `Output`. If the consumer stops
before the request has ended, `on_close` is called. While a request is paused because of unread audio, `on_take` is
called for each chunk that the consumer takes, so that the request can continue.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar, Protocol, Self
from weakref import WeakKeyDictionary, ref

from s1_mini.alignment.head import AlignedFrames
from s1_mini.types import AudioChunk


class Finish(Protocol):
    """Turns the audio of a request into what its consumer gets; see `runtime/finishing.py`."""

    def feed(self, chunk: AudioChunk, frames: AlignedFrames | None) -> Sequence[AudioChunk]:
        """Add the next chunk with its attention scores; return the chunks that are complete, possibly none."""


class OutputQueue:
    """The chunks of one request in order, then the end or an error. Thread-safe, for one consumer."""

    def __init__(self, on_close: Callable[[], None], *, whole: bool = False) -> None:
        """With `whole`, the consumer is woken only when the request has ended."""
        self._on_close, self.whole = on_close, whole
        self._chunks: deque[tuple[AudioChunk, AlignedFrames | None]] = deque()
        self._finished: deque[AudioChunk] = deque()  # chunks that `finish` has completed; used by the consumer
        self._error: BaseException | None = None
        self.has_ended = self._is_accepted = False
        self.queued_bytes = 0  # size of the audio in this queue
        self.held_bytes = 0  # size of audio that waits elsewhere, such as in the engine's process
        self.on_take: Callable[[], None] | None = None
        self.is_paused = False  # whether the request waits until the consumer takes audio, and `on_take` is called
        self._changed = threading.Condition()
        self._wake: Callable[[], None] | None = None  # see `watch`
        self.finish: Finish | None = None  # called when the consumer takes a chunk; None: chunks stay as they are

    # Called by the engine.

    def accept(self) -> None:
        """Note that the request has been prepared and will be spoken."""
        with self._changed:
            self._is_accepted = True
            self._notify()

    def put(self, chunk: AudioChunk, frames: AlignedFrames | None = None) -> None:
        """Deliver a chunk and its attention scores. If the request has ended, the chunk is dropped."""
        with self._changed:
            if not self.has_ended:
                self._is_accepted = True
                self._chunks.append((chunk, frames))
                self.queued_bytes += chunk.audio.nbytes
                if not self.whole:
                    self._notify()

    def end(self, error: BaseException | None = None) -> None:
        """End the stream, normally or with an error. Must be called exactly once."""
        with self._changed:
            assert not self.has_ended, "a request ended twice"
            self.has_ended, self._error = True, error
            self._on_close, self.on_take = _do_nothing, None  # they refer to the request, which refers to this queue
            self._notify()

    @property
    def unread_bytes(self) -> int:
        """Size of the audio that the consumer has not taken; readable from any thread."""
        return self.queued_bytes + self.held_bytes

    # Called by the consumer.

    def close(self) -> None:
        """Cancel the request if it has not ended. Takes no lock, because the garbage collector may call it."""
        if not self.has_ended:
            self._on_close()

    def __iter__(self) -> Output:
        return Output(self)

    def __aiter__(self) -> Output:
        return Output(self)

    def watch(self, wake: Callable[[], None] | None) -> None:
        """Call `wake`, from any thread and with a lock held, when there is a new chunk or the request has ended."""
        with self._changed:
            self._wake = wake

    def poll(self) -> tuple[AudioChunk | None, bool]:
        """Return the next chunk, or None if there is none yet, and whether the request is over.

        Raises the request's error, once.
        """
        while not self._finished:
            with self._changed:
                if not self._chunks:
                    self._raise()
                    return None, self.has_ended
                chunk, frames = self._chunks.popleft()
                self.queued_bytes -= chunk.audio.nbytes
            if self.is_paused and (on_take := self.on_take) is not None:  # None after the end
                on_take()
            if self.finish is None:
                return chunk, False
            self._finished.extend(self.finish.feed(chunk, frames))
        return self._finished.popleft(), False

    def wait(self) -> AudioChunk | None:
        """Wait for the next chunk and return it; return None after the last. Raises the request's error."""
        while True:
            chunk, is_over = self.poll()
            if chunk is not None or is_over:
                return chunk
            with self._changed:
                self._changed.wait_for(lambda: self._chunks or self.has_ended)

    def wait_accepted(self) -> None:
        """Wait until the request is accepted. Raises the error of a request that was not."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_accepted or self.has_ended)
            if not self._is_accepted:
                self._raise()

    def _raise(self) -> None:
        """Raise the request's error, and forget it: its traceback refers to this queue and to all of its consumers."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None

    def _notify(self) -> None:
        self._changed.notify_all()
        if self._wake is not None:
            self._wake()


class Output(Iterator[AudioChunk], AsyncIterator[AudioChunk]):
    """The audio of a request for its consumer, in a thread or on an event loop: iterate in either way.

    The iterator raises the request's error. Closing or dropping it, even before the first chunk, or cancelling the task
    that reads it, cancels the request.
    """

    def __init__(self, queue: OutputQueue, on_close: Callable[[], object] = lambda: None) -> None:
        """`on_close` is called when the consumer closes the output, but not by the garbage collector."""
        self.queue, self._on_close, self._is_closed = queue, on_close, False
        self._woken: asyncio.Event | None = None  # set when there may be something to read
        self._failure: BaseException | None = None  # see `fail`

    @property
    def unread_bytes(self) -> int:
        """Size of the audio that the consumer has not taken; readable from any thread."""
        return self.queue.unread_bytes

    def accepted(self) -> Self:
        """Wait until the request is in the engine's queue. Raises the error of a request that was not accepted."""
        try:
            self.queue.wait_accepted()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Cancel the request if it has not ended."""
        if not self._is_closed:
            self._is_closed = True
            self.queue.close()
            on_close, self._on_close = self._on_close, _do_nothing  # it refers to the request
            on_close()

    def fail(self, error: BaseException) -> None:
        """Cancel the request, and raise `error` from the iterator. Called on the event loop that iterates."""
        self._failure = error
        self.queue.close()
        if self._woken is not None:
            self._woken.set()

    async def aclose(self) -> None:
        """Cancel the request if it has not ended."""
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> AudioChunk:
        chunk = None
        try:
            chunk = self.queue.wait()
        finally:
            if chunk is None:
                self.close()
        if chunk is None:
            raise StopIteration
        return chunk

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AudioChunk:
        chunk = None
        try:
            chunk = await self._next()
        finally:
            if chunk is None:
                self.queue.watch(None)
                self.close()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def _next(self) -> AudioChunk | None:
        if self._woken is None:
            self._woken = asyncio.Event()
            self.queue.watch(partial(Waker.of(asyncio.get_running_loop()).wake, self._woken))
        while not self._is_closed:
            self._woken.clear()
            if (failure := self._failure) is not None:
                self._failure = None  # its traceback refers to this output
                raise failure
            chunk, is_over = self.queue.poll()
            if chunk is not None or is_over:
                return chunk
            await self._woken.wait()
        return None

    def __del__(self) -> None:
        if not self._is_closed:
            self.queue.close()


def _do_nothing() -> None:
    """Take the place of a callback that is no longer needed."""


class Waker:
    """Sets events of one event loop, from any thread. All those set before the loop runs again take one call of it."""

    _all: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, Waker]] = WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)  # weak, because `_all` must not keep the loop
        self._events: list[asyncio.Event] = []  # to be set
        self._lock = threading.Lock()

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> Waker:
        """Return the waker of a loop. Called on that loop."""
        if (waker := cls._all.get(loop)) is None:
            waker = cls._all[loop] = cls(loop)
        return waker

    def wake(self, event: asyncio.Event) -> None:
        """Set `event` when the loop runs next."""
        with self._lock:
            if not self._events and (loop := self._loop()) is not None:
                with suppress(RuntimeError):  # it is closed
                    loop.call_soon_threadsafe(self._set_all)
            self._events.append(event)

    def _set_all(self) -> None:
        with self._lock:
            events, self._events = self._events, []
        for event in events:
            event.set()
