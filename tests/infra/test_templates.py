"""Guarantees of the templates, checked on the synthesised output, never against a stored copy."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.infra
ROOT = Path(__file__).parents[2]
Find = Callable[[str], Any]
ENDPOINT = "AWS::SageMaker::Endpoint"
CONFIG = "AWS::SageMaker::EndpointConfig"
MODEL = "AWS::SageMaker::Model"
TARGET = "AWS::ApplicationAutoScaling::ScalableTarget"
POLICY = "AWS::ApplicationAutoScaling::ScalingPolicy"
ALARM = "AWS::CloudWatch::Alarm"
SPEAKING = ("prod-realtime", "staging-realtime", "dev-realtime", "prod-async", "prod-components")


def only(template: Any, kind: str) -> dict[str, Any]:
    found = template.find_resources(kind)
    assert len(found) == 1, list(found)
    return next(iter(found.values()))["Properties"]


def alarms(template: Any) -> dict[str, dict[str, Any]]:
    return {each["Properties"]["AlarmName"]: each["Properties"] for each in template.find_resources(ALARM).values()}


def statements(template: Any, kind: str, name: str) -> list[dict[str, Any]]:
    found = {key: each for key, each in template.find_resources(kind).items() if name in key}
    assert len(found) == 1, list(found)
    return next(iter(found.values()))["Properties"]["PolicyDocument"]["Statement"]


def actions(policy: list[dict[str, Any]]) -> set[str]:
    listed = [each["Action"] if isinstance(each["Action"], list) else [each["Action"]] for each in policy]
    return {action for group in listed for action in group}


# Foundation


def test_the_network_has_no_internet_access(template: Find) -> None:
    foundation = template("prod-foundation")

    for kind in ("InternetGateway", "NatGateway", "EgressOnlyInternetGateway"):
        foundation.resource_count_is(f"AWS::EC2::{kind}", 0)
    foundation.resource_count_is("AWS::EC2::Subnet", 2)
    foundation.all_resources_properties("AWS::EC2::Subnet", {"MapPublicIpOnLaunch": False})
    foundation.resource_count_is("AWS::EC2::FlowLog", 1)


def test_required_services_are_reached_through_vpc_endpoints(template: Find) -> None:
    found = template("prod-foundation").find_resources("AWS::EC2::VPCEndpoint").values()
    services = [json.dumps(each["Properties"]["ServiceName"]) for each in found]

    for wanted in ("s3", "sagemaker.runtime", "sagemaker.api", "ecr.api", "ecr.dkr", "logs", "kms"):
        assert any(wanted in service for service in services), wanted


@pytest.mark.parametrize(("stage", "interfaces"), [("dev", 0), ("staging", 6), ("prod", 6)])
def test_interface_endpoints_follow_the_stage_and_cost_what_the_docs_say(
    template: Find, stage: str, interfaces: int
) -> None:
    foundation = template(f"{stage}-foundation")
    found = [each["Properties"] for each in foundation.find_resources("AWS::EC2::VPCEndpoint").values()]
    dear = [each for each in found if each["VpcEndpointType"] == "Interface"]
    zones = sum(len(each["SubnetIds"]) for each in dear)
    pages = [ROOT / "infra" / "README.md", ROOT / "infra" / "stages.toml"]

    assert len(dear) == interfaces
    assert [each for each in found if each["VpcEndpointType"] == "Gateway"], "models come from S3"
    if dear:
        told = f"{zones * 730 * 0.01:.0f} USD a month"  # 0.01 USD an hour for each zone
        assert all(told in page.read_text(encoding="utf-8") for page in pages)


def test_the_cost_of_an_idle_stage_matches_the_readme(template: Find) -> None:
    """Computed from the templates; a stage whose templates grow needs a new sum in the README."""
    readme = (ROOT / "infra" / "README.md").read_text(encoding="utf-8")
    counted = {
        kind: sum(len(template(stack).find_resources(kind)) for stack in ("dev-foundation", "dev-realtime"))
        for kind in ("AWS::KMS::Key", ALARM, "AWS::CloudWatch::Dashboard")
    }

    assert f"| {counted['AWS::KMS::Key']} key |" in readme
    assert f"| {counted[ALARM]} alarms |" in readme
    assert f"| {counted['AWS::CloudWatch::Dashboard']} dashboard |" in readme


def test_an_existing_network_gets_only_a_security_group(tmp_path: Path) -> None:
    from aws_cdk.assertions import Template
    from speech.compose import compose_speech
    from speech.stages import Vpc, read_stage
    from speech.toolchain import new_app

    vpc = Vpc(id="vpc-0123456789abcdef0", subnets=("subnet-01234567", "subnet-12345678"))
    app = new_app(outdir=str(tmp_path))
    compose_speech(app, replace(read_stage("prod"), vpc=vpc, interface_endpoints=False))
    app.synth()  # with AWS Solutions' rules: a finding fails it

    read = {
        name: Template.from_string((tmp_path / f"s1-mini-prod-{name}.template.json").read_text(encoding="utf-8"))
        for name in ("foundation", "realtime")
    }
    made = {each["Type"] for each in read["foundation"].to_json()["Resources"].values() if "EC2" in each["Type"]}
    assert made == {"AWS::EC2::SecurityGroup"}
    assert only(read["foundation"], "AWS::EC2::SecurityGroup")["VpcId"] == vpc.id
    assert only(read["realtime"], MODEL)["VpcConfig"]["Subnets"] == list(vpc.subnets)


def test_only_the_network_itself_may_connect(template: Find) -> None:
    groups = template("prod-foundation").find_resources("AWS::EC2::SecurityGroup").values()
    rules = [rule for each in groups for rule in each["Properties"].get("SecurityGroupIngress", [])]

    assert [(rule["CidrIp"], rule["FromPort"]) for rule in rules] == [("10.42.0.0/16", 443)]


def test_buckets_are_private_encrypted_and_outlive_the_stack(template: Find) -> None:
    foundation = template("prod-foundation")

    for bucket in foundation.find_resources("AWS::S3::Bucket").values():
        assert bucket["DeletionPolicy"] == "Retain"
        assert all(bucket["Properties"]["PublicAccessBlockConfiguration"].values())
        assert "BucketEncryption" in bucket["Properties"]


def test_a_released_model_is_never_overwritten(template: Find) -> None:
    policies = template("prod-foundation").find_resources("AWS::S3::BucketPolicy").values()
    said = [each for policy in policies for each in policy["Properties"]["PolicyDocument"]["Statement"]]
    [rule] = [each for each in said if each.get("Sid") == "AReleaseIsNeverOverwritten"]

    assert rule["Effect"] == "Deny"
    assert rule["Action"] == "s3:PutObject"
    assert rule["Condition"]["Null"] == {"s3:if-none-match": "true"}


def test_an_images_tag_never_moves(template: Find) -> None:
    repository = only(template("prod-foundation"), "AWS::ECR::Repository")

    assert repository["ImageTagMutability"] == "IMMUTABLE"
    assert repository["EncryptionConfiguration"]["EncryptionType"] == "KMS"


def test_the_container_may_read_models_and_write_answers_and_nothing_more(template: Find) -> None:
    policy = statements(template("prod-foundation"), "AWS::IAM::Policy", "AccessExecution")

    objects = {each for each in actions(policy) if each.startswith("s3:")}

    assert objects == {"s3:GetObject", "s3:PutObject", "s3:ListBucket"}
    assert not [each for each in actions(policy) if each.startswith(("sagemaker:", "iam:")) or each.endswith(":*")]
    for statement in policy:
        if statement["Resource"] == "*":
            bare = {"ecr:GetAuthorizationToken", "cloudwatch:PutMetricData"}  # have no resource-level permissions
            assert all(each in bare or each.startswith("ec2:Describe") for each in actions([statement]))
        if "s3:PutObject" in actions([statement]):
            assert "models" not in json.dumps(statement)


def test_a_caller_may_invoke_this_stage_and_nothing_more(template: Find) -> None:
    policy = statements(template("prod-foundation"), "AWS::IAM::ManagedPolicy", "Callers")

    assert actions(policy) == {
        "sagemaker:InvokeEndpoint",
        "sagemaker:InvokeEndpointAsync",
        "sagemaker:InvokeEndpointWithBidirectionalStream",
        "sagemaker:InvokeEndpointWithResponseStream",
        "s3:GetObject",
        "s3:PutObject",
        "kms:Decrypt",
        "kms:GenerateDataKey",
        "ssm:GetParameter",
    }
    assert "s1-mini-prod" in json.dumps(policy)
    assert "s1-mini-staging" not in json.dumps(policy)


# Real-time endpoint


@pytest.mark.parametrize("stack", SPEAKING)
def test_every_container_is_isolated_and_in_the_network(template: Find, stack: str) -> None:
    found = template(stack)
    places = [each["Properties"] for kind in (MODEL, CONFIG) for each in found.find_resources(kind).values()]
    isolated = [each for each in places if each.get("EnableNetworkIsolation")]

    assert isolated
    assert all(len(each["VpcConfig"]["Subnets"]) == 2 for each in isolated)
    # A component's instance type is set by its endpoint configuration, any other model's by itself.
    assert len(isolated) == 1


def test_models_are_loaded_as_files_and_know_their_slots(template: Find) -> None:
    container = only(template("prod-realtime"), MODEL)["PrimaryContainer"]

    assert container["ModelDataSource"]["S3DataSource"]["CompressionType"] == "None"
    assert container["ModelDataSource"]["S3DataSource"]["S3DataType"] == "S3Prefix"
    assert container["Environment"]["S1_MINI_MAX_BATCH_SIZE"] == "8"
    assert "ModelDataUrl" not in container


def test_immutable_resources_are_named_by_their_content(synthesised: Callable[..., Any]) -> None:
    first, again, other = synthesised(), synthesised(), synthesised(image_tag="0.2.0")

    for kind, name in ((MODEL, "ModelName"), (CONFIG, "EndpointConfigName")):
        assert only(first, kind)[name] == only(again, kind)[name]
        assert only(first, kind)[name] != only(other, kind)[name]
    assert only(first, ENDPOINT)["EndpointName"] == only(other, ENDPOINT)["EndpointName"] == "s1-mini-prod"


def test_instances_with_local_disks_get_no_volume_key(synthesised: Callable[..., Any]) -> None:
    assert "KmsKeyId" not in only(synthesised(), CONFIG)
    assert "KmsKeyId" in only(synthesised(instance_type="ml.m5.xlarge"), CONFIG)


def test_only_gpu_instances_get_the_gpu_machine_image(synthesised: Callable[..., Any]) -> None:
    [gpu] = only(synthesised(), CONFIG)["ProductionVariants"]
    [cpu] = only(synthesised(instance_type="ml.m5.xlarge"), CONFIG)["ProductionVariants"]

    assert gpu["InferenceAmiVersion"] == "al2023-ami-sagemaker-inference-gpu-4-1"
    assert "InferenceAmiVersion" not in cpu


def test_a_rollout_keeps_the_scaled_size_and_goes_back_on_alarms(template: Find) -> None:
    found = template("prod-realtime")
    endpoint = only(found, ENDPOINT)
    rollback = endpoint["DeploymentConfig"]["AutoRollbackConfiguration"]["Alarms"]
    named = {found.to_json()["Resources"][each["AlarmName"]["Ref"]]["Properties"]["AlarmName"] for each in rollback}

    assert endpoint["RetainAllVariantProperties"] is True
    assert named == {"s1-mini-prod-rollback-errors", "s1-mini-prod-rollback-latency"}
    routing = endpoint["DeploymentConfig"]["BlueGreenUpdatePolicy"]["TrafficRoutingConfiguration"]
    assert routing["Type"] == "CANARY"
    assert routing["CanarySize"]["Value"] <= 50


def test_a_rolling_rollout_needs_no_second_fleet(synthesised: Callable[..., Any]) -> None:
    deployment = only(synthesised(rollout="rolling"), ENDPOINT)["DeploymentConfig"]

    assert "BlueGreenUpdatePolicy" not in deployment
    assert 5 <= deployment["RollingUpdatePolicy"]["MaximumBatchSize"]["Value"] <= 50
    assert deployment["AutoRollbackConfiguration"]["Alarms"]


def test_scaling_follows_concurrent_requests_at_a_share_of_the_slots(synthesised: Callable[..., Any]) -> None:
    found = synthesised(slots=20, target_share=0.5)
    tracking = only(found, POLICY)["TargetTrackingScalingPolicyConfiguration"]

    assert tracking["TargetValue"] == 10
    metric = tracking["PredefinedMetricSpecification"]["PredefinedMetricType"]
    assert metric == "SageMakerVariantConcurrentRequestsPerModelHighResolution"
    target = only(found, TARGET)
    assert (target["MinCapacity"], target["MaxCapacity"]) == (2, 8)
    assert target["ResourceId"] == "endpoint/s1-mini-prod/variant/speech"


def test_fixed_capacity_registers_nothing(synthesised: Callable[..., Any]) -> None:
    found = synthesised(capacity="fixed")

    found.resource_count_is(TARGET, 0)
    found.resource_count_is(POLICY, 0)


def test_scheduled_capacity_uses_the_stages_time_zone(template: Find) -> None:
    actions = only(template("staging-realtime"), TARGET)["ScheduledActions"]

    assert {each["Timezone"] for each in actions} == {"Europe/Berlin"}
    limits = {each["ScheduledActionName"].rsplit("-", 1)[1]: each["ScalableTargetAction"] for each in actions}
    assert limits["opens"] == {"MinCapacity": 2, "MaxCapacity": 4}
    assert limits["closes"] == {"MinCapacity": 1, "MaxCapacity": 2}


# Scale to zero


def test_scale_to_zero_has_no_instances_when_idle_and_starts_one_at_the_first_request(template: Find) -> None:
    found = template("dev-realtime")
    [variant] = only(found, CONFIG)["ProductionVariants"]

    assert variant["ManagedInstanceScaling"] == {"Status": "ENABLED", "MinInstanceCount": 0, "MaxInstanceCount": 1}
    assert "ModelName" not in variant
    target = only(found, TARGET)
    assert target["MinCapacity"] == 0
    assert target["ScalableDimension"] == "sagemaker:inference-component:DesiredCopyCount"
    wake = alarms(found)["s1-mini-dev-speech-from-zero"]
    assert (wake["MetricName"], wake["Period"], wake["Threshold"]) == ("NoCapacityInvocationFailures", 30, 1)
    step = found.to_json()["Resources"][wake["AlarmActions"][0]["Ref"]]["Properties"]
    assert step["StepScalingPolicyConfiguration"]["StepAdjustments"] == [
        {"MetricIntervalLowerBound": 0, "ScalingAdjustment": 1}
    ]


# Alarms


def test_the_endpoint_has_alarms_for_latency_errors_queue_and_missing_capacity(template: Find) -> None:
    found = alarms(template("prod-realtime"))
    names = {name.removeprefix("s1-mini-prod-") for name in found}

    assert names == {
        "latency-p95",
        "first-sound-p95",
        "errors",
        "refused",
        "queue",
        "no-capacity",
        "rollback-errors",
        "rollback-latency",
    }
    [latency] = found["s1-mini-prod-latency-p95"]["Metrics"]
    assert latency["MetricStat"]["Stat"] == "p95"
    assert found["s1-mini-prod-latency-p95"]["Threshold"] == 5_000_000  # microseconds
    assert found["s1-mini-prod-no-capacity"]["Threshold"] == 8  # the slots
    errors = next(each for each in found["s1-mini-prod-errors"]["Metrics"] if each["ReturnData"])
    assert "100 *" in errors["Expression"]


@pytest.mark.parametrize("stack", SPEAKING)
def test_every_alarm_notifies_or_acts_or_rolls_back(template: Find, stack: str) -> None:
    for name, alarm in alarms(template(stack)).items():
        assert alarm.get("AlarmActions") or "rollback-" in name, name


def test_every_alarm_has_its_page_in_the_runbook(template: Find) -> None:
    runbook = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    prefixes = ("s1-mini-prod-async-", "s1-mini-prod-shared-english-", "s1-mini-prod-shared-archive-", "s1-mini-prod-")

    for stack in ("prod-realtime", "prod-async", "prod-components"):
        for name in alarms(template(stack)):
            short = next(name.removeprefix(each) for each in prefixes if name.startswith(each))
            assert f"### {short}\n" in runbook, short


def test_the_topic_is_encrypted_and_requires_tls(template: Find) -> None:
    found = template("prod-realtime")

    assert "KmsMasterKeyId" in only(found, "AWS::SNS::Topic")
    policy = json.dumps(only(found, "AWS::SNS::TopicPolicy"))
    assert "aws:SecureTransport" in policy
    assert "cloudwatch.amazonaws.com" in policy


def test_alarms_reach_the_addresses_of_the_stage(synthesised: Callable[..., Any]) -> None:
    found = synthesised(emails=("night@example.com",))

    found.has_resource_properties("AWS::SNS::Subscription", {"Protocol": "email", "Endpoint": "night@example.com"})


def test_logs_expire_and_provide_metrics_for_latency_queue_and_refusals(template: Find) -> None:
    found = template("prod-realtime")
    group = only(found, "AWS::Logs::LogGroup")

    assert group["LogGroupName"] == "/aws/sagemaker/Endpoints/s1-mini-prod"
    assert group["RetentionInDays"] == 90
    filters = found.find_resources("AWS::Logs::MetricFilter").values()
    drawn = {each["Properties"]["MetricTransformations"][0]["MetricName"] for each in filters}
    assert drawn == {"FirstChunkMilliseconds", "PiecesWaiting", "RequestsRefused"}


def test_the_dashboard_shows_alarms_numbers_and_last_errors(template: Find) -> None:
    body = json.dumps(only(template("prod-realtime"), "AWS::CloudWatch::Dashboard")["DashboardBody"])

    numbers = ("ModelLatency", "FirstChunkMilliseconds", "Invocation5XXErrors", "GPUUtilization")
    for shown in (*numbers, "SOURCE '/aws/sagemaker/Endpoints/s1-mini-prod'"):
        assert shown in body, shown


# Asynchronous endpoint


def test_the_asynchronous_endpoint_hands_an_engine_no_more_than_its_slots(template: Find) -> None:
    answers = only(template("prod-async"), CONFIG)["AsyncInferenceConfig"]

    assert answers["ClientConfig"]["MaxConcurrentInvocationsPerInstance"] == 8
    assert "async/out" in json.dumps(answers["OutputConfig"]["S3OutputPath"])
    assert "async/failed" in json.dumps(answers["OutputConfig"]["S3FailurePath"])
    assert {"SuccessTopic", "ErrorTopic"} <= set(answers["OutputConfig"]["NotificationConfig"])


def test_the_asynchronous_endpoint_scales_to_zero_and_starts_on_a_backlog(template: Find) -> None:
    found = template("prod-async")
    target = only(found, TARGET)
    kinds = {each["Properties"]["PolicyType"] for each in found.find_resources(POLICY).values()}

    assert (target["MinCapacity"], target["MaxCapacity"]) == (0, 4)
    assert kinds == {"TargetTrackingScaling", "StepScaling"}
    assert alarms(found)["s1-mini-prod-async-from-zero"]["MetricName"] == "HasBacklogWithoutCapacity"
    assert {"s1-mini-prod-async-backlog", "s1-mini-prod-async-oldest"} <= set(alarms(found))


# Multi-model endpoint


def test_requests_of_one_voice_go_to_one_instance_until_its_slots_are_taken(template: Find) -> None:
    [variant] = only(template("prod-components"), CONFIG)["ProductionVariants"]

    assert variant["RoutingConfig"] == {
        "RoutingStrategy": "PREFIX_AWARE",
        "PrefixAwareRoutingConfig": {"PrefixLength": 1024, "ConcurrencyThreshold": 8},
    }


def test_every_model_is_a_component_that_scales_by_itself_and_rolls_back_by_itself(template: Find) -> None:
    found = template("prod-components")
    components = [each["Properties"] for each in found.find_resources("AWS::SageMaker::InferenceComponent").values()]
    targets = {each["Properties"]["ResourceId"]: each["Properties"] for each in found.find_resources(TARGET).values()}

    assert {each["InferenceComponentName"] for each in components} == {
        "s1-mini-prod-shared-english",
        "s1-mini-prod-shared-archive",
    }
    for component in components:
        target = targets[f"inference-component/{component['InferenceComponentName']}"]
        assert target["MaxCapacity"] >= component["RuntimeConfig"]["CopyCount"]
        assert component["DeploymentConfig"]["AutoRollbackConfiguration"]["Alarms"]
    assert {each["MinCapacity"] for each in targets.values()} == {0, 1}


def test_a_caller_can_look_up_where_a_voice_is(template: Find) -> None:
    parameter = only(template("prod-components"), "AWS::SSM::Parameter")
    table = json.loads(parameter["Value"])

    assert parameter["Name"] == "/s1-mini/prod/voices"
    assert table["grandmother"] == {
        "endpoint": "s1-mini-prod-shared",
        "component": "s1-mini-prod-shared-archive",
        "prefix_aware_id": "grandmother",
    }


def test_everything_carries_project_and_stage(template: Find) -> None:
    for kind in (ENDPOINT, CONFIG, MODEL):
        tags = {each["Key"]: each["Value"] for each in only(template("staging-realtime"), kind)["Tags"]}
        assert tags == {"project": "s1-mini", "stage": "staging"}
