"""The model as SageMaker knows it: an image, a prefix of files in S3, and the container's variables."""

from __future__ import annotations

from collections.abc import Mapping

from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from speech.foundation.stack import FoundationStack
from speech.naming import hashed_name


def vpc_config(foundation: FoundationStack) -> dict[str, list[str]]:
    """Give where containers live, in the shape of both a model's and an endpoint configuration's VpcConfig."""
    network = foundation.network
    return {"subnets": network.subnet_ids, "security_group_ids": [network.containers.security_group_id]}


class SpeechModel(Construct):
    """`model_name`; the name carries the content's hash, for a model that a live endpoint uses cannot be changed."""

    def __init__(
        self,
        scope: Construct,
        id: str,  # noqa: A002
        *,
        foundation: FoundationStack,
        base_name: str,
        image_tag: str,
        model_prefix: str,
        environment: Mapping[str, str],
        in_component: bool = False,
    ) -> None:
        super().__init__(scope, id)
        storage = foundation.storage
        container = sagemaker.CfnModel.ContainerDefinitionProperty(
            image=storage.repository.repository_uri_for_tag(image_tag),
            environment=dict(sorted(environment.items())),
            model_data_source=sagemaker.CfnModel.ModelDataSourceProperty(
                s3_data_source=sagemaker.CfnModel.S3DataSourceProperty(
                    s3_uri=storage.bucket.s3_url_for_object(model_prefix),
                    s3_data_type="S3Prefix",
                    compression_type="None",  # weights do not compress; unpacking would be a second copy
                )
            ),
        )
        # For a component, network and isolation are the endpoint configuration's to say.
        network = None if in_component else sagemaker.CfnModel.VpcConfigProperty(**vpc_config(foundation))
        self.model_name = hashed_name(self, base_name, container, network)
        self.resource = sagemaker.CfnModel(
            self,
            "Resource",
            model_name=self.model_name,
            execution_role_arn=foundation.access.execution.role_arn,
            primary_container=container,
            vpc_config=network,
            enable_network_isolation=None if in_component else True,  # nothing is fetched at start
        )
        self.resource.node.add_dependency(foundation.access.execution)
