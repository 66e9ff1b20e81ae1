"""Work that yields after each bounded block, so that a thread can do other work in between."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

Result = TypeVar("Result")
Blocks = Generator[None, None, Result]


def result_of(blocks: Blocks[Result]) -> Result:
    """Do all blocks without a pause and return the result."""
    while True:
        try:
            next(blocks)
        except StopIteration as end:
            result: Result = end.value
            return result
