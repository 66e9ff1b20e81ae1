"""Resources without a stack: endpoints that earlier versions created by API calls, and transform jobs (batches)."""

from __future__ import annotations

import re
from typing import Any

from s1_mini.aws import batch
from s1_mini.aws.clients import Clients
from s1_mini.aws.deployment import OWNER_TAG
from s1_mini.aws.display import Waiter
from s1_mini.aws.failures import find
from s1_mini.exceptions import DeploymentError

ALARMS = ("rollback-5xx", "rollback-latency", "rollback-failures", "from-zero")


def find_endpoint(clients: Clients, name: str) -> dict[str, Any] | None:
    """Return SageMaker's description of the endpoint, or None."""
    return find(clients["sagemaker"].describe_endpoint, EndpointName=name)


def describe(clients: Clients, name: str) -> dict[str, Any]:
    """Return the state of an endpoint or batch without a stack. Raises `DeploymentError` if there is none."""
    seen = find_endpoint(clients, name) or {}
    job = find(clients["sagemaker"].describe_transform_job, TransformJobName=name) or {}
    if not seen and not job:
        raise missing(clients, name)
    status = seen.get("EndpointStatus") or job.get("TransformJobStatus")
    why = seen.get("FailureReason") or job.get("FailureReason", "")
    form = "endpoint without a stack" if seen else "batch"
    return {"name": name, "stack": None, "status": status, "reason": why, "form": form, "instances": instances(seen)}


def instances(endpoint: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the current and desired number of instances of each variant."""
    keys = {"variant": "VariantName", "current": "CurrentInstanceCount", "desired": "DesiredInstanceCount"}
    return [{key: each.get(field) for key, field in keys.items()} for each in endpoint.get("ProductionVariants", [])]


def count(endpoint: dict[str, Any]) -> int:
    """Return the current number of instances of all variants."""
    return sum(each["current"] or 0 for each in instances(endpoint))


def list_all(clients: Clients, known: set[str]) -> list[dict[str, Any]]:
    """Return the endpoints with our tag that are not in `known`, in the form of `Stacks.list_all`."""
    listed = []
    for page in clients["sagemaker"].get_paginator("list_endpoints").paginate(SortBy="Name", SortOrder="Ascending"):
        for each in page["Endpoints"]:
            name = each["EndpointName"]
            if name in known or not is_ours(clients, each):
                continue
            seen = find_endpoint(clients, name) or {}
            status, changed = each["EndpointStatus"], each["LastModifiedTime"]
            listed.append({"name": name, "status": status, "instances": count(seen), "changed": changed})
    return listed


def is_ours(clients: Clients, endpoint: dict[str, Any]) -> bool:
    """Return whether the endpoint has the tag `OWNER_TAG` with its own name as the value."""
    answer = clients["sagemaker"].list_tags(ResourceArn=endpoint["EndpointArn"])
    return {"Key": OWNER_TAG, "Value": endpoint["EndpointName"]} in answer["Tags"]


def not_changeable(clients: Clients, name: str) -> DeploymentError:
    """Return the error for an update of `name`, which has no stack."""
    seen = find_endpoint(clients, name)
    if seen is None:
        return missing(clients, name)
    if not is_ours(clients, seen):
        return foreign(name)
    return DeploymentError(
        f"endpoint {name} was created by an earlier version, without a stack: create one with another name and move "
        f"your clients to it, or run `s1-mini endpoint delete {name}` and create it again"
    )


def missing(clients: Clients, name: str) -> DeploymentError:
    """Return the error for a name that does not exist."""
    return DeploymentError(
        f"endpoint {name} does not exist in {clients.region}: set --region to its region, or create it with `s1-mini "
        f"endpoint create {name} …`"
    )


def foreign(name: str) -> DeploymentError:
    """Return the error for an endpoint without our tag."""
    return DeploymentError(
        f"endpoint {name} has no tag {OWNER_TAG}={name}, so `s1-mini endpoint` did not create it: change or delete "
        "it where it was created"
    )


def delete(clients: Clients, name: str, waiter: Waiter) -> None:
    """Delete all resources of `name`, dependents first; can be repeated after a failure.

    Raises `DeploymentError` and the errors of botocore.
    """
    sagemaker, scaling = clients["sagemaker"], clients["application-autoscaling"]
    seen = find_endpoint(clients, name)
    if seen is not None and not is_ours(clients, seen):
        raise foreign(name)
    configs = _names(sagemaker, "list_endpoint_configs", "EndpointConfigs", "EndpointConfigName", name)
    if seen is not None:
        variants = [f"endpoint/{name}/variant/{each['VariantName']}" for each in seen.get("ProductionVariants", [])]
        components = _components(sagemaker, name) if _has_components(sagemaker, seen) else []
        ids = variants + [f"inference-component/{each}" for each in components]
        targets = scaling.describe_scalable_targets(ServiceNamespace="sagemaker", ResourceIds=ids)["ScalableTargets"]
        for target in targets if ids else []:
            keys = ("ServiceNamespace", "ResourceId", "ScalableDimension")
            scaling.deregister_scalable_target(**{key: target[key] for key in keys})
        for component in components:
            sagemaker.delete_inference_component(InferenceComponentName=component)
        waiter.until_over(lambda: bool(components and _components(sagemaker, name)), f"components of {name}")
        sagemaker.delete_endpoint(EndpointName=name)
        waiter.until_over(lambda: find_endpoint(clients, name) is not None, f"endpoint {name}")
        waiter.display.line(f"deleted endpoint {name}")
    for config in configs:
        sagemaker.delete_endpoint_config(EndpointConfigName=config)
    is_batch = delete_batch(clients, name, waiter)
    if seen is None and not configs and not is_batch:
        raise missing(clients, name)
    if alarms := _alarms(clients, name):
        clients["cloudwatch"].delete_alarms(AlarmNames=alarms)


def delete_batch(clients: Clients, name: str, waiter: Waiter) -> bool:
    """Stop the batch and delete its models; return whether the batch was running or had models."""
    sagemaker = clients["sagemaker"]
    job = find(sagemaker.describe_transform_job, TransformJobName=name) or {}
    is_running = job.get("TransformJobStatus") == "InProgress"
    if is_running:
        sagemaker.stop_transform_job(TransformJobName=name)
        batch.wait_for_job(clients, name, waiter)
    models = _names(sagemaker, "list_models", "Models", "ModelName", name)
    for model in models:
        sagemaker.delete_model(ModelName=model)
        waiter.display.line(f"deleted model {model}")
    return is_running or bool(models)


def _has_components(sagemaker: Any, endpoint: dict[str, Any]) -> bool:
    config = find(sagemaker.describe_endpoint_config, EndpointConfigName=endpoint["EndpointConfigName"]) or {}
    return any("ModelName" not in each for each in config.get("ProductionVariants", []))


def _components(sagemaker: Any, name: str) -> list[str]:
    pages = sagemaker.get_paginator("list_inference_components").paginate(EndpointNameEquals=name)
    return [each["InferenceComponentName"] for page in pages for each in page["InferenceComponents"]]


def _names(sagemaker: Any, operation: str, many: str, one: str, name: str) -> list[str]:
    pattern = re.compile(rf"{re.escape(name)}-[0-9a-f]{{{batch.DIGEST}}}")
    pages = sagemaker.get_paginator(operation).paginate(NameContains=name)
    return [each[one] for page in pages for each in page[many] if pattern.fullmatch(each[one])]


def _alarms(clients: Clients, name: str) -> list[str]:
    answer = clients["cloudwatch"].describe_alarms(AlarmNames=[f"{name}-{ending}" for ending in ALARMS])
    return [each["AlarmName"] for each in answer["MetricAlarms"]]
