"""One axis of a sweep: what was measured along it, the power law through that, and the one that was predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Axis:
    """`ys` measured at `xs`. `predicted` holds the exponents that counting gives: the lowest and the highest.

    Where work is bound by what it reads, the one counted in bytes is right; where it is bound by computing, the one
    counted in operations. What every call costs, whatever its size, makes an exponent smaller.
    """

    name: str
    x: str
    unit: str
    law: str  # what is predicted, in the letters of docs/complexity.md
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    predicted: tuple[float, float]

    @property
    def exponent(self) -> float:
        """Of the power law that fits best."""
        return exponent(self.xs, self.ys)

    @property
    def slope(self) -> float:
        """Of the straight line that fits best, in units of y for each x."""
        return float(np.polyfit(self.xs, self.ys, 1)[0])

    @property
    def intercept(self) -> float:
        """Of the same line."""
        return float(np.polyfit(self.xs, self.ys, 1)[1])


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The p of the y = c · x^p that fits best, in logarithms."""
    return float(np.polyfit(np.log(xs), np.log(ys), 1)[0])


def between(xs: Sequence[float], *counts: Sequence[float]) -> tuple[float, float]:
    """The lowest and the highest exponent of several counts at `xs`."""
    found = [exponent(xs, count) for count in counts]
    return min(found), max(found)


def floats(values: Sequence[float]) -> tuple[float, ...]:
    """Whole numbers or not, as an axis keeps them."""
    return tuple(float(value) for value in values)


def powers(first: int, last: int) -> list[int]:
    """Double from `first` on while not beyond `last`; two sizes at the least."""
    sizes = [first]
    while len(sizes) < 2 or 2 * sizes[-1] <= last:
        sizes.append(2 * sizes[-1])
    return sizes
