"""What the engine is held to on one H200 with S1-mini's sizes in bfloat16, and how a figure stands to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_NONE = "–"


@dataclass(frozen=True)
class Goal:
    """What a figure must be and what is aimed at."""

    title: str
    must: float
    aim: float
    less_is_better: bool = True


GOALS = {
    "frame_1": Goal("ms a frame, 1 row", 1.5, 0.65),
    "frame_64": Goal("ms a frame, 64 rows", 2.5, 1.4),
    "frame_128": Goal("ms a frame, 128 rows", 3.5, 2.2),
    "audio_per_s": Goal("seconds of sound a second, saturated", 600, 1500, less_is_better=False),
    "first_idle": Goal("first sound, idle, voice cached, p50, ms", 20, 8),
    "first_busy": Goal("first sound under load, p95, ms", 50, 20),
    "underruns_busy": Goal("underruns under that load", 0, 0),
    "streams": Goal("real-time streams without underruns (100 ms)", 300, 1000, less_is_better=False),
    "same_captured": Goal("same tokens, captured as eager", 0.99, 1.0, less_is_better=False),
    "start": Goal("start to ready, caches warm, s", 40, 15),
}


@dataclass(frozen=True)
class Figure:
    """One measured value; without `goal` where it was measured in small."""

    name: str
    title: str
    value: float | None
    goal: Goal | None

    @property
    def verdict(self) -> str:
        """Tell whether the goal is reached: aim, must, missed, or nothing to reach."""
        if self.goal is None or self.value is None:
            return _NONE
        if self._reaches(self.goal.aim):
            return "aim"
        return "must" if self._reaches(self.goal.must) else "missed"

    def data(self) -> dict[str, Any]:
        """Everything for a machine."""
        goal = {} if self.goal is None else {"must": self.goal.must, "aim": self.goal.aim, "verdict": self.verdict}
        return {"name": self.name, "title": self.title, "value": self.value, **goal}

    def _reaches(self, limit: float) -> bool:
        assert self.value is not None
        assert self.goal is not None
        return self.value <= limit if self.goal.less_is_better else self.value >= limit


def judge(name: str, value: float | None, *, is_full: bool) -> Figure:
    """Put a value beside its goal, if it was measured in full."""
    goal = GOALS.get(name)
    title = goal.title if goal else f"ms a frame, {name.removeprefix('frame_')} rows"
    return Figure(name, title, value, goal if is_full else None)


def table(figures: Sequence[Figure]) -> str:
    """Lay out figures, one a line, with what they must be and what is aimed at."""
    head = f"{'figure':<46} {'measured':>10} {'must':>8} {'aim':>8} {'reached':>8}"
    return "\n".join((head, *(_line(figure) for figure in figures)))


def _line(figure: Figure) -> str:
    sign = "" if figure.goal is None else "≤ " if figure.goal.less_is_better else "≥ "
    limits = [_NONE] * 2 if figure.goal is None else [f"{sign}{figure.goal.must:g}", f"{sign}{figure.goal.aim:g}"]
    value = _NONE if figure.value is None else _number(figure.value)
    return f"{figure.title:<46} {value:>10} {limits[0]:>8} {limits[1]:>8} {figure.verdict:>8}"


def _number(value: float) -> str:
    """Counts as they are, measures in three digits or so."""
    return f"{value:.0f}" if isinstance(value, int) or value >= 100 else f"{value:.2f}"
