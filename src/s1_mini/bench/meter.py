"""Time and memory of pieces of work, taken from outside: the device is at rest before and after each."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function

_STATM = Path("/proc/self/statm")

Result = TypeVar("Result")
Tell = Callable[[str], None]  # hears what is measured next


@dataclass(frozen=True)
class Section:
    """What came of one section. Latencies are those of one call, of which an utterance makes `calls`."""

    name: str
    calls: float
    mean_ms: float
    p50_ms: float
    p95_ms: float
    total_ms: float  # of one repetition
    memory_mb: float  # the most that a call added; on a GPU at its height, on a CPU as resident pages afterwards
    gb_per_s: float | None  # weights, keys and values read a second; None where they are not what is read
    utilisation: float | None  # share of the time that the GPU was computing; None on a CPU


@dataclass
class _Samples:
    seconds: list[float] = field(default_factory=list)
    num_bytes: float = 0.0
    memory: int = 0
    kernel_s: float | None = None  # of one call


class Meter:
    """Measures calls by the name of their section."""

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        self._device, self._clock = device, clock
        self._samples: dict[str, _Samples] = {}
        self._traces = False

    def measure(self, name: str, work: Callable[[], Result], num_bytes: float = 0.0) -> Result:
        """Do some work that reads `num_bytes` bytes of weights, keys and values, and give its result."""
        samples = self._samples.setdefault(name, _Samples())
        self._rest()
        before = self._memory_before()
        with self._label(name):
            begun = self._clock()
            result = work()
            self._rest()
            seconds = self._clock() - begun
        samples.memory = max(samples.memory, self._memory_after() - before)
        if not self._traces:  # tracing costs time
            samples.seconds.append(seconds)
            samples.num_bytes += num_bytes
        return result

    def forget_times(self) -> None:
        """End the warm-up: what it took in memory counts, how long it took does not."""
        for samples in self._samples.values():
            samples.seconds.clear()
            samples.num_bytes = 0.0

    def trace(self, work: Callable[[], object]) -> None:
        """Do work that calls `measure` once more, to see how long the GPU itself is busy; nothing on a CPU."""
        if self._device.type != "cuda":
            return
        self._traces = True
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as trace:
            work()
        self._traces = False
        for event in trace.key_averages():
            if event.key in self._samples and event.device_type.name == "CPU":
                self._samples[event.key].kernel_s = event.device_time_total / event.count / 1e6

    def sections(self, repeats: int) -> list[Section]:
        """Tell what was measured over `repeats` repetitions, in the order of the first calls."""
        return [_section(name, samples, repeats) for name, samples in self._samples.items() if samples.seconds]

    def _rest(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "mps":
            torch.mps.synchronize()

    def _label(self, name: str) -> AbstractContextManager[object]:
        return record_function(name) if self._traces else nullcontext()

    def _memory_before(self) -> int:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return torch.cuda.memory_allocated(self._device)
        return resident_bytes()

    def _memory_after(self) -> int:
        return torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else resident_bytes()


def resident_bytes() -> int:
    """Memory that this process holds, in bytes; where the system does not tell, the most it ever held, or 0."""
    if sys.platform == "win32":
        return 0
    else:  # noqa: RET505 - mypy reads each branch for its own system
        import resource

        if _STATM.exists():
            return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else 1024 * most


def _section(name: str, samples: _Samples, repeats: int) -> Section:
    total = sum(samples.seconds)
    mean = float(np.mean(samples.seconds))
    p50, p95 = (float(np.percentile(samples.seconds, percent)) for percent in (50, 95))
    return Section(
        name=name,
        calls=len(samples.seconds) / repeats,
        mean_ms=1e3 * mean,
        p50_ms=1e3 * p50,
        p95_ms=1e3 * p95,
        total_ms=1e3 * total / repeats,
        memory_mb=samples.memory / 1e6,
        gb_per_s=samples.num_bytes / total / 1e9 if samples.num_bytes else None,
        utilisation=None if samples.kernel_s is None else min(1.0, samples.kernel_s / p50),
    )
