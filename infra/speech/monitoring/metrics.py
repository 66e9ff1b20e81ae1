"""The numbers that alarms and the dashboard read: SageMaker's own, and those drawn from the server's log lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SAGEMAKER = "AWS/SageMaker"
UTILISATION = "/aws/sagemaker/Endpoints"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Whose numbers: the dimensions SageMaker counts under, and the namespace of what the log lines tell."""

    name: str  # of the endpoint or component; alarms are named after it
    dimensions: Mapping[str, str]
    log_group: str

    @property
    def namespace(self) -> str:
        """Of the metrics drawn from the log."""
        return f"S1Mini/{self.name}"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number over time; `statistic` is CloudWatch's (Sum, Maximum, p95)."""

    name: str
    statistic: str
    namespace: str = SAGEMAKER
    from_log: bool = False

    def place(self, source: Source) -> tuple[str, Mapping[str, str]]:
        """Give namespace and dimensions for a source; a metric filter's have no dimensions."""
        return (source.namespace, {}) if self.from_log else (self.namespace, source.dimensions)


INVOCATIONS = Metric(name="Invocations", statistic="Sum")
ERRORS = Metric(name="Invocation5XXErrors", statistic="Sum")
CALLERS_ERRORS = Metric(name="Invocation4XXErrors", statistic="Sum")
LATENCY_P95 = Metric(name="ModelLatency", statistic="p95")  # microseconds, of a stream to its end
LATENCY_P50 = Metric(name="ModelLatency", statistic="p50")
CONCURRENCY = Metric(name="ConcurrentRequestsPerModel", statistic="Maximum")
COPY_CONCURRENCY = Metric(name="ConcurrentRequestsPerCopy", statistic="Maximum")
NO_CAPACITY = Metric(name="NoCapacityInvocationFailures", statistic="Maximum")
FIRST_SOUND_P95 = Metric(name="FirstChunkMilliseconds", statistic="p95", from_log=True)
WAITING = Metric(name="PiecesWaiting", statistic="p90", from_log=True)
REFUSED = Metric(name="RequestsRefused", statistic="Sum", from_log=True)
GPU = Metric(name="GPUUtilization", statistic="Average", namespace=UTILISATION)
GPU_MEMORY = Metric(name="GPUMemoryUtilization", statistic="Maximum", namespace=UTILISATION)
BACKLOG = Metric(name="ApproximateBacklogSizePerInstance", statistic="Average")
BACKLOG_SIZE = Metric(name="ApproximateBacklogSize", statistic="Maximum")
OLDEST = Metric(name="ApproximateAgeOfOldestRequest", statistic="Maximum")  # seconds
WITHOUT_CAPACITY = Metric(name="HasBacklogWithoutCapacity", statistic="Maximum")
FAILURES = Metric(name="InvocationFailures", statistic="Sum")
EXPIRED = Metric(name="ExpiredRequests", statistic="Sum")
