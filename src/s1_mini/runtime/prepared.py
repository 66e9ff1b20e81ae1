"""A request that is being taken in: its text is checked, and its references are read while others are spoken."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeVar

from s1_mini.exceptions import RequestTimeoutError
from s1_mini.text.form import NormalizedText
from s1_mini.types import Voice


@dataclass(frozen=True)
class Prepared:
    """The text of a request in pieces, and the voices of its references as soon as they are known."""

    script: NormalizedText
    pieces: list[str]
    listening: list[Future[Voice]]

    def voices(self, deadline: float) -> list[Voice]:
        """Wait for the references. Raises `ReferenceAudioError`, `EngineError`, or `RequestTimeoutError` when late."""
        try:
            return [_wait(each, deadline) for each in self.listening]
        finally:
            self.close()

    async def voices_async(self, deadline: float) -> list[Voice]:
        """Do as `voices` for an event loop; no thread waits, and who leaves takes the work along."""
        try:
            return [await _wait_async(each, deadline) for each in self.listening]
        finally:
            self.close()

    def close(self) -> None:
        """End what is still being read; nobody waits for it."""
        for each in self.listening:
            each.cancel()


class _Closable(Protocol):
    """What holds work until it is closed."""

    def close(self) -> None:
        """End the work."""


Held = TypeVar("Held", bound=_Closable)


async def in_thread(work: Callable[[], Held]) -> Held:
    """Do some quick work in a thread; if the caller leaves meanwhile, close what comes of it."""
    begun = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(begun)
    except asyncio.CancelledError:
        begun.add_done_callback(_close)
        raise


def _close(begun: asyncio.Future[Held]) -> None:
    if not begun.cancelled() and begun.exception() is None:
        begun.result().close()


def _wait(listening: Future[Voice], deadline: float) -> Voice:
    try:
        return listening.result(_left_s(deadline))
    except TimeoutError:
        if listening.done():  # the encoding itself raised it
            raise
        raise _late() from None


async def _wait_async(listening: Future[Voice], deadline: float) -> Voice:
    try:
        async with asyncio.timeout(_left_s(deadline)) as limit:  # `wait_for` may lose a cancellation on Python 3.11
            return await asyncio.wrap_future(listening)
    except TimeoutError:
        if not limit.expired():  # the encoding itself raised it
            raise
        raise _late() from None


def _left_s(deadline: float) -> float | None:
    return None if deadline == float("inf") else max(0.0, deadline - time.monotonic())


def _late() -> RequestTimeoutError:
    return RequestTimeoutError("the reference was not encoded in time")
