"""Work that is no speech, such as encoding a reference: done by the engine's thread between its turns, bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

import torch

Steps = Generator[None, None, Any]


class Task:
    """One piece of such work; `make` begins it, and begins it anew if the memory ran out on the way."""

    def __init__(self, make: Callable[[], Steps]) -> None:
        self.future: Future[Any] = Future()
        self._make = make
        self._steps: Steps | None = None

    @torch.inference_mode()
    def step(self) -> bool:
        """Do the next bit; tell whether that was the last. Raises what it fails with, and can be called again."""
        if self._steps is None:
            self._steps = self._make()
        try:
            next(self._steps)
        except StopIteration as end:
            self.future.set_result(end.value)
            return True
        except BaseException:
            self._steps = None
            raise
        return False

    def end(self, error: Exception) -> None:
        """Give up."""
        if self._steps is not None:
            self._steps.close()
        self.fail(error)

    def fail(self, error: Exception) -> None:
        """Tell who waits, unless he has been told or waits no more; from any thread."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)
