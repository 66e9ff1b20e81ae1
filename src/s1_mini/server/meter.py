"""Prometheus metrics of the engine and of the server's requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client import Histogram as ClientHistogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from s1_mini.metrics import Family, Histogram
from s1_mini.server.limits import AdmissionController
from s1_mini.server.record import RequestLog

if TYPE_CHECKING:
    from s1_mini.engine import ProductionTTSEngine

LATENCY_S = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 25, 60, 300)
PREFIX = "s1_mini_"
UNKNOWN_ROUTE = "none"  # label of unknown paths, which clients choose


class ServerMetrics:
    """All metrics of one server and its process, in a registry of its own."""

    def __init__(self, engine: ProductionTTSEngine, gate: AdmissionController) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineFigures(engine, gate))
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        labels = ("route", "status")
        self._requests = Counter("s1_mini_http_requests", "Requests answered", labels, registry=self.registry)
        self._total = ClientHistogram(
            "s1_mini_http_request_seconds",
            "To the end of the answer",
            ("route",),
            buckets=LATENCY_S,
            registry=self.registry,
        )

    def count(self, record: RequestLog, total_s: float) -> None:
        route = record.route or UNKNOWN_ROUTE
        self._requests.labels(route, str(record.status)).inc()
        self._total.labels(route).observe(total_s)

    def text(self) -> tuple[bytes, str]:
        """Return all metrics and their media type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class EngineFigures(Collector):
    """Readiness, what clients hold and, with `metrics_enabled`, the engine's own metrics."""

    def __init__(self, engine: ProductionTTSEngine, gate: AdmissionController) -> None:
        self._engine, self._gate = engine, gate

    def collect(self) -> Iterator[Metric]:
        inside, is_ready = self._gate.num_inside, float(self._gate.refusal() is None)
        yield GaugeMetricFamily(f"{PREFIX}ready", "1 if requests are accepted", is_ready)
        yield GaugeMetricFamily(f"{PREFIX}http_requests_inside", "Requests to speak that are being answered", inside)
        held = GaugeMetricFamily(f"{PREFIX}http_held", "Held for all clients", labels=["resource"])
        limits = GaugeMetricFamily(f"{PREFIX}http_limit", "Limit for all clients together", labels=["resource"])
        for resource, figures in self._gate.accounts.describe().items():
            held.add_metric([resource], figures["held"])
            limits.add_metric([resource], figures["limit"])
        yield from (held, limits)
        if self._engine.config.metrics_enabled:
            yield from map(_shown, self._engine.families())


def _shown(family: Family) -> Metric:
    """Return a metric as the Prometheus client's."""
    name, value = PREFIX + family.name, family.value
    if isinstance(value, Histogram):
        buckets = [("+Inf" if bound == float("inf") else str(bound), count) for bound, count in value.cumulative()]
        return HistogramMetricFamily(name, family.description, buckets=buckets, sum_value=value.sum)
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    if not isinstance(value, dict):
        return kind(name, family.description, value)
    shown = kind(name, family.description, labels=[family.label])
    for label, figure in value.items():
        shown.add_metric([label], figure)
    return shown
