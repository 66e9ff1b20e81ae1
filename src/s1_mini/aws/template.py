"""The CloudFormation template of a deployment: a pure function, without clock, network or random numbers.

Model and endpoint configuration are immutable and have no fixed names: a change creates new ones, moves the endpoint to
them, and deletes the old ones. Only the endpoint and the inference component, which clients use, have fixed names.
"""

from __future__ import annotations

from typing import Any

from s1_mini.aws.deployment import (
    OWNER_TAG,
    PLACEMENT,
    REPLICAS,
    REQUESTS_PER_ENGINE,
    VARIANT,
    Deployment,
    Scaling,
    has_own_disk,
)
from s1_mini.exceptions import ConfigurationError

METADATA = "S1Mini"  # holds the deployment, so that `autoscale` can change only the scaling
NAMESPACE = "AWS/SageMaker"
ROLLBACK = "Rolls back an update. If it fires outside an update, see docs/operations.md."
FROM_ZERO = "Starts the first instance or copy when a request arrives at zero capacity."
SCALE_OUT_S, SCALE_IN_S = 60, 300  # cooldowns
PREFIX_BYTES = 1024  # at the start of the body, which the routing PREFIX_AWARE compares
PROVISION_TIMEOUT_S = 900  # per instance pool

Resource = dict[str, Any]


def build_template(deployment: Deployment) -> dict[str, Any]:
    """Return the template as JSON data. Raises `ConfigurationError` for a batch, which has no stack."""
    if deployment.form == "batch":
        raise ConfigurationError(
            "form='batch': a batch is a job without a stack; run it with `s1-mini endpoint create`"
        )
    resources = {"Model": _model(deployment), "Config": _config(deployment), **_rollback_alarms(deployment)}
    resources["Endpoint"] = _endpoint(deployment)
    if deployment.endpoint is not None:
        del resources["Config"], resources["Endpoint"]  # the deployment that owns the endpoint creates them
    if deployment.form == "components":
        resources["Component"] = _component(deployment)
    if deployment.scaling is not None:
        resources |= _scaling(deployment, deployment.scaling)
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"s1-mini endpoint {deployment.name}",
        "Metadata": {METADATA: deployment.model_dump(mode="json", exclude_defaults=True)},
        "Resources": resources,
    }


def build_with_parameters(deployment: Deployment, *fields: str) -> dict[str, Any]:
    """Return the template with a CloudFormation parameter for each of `fields` that is set (`kms_key`: `KmsKey`).

    The deployment's values of these fields are placeholders and must differ from each other. The result has no
    metadata.
    """
    given = {field.title().replace("_", ""): value for field in fields if (value := getattr(deployment, field))}

    def replace(part: Any) -> Any:
        for name, value in given.items():
            if part == (list(value) if isinstance(value, tuple) else value):
                return {"Ref": name}
        if isinstance(part, dict):
            return {key: replace(each) for key, each in part.items()}
        return [replace(each) for each in part] if isinstance(part, list) else part

    template = build_template(deployment)
    types = {name: "CommaDelimitedList" if isinstance(value, tuple) else "String" for name, value in given.items()}
    return {
        **{key: template[key] for key in ("AWSTemplateFormatVersion", "Description")},
        "Parameters": {name: {"Type": kind} for name, kind in types.items()},
        "Resources": replace(template["Resources"]),
    }


def read_template(template: Any) -> Deployment:
    """Return the deployment that `build_template` was called with.

    Raises `KeyError` for a template without metadata, and `ConfigurationError` for an invalid deployment.
    """
    return Deployment.of(**template["Metadata"][METADATA])


def tags(deployment: Deployment) -> list[dict[str, str]]:
    every = {OWNER_TAG: deployment.name, **deployment.tag}
    return [{"Key": key, "Value": value} for key, value in sorted(every.items())]


def model_properties(deployment: Deployment) -> dict[str, Any]:
    """Return the model's properties in the form of both CloudFormation and CreateModel."""
    container: dict[str, Any] = {"Image": deployment.image}
    if deployment.form == "multi-model":
        container |= {"Mode": "MultiModel", "ModelDataUrl": deployment.artifact}
    elif deployment.is_prefix:
        source = {"S3Uri": deployment.artifact, "S3DataType": "S3Prefix", "CompressionType": "None"}
        container["ModelDataSource"] = {"S3DataSource": source}
    else:
        container["ModelDataUrl"] = deployment.artifact
    environment = dict(deployment.env)
    if deployment.num_gpus > 1 and PLACEMENT not in environment:
        environment.setdefault(REPLICAS, "auto")  # the image's default, visible in the model's description
    if environment:
        container["Environment"] = dict(sorted(environment.items()))
    network = (
        {} if deployment.form == "components" else _network(deployment)
    )  # with components, the network is set in the endpoint configuration
    return {
        "PrimaryContainer": container,
        "ExecutionRoleArn": deployment.role,
        **network,
        "Tags": tags(deployment),
    }


def _model(deployment: Deployment) -> Resource:
    return {"Type": "AWS::SageMaker::Model", "Properties": model_properties(deployment)}


def _config(deployment: Deployment) -> Resource:
    properties: dict[str, Any] = {"ProductionVariants": [_variant(deployment)], "Tags": tags(deployment)}
    if deployment.kms_key and not all(map(has_own_disk, deployment.instance_type)):
        properties["KmsKeyId"] = deployment.kms_key
    if deployment.form == "components":
        properties |= {"ExecutionRoleArn": deployment.role, **_network(deployment)}
    if deployment.detailed_metrics:
        properties["MetricsConfig"] = {"EnableEnhancedMetrics": True, "EnableDetailedObservability": True}
    if deployment.form == "async":
        properties["AsyncInferenceConfig"] = _async_config(deployment)
    return {"Type": "AWS::SageMaker::EndpointConfig", "Properties": properties}


def _variant(deployment: Deployment) -> dict[str, Any]:
    routing: dict[str, Any] = {"RoutingStrategy": deployment.routing}
    if deployment.routing == "PREFIX_AWARE":
        threshold = deployment.prefix_requests
        routing["PrefixAwareRoutingConfig"] = {"PrefixLength": PREFIX_BYTES, "ConcurrencyThreshold": threshold}
    variant: dict[str, Any] = {
        "VariantName": VARIANT,
        "InitialInstanceCount": deployment.instances,
        "RoutingConfig": routing,
        **_startup(deployment),
    }
    if len(deployment.instance_type) == 1:
        variant["InstanceType"] = deployment.instance_type[0]
    else:
        pools = enumerate(deployment.instance_type, 1)
        variant["InstancePools"] = [{"InstanceType": each, "Priority": priority} for priority, each in pools]
        variant["VariantInstanceProvisionTimeoutInSeconds"] = PROVISION_TIMEOUT_S
    if deployment.form == "components":
        variant["ManagedInstanceScaling"] = {
            "Status": "ENABLED",
            "MinInstanceCount": deployment.min_instances,
            "MaxInstanceCount": deployment.max_instances,
        }
    else:
        variant |= {"ModelName": _attribute("Model", "ModelName"), "InitialVariantWeight": 1.0}
    if deployment.volume_gb is not None:
        variant["VolumeSizeInGB"] = deployment.volume_gb
    if deployment.chosen_machine_image is not None:
        variant["InferenceAmiVersion"] = deployment.chosen_machine_image
    return variant


def _endpoint(deployment: Deployment) -> Resource:
    properties: dict[str, Any] = {
        "EndpointName": deployment.name,
        "EndpointConfigName": _attribute("Config", "EndpointConfigName"),
        "RetainAllVariantProperties": True,  # otherwise each update resets the scaled number of instances
        "Tags": tags(deployment),
    }
    if deployment.form != "components":
        properties["DeploymentConfig"] = _rollout(deployment)
    return {"Type": "AWS::SageMaker::Endpoint", "Properties": properties}


def _component(deployment: Deployment) -> Resource:
    needs: dict[str, Any] = {
        "MinMemoryRequiredInMb": deployment.memory_mb,
        "NumberOfCpuCoresRequired": deployment.cpu_cores,
    }
    if deployment.accelerators:
        needs["NumberOfAcceleratorDevicesRequired"] = deployment.accelerators
    specification: dict[str, Any] = {
        "ModelName": _attribute("Model", "ModelName"),
        "StartupParameters": _startup(deployment),
        "ComputeResourceRequirements": needs,
        "DataCacheConfig": {"EnableCaching": True},
    }
    if deployment.spread:
        balance = {"EnforcementMode": "PERMISSIVE", "MaxImbalance": 0}
        specification["SchedulingConfig"] = {"PlacementStrategy": "SPREAD", "AvailabilityZoneBalance": balance}
    properties = {
        "InferenceComponentName": deployment.name,
        "EndpointName": deployment.endpoint or _attribute("Endpoint", "EndpointName"),
        "VariantName": VARIANT,
        "Specification": specification,
        "RuntimeConfig": {"CopyCount": deployment.copies},
        "DeploymentConfig": _rollout(deployment),
        "Tags": tags(deployment),
    }
    return {"Type": "AWS::SageMaker::InferenceComponent", "Properties": properties}


def _rollout(deployment: Deployment) -> dict[str, Any]:
    names: list[Any] = list(deployment.alarm) or [{"Ref": each} for each in _rollback_alarms(deployment)]
    back = {"AutoRollbackConfiguration": {"Alarms": [{"AlarmName": name} for name in names]}}
    share: dict[str, Any] = {"Type": "CAPACITY_PERCENT", "Value": deployment.step_percent}
    limit = {"MaximumExecutionTimeoutInSeconds": deployment.limit_s}
    strategy = deployment.strategy or ("rolling" if deployment.instances > 1 else "all-at-once")
    if deployment.form == "components":
        share, strategy = {"Type": "COPY_COUNT", "Value": 1}, "rolling"
    if strategy == "rolling":
        rolling = {"MaximumBatchSize": share, "WaitIntervalInSeconds": deployment.step_wait_s, **limit}
        return {"RollingUpdatePolicy": rolling, **back}
    routing: dict[str, Any] = {"Type": strategy.upper().replace("-", "_")}
    if strategy != "all-at-once":
        size = "CanarySize" if strategy == "canary" else "LinearStepSize"
        routing |= {"WaitIntervalInSeconds": deployment.step_wait_s, size: share}
    policy = {"TrafficRoutingConfiguration": routing, "TerminationWaitInSeconds": deployment.keep_old_s, **limit}
    return {"BlueGreenUpdatePolicy": policy, **back}


def _rollback_alarms(deployment: Deployment) -> dict[str, Resource]:
    if deployment.alarm:
        return {}
    if deployment.form == "async":
        return {"RollbackFailures": _alarm("InvocationFailures", _endpoint_dimension(deployment), ROLLBACK)}
    where = [*_endpoint_dimension(deployment), {"Name": "VariantName", "Value": VARIANT}]
    if deployment.form == "components":
        where = _component_dimension(deployment)
    slow = {"Threshold": deployment.latency_alarm_s * 1e6, "ExtendedStatistic": "p95", "EvaluationPeriods": 3}
    return {
        "Rollback5xx": _alarm("Invocation5XXErrors", where, ROLLBACK),
        "RollbackLatency": _alarm("ModelLatency", where, ROLLBACK, **slow),  # the metric is in microseconds
    }


def _alarm(metric: str, dimensions: list[dict[str, str]], description: str, **more: Any) -> Resource:
    properties = {
        "AlarmDescription": description,
        "Namespace": NAMESPACE,
        "MetricName": metric,
        "Dimensions": dimensions,
        "Period": 60,
        "EvaluationPeriods": 1,
        "Threshold": 1,
        "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        "TreatMissingData": "notBreaching",
        **({} if "ExtendedStatistic" in more else {"Statistic": "Sum"}),
        **more,
    }
    return {"Type": "AWS::CloudWatch::Alarm", "Properties": properties}


def _scaling(deployment: Deployment, scaling: Scaling) -> dict[str, Resource]:
    name = deployment.name
    resource_id, dimension, after = f"endpoint/{name}/variant/{VARIANT}", "variant:DesiredInstanceCount", "Endpoint"
    if deployment.form == "components":
        resource_id, dimension = f"inference-component/{name}", "inference-component:DesiredCopyCount"
        after = "Component"
    target: dict[str, Any] = {
        "ServiceNamespace": "sagemaker",
        "ResourceId": resource_id,
        "ScalableDimension": f"sagemaker:{dimension}",
        "MinCapacity": scaling.minimum,
        "MaxCapacity": scaling.maximum,
    }
    if scaling.schedule:
        target["ScheduledActions"] = [
            {
                "ScheduledActionName": f"{name}-{title}",
                "Schedule": expression,
                "ScalableTargetAction": {"MinCapacity": low, "MaxCapacity": high},
                **({"Timezone": scaling.timezone} if scaling.timezone else {}),
            }
            for title, expression, low, high in scaling.schedule
        ]
    resources: dict[str, Resource] = {
        "ScalableTarget": {
            "Type": "AWS::ApplicationAutoScaling::ScalableTarget",
            "DependsOn": after,
            "Properties": target,
        },
        "ScalingPolicy": _policy(f"{name}-follow", "TargetTrackingScaling", _follow(deployment, scaling)),
    }
    if 0 in {scaling.minimum, *(low for _, _, low, _ in scaling.schedule)}:
        resources |= _wake(deployment)
    return resources


def _policy(name: str, kind: str, configuration: dict[str, Any]) -> Resource:
    properties = {
        "PolicyName": name,
        "PolicyType": kind,
        "ScalingTargetId": {"Ref": "ScalableTarget"},
        f"{kind}PolicyConfiguration": configuration,
    }
    return {"Type": "AWS::ApplicationAutoScaling::ScalingPolicy", "Properties": properties}


def _follow(deployment: Deployment, scaling: Scaling) -> dict[str, Any]:
    replicas = scaling.replicas or deployment.replicas
    cooldowns = {"ScaleOutCooldown": SCALE_OUT_S, "ScaleInCooldown": SCALE_IN_S}
    if deployment.form == "async":
        metric = {
            "MetricName": "ApproximateBacklogSizePerInstance",
            "Namespace": NAMESPACE,
            "Dimensions": _endpoint_dimension(deployment),
            "Statistic": "Average",
        }
        return {"TargetValue": scaling.backlog * replicas, "CustomizedMetricSpecification": metric, **cooldowns}
    busy = scaling.slots * replicas * scaling.load
    name, target = {
        "real-time": ("SageMakerVariantConcurrentRequestsPerModelHighResolution", busy),
        "components": ("SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution", busy),
        "multi-model": ("SageMakerVariantInvocationsPerInstance", busy * 60 / scaling.request_s),
    }[deployment.form]
    return {
        "TargetValue": round(target, 2),
        "PredefinedMetricSpecification": {"PredefinedMetricType": name},
        **cooldowns,
    }


def _wake(deployment: Deployment) -> dict[str, Resource]:
    """Return a policy that adds the first instance or copy; until then, the metric of `_follow` has no data."""
    step = {
        "AdjustmentType": "ChangeInCapacity",
        "MetricAggregationType": "Maximum",
        "Cooldown": 60,
        "StepAdjustments": [{"MetricIntervalLowerBound": 0.0, "ScalingAdjustment": 1}],
    }
    actions = {"AlarmActions": [{"Ref": "FromZeroPolicy"}]}
    if deployment.form == "components":
        where = _component_dimension(deployment)
        alarm = _alarm("NoCapacityInvocationFailures", where, FROM_ZERO, Statistic="Maximum", Period=30, **actions)
    else:
        where = _endpoint_dimension(deployment)
        alarm = _alarm(
            "HasBacklogWithoutCapacity", where, FROM_ZERO, Statistic="Average", EvaluationPeriods=2, **actions
        )
    policy = _policy(f"{deployment.name}-from-zero", "StepScaling", step)
    return {"FromZeroPolicy": policy, "FromZero": alarm}


def _startup(deployment: Deployment) -> dict[str, int]:
    return {
        "ModelDataDownloadTimeoutInSeconds": deployment.download_timeout_s,
        "ContainerStartupHealthCheckTimeoutInSeconds": deployment.startup_timeout_s,
    }


def _network(deployment: Deployment) -> dict[str, Any]:
    network: dict[str, Any] = {"EnableNetworkIsolation": deployment.isolated}
    if deployment.subnet:
        groups = list(deployment.security_group)
        network["VpcConfig"] = {"Subnets": list(deployment.subnet), "SecurityGroupIds": groups}
    return network


def _async_config(deployment: Deployment) -> dict[str, Any]:
    output: dict[str, Any] = {"S3OutputPath": deployment.output}
    topics = {"SuccessTopic": deployment.success_topic, "ErrorTopic": deployment.error_topic}
    notices = {key: topic for key, topic in topics.items() if topic}
    if deployment.failures:
        output["S3FailurePath"] = deployment.failures
    if deployment.kms_key:
        output["KmsKeyId"] = deployment.kms_key
    if notices:
        output["NotificationConfig"] = notices
    concurrent = deployment.concurrent or REQUESTS_PER_ENGINE * deployment.replicas
    return {"ClientConfig": {"MaxConcurrentInvocationsPerInstance": concurrent}, "OutputConfig": output}


def _endpoint_dimension(deployment: Deployment) -> list[dict[str, str]]:
    return [{"Name": "EndpointName", "Value": deployment.name}]


def _component_dimension(deployment: Deployment) -> list[dict[str, str]]:
    return [{"Name": "InferenceComponentName", "Value": deployment.name}]


def _attribute(resource: str, name: str) -> dict[str, list[str]]:
    return {"Fn::GetAtt": [resource, name]}
