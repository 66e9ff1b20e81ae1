"""Metrics of an engine as plain numbers: one thread writes them, any thread may read.

`families` describes them for an exporter. Names and units follow Prometheus: base units, `_total` for counters.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

# Upper bounds in seconds; a last bucket has all larger values.
LATENCY_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
FACTOR_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
ROW_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


class Histogram:
    """Counts of values by bucket, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Add a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """Return every bound, the last one infinite, with the number of values at or below it."""
        return list(zip((*self.bounds, float("inf")), accumulate(self.counts), strict=True))


@dataclass(frozen=True)
class MetricFamily:
    """One metric: a value, values by one label, or a histogram."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    description: str
    value: float | Histogram | dict[str, float]
    label: str = ""  # name of the label whose values are the keys of `value`


def _latency() -> Histogram:
    return Histogram(LATENCY_BUCKETS)


@dataclass
class EngineMetrics:
    """Metrics of one engine since its creation; a reload continues them."""

    queue_s: Histogram = field(default_factory=_latency)  # from arrival to the first slot
    prefill_s: Histogram = field(default_factory=_latency)  # from the slot until the prompt is prefilled
    first_chunk_s: Histogram = field(default_factory=_latency)  # from arrival to the first audio
    total_s: Histogram = field(default_factory=_latency)  # from arrival to the end
    real_time_factor: Histogram = field(default_factory=lambda: Histogram(FACTOR_BUCKETS))
    rows: Histogram = field(default_factory=lambda: Histogram(ROW_BUCKETS))  # rows of a step that generated frames
    frames: int = 0
    audio_s: float = 0.0
    underruns: int = 0  # times that a stream ran out of audio
    ends: Counter[str] = field(default_factory=Counter)  # requests by finish reason or error code
    stage_seconds: dict[str, float] = field(default_factory=dict)  # working time by stage
    stage_steps: Counter[str] = field(default_factory=Counter)  # number of steps by stage
    stage_rows: Counter[str] = field(default_factory=Counter)  # total rows of all steps by stage
    out_of_memory: int = 0  # times that memory ran out and caches were evicted

    def count_stage(self, name: str, rows: int, seconds: float) -> None:
        """Add the work of a stage: a step of `rows` rows, or only prefill if `rows` is 0."""
        self.stage_seconds[name] = self.stage_seconds.get(name, 0.0) + seconds
        self.stage_steps[name] += rows > 0
        self.stage_rows[name] += rows

    def families(self) -> Iterator[MetricFamily]:
        """Yield every metric."""
        yield MetricFamily("queue_seconds", "histogram", "From arrival to the first slot", self.queue_s)
        yield MetricFamily(
            "prefill_seconds", "histogram", "From the first slot until the prompt is prefilled", self.prefill_s
        )
        yield MetricFamily("first_chunk_seconds", "histogram", "From arrival to the first audio", self.first_chunk_s)
        yield MetricFamily("request_seconds", "histogram", "From arrival to the end", self.total_s)
        yield MetricFamily(
            "real_time_factor",
            "histogram",
            "Time from arrival to the end, divided by the length of the audio",
            self.real_time_factor,
        )
        yield MetricFamily("batch_rows", "histogram", "Rows that generated a frame in one step", self.rows)
        yield MetricFamily("frames_total", "counter", "Frames generated", float(self.frames))
        yield MetricFamily("audio_seconds_total", "counter", "Seconds of audio delivered", self.audio_s)
        yield MetricFamily(
            "underruns_total",
            "counter",
            "Number of times that a stream ran out of audio before more arrived",
            self.underruns,
        )
        yield MetricFamily("requests_total", "counter", "Requests by how they ended", dict(self.ends), label="end")
        for name, figures, description in (
            ("seconds", self.stage_seconds, "Seconds of work of each stage"),
            ("steps", self.stage_steps, "Steps that each stage made"),
            ("rows", self.stage_rows, "Rows of the steps of each stage"),
        ):
            yield MetricFamily(f"stage_{name}_total", "counter", description, dict(figures), label="stage")
        yield MetricFamily(
            "out_of_memory_total", "counter", "Number of times that memory ran out", float(self.out_of_memory)
        )


def gpu_memory(gigabytes: Mapping[str, float]) -> MetricFamily:
    """Return the metric of a GPU's memory, given `health_check`'s figures."""
    memory = {name.removesuffix("_gb"): 1e9 * value for name, value in gigabytes.items()}
    return MetricFamily("gpu_memory_bytes", "gauge", "Memory of the GPU", memory, "part")
