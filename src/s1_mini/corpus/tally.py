"""How a corpus gets on: what is done, how fast, what it costs, how long it takes. Figures only."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from s1_mini.corpus.manifest import Entry

HOUR_S = 3600


@dataclass
class Tally:
    """Figures of a corpus of `total` lines; `price` is of an hour of all machines. Rates are of this run alone."""

    total: int
    price: float | None = None
    clock: Callable[[], float] = time.monotonic
    done: int = 0
    bad: int = 0
    cut: int = 0
    seconds: float = 0.0  # of sound
    _begun: float = field(init=False)
    _done_before: int = 0
    _seconds_before: float = 0.0

    def __post_init__(self) -> None:
        self._begun = self.clock()

    def add(self, entry: Entry) -> None:
        """Count a shard."""
        self.done += entry.texts
        self.bad += len(entry.errors)
        self.cut += entry.cut
        self.seconds += entry.seconds

    def begin(self) -> None:
        """Take what was counted until now as of earlier runs."""
        self._begun, self._done_before, self._seconds_before = self.clock(), self.done, self.seconds

    @property
    def spent_s(self) -> float:
        """Seconds of this run."""
        return self.clock() - self._begun

    @property
    def rate(self) -> float:
        """Hours of sound in an hour."""
        return (self.seconds - self._seconds_before) / self.spent_s if self.spent_s > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds that the rest will take; None before anything is done."""
        done = self.done - self._done_before
        return self.spent_s / done * (self.total - self.done) if done else None

    def describe(self) -> str:
        """Tell it in one line."""
        parts = [f"{self.rate:.1f} h of sound an hour"]
        left_s = self.left_s
        if self.price is not None:
            cost = f"cost {self.spent_s / HOUR_S * self.price:.2f}"
            parts.append(cost if left_s is None else f"{cost} of {(self.spent_s + left_s) / HOUR_S * self.price:.2f}")
        if left_s is not None and self.done < self.total:
            parts.append(f"{duration(left_s)} left")
        return ", ".join(parts)


def duration(seconds: float) -> str:
    """Write seconds as hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
