"""Policies of the coarse and the fine stage, which work in windows, without torch.

Where a window begins and ends depends only on its number and on the lengths of the voice's histories, which the
prompt has as the facts `SEMANTIC`, `COARSE` and `FINE`.
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
    """The coarse model's windows. Semantic tokens and codes are counted from the beginning of the voice's history.

    With `merges`, the first unit generates several windows.
    """

    numbers: Numbers
    merges: bool = True

    @property
    def most_steps(self) -> int:
        """Number of codes of the longest unit, which consists of the merged first windows without a voice."""
        return self.merged(0, {}) * self.numbers.window

    @property
    def most_positions(self) -> int:
        """Number of positions, prompt and codes, of the longest unit."""
        numbers = self.numbers
        return numbers.max_coarse_text + 1 + max(numbers.max_coarse_history + numbers.window, self.most_steps)

    def seen(self, window: int, facts: Facts) -> int:
        """Return the first semantic token that a window attends to."""
        return max(0, self.place(window, facts) - self.numbers.max_semantic_history)

    def past(self, window: int, facts: Facts) -> int:
        """Return the number of earlier codes that a window attends to."""
        return min(facts.get(COARSE, 0) + window * self.numbers.window, self.numbers.max_coarse_history)

    def merged(self, first: int, facts: Facts) -> int:
        """Return the number of windows from `first` on that one unit can generate.

        As long as windows attend to all semantic tokens and codes from the beginning, each can continue the window
        before it without a new prefill.
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
        """Return the number of semantic tokens before a window, including those of the voice."""
        return facts.get(SEMANTIC, 0) + round(window * self.numbers.window / self.numbers.ratio)

    def at(self, units: int, facts: Facts) -> int:
        """Return the number of the window after `units` units, of which the first may consist of several windows."""
        return units and self.merged(0, facts) + units - 1


@dataclass(frozen=True, kw_only=True)
class CoarsePolicy(StagePolicy):
    """The policy of the coarse stage.

    With `begins_early`, a window begins once its own input is available, otherwise once all semantic tokens are.
    """

    windows: CoarseWindows
    begins_early: bool = True

    def next_unit(self, progress: Progress) -> Unit | None:
        """Return a unit for the next window, or for several merged windows. Without semantic tokens, the unit fails."""
        windows, numbers, facts = self.windows, self.windows.numbers, progress.facts
        window = windows.at(progress.units, facts)
        merged = windows.merged(window, facts)
        stop = self._stop(window, facts)
        if not progress.is_final and (progress.available < stop or not self.begins_early):
            return None
        # A window attends to more semantic tokens than it generates audio for. While the input is not final, a window
        # whose input is available is therefore never the last.
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
        """Return the number of semantic tokens up to the end of the next window's input."""
        if not self.begins_early:
            return NEVER
        return self._stop(self.windows.at(progress.units, progress.facts), progress.facts)

    def is_done(self, progress: Progress) -> bool:
        return progress.is_final and progress.units > 0 and progress.consumed >= progress.available

    def _stop(self, window: int, facts: Facts) -> int:
        """Return the exclusive end of a window's semantic tokens, not counting those of the voice."""
        return self.windows.seen(window, facts) + self.windows.numbers.max_coarse_text - facts.get(SEMANTIC, 0)


class FineWindow:
    """One window of the fine model. Frames are counted from the beginning of the voice's history."""

    def __init__(self, numbers: Numbers, number: int, history: int, available: int, *, is_last: bool) -> None:
        """`available` is the number of frames so far, of voice and speech together."""
        last = max(0, available - numbers.fine_window)
        self.start = min(number * numbers.fine_hop, last) if is_last else number * numbers.fine_hop
        self.stop = min(available, self.start + numbers.fine_window)
        fill = history + number * numbers.fine_hop
        length = max(available, numbers.fine_window)
        self.fill = min(fill, length - numbers.fine_hop) if is_last else fill  # first frame whose codes are generated
        # Frames before `certain` are final. Later frames may still change, because the next window, if it is the last,
        # may generate codes from any frame in the second half of this window on.
        self.certain = available if is_last else (number + 1) * numbers.fine_hop + min(history, 1)


@dataclass(frozen=True, kw_only=True)
class FinePolicy(StagePolicy):
    """The policy of the fine stage, which turns frames of two codes into frames of eight codes."""

    numbers: Numbers
    is_autoregressive: bool = False
    together: int = 1  # windows per call

    def next_unit(self, progress: Progress) -> Unit | None:
        """Return the next window once more frames follow it or the input is final; until then, return None."""
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
        """Return the number of frames at which it is certain that the next window is not the last."""
        numbers = self.numbers
        return progress.units * numbers.fine_hop + numbers.fine_window + 1 - progress.facts.get(FINE, 0)

    def most_together(self, size: int) -> int:  # noqa: ARG002 - there is one size
        return min(self.together, self.slots)
