"""A text that is spoken while it is being written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from s1_mini.exceptions import ParameterError

TextSink = Callable[[str, bool], None]  # takes the next piece, which may be empty, and whether it is the last one


class TextStream:
    """A text that one thread writes, in pieces of any length, while an engine speaks it. Thread-safe.

    Errors in the text are raised where its audio is read.
    """

    def __init__(self) -> None:
        self._text, self._is_closed = "", False
        self._sink: TextSink | None = None
        self._num_passed, self._is_passing, self._has_ended = 0, False, False  # what the sink has received
        self._lock = threading.Lock()  # not held while the sink is called, so that no thread waits for another's work

    @property
    def text(self) -> str:
        """The text that was written so far."""
        return self._text

    @property
    def is_closed(self) -> bool:
        """Whether the text is complete."""
        return self._is_closed

    def write(self, piece: str) -> None:
        """Add a piece of the text. Raises `ParameterError` if the text was closed, or if `piece` is not a str."""
        if not isinstance(piece, str):
            raise ParameterError("text", f"must be a str, not {type(piece).__name__}")
        with self._lock:
            if self._is_closed:
                raise ParameterError("text", "was closed; write further text to another TextStream")
            self._text += piece
        self._on_change()

    def close(self) -> None:
        """End the text; calling it again has no effect."""
        with self._lock:
            self._is_closed = True
        self._on_change()

    def attach(self, sink: TextSink) -> None:
        """Send all text, past and future, to `sink`. Raises `ParameterError` for a second sink."""
        with self._lock:
            if self._sink is not None:
                raise ParameterError(
                    "text", "is a TextStream that another request already uses; create one for each request"
                )
            self._sink = sink
        self._pass_on()

    def _on_change(self) -> None:
        """Called after each change of the text, in the thread that writes it."""
        self._pass_on()

    def _pass_on(self) -> None:
        """Send new text to the sink, unless another thread does so, which then sends this text too."""
        while True:
            with self._lock:
                piece, is_last = self._text[self._num_passed :], self._is_closed
                if self._sink is None or self._is_passing or self._has_ended or not (piece or is_last):
                    return
                self._num_passed, self._is_passing, self._has_ended = len(self._text), True, is_last
            try:
                self._sink(piece, is_last)
            finally:
                with self._lock:
                    self._is_passing = False


class BackgroundTextStream(TextStream):
    """A text that is written on an event loop and whose words are read in a thread.

    Normalizing a text takes up to 0.1 ms per character, for which an event loop cannot wait.
    """

    def _on_change(self) -> None:
        if self._sink is not None and not self._is_passing:  # otherwise the passing thread or `attach` sends it
            asyncio.get_running_loop().run_in_executor(None, self._pass_on)
