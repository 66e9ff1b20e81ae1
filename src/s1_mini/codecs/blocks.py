"""Work that yields after each bounded block, so that a thread can do other work in between."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

Result = TypeVar("Result")
Blocks = Generator[None, None, Result]


def result_of(blocks: Blocks[Result]) -> Result:
    """Return the result of work that is done at once."""
    while True:
        try:
            next(blocks)
        except StopIteration as end:
            result: Result = end.value
            return result
