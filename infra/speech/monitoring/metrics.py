"""The metrics of alarms and dashboards: SageMaker's, and those of the server's log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from s1_mini.aws.deployment import VARIANT, Deployment
from s1_mini.aws.template import NAMESPACE

UTILISATION = "/aws/sagemaker/Endpoints"


class Source(NamedTuple):
    """An endpoint or component: its name, the dimensions of SageMaker's metrics, and its log group."""

    name: str
    dimensions: Mapping[str, str]
    log_group: str

    @classmethod
    def of(cls, deployment: Deployment) -> Source:
        """Return the source of a deployment's metrics."""
        name = deployment.name
        if deployment.form == "components":
            return cls(name, {"InferenceComponentName": name}, f"/aws/sagemaker/InferenceComponents/{name}")
        variant = {} if deployment.form == "async" else {"VariantName": VARIANT}
        return cls(name, {"EndpointName": name, **variant}, f"/aws/sagemaker/Endpoints/{name}")

    @property
    def log_namespace(self) -> str:
        """Namespace of the metrics of the log."""
        return f"S1Mini/{self.name}"


class Metric(NamedTuple):
    """A metric with a statistic of CloudWatch, such as Sum or p95. A metric without a namespace comes from the log."""

    name: str
    statistic: str
    namespace: str | None = NAMESPACE

    def place(self, source: Source) -> tuple[str, Mapping[str, str]]:
        """Return namespace and dimensions. Metrics of the log have no dimensions."""
        return (source.log_namespace, {}) if self.namespace is None else (self.namespace, source.dimensions)


INVOCATIONS = Metric("Invocations", "Sum")
SERVER_ERRORS = Metric("Invocation5XXErrors", "Sum")
CLIENT_ERRORS = Metric("Invocation4XXErrors", "Sum")
LATENCY_P95 = Metric("ModelLatency", "p95")  # microseconds, until the end of a stream
LATENCY_P50 = Metric("ModelLatency", "p50")
CONCURRENCY = Metric("ConcurrentRequestsPerModel", "Maximum")
COPY_CONCURRENCY = Metric("ConcurrentRequestsPerCopy", "Maximum")
NO_CAPACITY = Metric("NoCapacityInvocationFailures", "Maximum")
FIRST_AUDIO_P95 = Metric("FirstChunkMilliseconds", "p95", None)
WAITING = Metric("RequestsWaiting", "p90", None)
REFUSED = Metric("RequestsRefused", "Sum", None)
GPU = Metric("GPUUtilization", "Average", UTILISATION)
GPU_MEMORY = Metric("GPUMemoryUtilization", "Maximum", UTILISATION)
BACKLOG = Metric("ApproximateBacklogSizePerInstance", "Average")
BACKLOG_SIZE = Metric("ApproximateBacklogSize", "Maximum")
OLDEST = Metric("ApproximateAgeOfOldestRequest", "Maximum")  # seconds
WITHOUT_CAPACITY = Metric("HasBacklogWithoutCapacity", "Maximum")
FAILURES = Metric("InvocationFailures", "Sum")
EXPIRED = Metric("ExpiredRequests", "Sum")
