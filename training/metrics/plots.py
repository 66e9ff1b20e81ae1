"""Three small pictures of one evaluation. Knows figures only; matplotlib is loaded when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from training.metrics.lengths import RUNAWAY, TRUNCATED

_SIZE, _DPI = (4.5, 3.0), 110  # about 500 × 330 pixels, 15 kB


def draw(
    folder: Path,
    *,
    error_rates: Mapping[str, tuple[float, float]],
    f0_hz: Sequence[tuple[float, float]],
    length_ratios: Mapping[str, Sequence[float]],
) -> list[Path]:
    """Write `errors.png`, and where there is something to show `pitch.png` and `lengths.png`.

    `error_rates`: word and character error rate of each row; `f0_hz`: median F0 of reference and clone in Hz;
    `length_ratios`: lengths of each row in units of the teacher's.
    """
    import matplotlib as mpl  # type: ignore[import-not-found,import-untyped,unused-ignore]

    mpl.use("Agg")
    paths = [_save(folder / "errors.png", lambda axes: _bars(axes, error_rates))]
    if f0_hz:
        paths.append(_save(folder / "pitch.png", lambda axes: _scatter(axes, f0_hz)))
    if any(length_ratios.values()):
        paths.append(_save(folder / "lengths.png", lambda axes: _histogram(axes, length_ratios)))
    return paths


def _save(path: Path, plot: Any) -> Path:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=_SIZE, dpi=_DPI, layout="constrained")
    plot(axes)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Software": None})  # the same bytes for the same figures
    pyplot.close(figure)
    return path


def _bars(axes: Any, error_rates: Mapping[str, tuple[float, float]]) -> None:
    places = np.arange(len(error_rates))
    for shift, kind, index in ((-0.2, "words", 0), (0.2, "characters", 1)):
        heights = [100 * rates[index] for rates in error_rates.values()]
        axes.bar_label(axes.bar(places + shift, heights, 0.38, label=kind), fmt="%.1f", fontsize=7)
    axes.set_xticks(places, [name.replace(" ", "\n", 1) for name in error_rates], fontsize=8)
    axes.set_ylabel("misrecognised, %")
    axes.legend(frameon=False, fontsize=8)


def _scatter(axes: Any, f0_hz: Sequence[tuple[float, float]]) -> None:
    reference, clone = np.array(f0_hz, dtype=float).T
    ends = np.array([np.nanmin(f0_hz) * 0.9, np.nanmax(f0_hz) * 1.1])
    axes.fill_between(ends, ends * 0.85, ends * 1.15, color="0.93")
    axes.fill_between(ends, ends * 0.9, ends * 1.1, color="0.85")
    axes.plot(ends, ends, color="0.5", linewidth=0.8)
    axes.scatter(reference, clone, s=10)
    axes.set(xscale="log", yscale="log", xlabel="median F0 of the reference, Hz", ylabel="of the clone, Hz")
    ticks = [hz for hz in (60, 80, 100, 130, 170, 220, 290) if ends[0] <= hz <= ends[1]]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, [str(hz) for hz in ticks])
        axis.set_ticks([], minor=True)


def _histogram(axes: Any, length_ratios: Mapping[str, Sequence[float]]) -> None:
    bins = np.linspace(0, 2.1, 43)
    for name, ratios in length_ratios.items():
        if ratios:
            axes.hist(np.clip(ratios, 0, 2.09), bins, histtype="step", label=name)
    for limit in (TRUNCATED, RUNAWAY):
        axes.axvline(limit, color="0.6", linestyle=":")
    axes.set(xlabel="length, in units of the teacher's (last bin: longer)", ylabel="texts")
    axes.legend(frameon=False, fontsize=8)
