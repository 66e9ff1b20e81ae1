"""Waiting for AWS, with progress on stderr: a status line on a terminal, otherwise one line per change."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from s1_mini.exceptions import DeploymentError

if TYPE_CHECKING:
    from rich.console import Console

POLL_S = 10.0


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


@dataclass(frozen=True)
class Waiter:
    """Polls AWS, with progress on `display`, for at most `limit_s` seconds."""

    display: Display
    limit_s: float
    sleep: Callable[[float], None] = time.sleep

    def until_over(self, is_going_on: Callable[[], bool], title: str) -> None:
        """Poll until `is_going_on` returns False. Raises `DeploymentError` after `limit_s` seconds."""
        begin = time.monotonic()
        while is_going_on():
            if time.monotonic() - begin >= self.limit_s:
                raise DeploymentError(
                    f"{title}: not finished after {self.limit_s:.0f} s. AWS continues: `s1-mini endpoint describe "
                    "NAME` shows its progress"
                )
            self.sleep(POLL_S)
