"""How a profile is told: tables for a person, plain data for a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

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
