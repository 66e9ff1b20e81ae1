"""What stands in AWS under a name, and in which state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from s1_mini.aws import failures
from s1_mini.aws.clients import Clients
from s1_mini.deploy.call import is_ours
from s1_mini.deploy.calls import Standing
from s1_mini.deploy.machines import GPUS, count_replicas
from s1_mini.deploy.spec import FormName

ALARMS = ("rollback-5xx", "rollback-latency", "rollback-failures", "from-zero")


@dataclass(frozen=True)
class Found:
    """The things, and what AWS says of the endpoint."""

    standing: Standing
    status: str = ""
    why: str = ""
    form: FormName = "real-time"
    instance_type: str = ""
    replicas: int = 1  # engines of a machine, or of a copy
    scales: tuple[dict[str, Any], ...] = ()
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        """Whether what runs was made here."""
        return is_ours(self.standing.config, self.standing.name)


def find(clients: Clients, name: str) -> Found:
    """Look at everything that may stand under `name`."""
    seen = _ask(clients, "describe_endpoint", EndpointName=name) or {}
    config = seen.get("EndpointConfigName", "")
    settings = (config and _ask(clients, "describe_endpoint_config", EndpointConfigName=config)) or {}
    variant = (settings.get("ProductionVariants") or [{}])[0]
    model = (_ask(clients, "describe_model", ModelName=variant["ModelName"]) if "ModelName" in variant else None) or {}
    form = _form(settings, variant, model)
    specifications = dict(_components(clients, name)) if form == "components" else {}
    components = tuple((it, specification.get("ModelName", "")) for it, specification in specifications.items())
    scales = tuple(_targets(clients, name, [it for it, _ in components], seen))
    num_gpus = GPUS.get(variant.get("InstanceType", ""), 1)
    if specifications:
        first = next(iter(specifications.values()))
        num_gpus = int(first.get("ComputeResourceRequirements", {}).get("NumberOfAcceleratorDevicesRequired", 1))
        model = _ask(clients, "describe_model", ModelName=first.get("ModelName", "")) or {}
    replicas = count_replicas(num_gpus, model.get("PrimaryContainer", {}).get("Environment", {}))
    job = _ask(clients, "describe_transform_job", TransformJobName=name) or {}
    standing = Standing(
        name=name,
        endpoint=bool(seen),
        config=config,
        configs=tuple(_listed(clients, name, "list_endpoint_configs", "EndpointConfigs", "EndpointConfigName")),
        models=tuple(_listed(clients, name, "list_models", "Models", "ModelName")),
        components=components,
        targets=tuple((it["ResourceId"], it["ScalableDimension"]) for it in scales),
        alarms=tuple(_alarms(clients, name)),
        running_transform=job.get("TransformJobStatus") == "InProgress",
    )
    status, why = seen.get("EndpointStatus", ""), seen.get("FailureReason", "")
    if job and not seen:
        status, why, form = job["TransformJobStatus"], job.get("FailureReason", ""), "batch"
    return Found(standing, status, why, form, variant.get("InstanceType", ""), replicas, scales, seen)


def find_endpoint(clients: Clients, name: str) -> Found:
    """Look at the endpoint alone: whether it is there, its state and its config."""
    seen = _ask(clients, "describe_endpoint", EndpointName=name) or {}
    standing = Standing(name, endpoint=bool(seen), config=seen.get("EndpointConfigName", ""))
    return Found(standing, seen.get("EndpointStatus", ""), seen.get("FailureReason", ""), details=seen)


def find_all(clients: Clients) -> Iterator[Found]:
    """Look at every endpoint that was made here, by name: as much of each as `find_endpoint` does."""
    pages = clients["sagemaker"].get_paginator("list_endpoints").paginate(SortBy="Name", SortOrder="Ascending")
    for page in pages:
        for item in page["Endpoints"]:
            found = find_endpoint(clients, item["EndpointName"])
            if found.is_ours:
                yield found


def _form(settings: dict[str, Any], variant: dict[str, Any], model: dict[str, Any]) -> FormName:
    if "AsyncInferenceConfig" in settings:
        return "async"
    if variant and "ModelName" not in variant:
        return "components"
    return "multi-model" if model.get("PrimaryContainer", {}).get("Mode") == "MultiModel" else "real-time"


def _components(clients: Clients, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    pages = clients["sagemaker"].get_paginator("list_inference_components")
    for page in pages.paginate(EndpointNameEquals=name):
        for item in page["InferenceComponents"]:
            component = item["InferenceComponentName"]
            seen = _ask(clients, "describe_inference_component", InferenceComponentName=component) or {}
            yield component, seen.get("Specification", {})


def _targets(clients: Clients, name: str, components: list[str], seen: dict[str, Any]) -> Iterator[dict[str, Any]]:
    variants = [f"endpoint/{name}/variant/{it['VariantName']}" for it in seen.get("ProductionVariants", [])]
    copies = [f"inference-component/{it}" for it in components]
    if variants + copies:
        asked = {"ServiceNamespace": "sagemaker", "ResourceIds": variants + copies}
        yield from clients["application-autoscaling"].describe_scalable_targets(**asked)["ScalableTargets"]


def _listed(clients: Clients, name: str, operation: str, many: str, one: str) -> Iterator[str]:
    for page in clients["sagemaker"].get_paginator(operation).paginate(NameContains=name):
        yield from (item[one] for item in page[many] if is_ours(item[one], name))


def _alarms(clients: Clients, name: str) -> Iterator[str]:
    names = [f"{name}-{ending}" for ending in ALARMS]
    for item in clients["cloudwatch"].describe_alarms(AlarmNames=names)["MetricAlarms"]:
        yield item["AlarmName"]


def _ask(clients: Clients, operation: str, **which: str) -> dict[str, Any] | None:
    return failures.find(getattr(clients["sagemaker"], operation), **which)
