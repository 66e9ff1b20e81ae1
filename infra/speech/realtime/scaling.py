"""How many instances: target tracking on what each engine has in its hands, other limits by the clock."""

from __future__ import annotations

from aws_cdk import aws_applicationautoscaling as scaling
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from speech.realtime.endpoint import VARIANT
from speech.stages import Stage

SCALE_OUT_COOLDOWN_S = 60  # the next instance may be asked for while the last one still loads
SCALE_IN_COOLDOWN_S = 600


class InstanceScaling(Construct):
    """Scale the variant's instances; makes nothing if the stage's capacity is fixed."""

    def __init__(self, scope: Construct, id: str, *, stage: Stage, endpoint: sagemaker.CfnEndpoint) -> None:  # noqa: A002
        super().__init__(scope, id)
        if stage.capacity == "fixed":
            return
        target = scaling.CfnScalableTarget(
            self,
            "Target",
            service_namespace="sagemaker",
            scalable_dimension="sagemaker:variant:DesiredInstanceCount",
            resource_id=f"endpoint/{stage.endpoint_name}/variant/{VARIANT}",
            min_capacity=stage.min_instances,
            max_capacity=stage.max_instances,
            scheduled_actions=self._schedule(stage),
        )
        target.add_resource_dependency(endpoint)
        scaling.CfnScalingPolicy(
            self,
            "Concurrency",
            policy_name=f"{stage.endpoint_name}-concurrency",
            policy_type="TargetTrackingScaling",
            scaling_target_id=target.ref,
            target_tracking_scaling_policy_configuration=scaling.CfnScalingPolicy.TargetTrackingScalingPolicyConfigurationProperty(
                target_value=stage.target,
                predefined_metric_specification=scaling.CfnScalingPolicy.PredefinedMetricSpecificationProperty(
                    predefined_metric_type="SageMakerVariantConcurrentRequestsPerModelHighResolution"
                ),
                scale_out_cooldown=SCALE_OUT_COOLDOWN_S,
                scale_in_cooldown=SCALE_IN_COOLDOWN_S,
            ),
        )

    def _schedule(self, stage: Stage) -> list[scaling.CfnScalableTarget.ScheduledActionProperty] | None:
        hours = stage.hours
        if stage.capacity != "scheduled" or hours is None:
            return None
        limits = {
            "opens": (hours.opens, hours.min_instances, hours.max_instances),
            "closes": (hours.closes, stage.min_instances, stage.max_instances),
        }
        return [
            scaling.CfnScalableTarget.ScheduledActionProperty(
                scheduled_action_name=f"{stage.endpoint_name}-{name}",
                schedule=cron,
                timezone=hours.timezone,
                scalable_target_action=scaling.CfnScalableTarget.ScalableTargetActionProperty(
                    min_capacity=least, max_capacity=most
                ),
            )
            for name, (cron, least, most) in limits.items()
        ]
