"""Who may do what: the role that containers run under, and the policy of those who may ask for speech."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aws_cdk import Aws
from aws_cdk import aws_iam as iam
from constructs import Construct

from speech.foundation.network import Network
from speech.foundation.storage import ANSWERS, Storage
from speech.stages import Stage
from speech.toolchain import explain_wildcards


class Access(Construct):
    """`execution`: SageMaker's role, able to read models and write logs, answers and metrics of this stage only.

    `callers`: a managed policy to attach to whom you like; it can invoke this stage's endpoints and nothing more.
    """

    def __init__(self, scope: Construct, id: str, *, stage: Stage, storage: Storage, network: Network) -> None:  # noqa: A002
        super().__init__(scope, id)
        self.execution = self._execution(stage, storage, network)
        self.callers = self._callers(stage, storage)

    def _execution(self, stage: Stage, storage: Storage, network: Network) -> iam.Role:
        role = iam.Role(
            self,
            "Execution",
            assumed_by=iam.ServicePrincipal(
                "sagemaker.amazonaws.com", conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}}
            ),
            description=f"s1-mini {stage.name}: read models, pull the image, write logs, metrics and answers",
        )
        self._let_read(role, storage)
        self._let_report(role, stage)
        self._let_enter(role, network)
        return role

    def _let_read(self, role: iam.Role, storage: Storage) -> None:
        bucket = storage.bucket
        objects = "of this stage's own bucket, below one prefix: keys are a release's files or SageMaker's own names"
        _allow(
            role,
            "s3:GetObject",
            on=[bucket.arn_for_objects("models/*"), bucket.arn_for_objects(f"{ANSWERS}in/*")],
            why=f"Reads the objects {objects}",
        )
        _allow(
            role,
            "s3:PutObject",
            on=[bucket.arn_for_objects(f"{ANSWERS}out/*"), bucket.arn_for_objects(f"{ANSWERS}failed/*")],
            why=f"Writes the objects {objects}",
        )
        prefixes = ["models/*", f"{ANSWERS}*"]
        _allow(role, "s3:ListBucket", on=[bucket.bucket_arn], when={"StringLike": {"s3:prefix": prefixes}})
        _allow(role, "kms:Decrypt", "kms:GenerateDataKey", on=[storage.key.key_arn])
        _allow(
            role,
            "ecr:BatchCheckLayerAvailability",
            "ecr:BatchGetImage",
            "ecr:GetDownloadUrlForLayer",
            on=[storage.repository.repository_arn],
        )
        _allow(role, "ecr:GetAuthorizationToken", on=["*"], why="The action knows no resources; the pull itself does")

    def _let_report(self, role: iam.Role, stage: Stage) -> None:
        for kind in ("Endpoints", "InferenceComponents"):
            _allow(
                role,
                "logs:CreateLogStream",
                "logs:DescribeLogStreams",
                "logs:PutLogEvents",
                on=[_arn("logs", f"log-group:/aws/sagemaker/{kind}/{stage.endpoint_name}*")],
                why="SageMaker names the streams; the groups are those of this stage's endpoints",
            )
        _allow(
            role,
            "cloudwatch:PutMetricData",
            on=["*"],
            when={"StringLike": {"cloudwatch:namespace": ["/aws/sagemaker/*", "AWS/SageMaker"]}},
            why="The action knows no resources; the condition names the namespaces",
        )
        _allow(
            role,
            "sns:Publish",
            on=[_arn("sns", f"{stage.endpoint_name}-async-*")],
            why="The asynchronous endpoint's two topics, which a later stack makes",
        )

    def _let_enter(self, role: iam.Role, network: Network) -> None:
        """Let SageMaker put the containers' network interfaces into the subnets."""
        interfaces = _arn("ec2", "network-interface/*")
        _allow(
            role,
            "ec2:DescribeDhcpOptions",
            "ec2:DescribeNetworkInterfaces",
            "ec2:DescribeSecurityGroups",
            "ec2:DescribeSubnets",
            "ec2:DescribeVpcEndpoints",
            "ec2:DescribeVpcs",
            on=["*"],
            why="EC2's Describe actions know no resources",
        )
        subnets = [_arn("ec2", f"subnet/{subnet}") for subnet in network.subnet_ids]
        group = _arn("ec2", f"security-group/{network.containers.security_group_id}")
        _allow(
            role,
            "ec2:CreateNetworkInterface",
            on=[interfaces, *subnets, group],
            why="An interface has no name before it is made; subnets and security group are named",
        )
        _allow(
            role,
            "ec2:CreateNetworkInterfacePermission",
            "ec2:DeleteNetworkInterface",
            "ec2:DeleteNetworkInterfacePermission",
            on=[interfaces],
            when={"ArnEquals": {"ec2:Vpc": _arn("ec2", f"vpc/{network.vpc.vpc_id}")}},
            why="Interfaces of this stage's network only, by the condition",
        )

    def _callers(self, stage: Stage, storage: Storage) -> iam.ManagedPolicy:
        policy = iam.ManagedPolicy(
            self,
            "Callers",
            managed_policy_name=f"{stage.endpoint_name}-callers",
            description=f"May ask s1-mini {stage.name} to speak",
        )
        ours = [
            _arn("sagemaker", f"{kind}/{stage.endpoint_name}{end}")
            for kind in ("endpoint", "inference-component")
            for end in ("", "-*")
        ]
        _allow(
            policy,
            "sagemaker:InvokeEndpoint",
            "sagemaker:InvokeEndpointAsync",
            "sagemaker:InvokeEndpointWithBidirectionalStream",
            "sagemaker:InvokeEndpointWithResponseStream",
            on=ours,
            why="The stage's endpoints and components, whose names begin with the stage's",
        )
        bucket = storage.bucket
        _allow(
            policy,
            "s3:PutObject",
            on=[bucket.arn_for_objects(f"{ANSWERS}in/*")],
            why="Long requests: callers choose the keys below one prefix",
        )
        _allow(
            policy,
            "s3:GetObject",
            on=[bucket.arn_for_objects(f"{ANSWERS}{part}/*") for part in ("out", "failed")],
            why="Answers: SageMaker chooses the keys below these prefixes",
        )
        _allow(policy, "kms:Decrypt", "kms:GenerateDataKey", on=[storage.key.key_arn])
        _allow(policy, "ssm:GetParameter", on=[_arn("ssm", f"parameter/s1-mini/{stage.name}/voices")])
        return policy


def _allow(
    to: iam.Role | iam.ManagedPolicy,
    *actions: str,
    on: Sequence[str],
    why: str = "",
    when: Mapping[str, Any] | None = None,
) -> None:
    """Allow actions; `why` explains the wildcards among the resources, without it they are findings."""
    statement = iam.PolicyStatement(actions=list(actions), resources=list(on), conditions=when)
    if isinstance(to, iam.Role):
        to.add_to_policy(statement)
    else:
        to.add_statements(statement)
    if why:
        explain_wildcards(to, on, reason=why)


def _arn(service: str, resource: str) -> str:
    return f"arn:{Aws.PARTITION}:{service}:{Aws.REGION}:{Aws.ACCOUNT_ID}:{resource}"
