"""Scaling as calls: a range, what load it follows, what wakes it from zero, and hours at which the range is another.

Machines follow the requests that are being answered at once, as ten-second numbers; the target is a share of all slots
of a machine's engines. Several models behind one endpoint are counted by the minute, waiting async requests by their
number.
"""

from __future__ import annotations

from typing import Any

from s1_mini.deploy.alarms import endpoint_dimension, metric_alarm
from s1_mini.deploy.call import AwsCall, answer
from s1_mini.deploy.calls import AUTOSCALING, scalable
from s1_mini.deploy.spec import VARIANT, FormName, Scaling
from s1_mini.exceptions import ConfigurationError

MACHINES = "sagemaker:variant:DesiredInstanceCount"
COPIES = "sagemaker:inference-component:DesiredCopyCount"


def target_of(name: str, form: FormName) -> tuple[str, str]:
    """Give the resource and the dimension that scale."""
    if form == "components":
        return f"inference-component/{name}", COPIES
    return f"endpoint/{name}/variant/{VARIANT}", MACHINES


def autoscale_calls(name: str, form: FormName, scaling: Scaling) -> list[AwsCall]:
    """Give the calls that set it all. Raises `ConfigurationError` for a minimum that this form cannot have."""
    if form == "batch":
        raise ConfigurationError("form='batch': a batch has no load to follow; give it --instances")
    if scaling.minimum == 0 and form not in {"async", "components"}:
        raise ConfigurationError(f"min=0: {form} keeps at least 1 machine; only async and components shrink to zero")
    resource = scalable(*target_of(name, form))
    limits = {"MinCapacity": scaling.minimum, "MaxCapacity": scaling.maximum}
    back = AwsCall(AUTOSCALING, "deregister_scalable_target", resource)
    calls = [AwsCall(AUTOSCALING, "register_scalable_target", resource | limits, back)]
    calls.append(AwsCall(AUTOSCALING, "put_scaling_policy", resource | _follow(name, form, scaling)))
    if scaling.minimum == 0:
        calls += _wake(name, form, resource)
    for title, when, low, high in scaling.schedule:
        action = {"MinCapacity": low, "MaxCapacity": high}
        at = {"ScheduledActionName": f"{name}-{title}", "Schedule": when, "ScalableTargetAction": action}
        calls.append(AwsCall(AUTOSCALING, "put_scheduled_action", resource | at))
    return calls


def _follow(name: str, form: FormName, scaling: Scaling) -> dict[str, Any]:
    wanted: dict[str, Any] = {"ScaleOutCooldown": scaling.out_s, "ScaleInCooldown": scaling.in_s}
    replicas = scaling.replicas or 1
    if form == "async":
        wanted["TargetValue"] = scaling.backlog * replicas
        wanted["CustomizedMetricSpecification"] = {
            "MetricName": "ApproximateBacklogSizePerInstance",
            "Namespace": "AWS/SageMaker",
            "Dimensions": endpoint_dimension(name),
            "Statistic": "Average",
        }
    else:
        busy = scaling.slots * replicas * scaling.load
        metric, target = {
            "real-time": ("SageMakerVariantConcurrentRequestsPerModelHighResolution", busy),
            "components": ("SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution", busy),
            "multi-model": ("SageMakerVariantInvocationsPerInstance", busy * 60 / scaling.request_s),
        }[form]
        wanted["TargetValue"] = round(target, 2)
        wanted["PredefinedMetricSpecification"] = {"PredefinedMetricType": metric}
    return {
        "PolicyName": f"{name}-follow",
        "PolicyType": "TargetTrackingScaling",
        "TargetTrackingScalingPolicyConfiguration": wanted,
    }


def _wake(name: str, form: FormName, resource: dict[str, str]) -> list[AwsCall]:
    """Add the first one when somebody waits: what is followed has no value while there is nothing."""
    title = f"{name}-from-zero"
    step = {
        "AdjustmentType": "ChangeInCapacity",
        "MetricAggregationType": "Maximum",
        "Cooldown": 60,
        "StepAdjustments": [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}],
    }
    policy = {"PolicyName": title, "PolicyType": "StepScaling", "StepScalingPolicyConfiguration": step}
    wake = answer(title, "PolicyARN")
    if form == "components":
        here = [{"Name": "InferenceComponentName", "Value": name}]
        alarm = metric_alarm(title, "NoCapacityInvocationFailures", here, statistic="Maximum", period_s=30, action=wake)
    else:
        here = endpoint_dimension(name)
        alarm = metric_alarm(title, "HasBacklogWithoutCapacity", here, statistic="Average", periods=2, action=wake)
    return [AwsCall(AUTOSCALING, "put_scaling_policy", resource | policy, name=title), alarm]
