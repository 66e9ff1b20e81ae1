"""Draw what `benchmark.mel_baseline` found: latency, requests at once, sections and growth, before and after.

python -m benchmark.mel_plots docs/benchmarks/mel_cpu.json docs/mel_cpu.svg
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmark.command import run

WIDTH, HEIGHT = 9.0, 5.6  # inches
COLOURS = {"baseline": "#b3452c", "transformers": "#c99a2e", "engine": "#2c6db3", "engine, first sound": "#7fb0dc"}


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Write a picture of four parts, the same bytes for the same figures."""
    import matplotlib as mpl  # type: ignore[import-not-found,import-untyped,unused-ignore]

    mpl.use("Agg")
    from matplotlib import pyplot

    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "mel", "font.sans-serif": ["DejaVu Sans"], "font.size": 8}
    style |= {"legend.frameon": False, "axes.spines.top": False, "axes.spines.right": False}
    with mpl.rc_context(style):
        figure, axes = pyplot.subplots(2, 2, figsize=(WIDTH, HEIGHT), layout="constrained")
        for part, plot in zip(axes.flat, (_latencies, _batches, _sections, _growth), strict=True):
            plot(part, found)
            part.minorticks_off()
        facts = found["facts"]
        figure.suptitle(f"{facts['machine']}, torch {facts['torch']}, engine in {facts['precision']}", fontsize=9)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)


def _is_of_gpu(found: Mapping[str, Any]) -> bool:
    return "gpu_memory_gb" in found["facts"]


def _latencies(axes: Any, found: Mapping[str, Any]) -> None:
    if not _is_of_gpu(found):  # there seconds of the wall are other work's, too
        ways = found["latencies"]
        names = [way["name"].replace(", ", ",\n") for way in ways]
        axes.bar(names, [way["processor_s_per_s"] for way in ways], color=[COLOURS[way["name"]] for way in ways])
        axes.set(title="One request", ylabel="processor seconds for a second of sound")
        return
    lengths = found["facts"]["characters"]
    for way in found["latencies"]:
        shortest = [min(way["seconds"][at :: len(lengths)]) for at in range(len(lengths))]
        axes.plot(lengths, shortest, marker="o", markersize=3, label=way["name"], color=COLOURS[way["name"]])
    axes.set(title="One request", xlabel="characters", ylabel="seconds", yscale="log")
    axes.legend()


def _batches(axes: Any, found: Mapping[str, Any]) -> None:
    counts = [batch["requests"] for batch in found["batches"]]
    for name, key in (("baseline", "baseline_average_ms"), ("engine", "average_ms")):
        if key not in found["batches"][0]:  # older figures have no measured baseline
            continue
        seconds = [batch[key] / 1e3 for batch in found["batches"]]
        axes.plot(counts, seconds, marker="o", markersize=3, label=name, color=COLOURS[name])
    axes.set(title="Requests at once, 50 characters each", xlabel="requests", ylabel="average seconds")
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.legend()


def _sections(axes: Any, found: Mapping[str, Any]) -> None:
    for at, (when, label) in enumerate((("before", "baseline"), ("after", "engine"))):
        key = "seconds" if _is_of_gpu(found) else "busy_s"
        sections = {name: each[key] for name, each in found["sections"][when].items() if each["seconds"] and each[key]}
        names = [*found["sections"]["after"]]
        places = [names.index(section) + 0.4 * at - 0.2 for section in sections]
        axes.barh(places, [1e3 * took for took in sections.values()], 0.38, label=label, color=COLOURS[label])
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(title=f"Sections, {found['facts']['characters'][-1]} characters", xscale="log")
    axes.set_xlabel("milliseconds" if _is_of_gpu(found) else "milliseconds that all cores compute")
    axes.legend()


def _growth(axes: Any, found: Mapping[str, Any]) -> None:
    for part, colour in (("decode, baseline", COLOURS["baseline"]), ("decode, engine", COLOURS["engine"])):
        points = [one for one in found["growth"] if one["part"] == part]
        counts, first = [one["count"] for one in points], points[0]
        axes.plot(counts, [one["seconds"] for one in points], marker="o", markersize=3, label=part, color=colour)
        derived = [first["seconds"] * one["gmacs"] / first["gmacs"] for one in points]
        axes.plot(counts, derived, linestyle=":", label=f"{part}, as derived", color=colour)
    axes.set(title="Growth with steps of the decoder", xlabel="steps", ylabel="seconds", xscale="log", yscale="log")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.legend()


def main() -> int:
    """Draw one file of figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", type=Path, help="what --output of benchmark.mel_baseline wrote")
    parser.add_argument("picture", type=Path, help="the .svg to write")
    options = parser.parse_args()
    draw(json.loads(options.figures.read_text(encoding="utf-8")), options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
