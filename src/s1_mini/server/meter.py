"""Figures for Prometheus: what the engine tells of itself, and what the server counts of its requests."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from s1_mini.server.gate import Gate
from s1_mini.server.record import Record

LATENCY_S = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 25, 60, 300)
UNKNOWN_ROUTE = "none"  # of paths that are no route: what clients make up is no label


class Meter:
    """All figures of one server, in a registry of its own."""

    def __init__(self, gate: Gate) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineFigures(gate))
        labels = ("route", "status")
        self._requests = Counter("s1_mini_http_requests", "Requests answered", labels, registry=self.registry)
        self._total = Histogram(
            "s1_mini_http_request_seconds",
            "To the end of the answer",
            ("route",),
            buckets=LATENCY_S,
            registry=self.registry,
        )
        self._first = Histogram(
            "s1_mini_first_chunk_seconds", "To the first sound", buckets=LATENCY_S, registry=self.registry
        )
        self._audio = Counter("s1_mini_audio_seconds", "Sound given", registry=self.registry)
        self._frames = Counter("s1_mini_frames", "Frames of sound given", registry=self.registry)

    def count(self, record: Record, total_s: float) -> None:
        """Count one request that has ended."""
        route = record.route or UNKNOWN_ROUTE
        self._requests.labels(route, str(record.status)).inc()
        self._total.labels(route).observe(total_s)
        if record.first_chunk is not None:
            self._first.observe(record.first_chunk - record.started)
            self._audio.inc(record.audio_s)
            self._frames.inc(record.frames)

    def text(self) -> tuple[bytes, str]:
        """Give all figures and their media type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class EngineFigures(Collector):
    """The engine's `health_check()` as figures."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def collect(self) -> Iterator[Metric]:
        """Give the figures of this moment."""
        health, gate = self._gate.health(), self._gate
        yield _gauge("ready", "1 if requests are taken in", float(gate.refusal() is None))
        yield _gauge("requests_inside", "Requests to speak that are being answered", gate.num_inside)
        if "queue" in health:
            queue, slots = health["queue"], health["slots"]
            yield _gauge("queue_waiting", "Sentence pieces that wait", queue["waiting"])
            yield _gauge("queue_max", "Sentence pieces that may wait", queue["max_size"])
            yield _gauge("queue_wait_mean_seconds", "Of pieces admitted lately", queue["mean_wait_s"])
            yield _gauge("queue_wait_max_seconds", "Of pieces admitted lately", queue["max_wait_s"])
            yield _counter("engine_accepted", "Requests that the engine took in", queue["accepted"])
            yield _counter("engine_refused", "Requests that found the queue full", queue["refused"])
            yield _gauge("slots_free", "Sentence pieces that could be spoken beside the others", slots["free"])
            yield _gauge("slots_total", "Sentence pieces that can be spoken at once", slots["total"])
            yield _gauge("engine_requests", "Requests in the engine", health["requests"])
        for name in ("prefix_cache", "reference_cache"):
            for figure, value in health.get(name, {}).items():
                if isinstance(value, int | float):
                    yield _gauge(f"{name}_{figure}", f"{figure} of the {name.replace('_', ' ')}", value)
        yield _gauge("gpu_memory_used_gib", "Of the GPU", health["vram"]["used_gb"])
        yield _gauge("gpu_memory_total_gib", "Of the GPU", health["vram"]["total_gb"])


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(f"s1_mini_{name}", meaning, value)


def _counter(name: str, meaning: str, value: float) -> Metric:
    return CounterMetricFamily(f"s1_mini_{name}", meaning, value)
