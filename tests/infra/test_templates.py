"""Guarantees of the templates, checked on the synthesised output, never against a stored copy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.infra
ROOT = Path(__file__).parents[2]
Find = Callable[[str], Any]
CONFIG, MODEL = "AWS::SageMaker::EndpointConfig", "AWS::SageMaker::Model"
ALARM = "AWS::CloudWatch::Alarm"
STAGES = ("dev", "staging", "prod", "shared")
ENDPOINTS = ("dev-realtime", "staging-realtime", "prod-realtime", "prod-async", "shared-english", "shared-archive")


def of_kind(template: Any, kind: str) -> dict[str, Any]:
    return {name: each["Properties"] for name, each in template["Resources"].items() if each["Type"] == kind}


def only(template: Any, kind: str) -> dict[str, Any]:
    (found,) = of_kind(template, kind).values()
    return found


def alarms(template: Any) -> dict[str, dict[str, Any]]:
    """Return the alarms by name, those of the commands' template by logical id."""
    return {each.get("AlarmName", logical_id): each for logical_id, each in of_kind(template, ALARM).items()}


def statements(template: Any, kind: str, name: str) -> list[dict[str, Any]]:
    (found,) = (each for key, each in of_kind(template, kind).items() if name in key)
    return found["PolicyDocument"]["Statement"]


def actions(policy: list[dict[str, Any]]) -> set[str]:
    listed = [each["Action"] if isinstance(each["Action"], list) else [each["Action"]] for each in policy]
    return {action for group in listed for action in group}


# The description of a deployment


@pytest.mark.parametrize("stage", STAGES)
def test_the_resources_of_an_endpoint_are_those_of_the_commands(template: Find, stage: str) -> None:
    from speech.stages import ASYNC_PLACEHOLDERS, PLACEHOLDERS, read_stage

    from s1_mini.aws.template import build_with_parameters

    for endpoint in read_stage(stage).endpoints:
        deployment = endpoint.deployment
        expected = build_with_parameters(deployment, "artifact", *PLACEHOLDERS, *ASYNC_PLACEHOLDERS)
        found = template(deployment.name.removeprefix("s1-mini-"))
        values: dict[str, Any] = {}
        for name, resource in expected["Resources"].items():
            given = found["Resources"][name]
            assert given["Type"] == resource["Type"]
            assert matches(resource["Properties"], given["Properties"], set(expected["Parameters"]), values), name
            assert {resource.get("DependsOn")} - {None} <= set(given.get("DependsOn", []))

        own = {each["Type"] for name, each in found["Resources"].items() if name not in expected["Resources"]}
        assert not {each for each in own if "SageMaker" in each or "ApplicationAutoScaling" in each}
        assert "AccessExecution" in json.dumps(values["Role"])
        assert "StorageRepository" in json.dumps(values["Image"])
        assert deployment.artifact.removeprefix("s3://bucket") in json.dumps(values["Artifact"])


def matches(expected: Any, found: Any, parameters: set[str], values: dict[str, Any]) -> bool:
    """Return whether both are equal except for references to parameters, and collect the values of these."""
    if isinstance(expected, dict) and expected.get("Ref") in parameters:
        return values.setdefault(expected["Ref"], found) == found
    if isinstance(expected, dict) and isinstance(found, dict) and set(expected) == set(found):
        return all(matches(expected[key], found[key], parameters, values) for key in expected)
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return all(matches(*pair, parameters, values) for pair in zip(expected, found, strict=True))
    return expected == found


@pytest.mark.parametrize("name", ENDPOINTS)
def test_every_container_is_isolated_and_in_the_network(template: Find, name: str) -> None:
    owner = "shared-english" if name == "shared-archive" else name
    found = template(owner)
    places = [each for kind in (MODEL, CONFIG) for each in of_kind(found, kind).values() if "VpcConfig" in each]

    (place,) = places
    assert place["EnableNetworkIsolation"] is True
    assert len(place["VpcConfig"]["Subnets"]) == 2
    assert "NetworkContainers" in json.dumps(place["VpcConfig"]["SecurityGroupIds"])


# Foundation


def test_the_network_has_no_internet_access(template: Find) -> None:
    foundation = template("prod-foundation")

    kinds = {each["Type"] for each in foundation["Resources"].values()}
    assert not {f"AWS::EC2::{kind}" for kind in ("InternetGateway", "NatGateway", "EgressOnlyInternetGateway")} & kinds
    subnets = of_kind(foundation, "AWS::EC2::Subnet").values()
    assert [each["MapPublicIpOnLaunch"] for each in subnets] == [False, False]
    assert only(foundation, "AWS::EC2::FlowLog")


@pytest.mark.parametrize(("stage", "interfaces"), [("dev", 0), ("staging", 6), ("prod", 6)])
def test_interface_endpoints_follow_the_stage_and_cost_what_the_docs_say(
    template: Find, stage: str, interfaces: int
) -> None:
    found = of_kind(template(f"{stage}-foundation"), "AWS::EC2::VPCEndpoint").values()
    paid = [each for each in found if each["VpcEndpointType"] == "Interface"]
    zones = sum(len(each["SubnetIds"]) for each in paid)
    services = [json.dumps(each["ServiceName"]) for each in paid]
    pages = [ROOT / "infra" / "README.md", ROOT / "infra" / "stages.toml"]

    assert len(paid) == interfaces
    assert [each for each in found if each["VpcEndpointType"] == "Gateway"], "models come from S3"
    for expected in ("sagemaker.runtime", "sagemaker.api", "ecr.api", "ecr.dkr", "logs", "kms") if paid else ():
        assert any(expected in service for service in services), expected
    if paid:
        price = f"{zones * 730 * 0.01:.0f} USD a month"  # 0.01 USD an hour for each zone
        assert all(price in page.read_text(encoding="utf-8") for page in pages)


def test_the_cost_of_an_idle_stage_matches_the_readme(template: Find) -> None:
    """Computed from the templates; a stage whose templates grow needs a new sum in the README."""
    readme = (ROOT / "infra" / "README.md").read_text(encoding="utf-8")
    keys, found, dashboards = (
        sum(len(of_kind(template(stack), kind)) for stack in ("dev-foundation", "dev-realtime"))
        for kind in ("AWS::KMS::Key", ALARM, "AWS::CloudWatch::Dashboard")
    )

    assert f"| {keys} key |" in readme
    assert f"| {found} alarms |" in readme
    assert f"| {dashboards} dashboard |" in readme


def test_an_existing_network_gets_only_a_security_group(tmp_path: Path) -> None:
    from speech.stages import Vpc, read_stage
    from speech.toolchain import compose, new_app

    vpc = Vpc(id="vpc-0123456789abcdef0", subnets=("subnet-01234567", "subnet-12345678"))
    app = new_app(outdir=str(tmp_path))
    changes = {"vpc": vpc, "interface_endpoints": False, "emails": ("night@example.com",)}
    compose(app, read_stage("prod").model_copy(update=changes))
    app.synth()  # with AWS Solutions' rules: a finding fails it

    foundation, realtime = (
        json.loads((tmp_path / f"s1-mini-prod-{name}.template.json").read_text(encoding="utf-8"))
        for name in ("foundation", "realtime")
    )
    kinds = {each["Type"] for each in foundation["Resources"].values() if "EC2" in each["Type"]}
    assert kinds == {"AWS::EC2::SecurityGroup"}
    assert only(foundation, "AWS::EC2::SecurityGroup")["VpcId"] == vpc.id
    assert only(realtime, MODEL)["VpcConfig"]["Subnets"] == list(vpc.subnets)
    assert only(realtime, "AWS::SNS::Subscription")["Endpoint"] == "night@example.com"


def test_only_the_network_itself_may_connect(template: Find) -> None:
    groups = of_kind(template("prod-foundation"), "AWS::EC2::SecurityGroup").values()
    rules = [rule for each in groups for rule in each.get("SecurityGroupIngress", [])]

    assert [(rule["CidrIp"], rule["FromPort"]) for rule in rules] == [("10.42.0.0/16", 443)]


def test_a_released_model_and_an_image_tag_are_never_overwritten(template: Find) -> None:
    foundation = template("prod-foundation")
    policies = of_kind(foundation, "AWS::S3::BucketPolicy").values()
    rules = [each for policy in policies for each in policy["PolicyDocument"]["Statement"]]
    (rule,) = (each for each in rules if each.get("Sid") == "ReleasesAreImmutable")

    assert (rule["Effect"], rule["Action"]) == ("Deny", "s3:PutObject")
    assert rule["Condition"]["Null"] == {"s3:if-none-match": "true"}
    assert only(foundation, "AWS::ECR::Repository")["ImageTagMutability"] == "IMMUTABLE"


def test_the_container_may_read_models_and_write_responses_and_nothing_more(template: Find) -> None:
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

    invoke = {
        f"sagemaker:InvokeEndpoint{how}" for how in ("", "Async", "WithBidirectionalStream", "WithResponseStream")
    }
    others = {"s3:GetObject", "s3:PutObject", "kms:Decrypt", "kms:GenerateDataKey", "ssm:GetParameter"}
    assert actions(policy) == invoke | others
    assert "s1-mini-prod-" in json.dumps(policy)
    assert "s1-mini-staging" not in json.dumps(policy)


# Monitoring


def test_the_endpoint_has_alarms_for_latency_errors_queue_and_missing_capacity(template: Find) -> None:
    found = alarms(template("prod-realtime"))
    names = {name.removeprefix("s1-mini-prod-realtime-") for name in found}
    rollback = {"Rollback5xx", "RollbackLatency"}

    assert names == {"latency-p95", "first-audio-p95", "errors", "refused", "queue", "no-capacity", *rollback}
    latency = found["s1-mini-prod-realtime-latency-p95"]
    assert (latency["Threshold"], latency["Metrics"][0]["MetricStat"]["Stat"]) == (5_000_000, "p95")  # microseconds
    assert found["s1-mini-prod-realtime-no-capacity"]["Threshold"] == 8  # the slots
    assert "100 *" in found["s1-mini-prod-realtime-errors"]["Metrics"][0]["Expression"]


@pytest.mark.parametrize("name", ENDPOINTS)
def test_every_alarm_notifies_or_acts_or_rolls_back_and_is_explained(template: Find, name: str) -> None:
    runbook = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    topics = json.dumps(of_kind(template(name), "AWS::SNS::TopicPolicy"))

    assert "cloudwatch.amazonaws.com" in topics  # alarms may publish
    for alarm, properties in alarms(template(name)).items():
        assert properties.get("AlarmActions") or alarm.startswith("Rollback"), alarm
        assert f"### {alarm.removeprefix(f's1-mini-{name}-')}\n" in runbook


def test_logs_exist_before_the_endpoint_expire_and_provide_metrics(template: Find) -> None:
    found = template("prod-realtime")
    group = only(found, "AWS::Logs::LogGroup")

    assert group["LogGroupName"] == "/aws/sagemaker/Endpoints/s1-mini-prod-realtime"
    assert group["RetentionInDays"] == 90
    assert "LogGroup" in found["Resources"]["Endpoint"]["DependsOn"]
    filters = of_kind(found, "AWS::Logs::MetricFilter").values()
    names = {each["MetricTransformations"][0]["MetricName"] for each in filters}
    assert names == {"FirstChunkMilliseconds", "RequestsWaiting", "RequestsRefused"}


def test_the_dashboard_shows_alarms_metrics_and_the_last_errors(template: Find) -> None:
    body = json.dumps(only(template("prod-realtime"), "AWS::CloudWatch::Dashboard")["DashboardBody"])

    metrics = ("ModelLatency", "FirstChunkMilliseconds", "Invocation5XXErrors", "GPUUtilization")
    for shown in (*metrics, "SOURCE '/aws/sagemaker/Endpoints/s1-mini-prod-realtime'", "Rollback5xx"):
        assert shown in body, shown


# Several models


def test_models_on_shared_instances_are_deployed_after_the_endpoint_that_has_them(assembly: Path) -> None:
    stacks = json.loads((assembly / "manifest.json").read_text(encoding="utf-8"))["artifacts"]

    assert "s1-mini-shared-english" in stacks["s1-mini-shared-archive"]["dependencies"]
    assert {"s1-mini-shared-english", "s1-mini-shared-archive"} <= set(stacks["s1-mini-shared-voices"]["dependencies"])


def test_a_caller_can_look_up_the_component_of_a_voice(template: Find) -> None:
    parameter = only(template("shared-voices"), "AWS::SSM::Parameter")

    assert parameter["Name"] == "/s1-mini/shared/voices"
    assert json.loads(parameter["Value"])["grandmother"] == {
        "endpoint": "s1-mini-shared-english",
        "component": "s1-mini-shared-archive",
        "prefix_aware_id": "grandmother",
    }


def test_every_stack_has_tags_for_project_and_stage(assembly: Path) -> None:
    artifacts = json.loads((assembly / "manifest.json").read_text(encoding="utf-8"))["artifacts"].items()
    tags = {name: each["properties"]["tags"] for name, each in artifacts if each["type"] == "aws:cloudformation:stack"}

    assert tags["s1-mini-staging-realtime"] == {"project": "s1-mini", "stage": "staging"}
    assert len(tags) == 12
