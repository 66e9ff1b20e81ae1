"""The parameters of SageMaker's calls, made from what is wanted. Pure: no clock, no network, no chance."""

from __future__ import annotations

from typing import Any

from s1_mini.deploy.alarms import rollback_alarm_names
from s1_mini.deploy.call import digest
from s1_mini.deploy.machines import PLACEMENT, REPLICAS, has_own_disk
from s1_mini.deploy.spec import VARIANT, Async, Batch, Components, Deployment, MultiModel, Rolling

OWNER_TAG = "s1-mini:endpoint"
LINES = "application/jsonlines"
EACH = 4  # requests at an engine, where nothing is said
MAX_TRANSFORMS = 16  # of 6 MB, which stay below the 100 MB that are allowed together


def tags(deployment: Deployment) -> list[dict[str, str]]:
    """Give the tags of everything that this deployment makes."""
    every = {OWNER_TAG: deployment.name, **deployment.tags}
    return [{"Key": key, "Value": value} for key, value in sorted(every.items())]


def model(deployment: Deployment) -> dict[str, Any]:
    """Give the parameters of CreateModel, named by their content."""
    wanted = deployment.model
    container: dict[str, Any] = {"Image": wanted.image}
    if isinstance(deployment.form, MultiModel):
        container |= {"Mode": "MultiModel", "ModelDataUrl": wanted.artifact}
    elif wanted.is_prefix:
        source = {"S3Uri": wanted.artifact, "S3DataType": "S3Prefix", "CompressionType": "None"}
        container["ModelDataSource"] = {"S3DataSource": source}
    else:
        container["ModelDataUrl"] = wanted.artifact
    environment = dict(wanted.environment)
    if deployment.num_gpus > 1 and PLACEMENT not in environment:
        environment.setdefault(REPLICAS, "auto")  # as our image has it, told to whoever reads the model
    if environment:
        container["Environment"] = dict(sorted(environment.items()))
    content: dict[str, Any] = {"PrimaryContainer": container, "ExecutionRoleArn": wanted.role}
    if not isinstance(deployment.form, Components):  # there the endpoint says it for all components
        content |= _network(deployment)
    return {"ModelName": _named(deployment, content), **content, "Tags": tags(deployment)}


def endpoint_config(deployment: Deployment) -> dict[str, Any]:
    """Give the parameters of CreateEndpointConfig, named by their content."""
    form = deployment.form
    content: dict[str, Any] = {"ProductionVariants": [_variant(deployment)]}
    if deployment.fleet.kms_key and not has_own_disk(deployment.fleet.instance_type):
        content["KmsKeyId"] = deployment.fleet.kms_key
    if isinstance(form, Components):
        content |= {"ExecutionRoleArn": deployment.model.role, **_network(deployment)}
    if isinstance(form, Async):
        content["AsyncInferenceConfig"] = _async_config(form, form.max_concurrent or EACH * deployment.replicas)
    return {"EndpointConfigName": _named(deployment, content), **content, "Tags": tags(deployment)}


def component(deployment: Deployment, form: Components) -> dict[str, Any]:
    """Give the specification of the inference component: the model, what it needs, how long it may take to start."""
    needs: dict[str, Any] = {"MinMemoryRequiredInMb": form.memory_mb, "NumberOfCpuCoresRequired": form.cpu_cores}
    if form.accelerators:
        needs["NumberOfAcceleratorDevicesRequired"] = form.accelerators
    return {
        "ModelName": model(deployment)["ModelName"],
        "StartupParameters": _startup(deployment),
        "ComputeResourceRequirements": needs,
        "DataCacheConfig": {"EnableCaching": True},
    }


def transform_job(deployment: Deployment, form: Batch) -> dict[str, Any]:
    """Give the parameters of CreateTransformJob: lines in, as many lines out, in the same order."""
    output: dict[str, Any] = {"S3OutputPath": form.output, "Accept": LINES, "AssembleWith": "Line"}
    machines: dict[str, Any] = {
        "InstanceType": deployment.fleet.instance_type,
        "InstanceCount": deployment.fleet.instances,
    }
    if form.kms_key:
        output["KmsKeyId"] = form.kms_key
    if deployment.fleet.kms_key and not has_own_disk(deployment.fleet.instance_type):
        machines["VolumeKmsKeyId"] = deployment.fleet.kms_key
    if deployment.fleet.machine_image:  # other names than those of an endpoint: none is chosen here
        machines["TransformAmiVersion"] = deployment.fleet.machine_image
    return {
        "TransformJobName": deployment.name,
        "ModelName": model(deployment)["ModelName"],
        "MaxConcurrentTransforms": form.concurrent or min(EACH * deployment.replicas, MAX_TRANSFORMS),
        "MaxPayloadInMB": form.payload_mb,
        "BatchStrategy": "MultiRecord",
        "ModelClientConfig": {"InvocationsTimeoutInSeconds": form.timeout_s, "InvocationsMaxRetries": form.retries},
        "TransformInput": {
            "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": form.source}},
            "ContentType": LINES,
            "SplitType": "Line",
        },
        "TransformOutput": output,
        "TransformResources": machines,
        "Tags": tags(deployment),
    }


def rollout(deployment: Deployment) -> dict[str, Any]:
    """Give the DeploymentConfig of an update: in which steps, and the alarms that take it back."""
    wanted = deployment.rollout
    share: dict[str, Any] = {"Type": "CAPACITY_PERCENT", "Value": wanted.step_percent}
    limit = {"MaximumExecutionTimeoutInSeconds": wanted.limit_s}
    back = {"AutoRollbackConfiguration": {"Alarms": [{"AlarmName": name} for name in rollback_alarm_names(deployment)]}}
    strategy: Rolling = wanted.strategy or ("rolling" if deployment.fleet.instances > 1 else "all-at-once")
    if isinstance(deployment.form, Components):  # one copy may be all there is: no share of it is a copy
        share, strategy = {"Type": "COPY_COUNT", "Value": 1}, "rolling"
    if strategy == "rolling":
        rolling = {"MaximumBatchSize": share, "WaitIntervalInSeconds": wanted.wait_s, **limit}
        return {"RollingUpdatePolicy": rolling, **back}
    routing: dict[str, Any] = {"Type": strategy.upper().replace("-", "_"), "WaitIntervalInSeconds": wanted.wait_s}
    if strategy == "canary":
        routing["CanarySize"] = share
    if strategy == "linear":
        routing["LinearStepSize"] = share
    policy = {"TrafficRoutingConfiguration": routing, "TerminationWaitInSeconds": wanted.keep_old_s, **limit}
    return {"BlueGreenUpdatePolicy": policy, **back}


def _variant(deployment: Deployment) -> dict[str, Any]:
    fleet, form = deployment.fleet, deployment.form
    variant: dict[str, Any] = {
        "VariantName": VARIANT,
        "InstanceType": fleet.instance_type,
        "InitialInstanceCount": fleet.instances,
        "RoutingConfig": _routing(deployment),
    }
    if isinstance(form, Components):
        variant["ManagedInstanceScaling"] = {
            "Status": "ENABLED",
            "MinInstanceCount": form.min_instances,
            "MaxInstanceCount": form.max_instances,
        }
    else:
        variant |= {"ModelName": model(deployment)["ModelName"], "InitialVariantWeight": 1.0}
    variant |= _startup(deployment)
    if fleet.volume_gb is not None:
        variant["VolumeSizeInGB"] = fleet.volume_gb
    if fleet.chosen_machine_image is not None:
        variant["InferenceAmiVersion"] = fleet.chosen_machine_image
    return variant


def _routing(deployment: Deployment) -> dict[str, Any]:
    fleet = deployment.fleet
    routing: dict[str, Any] = {"RoutingStrategy": fleet.routing}
    if fleet.routing == "PREFIX_AWARE":
        near = {"PrefixLength": fleet.prefix_length, "ConcurrencyThreshold": fleet.prefix_concurrency}
        routing["PrefixAwareRoutingConfig"] = near
    return routing


def _startup(deployment: Deployment) -> dict[str, int]:
    return {
        "ModelDataDownloadTimeoutInSeconds": deployment.fleet.download_timeout_s,
        "ContainerStartupHealthCheckTimeoutInSeconds": deployment.fleet.startup_timeout_s,
    }


def _network(deployment: Deployment) -> dict[str, Any]:
    wanted = deployment.model
    network: dict[str, Any] = {"EnableNetworkIsolation": wanted.isolated}
    if wanted.subnets:
        network["VpcConfig"] = {"Subnets": list(wanted.subnets), "SecurityGroupIds": list(wanted.security_groups)}
    return network


def _async_config(form: Async, concurrent: int) -> dict[str, Any]:
    output: dict[str, Any] = {"S3OutputPath": form.output}
    topics = {"SuccessTopic": form.success_topic, "ErrorTopic": form.error_topic}
    notices = {key: topic for key, topic in topics.items() if topic}
    if form.failures:
        output["S3FailurePath"] = form.failures
    if form.kms_key:
        output["KmsKeyId"] = form.kms_key
    if notices:
        output["NotificationConfig"] = notices
    return {"ClientConfig": {"MaxConcurrentInvocationsPerInstance": concurrent}, "OutputConfig": output}


def _named(deployment: Deployment, content: dict[str, Any]) -> str:
    return f"{deployment.name}-{digest(content)}"
