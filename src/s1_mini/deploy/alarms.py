"""Alarms as calls: those that make SageMaker take an update back, and those that wake what has shrunk to zero."""

from __future__ import annotations

from typing import Any

from s1_mini.deploy.call import AwsCall
from s1_mini.deploy.spec import VARIANT, Async, Components, Deployment

NAMESPACE = "AWS/SageMaker"


def rollback_alarm_names(deployment: Deployment) -> list[str]:
    """Name the alarms that an update of this deployment heeds."""
    if deployment.rollout.alarms:
        return list(deployment.rollout.alarms)
    return [call.parameters["AlarmName"] for call in rollback_alarms(deployment)]


def rollback_alarms(deployment: Deployment) -> list[AwsCall]:
    """Give the calls that make them; none if the deployment names alarms that exist."""
    if deployment.rollout.alarms:
        return []
    name = deployment.name
    if isinstance(deployment.form, Async):
        failed = metric_alarm(f"{name}-rollback-failures", "InvocationFailures", endpoint_dimension(name))
        return [failed]
    where = load_dimensions(deployment)
    errors = metric_alarm(f"{name}-rollback-5xx", "Invocation5XXErrors", where)
    slow = metric_alarm(
        f"{name}-rollback-latency",
        "ModelLatency",
        where,
        threshold=deployment.rollout.latency_alarm_s * 1e6,  # AWS counts microseconds
        statistic="p95",
        periods=3,
    )
    return [errors, slow]


def load_dimensions(deployment: Deployment) -> list[dict[str, str]]:
    """Give the dimensions under which AWS counts the calls of this deployment."""
    if isinstance(deployment.form, Components):
        return [{"Name": "InferenceComponentName", "Value": deployment.name}]
    return [*endpoint_dimension(deployment.name), {"Name": "VariantName", "Value": VARIANT}]


def endpoint_dimension(name: str) -> list[dict[str, str]]:
    """Give the dimension of what is counted for the endpoint as a whole."""
    return [{"Name": "EndpointName", "Value": name}]


def metric_alarm(
    name: str,
    metric: str,
    dimensions: list[dict[str, str]],
    *,
    threshold: float = 1.0,
    statistic: str = "Sum",
    period_s: int = 60,
    periods: int = 1,
    action: str | None = None,
) -> AwsCall:
    """Give the call that makes an alarm; a minute without data is a good minute."""
    parameters: dict[str, Any] = {
        "AlarmName": name,
        "Namespace": NAMESPACE,
        "MetricName": metric,
        "Dimensions": dimensions,
        "Period": period_s,
        "EvaluationPeriods": periods,
        "DatapointsToAlarm": periods,
        "Threshold": threshold,
        "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        "TreatMissingData": "notBreaching",
    }
    parameters["ExtendedStatistic" if statistic.startswith("p") else "Statistic"] = statistic
    if action is not None:
        parameters["AlarmActions"] = [action]
    return AwsCall(
        "cloudwatch", "put_metric_alarm", parameters, AwsCall("cloudwatch", "delete_alarms", {"AlarmNames": [name]})
    )
