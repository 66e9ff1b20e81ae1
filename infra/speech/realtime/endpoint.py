"""An endpoint configuration that cannot change, and the endpoint that moves from one to the next with a way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from speech.foundation.stack import FoundationStack
from speech.naming import hashed_name
from speech.realtime.model import SpeechModel
from speech.stages import Stage, has_gpu, has_local_storage

VARIANT = "speech"
START_S = 1200  # the engine is warm before /ping is 200: loading, compiling, graphs
DOWNLOAD_S = 1200
GPU_AMI = "al2023-ami-sagemaker-inference-gpu-4-1"  # the only one whose driver runs CUDA 13 and bidirectional streams
WATCH_S = 600  # the old fleet stays that long after the new one has all traffic
METRICS = sagemaker.CfnEndpointConfig.MetricsConfigProperty(
    enable_enhanced_metrics=True,
    enable_detailed_observability=True,  # SageMaker reads the container's /metrics
    metric_publish_frequency_in_seconds=60,
)


def production_variant(
    *, model: SpeechModel | None, instance_type: str, instances: int, **more: Any
) -> sagemaker.CfnEndpointConfig.ProductionVariantProperty:
    """Describe the one variant; without a model it offers instances to components."""
    return sagemaker.CfnEndpointConfig.ProductionVariantProperty(
        variant_name=VARIANT,
        model_name=None if model is None else model.model_name,
        instance_type=instance_type,
        initial_instance_count=instances,
        initial_variant_weight=None if model is None else 1,
        inference_ami_version=GPU_AMI if has_gpu(instance_type) else None,
        container_startup_health_check_timeout_in_seconds=None if model is None else START_S,
        model_data_download_timeout_in_seconds=None if model is None else DOWNLOAD_S,
        **more,
    )


def endpoint_config(
    scope: Construct,
    *,
    foundation: FoundationStack,
    base_name: str,
    variant: sagemaker.CfnEndpointConfig.ProductionVariantProperty,
    instance_type: str,
    **more: Any,
) -> sagemaker.CfnEndpointConfig:
    """Make a configuration whose name is its content's: a change makes a new one before the old one goes."""
    key = None if has_local_storage(instance_type) else foundation.storage.key.key_arn
    return sagemaker.CfnEndpointConfig(
        scope,
        "Config",
        endpoint_config_name=hashed_name(scope, base_name, variant, METRICS, key, more),
        production_variants=[variant],
        metrics_config=METRICS,
        kms_key_id=key,
        **more,
    )


def deployment(rollout: str, alarms: Sequence[cloudwatch.CfnAlarm]) -> sagemaker.CfnEndpoint.DeploymentConfigProperty:
    """Describe how traffic moves to a new fleet, and the alarms that move it back."""
    rollback = sagemaker.CfnEndpoint.AutoRollbackConfigProperty(
        alarms=[sagemaker.CfnEndpoint.AlarmProperty(alarm_name=alarm.ref) for alarm in alarms]
    )
    if rollout == "rolling":
        half = sagemaker.CfnEndpoint.CapacitySizeProperty(type="CAPACITY_PERCENT", value=50)
        policy = sagemaker.CfnEndpoint.RollingUpdatePolicyProperty(
            maximum_batch_size=half,
            rollback_maximum_batch_size=half,
            wait_interval_in_seconds=WATCH_S,
            maximum_execution_timeout_in_seconds=14400,
        )
        return sagemaker.CfnEndpoint.DeploymentConfigProperty(
            rolling_update_policy=policy, auto_rollback_configuration=rollback
        )
    canary = rollout == "canary"
    routing = sagemaker.CfnEndpoint.TrafficRoutingConfigProperty(
        type="CANARY" if canary else "ALL_AT_ONCE",
        canary_size=sagemaker.CfnEndpoint.CapacitySizeProperty(type="CAPACITY_PERCENT", value=10) if canary else None,
        wait_interval_in_seconds=WATCH_S if canary else None,
    )
    return sagemaker.CfnEndpoint.DeploymentConfigProperty(
        blue_green_update_policy=sagemaker.CfnEndpoint.BlueGreenUpdatePolicyProperty(
            traffic_routing_configuration=routing,
            termination_wait_in_seconds=WATCH_S,
            maximum_execution_timeout_in_seconds=14400,
        ),
        auto_rollback_configuration=rollback,
    )


class RealtimeEndpoint(Construct):
    """The endpoint with one model on its own instances; `resource` is what scaling and dashboards hang on."""

    def __init__(
        self,
        scope: Construct,
        id: str,  # noqa: A002
        *,
        stage: Stage,
        foundation: FoundationStack,
        rollback: Sequence[cloudwatch.CfnAlarm],
    ) -> None:
        super().__init__(scope, id)
        model = SpeechModel(
            self,
            "Model",
            foundation=foundation,
            base_name=stage.endpoint_name,
            image_tag=stage.image_tag,
            model_prefix=stage.model_prefix,
            environment=stage.container_environment(),
        )
        variant = production_variant(
            model=model,
            instance_type=stage.instance_type,
            instances=stage.min_instances,
            routing_config=sagemaker.CfnEndpointConfig.RoutingConfigProperty(
                routing_strategy="LEAST_OUTSTANDING_REQUESTS"
            ),
        )
        config = endpoint_config(
            self,
            foundation=foundation,
            base_name=stage.endpoint_name,
            variant=variant,
            instance_type=stage.instance_type,
        )
        config.add_resource_dependency(model.resource)
        self.resource = sagemaker.CfnEndpoint(
            self,
            "Resource",
            endpoint_name=stage.endpoint_name,
            endpoint_config_name=config.attr_endpoint_config_name,
            deployment_config=deployment(stage.rollout, rollback),
            retain_all_variant_properties=True,  # or every rollout would go back to the initial instance count
        )
