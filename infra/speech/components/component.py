"""One model as an inference component: its copies, how they grow, and how the first one comes back."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import aws_applicationautoscaling as scaling
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from speech.components.endpoint import SharedEndpoint
from speech.foundation.stack import FoundationStack
from speech.realtime.endpoint import DOWNLOAD_S, START_S, VARIANT, WATCH_S
from speech.realtime.model import SpeechModel
from speech.realtime.scaling import SCALE_IN_COOLDOWN_S, SCALE_OUT_COOLDOWN_S
from speech.stages import ComponentModel, Stage, has_gpu


class SpeechComponent(Construct):
    """`name` is what callers give as InferenceComponentName."""

    def __init__(
        self,
        scope: Construct,
        id: str,  # noqa: A002
        *,
        stage: Stage,
        foundation: FoundationStack,
        endpoint: SharedEndpoint,
        spoken: ComponentModel,
        instance_type: str,
        rollback: Sequence[cloudwatch.CfnAlarm],
    ) -> None:
        super().__init__(scope, id)
        self.name = component_name(endpoint.name, spoken)
        model = SpeechModel(
            self,
            "Model",
            foundation=foundation,
            base_name=self.name,
            image_tag=stage.image_tag,
            model_prefix=spoken.model_prefix,
            environment=stage.container_environment(spoken.accelerators),
            in_component=True,
        )
        self.resource = self._component(endpoint, spoken, model, instance_type, rollback)
        self._scale(stage, spoken)

    def _component(
        self,
        endpoint: SharedEndpoint,
        spoken: ComponentModel,
        model: SpeechModel,
        instance_type: str,
        rollback: Sequence[cloudwatch.CfnAlarm],
    ) -> sagemaker.CfnInferenceComponent:
        of = sagemaker.CfnInferenceComponent
        one = of.InferenceComponentCapacitySizeProperty(type="COPY_COUNT", value=1)
        component = of(
            self,
            "Resource",
            inference_component_name=self.name,
            endpoint_name=endpoint.name,
            variant_name=VARIANT,
            specification=of.InferenceComponentSpecificationProperty(
                model_name=model.model_name,
                compute_resource_requirements=of.InferenceComponentComputeResourceRequirementsProperty(
                    number_of_accelerator_devices_required=spoken.accelerators if has_gpu(instance_type) else None,
                    min_memory_required_in_mb=spoken.memory_mb,
                ),
                startup_parameters=of.InferenceComponentStartupParametersProperty(
                    container_startup_health_check_timeout_in_seconds=START_S,
                    model_data_download_timeout_in_seconds=DOWNLOAD_S,
                ),
                data_cache_config=of.InferenceComponentDataCacheConfigProperty(enable_caching=True),
            ),
            runtime_config=of.InferenceComponentRuntimeConfigProperty(copy_count=max(1, spoken.min_copies)),
            deployment_config=of.InferenceComponentDeploymentConfigProperty(
                rolling_update_policy=of.InferenceComponentRollingUpdatePolicyProperty(
                    maximum_batch_size=one,
                    rollback_maximum_batch_size=one,
                    wait_interval_in_seconds=WATCH_S,
                    maximum_execution_timeout_in_seconds=14400,
                ),
                auto_rollback_configuration=of.AutoRollbackConfigurationProperty(
                    alarms=[of.AlarmProperty(alarm_name=alarm.ref) for alarm in rollback]
                ),
            ),
        )
        component.add_resource_dependency(endpoint.resource)
        component.add_resource_dependency(model.resource)
        return component

    def _scale(self, stage: Stage, spoken: ComponentModel) -> None:
        target = scaling.CfnScalableTarget(
            self,
            "Target",
            service_namespace="sagemaker",
            scalable_dimension="sagemaker:inference-component:DesiredCopyCount",
            resource_id=f"inference-component/{self.name}",
            min_capacity=spoken.min_copies,
            max_capacity=spoken.max_copies,
        )
        target.add_resource_dependency(self.resource)
        of = scaling.CfnScalingPolicy
        of(
            self,
            "Concurrency",
            policy_name=f"{self.name}-concurrency",
            policy_type="TargetTrackingScaling",
            scaling_target_id=target.ref,
            target_tracking_scaling_policy_configuration=of.TargetTrackingScalingPolicyConfigurationProperty(
                target_value=stage.copy_target(spoken.accelerators),
                predefined_metric_specification=of.PredefinedMetricSpecificationProperty(
                    predefined_metric_type="SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution"
                ),
                scale_out_cooldown=SCALE_OUT_COOLDOWN_S,
                scale_in_cooldown=SCALE_IN_COOLDOWN_S,
            ),
        )
        if spoken.min_copies == 0:
            self._wake(target)

    def _wake(self, target: scaling.CfnScalableTarget) -> None:
        """Bring the first copy: with none there is no concurrency to track, only requests that found nothing."""
        of = scaling.CfnScalingPolicy
        policy = of(
            self,
            "FromZero",
            policy_name=f"{self.name}-from-zero",
            policy_type="StepScaling",
            scaling_target_id=target.ref,
            step_scaling_policy_configuration=of.StepScalingPolicyConfigurationProperty(
                adjustment_type="ChangeInCapacity",
                cooldown=SCALE_OUT_COOLDOWN_S,
                metric_aggregation_type="Maximum",
                step_adjustments=[of.StepAdjustmentProperty(metric_interval_lower_bound=0, scaling_adjustment=1)],
            ),
        )
        cloudwatch.CfnAlarm(
            self,
            "Asleep",
            alarm_name=f"{self.name}-from-zero",
            alarm_description="A request found no copy; it is the reason to start one, and no reason to get up.",
            namespace="AWS/SageMaker",
            metric_name="NoCapacityInvocationFailures",
            dimensions=[cloudwatch.CfnAlarm.DimensionProperty(name="InferenceComponentName", value=self.name)],
            statistic="Maximum",
            period=30,
            evaluation_periods=1,
            datapoints_to_alarm=1,
            comparison_operator="GreaterThanOrEqualToThreshold",
            threshold=1,
            treat_missing_data="missing",
            alarm_actions=[policy.ref],
        )


def component_name(endpoint_name: str, spoken: ComponentModel) -> str:
    """Give a component's name; the callers' policy allows all that begin with the stage's."""
    return f"{endpoint_name}-{spoken.name}"
