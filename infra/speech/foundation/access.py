"""The execution role of the containers, and a policy for callers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aws_cdk import Aws
from aws_cdk import aws_iam as iam
from constructs import Construct

from speech.foundation.network import Network
from speech.foundation.storage import Storage
from speech.stages import ANSWERS, MODELS, Stage
from speech.toolchain import explain

ALL = "The action has no resource-level permissions"
DESCRIBE = ("DhcpOptions", "NetworkInterfaces", "SecurityGroups", "Subnets", "VpcEndpoints", "Vpcs")
INVOKE = ("", "Async", "WithBidirectionalStream", "WithResponseStream")


class Access(Construct):
    """`execution`: role that reads models and writes logs, responses and metrics of this stage only.

    `callers`: managed policy that allows invoking the endpoints of this stage only.
    """

    def __init__(self, scope: Construct, stage: Stage, storage: Storage, network: Network) -> None:
        super().__init__(scope, "Access")
        self.execution = iam.Role(
            self,
            "Execution",
            assumed_by=iam.ServicePrincipal(
                "sagemaker.amazonaws.com", conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}}
            ),
            description=f"s1-mini {stage.name}: read models, pull the image, write logs, metrics and responses",
        )
        self.callers = iam.ManagedPolicy(
            self,
            "Callers",
            managed_policy_name=f"{stage.prefix}-callers",
            description=f"Invoke the endpoints of s1-mini {stage.name}",
        )
        self._allow_storage(storage)
        self._allow_reports(stage)
        self._allow_network(network)
        self._allow_calls(stage)

    def _allow_storage(self, storage: Storage) -> None:
        role, bucket = self.execution, storage.bucket
        models, requests, responses, failures = (
            bucket.arn_for_objects(f"{prefix}*")
            for prefix in (MODELS, f"{ANSWERS}in/", f"{ANSWERS}out/", f"{ANSWERS}failed/")
        )
        prefixes = {"StringLike": {"s3:prefix": [f"{MODELS}*", f"{ANSWERS}*"]}}
        _allow(role, "s3:GetObject", on=[models, requests], why="Reads models and requests of the stage's bucket")
        _allow(role, "s3:PutObject", on=[responses, failures], why="Writes responses to the stage's bucket")
        _allow(role, "s3:ListBucket", on=[bucket.bucket_arn], when=prefixes)
        _allow(role, "kms:Decrypt", "kms:GenerateDataKey", on=[storage.key.key_arn])
        pull = ("ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")
        _allow(role, *pull, on=[storage.repository.repository_arn])
        _allow(role, "ecr:GetAuthorizationToken", on=["*"], why=ALL)

        why = "Callers and SageMaker choose the keys below these prefixes"
        _allow(self.callers, "s3:PutObject", on=[requests], why=why)
        _allow(self.callers, "s3:GetObject", on=[responses, failures], why=why)
        _allow(self.callers, "kms:Decrypt", "kms:GenerateDataKey", on=[storage.key.key_arn])

    def _allow_reports(self, stage: Stage) -> None:
        role = self.execution
        groups = [
            _arn("logs", f"log-group:/aws/sagemaker/{kind}/{stage.prefix}-*")
            for kind in ("Endpoints", "InferenceComponents")
        ]
        write = ("logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents")
        _allow(role, *write, on=groups, why="SageMaker names the streams in the log groups of this stage")
        namespaces = {"StringLike": {"cloudwatch:namespace": ["/aws/sagemaker/*", "AWS/SageMaker"]}}
        _allow(role, "cloudwatch:PutMetricData", on=["*"], when=namespaces, why=ALL)
        topics = [_arn("sns", f"{stage.prefix}-*")]
        _allow(role, "sns:Publish", on=topics, why="The topics of async endpoints, which later stacks create")

    def _allow_network(self, network: Network) -> None:
        """Allow SageMaker to create network interfaces of the containers in the subnets."""
        role, interfaces = self.execution, _arn("ec2", "network-interface/*")
        _allow(role, *(f"ec2:Describe{what}" for what in DESCRIBE), on=["*"], why=ALL)
        subnets = [_arn("ec2", f"subnet/{subnet}") for subnet in network.subnet_ids]
        group = _arn("ec2", f"security-group/{network.containers.security_group_id}")
        why = "An interface has no name before it exists; subnets and security group are named"
        _allow(role, "ec2:CreateNetworkInterface", on=[interfaces, *subnets, group], why=why)
        change = ("CreateNetworkInterfacePermission", "DeleteNetworkInterface", "DeleteNetworkInterfacePermission")
        in_network = {"ArnEquals": {"ec2:Vpc": _arn("ec2", f"vpc/{network.vpc.vpc_id}")}}
        why = "The condition allows interfaces of this network only"
        _allow(role, *(f"ec2:{verb}" for verb in change), on=[interfaces], when=in_network, why=why)

    def _allow_calls(self, stage: Stage) -> None:
        endpoints = [_arn("sagemaker", f"{kind}/{stage.prefix}-*") for kind in ("endpoint", "inference-component")]
        invoke = [f"sagemaker:InvokeEndpoint{how}" for how in INVOKE]
        _allow(self.callers, *invoke, on=endpoints, why="The names of the stage's endpoints begin with its name")
        _allow(self.callers, "ssm:GetParameter", on=[_arn("ssm", f"parameter/s1-mini/{stage.name}/voices")])


def _allow(
    to: iam.Role | iam.ManagedPolicy,
    *actions: str,
    on: Sequence[str],
    why: str = "",
    when: Mapping[str, Any] | None = None,
) -> None:
    """Allow actions; `why` justifies the wildcards among the resources, which are findings otherwise."""
    statement = iam.PolicyStatement(actions=list(actions), resources=list(on), conditions=when)
    if isinstance(to, iam.Role):
        to.add_to_policy(statement)
    else:
        to.add_statements(statement)
    if why:
        explain(to, on, reason=why)


def _arn(service: str, resource: str) -> str:
    return f"arn:{Aws.PARTITION}:{service}:{Aws.REGION}:{Aws.ACCOUNT_ID}:{resource}"
