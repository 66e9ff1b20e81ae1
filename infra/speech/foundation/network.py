"""A network without a way out: isolated subnets in two zones, and endpoints for the services that are needed."""

from __future__ import annotations

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from constructs import Construct

from speech.stages import Stage

# Callers inside speak through the first two; the others are what SageMaker's containers and tools inside would need.
INTERFACES = {
    "SageMakerRuntime": ec2.InterfaceVpcEndpointAwsService.SAGEMAKER_RUNTIME,
    "SageMakerApi": ec2.InterfaceVpcEndpointAwsService.SAGEMAKER_API,
    "EcrApi": ec2.InterfaceVpcEndpointAwsService.ECR,
    "EcrDocker": ec2.InterfaceVpcEndpointAwsService.ECR_DOCKER,
    "Logs": ec2.InterfaceVpcEndpointAwsService.CLOUDWATCH_LOGS,
    "Kms": ec2.InterfaceVpcEndpointAwsService.KMS,
}


class Network(Construct):
    """`vpc`, and `containers`: the security group of what speaks, which may only reach the endpoints."""

    def __init__(self, scope: Construct, id: str, *, stage: Stage, key: kms.IKey) -> None:  # noqa: A002
        super().__init__(scope, id)
        self.vpc = ec2.Vpc(
            self,
            "Vpc",
            ip_addresses=ec2.IpAddresses.cidr(stage.cidr),
            max_azs=2,
            nat_gateways=0,
            subnet_configuration=[
                ec2.SubnetConfiguration(name="speech", subnet_type=ec2.SubnetType.PRIVATE_ISOLATED, cidr_mask=24)
            ],
        )
        self._log_flows(stage, key)
        self.s3 = self.vpc.add_gateway_endpoint("S3", service=ec2.GatewayVpcEndpointAwsService.S3)
        doors = ec2.SecurityGroup(
            self, "Doors", vpc=self.vpc, description="Interface endpoints: HTTPS from inside", allow_all_outbound=False
        )
        doors.add_ingress_rule(ec2.Peer.ipv4(stage.cidr), ec2.Port.tcp(443), "HTTPS from the network itself")
        for name, service in INTERFACES.items():
            self.vpc.add_interface_endpoint(name, service=service, security_groups=[doors], open=False)
        self.containers = self._containers(doors)

    def _containers(self, doors: ec2.SecurityGroup) -> ec2.SecurityGroup:
        group = ec2.SecurityGroup(
            self, "Containers", vpc=self.vpc, description="What speaks: nothing in, HTTPS out", allow_all_outbound=False
        )
        group.add_egress_rule(doors, ec2.Port.tcp(443), "To the interface endpoints")
        # S3's own addresses are no fixed network: the gateway's route lets nothing else through.
        group.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(443), "To S3, by the gateway's route only")
        return group

    def _log_flows(self, stage: Stage, key: kms.IKey) -> None:
        """What was refused tells of a wrong rule; what was let through would cost more than it tells."""
        group = logs.CfnLogGroup(
            self,
            "Flows",
            log_group_name=f"/s1-mini/{stage.name}/refused-flows",
            kms_key_id=key.key_arn,
            retention_in_days=stage.log_days,
        )
        role = iam.Role(self, "FlowsRole", assumed_by=iam.ServicePrincipal("vpc-flow-logs.amazonaws.com"))
        role.add_to_policy(
            iam.PolicyStatement(
                actions=["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"],
                resources=[group.attr_arn],
            )
        )
        ec2.CfnFlowLog(
            self,
            "FlowLog",
            resource_type="VPC",
            resource_id=self.vpc.vpc_id,
            traffic_type="REJECT",
            log_destination_type="cloud-watch-logs",
            log_group_name=group.ref,
            deliver_logs_permission_arn=role.role_arn,
        )

    def isolated_subnet_ids(self) -> list[str]:
        """Give the subnets that speech lives in."""
        return [subnet.subnet_id for subnet in self.vpc.isolated_subnets]
