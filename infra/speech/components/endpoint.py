"""Instances that components share, as many as their copies need, and how requests find the right one."""

from __future__ import annotations

from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from speech.foundation.stack import FoundationStack
from speech.realtime.endpoint import endpoint_config, production_variant
from speech.realtime.model import vpc_config
from speech.stages import Stage


class SharedEndpoint(Construct):
    """An endpoint without a model; `name` is what components are put on."""

    def __init__(
        self,
        scope: Construct,
        id: str,  # noqa: A002
        *,
        stage: Stage,
        foundation: FoundationStack,
        name: str,
        instance_type: str,
        min_instances: int,
        max_instances: int,
        prefix_bytes: int | None = None,
    ) -> None:
        super().__init__(scope, id)
        variant = production_variant(
            model=None,
            instance_type=instance_type,
            instances=max(1, min_instances),  # the API's least; managed scaling takes it away when nothing runs
            managed_instance_scaling=sagemaker.CfnEndpointConfig.ManagedInstanceScalingProperty(
                status="ENABLED", min_instance_count=min_instances, max_instance_count=max_instances
            ),
            routing_config=_routing(stage, prefix_bytes),
        )
        config = endpoint_config(
            self,
            foundation=foundation,
            base_name=name,
            variant=variant,
            instance_type=instance_type,
            execution_role_arn=foundation.access.execution.role_arn,
            vpc_config=sagemaker.CfnEndpointConfig.VpcConfigProperty(**vpc_config(foundation)),
            enable_network_isolation=True,
        )
        self.name = name
        self.resource = sagemaker.CfnEndpoint(
            self,
            "Resource",
            endpoint_name=name,
            endpoint_config_name=config.attr_endpoint_config_name,
            retain_all_variant_properties=True,
        )


def _routing(stage: Stage, prefix_bytes: int | None) -> sagemaker.CfnEndpointConfig.RoutingConfigProperty:
    """Route by the body's beginning and the caller's PrefixAwareId (the voice), until an engine's slots are taken."""
    if prefix_bytes is None:
        return sagemaker.CfnEndpointConfig.RoutingConfigProperty(routing_strategy="LEAST_OUTSTANDING_REQUESTS")
    return sagemaker.CfnEndpointConfig.RoutingConfigProperty(
        routing_strategy="PREFIX_AWARE",
        prefix_aware_routing_config=sagemaker.CfnEndpointConfig.PrefixAwareRoutingConfigProperty(
            prefix_length=prefix_bytes, concurrency_threshold=min(stage.slots, 1024)
        ),
    )
