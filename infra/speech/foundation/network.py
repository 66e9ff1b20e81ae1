"""A network without internet access: isolated subnets in two zones, and endpoints; or an existing network."""

from __future__ import annotations

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from constructs import Construct

from speech.stages import Stage

# For callers inside the network. The containers need none of them: SageMaker pulls the image and writes the log, and
# the model comes through the gateway endpoint of S3.
INTERFACES = {
    "SageMakerRuntime": ec2.InterfaceVpcEndpointAwsService.SAGEMAKER_RUNTIME,
    "SageMakerApi": ec2.InterfaceVpcEndpointAwsService.SAGEMAKER_API,
    "EcrApi": ec2.InterfaceVpcEndpointAwsService.ECR,
    "EcrDocker": ec2.InterfaceVpcEndpointAwsService.ECR_DOCKER,
    "Logs": ec2.InterfaceVpcEndpointAwsService.CLOUDWATCH_LOGS,
    "Kms": ec2.InterfaceVpcEndpointAwsService.KMS,
}


class Network(Construct):
    """`vpc`, `subnet_ids`, and `containers`: the security group of the containers, without inbound rules."""

    def __init__(self, scope: Construct, stage: Stage, key: kms.IKey) -> None:
        super().__init__(scope, "Network")
        self.vpc: ec2.IVpc
        self.subnet_ids: list[str]
        interfaces: ec2.SecurityGroup | None = None
        if stage.vpc is not None:  # an existing network: routes, endpoints and flow logs are not changed
            self.vpc = ec2.Vpc.from_vpc_attributes(self, "Vpc", vpc_id=stage.vpc.id, availability_zones=["unknown"])
            self.subnet_ids = list(stage.vpc.subnets)
        else:
            own = self._own(stage)
            self.vpc, self.subnet_ids = own, [subnet.subnet_id for subnet in own.isolated_subnets]
            self._log_flows(stage, key)
            interfaces = self._interfaces(stage, own) if stage.interface_endpoints else None
        self.containers = self._containers(interfaces)

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
        vpc.add_gateway_endpoint("S3", service=ec2.GatewayVpcEndpointAwsService.S3)  # free
        return vpc

    def _interfaces(self, stage: Stage, vpc: ec2.Vpc) -> ec2.SecurityGroup:
        group = ec2.SecurityGroup(
            self, "Interfaces", vpc=vpc, description="Interface endpoints: HTTPS from inside", allow_all_outbound=False
        )
        group.add_ingress_rule(ec2.Peer.ipv4(stage.cidr), ec2.Port.tcp(443), "HTTPS from the network")
        for name, service in INTERFACES.items():
            vpc.add_interface_endpoint(name, service=service, security_groups=[group], open=False)
        return group

    def _containers(self, interfaces: ec2.SecurityGroup | None) -> ec2.SecurityGroup:
        group = ec2.SecurityGroup(
            self, "Containers", vpc=self.vpc, description="Containers: HTTPS outbound only", allow_all_outbound=False
        )
        if interfaces is not None:
            group.add_egress_rule(interfaces, ec2.Port.tcp(443), "To the interface endpoints")
        # S3 has no fixed addresses. An isolated subnet has no route except the gateway's.
        group.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(443), "To S3 through the gateway")
        return group

    def _log_flows(self, stage: Stage, key: kms.IKey) -> None:
        """Log rejected connections, which show wrong rules. Accepted connections are not logged, to save costs."""
        group = logs.CfnLogGroup(
            self,
            "Flows",
            log_group_name=f"/s1-mini/{stage.name}/rejected-flows",
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
