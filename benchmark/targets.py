"""Targets of the engine on one H200 with S1-mini's sizes in bfloat16, and the verdict on each figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from s1_mini.bench.report import NONE, table


@dataclass(frozen=True)
class Target:
    """Limit and aim of a figure."""

    title: str
    must: float
    aim: float
    less_is_better: bool = True


TARGETS = {
    "frame_1": Target("ms a frame, 1 row", 1.5, 0.65),
    "frame_64": Target("ms a frame, 64 rows", 2.5, 1.4),
    "frame_128": Target("ms a frame, 128 rows", 3.5, 2.2),
    "audio_per_s": Target("seconds of sound a second, saturated", 600, 1500, less_is_better=False),
    "first_idle": Target("first sound, idle, voice cached, p50, ms", 20, 8),
    "first_busy": Target("first sound under load, p95, ms", 50, 20),
    "underruns_busy": Target("underruns under that load", 0, 0),
    "streams": Target("real-time streams without underruns (100 ms)", 300, 1000, less_is_better=False),
    "same_captured": Target("same tokens, captured as eager", 0.99, 1.0, less_is_better=False),
    "same_alone": Target("same tokens, alone as among 64", 0.999, 1.0, less_is_better=False),
    "same_cached": Target("same tokens, prefix cached as read", 0.999, 1.0, less_is_better=False),
    "same_torch": Target("same likeliest tokens, by kernels as by torch", 0.9, 1.0, less_is_better=False),
    "start": Target("start to ready, caches warm, s", 40, 15),
}


@dataclass(frozen=True)
class Figure:
    """One measured value; without `target` where it was measured in small."""

    name: str
    title: str
    value: float | None
    target: Target | None

    @property
    def verdict(self) -> str:
        """Whether the target is reached: aim, must, missed, or a dash without a target."""
        if self.target is None or self.value is None:
            return NONE
        if self._reaches(self.target.aim):
            return "aim"
        return "must" if self._reaches(self.target.must) else "missed"

    def data(self) -> dict[str, Any]:
        """Return the fields of the line of JSON."""
        target = (
            {} if self.target is None else {"must": self.target.must, "aim": self.target.aim, "verdict": self.verdict}
        )
        return {"name": self.name, "title": self.title, "value": self.value, **target}

    def _reaches(self, limit: float) -> bool:
        assert self.value is not None
        assert self.target is not None
        return self.value <= limit if self.target.less_is_better else self.value >= limit


def judge(name: str, value: float | None, *, is_full: bool) -> Figure:
    """Build a figure, with its target if it was measured in full."""
    target = TARGETS.get(name)
    title = target.title if target else f"ms a frame, {name.removeprefix('frame_')} rows"
    return Figure(name, title, value, target if is_full else None)


def lay_out(figures: Sequence[Figure]) -> str:
    """Lay out figures, one a line, with what they must be and what is aimed at."""
    return table(["figure", "measured", "must", "aim", "reached"], [_row(figure) for figure in figures])


def _row(figure: Figure) -> list[str | float | None]:
    target = figure.target
    sign = "≤" if target is None or target.less_is_better else "≥"
    limits = [None, None] if target is None else [f"{sign} {target.must:g}", f"{sign} {target.aim:g}"]
    return [figure.title, figure.value, *limits, figure.verdict]
