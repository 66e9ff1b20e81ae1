"""A network without a way out: isolated subnets in two zones, and endpoints; or one that is there already."""

from __future__ import annotations

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from constructs import Construct

from speech.stages import Stage

# For callers and tools inside the network. What speaks needs none of them: SageMaker itself pulls its image and writes
# its log, and its model comes through the gateway to S3.
INTERFACES = {
    "SageMakerRuntime": ec2.InterfaceVpcEndpointAwsService.SAGEMAKER_RUNTIME,
    "SageMakerApi": ec2.InterfaceVpcEndpointAwsService.SAGEMAKER_API,
    "EcrApi": ec2.InterfaceVpcEndpointAwsService.ECR,
    "EcrDocker": ec2.InterfaceVpcEndpointAwsService.ECR_DOCKER,
    "Logs": ec2.InterfaceVpcEndpointAwsService.CLOUDWATCH_LOGS,
    "Kms": ec2.InterfaceVpcEndpointAwsService.KMS,
}


class Network(Construct):
    """`vpc`, `subnet_ids`, and `containers`: the security group of what speaks, which lets nothing in."""

    def __init__(self, scope: Construct, id: str, *, stage: Stage, key: kms.IKey) -> None:  # noqa: A002
        super().__init__(scope, id)
        self.vpc: ec2.IVpc
        self.subnet_ids: list[str]
        doors: ec2.SecurityGroup | None = None
        if stage.vpc is not None:  # its owner's routes, endpoints and flow logs stay as they are
            self.vpc = ec2.Vpc.from_vpc_attributes(self, "Vpc", vpc_id=stage.vpc.id, availability_zones=["its owner's"])
            self.subnet_ids = list(stage.vpc.subnets)
        else:
            own = self._own(stage)
            self.vpc, self.subnet_ids = own, [subnet.subnet_id for subnet in own.isolated_subnets]
            self._log_flows(stage, key)
            doors = self._doors(stage, own) if stage.interface_endpoints else None
        self.containers = self._containers(doors)

    def _own(self, stage: Stage) -> ec2.Vpc:
        vpc = ec2.Vpc(
            self,
            "Vpc",
            ip_addresses=ec2.IpAddresses.cidr(stage.cidr),
            max_azs=2,
            nat_gateways=0,
            subnet_configuration=[
                ec2.SubnetConfiguration(name="speech", subnet_type=ec2.SubnetType.PRIVATE_ISOLATED, cidr_mask=24)
            ],
        )
        vpc.add_gateway_endpoint("S3", service=ec2.GatewayVpcEndpointAwsService.S3)  # by which models come; it is free
        return vpc

    def _doors(self, stage: Stage, vpc: ec2.Vpc) -> ec2.SecurityGroup:
        """Make the interface endpoints, each of which costs by the hour in each zone, and give their security group."""
        doors = ec2.SecurityGroup(
            self, "Doors", vpc=vpc, description="Interface endpoints: HTTPS from inside", allow_all_outbound=False
        )
        doors.add_ingress_rule(ec2.Peer.ipv4(stage.cidr), ec2.Port.tcp(443), "HTTPS from the network itself")
        for name, service in INTERFACES.items():
            vpc.add_interface_endpoint(name, service=service, security_groups=[doors], open=False)
        return doors

    def _containers(self, doors: ec2.SecurityGroup | None) -> ec2.SecurityGroup:
        group = ec2.SecurityGroup(
            self, "Containers", vpc=self.vpc, description="What speaks: nothing in, HTTPS out", allow_all_outbound=False
        )
        if doors is not None:
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
