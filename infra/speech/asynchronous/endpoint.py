"""The endpoint for long texts: a request is a file or 128 kB, the answer a file, and a topic tells when it is there."""

from __future__ import annotations

from aws_cdk import aws_sagemaker as sagemaker
from aws_cdk import aws_sns as sns
from constructs import Construct

from speech.foundation.stack import FoundationStack
from speech.foundation.storage import ANSWERS
from speech.realtime.endpoint import endpoint_config, production_variant
from speech.realtime.model import SpeechModel
from speech.stages import Stage

REQUEST_S = "3500"  # SageMaker lets an asynchronous request run for an hour if the caller asks for it


class AsyncEndpoint(Construct):
    """`resource` and `name`; sends an instance as many requests at a time as its engines have slots."""

    def __init__(
        self,
        scope: Construct,
        id: str,  # noqa: A002
        *,
        stage: Stage,
        foundation: FoundationStack,
        name: str,
        done: sns.ITopic,
        failed: sns.ITopic,
    ) -> None:
        super().__init__(scope, id)
        model = SpeechModel(
            self,
            "Model",
            foundation=foundation,
            base_name=name,
            image_tag=stage.image_tag,
            model_prefix=stage.model_prefix,
            environment={
                **stage.container_environment(),
                "S1_MINI_REQUEST_TIMEOUT_S": REQUEST_S,
                "S1_MINI_SERVER_REQUEST_TIMEOUT_S": REQUEST_S,
            },
        )
        of, bucket = sagemaker.CfnEndpointConfig, foundation.storage.bucket
        answers = of.AsyncInferenceConfigProperty(
            client_config=of.AsyncInferenceClientConfigProperty(
                max_concurrent_invocations_per_instance=min(stage.all_slots, 1000)
            ),
            output_config=of.AsyncInferenceOutputConfigProperty(
                kms_key_id=foundation.storage.key.key_arn,
                s3_output_path=bucket.s3_url_for_object(f"{ANSWERS}out"),
                s3_failure_path=bucket.s3_url_for_object(f"{ANSWERS}failed"),
                notification_config=of.AsyncInferenceNotificationConfigProperty(
                    success_topic=done.topic_arn, error_topic=failed.topic_arn
                ),
            ),
        )
        config = endpoint_config(
            self,
            foundation=foundation,
            base_name=name,
            variant=production_variant(model=model, instance_type=stage.instance_type, instances=1),
            instance_type=stage.instance_type,
            async_inference_config=answers,
        )
        config.add_resource_dependency(model.resource)
        self.name = name
        self.resource = sagemaker.CfnEndpoint(
            self,
            "Resource",
            endpoint_name=name,
            endpoint_config_name=config.attr_endpoint_config_name,
            retain_all_variant_properties=True,
        )
