"""A picture of a profile. Knows figures only; matplotlib, which is the extra `chart`, is loaded when one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from s1_mini.bench.meter import Section
from s1_mini.bench.profile import shares

_DPI = 110
_ROW_INCHES = 0.42


def draw_sections(path: Path, sections: Sequence[Section], title: str) -> None:
    """Write a PNG: a bar for each section's share of the whole, beside it what one call takes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # type: ignore[import-not-found,unused-ignore]
    from matplotlib.figure import Figure  # type: ignore[import-not-found,unused-ignore]

    part = shares(sections)
    shown = [section for section in sections if section.name in part]
    figure = Figure(figsize=(8.0, 1.2 + _ROW_INCHES * len(shown)), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot()
    bars = axes.barh([section.name for section in shown], [100 * part[section.name] for section in shown])
    axes.bar_label(bars, [_label(section, part[section.name]) for section in shown], padding=4, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 135 * max(part.values()))  # room for the words beside the longest bar
    axes.set_xlabel("share of the whole, %")
    axes.set_title(title, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=_DPI, format="png")


def _label(section: Section, share: float) -> str:
    calls = f"{section.calls:.0f} × " if section.calls > 1 else ""
    return f"{100 * share:.1f} %, {calls}{section.p50_ms:.2f} ms"
