"""How a profile is told: tables for a person, plain data for a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from s1_mini.bench.axis import Axis
from s1_mini.bench.meter import Section
from s1_mini.bench.profile import shares

_NONE = "–"


def section_table(sections: Sequence[Section]) -> str:
    """Lay out the sections, one a line; latencies are those of one call."""
    head = (
        f"{'section':<18} {'calls':>6} {'mean ms':>9} {'p50':>9} {'p95':>9} {'share':>7} {'memory MB':>10} "
        f"{'GB/s':>7} {'GPU':>6}"
    )
    part = shares(sections)
    lines = [
        f"{section.name:<18} {section.calls:>6.0f} {section.mean_ms:>9.3f} {section.p50_ms:>9.3f} "
        f"{section.p95_ms:>9.3f} {_percent(part.get(section.name)):>7} {section.memory_mb:>10.1f} "
        f"{_NONE if section.gb_per_s is None else format(section.gb_per_s, '.2f'):>7} "
        f"{_percent(section.utilisation):>6}"
        for section in sections
    ]
    return "\n".join((head, *lines))


def section_data(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """The same for a machine; the share is None for what is no part of the whole."""
    part = shares(sections)
    return [asdict(section) | {"share": part.get(section.name)} for section in sections]


def _percent(share: float | None) -> str:
    return _NONE if share is None else f"{100 * share:.1f} %"


def axis_table(axes: Sequence[Axis]) -> str:
    """Lay out a sweep, one axis a line: from the smallest to the largest, fitted and predicted exponents, the line."""
    head = (
        f"{'axis':<34} {'law':<14} {'along':<15} {'from':>6} {'to':>6} {'y':>10} {'y':>10} {'unit':<7} "
        f"{'exponent':>8} {'predicted':>11} {'a line':>22}"
    )
    return "\n".join((head, *(_axis_line(axis) for axis in axes)))


def _axis_line(axis: Axis) -> str:
    low, high = axis.predicted
    predicted = f"{low:.2f}" if high - low < 0.005 else f"{low:.2f}…{high:.2f}"
    return (
        f"{axis.name:<34} {axis.law:<14} {axis.x:<15} {axis.xs[0]:>6.0f} {axis.xs[-1]:>6.0f} {_short(axis.ys[0]):>10} "
        f"{_short(axis.ys[-1]):>10} {axis.unit:<7} {axis.exponent:>8.2f} {predicted:>11} "
        f"{_short(axis.intercept):>10} + {_short(axis.slope)}·x"
    )


def axis_data(axes: Sequence[Axis]) -> list[dict[str, Any]]:
    """The same for a machine."""
    fits = ("exponent", "slope", "intercept")
    return [asdict(axis) | {name: getattr(axis, name) for name in fits} for axis in axes]


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
