"""Progress on stderr: a status line on a terminal, otherwise one line per change."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


class Display:
    """Lines on stderr."""

    def __init__(self, console: Console | None = None) -> None:
        if console is None:
            from rich.console import Console as Terminal

            console = Terminal(stderr=True, highlight=False)
        self._console = console

    def line(self, text: str) -> None:
        self._console.print(text, markup=False)

    @contextmanager
    def waiting(self, title: str) -> Iterator[Callable[[str], None]]:
        """Yield a function that shows the state of `title` with the elapsed time."""
        begin, shown = time.monotonic(), ""
        if not self._console.is_terminal:

            def say(state: str) -> None:
                nonlocal shown
                if state != shown:
                    self.line(f"{title}: {state}")
                shown = state

            yield say
            return
        with self._console.status(title) as status:

            def show(state: str) -> None:
                nonlocal shown
                spent = int(time.monotonic() - begin)
                status.update(f"{title}: {state}, {spent // 60}:{spent % 60:02}")
                if state != shown:
                    self.line(f"{spent // 60:3}:{spent % 60:02}  {title}: {state}")
                shown = state

            yield show
