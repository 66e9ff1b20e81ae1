"""From no instance to some and back: a step for the first, a share of the backlog for the others."""

from __future__ import annotations

from aws_cdk import aws_applicationautoscaling as scaling
from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from speech.asynchronous.endpoint import AsyncEndpoint
from speech.realtime.endpoint import VARIANT
from speech.realtime.scaling import SCALE_IN_COOLDOWN_S, SCALE_OUT_COOLDOWN_S
from speech.stages import Stage

BACKLOG_PER_SLOT = 2  # requests that may wait behind each one that speaks


class BacklogScaling(Construct):
    """Scale by what waits; a live request is never looked at, for nobody listens to it."""

    def __init__(self, scope: Construct, id: str, *, stage: Stage, endpoint: AsyncEndpoint) -> None:  # noqa: A002
        super().__init__(scope, id)
        target = scaling.CfnScalableTarget(
            self,
            "Target",
            service_namespace="sagemaker",
            scalable_dimension="sagemaker:variant:DesiredInstanceCount",
            resource_id=f"endpoint/{endpoint.name}/variant/{VARIANT}",
            min_capacity=0,
            max_capacity=stage.async_max_instances,
        )
        target.add_resource_dependency(endpoint.resource)
        self._follow_the_backlog(stage, endpoint, target)
        self._wake(endpoint, target)

    def _follow_the_backlog(self, stage: Stage, endpoint: AsyncEndpoint, target: scaling.CfnScalableTarget) -> None:
        of = scaling.CfnScalingPolicy
        of(
            self,
            "Backlog",
            policy_name=f"{endpoint.name}-backlog",
            policy_type="TargetTrackingScaling",
            scaling_target_id=target.ref,
            target_tracking_scaling_policy_configuration=of.TargetTrackingScalingPolicyConfigurationProperty(
                target_value=BACKLOG_PER_SLOT * stage.all_slots,
                customized_metric_specification=of.CustomizedMetricSpecificationProperty(
                    namespace="AWS/SageMaker",
                    metric_name="ApproximateBacklogSizePerInstance",
                    dimensions=[of.MetricDimensionProperty(name="EndpointName", value=endpoint.name)],
                    statistic="Average",
                ),
                scale_out_cooldown=SCALE_OUT_COOLDOWN_S,
                scale_in_cooldown=SCALE_IN_COOLDOWN_S,
            ),
        )

    def _wake(self, endpoint: AsyncEndpoint, target: scaling.CfnScalableTarget) -> None:
        of = scaling.CfnScalingPolicy
        policy = of(
            self,
            "FromZero",
            policy_name=f"{endpoint.name}-from-zero",
            policy_type="StepScaling",
            scaling_target_id=target.ref,
            step_scaling_policy_configuration=of.StepScalingPolicyConfigurationProperty(
                adjustment_type="ChangeInCapacity",
                cooldown=300,
                metric_aggregation_type="Average",
                step_adjustments=[of.StepAdjustmentProperty(metric_interval_lower_bound=0, scaling_adjustment=1)],
            ),
        )
        cloudwatch.CfnAlarm(
            self,
            "Asleep",
            alarm_name=f"{endpoint.name}-from-zero",
            alarm_description="Something waits and no instance is there; it is the reason to start one.",
            namespace="AWS/SageMaker",
            metric_name="HasBacklogWithoutCapacity",
            dimensions=[cloudwatch.CfnAlarm.DimensionProperty(name="EndpointName", value=endpoint.name)],
            statistic="Average",
            period=60,
            evaluation_periods=2,
            datapoints_to_alarm=2,
            comparison_operator="GreaterThanOrEqualToThreshold",
            threshold=1,
            treat_missing_data="missing",
            alarm_actions=[policy.ref],
        )
