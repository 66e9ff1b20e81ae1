"""Seconds, memory, device utilisation and achieved bandwidth of the named sections of a request."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from s1_mini.bench.clients import resident_bytes
from s1_mini.bench.profile import Result, Timer
from s1_mini.runtime.process import num_cores


@dataclass
class Section:
    """Figures of one section of a request."""

    seconds: float = 0.0
    memory_mb: float = 0.0  # growth of the memory in use: to the peak on a GPU, to the section's end on a CPU
    num_bytes: float = 0.0  # bytes of weights, keys and values that the section must read
    busy_s: float | None = None  # seconds of computation: of all kernels on a GPU, averaged over the cores on a CPU

    @property
    def bandwidth_gb_s(self) -> float | None:
        """Achieved bandwidth."""
        return self.num_bytes / self.seconds / 1e9 if self.seconds and self.num_bytes else None

    @property
    def use(self) -> float | None:
        """Share of the section's time in which the device computes."""
        return None if self.busy_s is None or not self.seconds else min(1.0, self.busy_s / self.seconds)

    def row(self) -> list[float | None]:
        """Return seconds, memory in MB, use in % and bandwidth in GB/s for a table."""
        if not self.seconds:
            return [None] * 4
        return [self.seconds, self.memory_mb, None if self.use is None else 100 * self.use, self.bandwidth_gb_s]

    def data(self) -> dict[str, Any]:
        """Return the fields of the line of JSON."""
        return vars(self) | {"use": self.use, "bandwidth_gb_s": self.bandwidth_gb_s}


class Span(NamedTuple):
    """Start and end of a section, by the system's clock."""

    name: str
    start_ns: int
    stop_ns: int


class Clock(Timer):
    """Seconds, memory and use of sections; the device is idle before and after each."""

    def __init__(
        self, device: torch.device, names: Iterable[str] = (), renames: Mapping[str, str] | None = None
    ) -> None:
        """`names` are the sections; `renames` maps names of timed work to other names."""
        super().__init__(device)
        self._names, self._renames, self._cores = tuple(names), renames or {}, num_cores()
        self.forget()

    def forget(self) -> None:
        """Reset after a warm-up."""
        super().forget()
        self.parts = {name: Section() for name in self._names}
        self.spans: list[Span] = []

    def time(self, name: str, work: Callable[[], Result], num_bytes: float = 0.0) -> Result:
        """Time some work and return its result."""
        self.rest()
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
        memory, computed, start_ns, begun = self._memory_mb(), time.process_time(), time.time_ns(), time.perf_counter()
        result = work()
        self.rest()
        self.add(name, time.perf_counter() - begun)
        name = self._renames.get(name, name)
        section = self.parts[name]
        self.spans.append(Span(name, start_ns, time.time_ns()))
        if on_gpu:
            section.memory_mb = max(section.memory_mb, torch.cuda.max_memory_allocated(self.device) / 1e6 - memory)
        else:
            section.memory_mb += self._memory_mb() - memory
            section.busy_s = (section.busy_s or 0.0) + (time.process_time() - computed) / self._cores
        section.num_bytes += num_bytes
        return result

    def add(self, name: str, seconds: float) -> None:
        """Add a call that was timed elsewhere."""
        super().add(name, seconds)
        self.parts.setdefault(self._renames.get(name, name), Section()).seconds += seconds

    def _memory_mb(self) -> float:
        """Return the memory in use: torch's on a GPU, otherwise the resident memory of this process."""
        num_bytes = torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else resident_bytes()
        return num_bytes / 1e6


def trace(work: Callable[[], Sequence[Span]], device: torch.device) -> dict[str, float]:
    """Run work under torch's profiler; return the seconds of kernels (on a CPU: of operators) in each section."""
    from torch.profiler import ProfilerActivity, profile

    activity = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
    with profile(activities=[activity]) as traced:
        spans = work()
    results = traced.profiler.kineto_results if traced.profiler is not None else None
    kind = device.type.upper()
    events = [] if results is None else [event for event in results.events() if event.device_type().name == kind]
    return covered([(event.start_ns(), event.start_ns() + event.duration_ns()) for event in events], spans)


def covered(events: Sequence[tuple[int, int]], spans: Sequence[Span]) -> dict[str, float]:
    """Return the seconds of each section that events [start, stop in ns] cover; overlaps count once."""
    if not events:
        return {}
    base, reached, total = events[0][0], -math.inf, 0.0
    times: list[float] = []
    done: list[float] = []  # nanoseconds covered up to each time
    for begun, ended in sorted((start - base, stop - base) for start, stop in events):
        if ended > reached:
            first = max(begun, reached)
            times += [first, ended]
            done += [total, total + ended - first]
            reached, total = ended, done[-1]
    found: dict[str, float] = {}
    for span in spans:
        before, after = np.interp([span.start_ns - base, span.stop_ns - base], times, done)
        found[span.name] = found.get(span.name, 0.0) + float(after - before) / 1e9
    return found


def bottlenecks(sections: Mapping[str, Section]) -> list[str]:
    """Return a sentence for each of the three sections that take longest."""
    total = sum(section.seconds for section in sections.values())
    most = sorted(sections.items(), key=lambda item: -item[1].seconds)[:3]
    return [f"{name}: {each.seconds:.3g} s, {100 * each.seconds / total:.0f} % of a request" for name, each in most]
