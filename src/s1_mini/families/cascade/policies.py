"""Policies of the coarse and the fine stage: windows, whose place follows from their number alone. Loads no torch.

The prompt's facts `SEMANTIC`, `COARSE` and `FINE` are the numbers of tokens of a voice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from s1_mini.core.stage import NEVER, Progress, StagePolicy, Unit
from s1_mini.families.cascade.config import NUM_COARSE, Numbers

SEMANTIC, COARSE, FINE = "semantic history", "coarse history", "fine history"
Facts = Mapping[str, int]


@dataclass(frozen=True)
class CoarseWindows:
    """Where each window of the coarse model lies: in semantic tokens and in codes, those of the voice included."""

    numbers: Numbers
    merges: bool = True

    @property
    def most_steps(self) -> int:
        """Codes that the longest unit makes: the windows of the beginning, without a voice."""
        return self.merged(0, {}) * self.numbers.window

    @property
    def most_positions(self) -> int:
        """Positions of the longest unit: all that it may see, and what it makes."""
        numbers = self.numbers
        return numbers.max_coarse_text + 1 + max(numbers.max_coarse_history + numbers.window, self.most_steps)

    def seen(self, window: int, facts: Facts) -> int:
        """Return the first semantic token that a window sees."""
        return max(0, self.place(window, facts) - self.numbers.max_semantic_history)

    def past(self, window: int, facts: Facts) -> int:
        """Return how many codes before it a window sees."""
        return min(facts.get(COARSE, 0) + window * self.numbers.window, self.numbers.max_coarse_history)

    def merged(self, first: int, facts: Facts) -> int:
        """Return how many windows from `first` on see the same, but for what they make themselves.

        As long as a window sees from the first token and the first code on, the next goes on where it ends: there is
        no need to read all of it again.
        """
        count = 1
        while self.merges and not first and self._fits(count, facts):
            count += 1
        return count

    def _fits(self, window: int, facts: Facts) -> bool:
        numbers = self.numbers
        codes = facts.get(COARSE, 0) + window * numbers.window
        place = self.place(window, facts)
        return place <= numbers.max_semantic_history and codes <= numbers.max_coarse_history

    def place(self, window: int, facts: Facts) -> int:
        """Return the semantic tokens that windows before this one have spoken, and those of the voice."""
        return facts.get(SEMANTIC, 0) + round(window * self.numbers.window / self.numbers.ratio)

    def at(self, units: int, facts: Facts) -> int:
        """Return the window that follows `units` units, of which the first may be several windows."""
        return units and self.merged(0, facts) + units - 1


@dataclass(frozen=True, kw_only=True)
class CoarsePolicy(StagePolicy):
    """Windows of semantic tokens to codes; a window may begin as soon as all semantic tokens that it sees are there."""

    windows: CoarseWindows
    begins_early: bool = True

    def next_unit(self, progress: Progress) -> Unit | None:
        """Return the next window, or several merged ones; without any token a unit that fails."""
        windows, numbers, facts = self.windows, self.windows.numbers, progress.facts
        window = windows.at(progress.units, facts)
        merged = windows.merged(window, facts)
        stop = self._stop(window, facts)
        if not progress.is_final and (progress.available < stop or not self.begins_early):
            return None
        # A window whose whole input is available is never the last: it sees further than it speaks.
        steps, consumes = merged * numbers.window, windows.place(window + merged, {}) - progress.consumed
        if progress.is_final:
            left = numbers.num_coarse(progress.available) - window * numbers.window
            if left <= steps:
                steps, consumes = max(left, 1), progress.available - progress.consumed
        start = max(0, windows.seen(window, facts) - facts.get(SEMANTIC, 0))
        past = windows.past(window, facts)
        return Unit(
            start,
            min(stop, progress.available),
            consumes,
            steps=steps,
            prefill=numbers.max_coarse_text + past,
            past=min(window * numbers.window, past) // NUM_COARSE,
        )

    def asks_at(self, progress: Progress) -> int:
        """Return where what the next window sees ends."""
        if not self.begins_early:
            return NEVER
        return self._stop(self.windows.at(progress.units, progress.facts), progress.facts)

    def is_done(self, progress: Progress) -> bool:
        return progress.is_final and progress.units > 0 and progress.consumed >= progress.available

    def _stop(self, window: int, facts: Facts) -> int:
        """Return one past the last semantic token that a window sees, the voice's not counted."""
        return self.windows.seen(window, facts) + self.windows.numbers.max_coarse_text - facts.get(SEMANTIC, 0)


class FineWindow:
    """One window of the fine model; frames are counted with those of the voice."""

    def __init__(self, numbers: Numbers, number: int, history: int, available: int, *, is_last: bool) -> None:
        """`available` frames are there, of the voice and of the speech."""
        last = max(0, available - numbers.fine_window)
        self.start = min(number * numbers.fine_hop, last) if is_last else number * numbers.fine_hop
        self.stop = min(available, self.start + numbers.fine_window)
        fill = history + number * numbers.fine_hop
        length = max(available, numbers.fine_window)
        self.fill = min(fill, length - numbers.fine_hop) if is_last else fill  # from here on it makes codes
        # Frames that the next window may change are held back; the last begins anywhere behind this one's middle.
        self.certain = available if is_last else (number + 1) * numbers.fine_hop + min(history, 1)


@dataclass(frozen=True, kw_only=True)
class FinePolicy(StagePolicy):
    """Windows of frames of two codes to frames of eight."""

    numbers: Numbers
    is_autoregressive: bool = False
    together: int = 1  # windows of one call

    def next_unit(self, progress: Progress) -> Unit | None:
        """Return the next window: the last as soon as the end is known, another once it is certain to be none."""
        numbers, history = self.numbers, progress.facts.get(FINE, 0)
        available = progress.available + history
        is_last = available <= progress.units * numbers.fine_hop + numbers.fine_window
        if is_last and not progress.is_final:
            return None
        window = FineWindow(numbers, progress.units, history, available, is_last=is_last)
        return Unit(
            max(0, window.start - history),
            max(0, window.stop - history),
            window.certain - history - progress.consumed,
        )

    def asks_at(self, progress: Progress) -> int:
        """Return the frames from which on a window is certain not to be the last."""
        numbers = self.numbers
        return progress.units * numbers.fine_hop + numbers.fine_window + 1 - progress.facts.get(FINE, 0)

    def most_together(self, size: int) -> int:  # noqa: ARG002 - there is one size
        return min(self.together, self.slots)
