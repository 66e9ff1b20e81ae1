"""A text that is spoken while it is being written."""

from __future__ import annotations

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
        self._lock = threading.Lock()  # held while the sink is called, so that pieces stay in order

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
            if self._sink is not None:
                self._sink(piece, False)

    def close(self) -> None:
        """End the text; calling it again has no effect."""
        with self._lock:
            if not self._is_closed and self._sink is not None:
                self._sink("", True)
            self._is_closed = True

    def attach(self, sink: TextSink) -> None:
        """Send all text, past and future, to `sink`. Raises `ParameterError` for a second sink."""
        with self._lock:
            if self._sink is not None:
                raise ParameterError("text", "is a TextStream that is spoken already; each is spoken once")
            self._sink = sink
            sink(self._text, self._is_closed)
