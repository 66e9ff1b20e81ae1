"""Every generated API request is valid against AWS's own service models, and the checker detects invalid ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deployments import FORMS, deployment
from s1_mini.deploy.call import AwsCall
from s1_mini.deploy.calls import Standing, create_calls, delete_calls, update_calls, would_stand
from s1_mini.deploy.check import check, check_all, problems
from s1_mini.deploy.scaling import autoscale_calls, target_of
from s1_mini.deploy.spec import Rollout, Scaling
from s1_mini.exceptions import ConfigurationError

ENDPOINTS = [form for form in FORMS if form != "batch"]
ROLLOUTS = [
    Rollout(),
    Rollout("rolling", 25),
    Rollout("canary", 10),
    Rollout("linear", 50),
    Rollout("all-at-once", alarms=("mine",)),
]


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_requests_that_create_and_delete_any_form_are_valid_for_aws(form: str, full: bool) -> None:
    wanted = deployment(form, full=full)
    calls = create_calls(wanted)

    check_all(calls)
    check_all([call.takes_back for call in calls if call.takes_back])
    check_all(delete_calls(would_stand(wanted)))
    json.dumps([call.as_data() for call in calls])


@pytest.mark.parametrize("rollout", ROLLOUTS)
@pytest.mark.parametrize("form", ENDPOINTS)
def test_requests_that_update_an_endpoint_are_valid_for_aws(form: str, rollout: Rollout) -> None:
    calls = update_calls(deployment(form, rollout=rollout), Standing("hello", endpoint=True))

    check_all(calls)
    changes = [call for call in calls if call.operation == "update_endpoint"]
    assert [call.parameters["RetainAllVariantProperties"] for call in changes] == [True]
    config = calls[-1].parameters["DeploymentConfig"]
    assert config["AutoRollbackConfiguration"]["Alarms"]


@pytest.mark.parametrize(("form", "minimum"), [*((form, 1) for form in ENDPOINTS), ("async", 0), ("components", 0)])
def test_requests_that_scale_any_form_are_valid_for_aws(form: Any, minimum: int) -> None:
    night = (("night", "cron(0 20 * * ? *)", minimum, 1),)
    calls = autoscale_calls("hello", form, Scaling(minimum, 4, slots=8, schedule=night))

    check_all(calls)
    check_all(delete_calls(Standing("hello", targets=(target_of("hello", form),), alarms=("hello-from-zero",))))
    assert calls[0].parameters["MinCapacity"] == minimum
    assert any(call.operation == "put_metric_alarm" for call in calls) == (minimum == 0)


def model(**parameters: Any) -> AwsCall:
    return AwsCall("sagemaker", "create_model", {"ModelName": "a", **parameters})


def config(**variant: Any) -> AwsCall:
    variants = [{"VariantName": "main", "ModelName": "a", **variant}]
    return AwsCall("sagemaker", "create_endpoint_config", {"EndpointConfigName": "a", "ProductionVariants": variants})


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (config(InstanceType="ml.g5.xlarg"), "'ml.g5.xlarg': allowed are"),
        (config(InstanceType="ml.g5.xlarg"), "near: ml.g5.xlarge"),
        (config(VolumeSizeInGB=513), "VolumeSizeInGB: 513 given, at most 512 allowed"),
        (config(VolumeSizeInGB=0), "VolumeSizeInGB: 0 given, at least 1 allowed"),
        (config(VolumeSizeInGB="30"), "VolumeSizeInGB='30' is no integer"),
        (config(VolumeSizeInGB=True), "VolumeSizeInGB=True is no integer"),
        (config(ContainerStartupHealthCheckTimeoutInSeconds=4000), "at most 3600"),
        (config(VolumeSizeInGb=3), "VolumeSizeInGb is not known (near: VolumeSizeInGB"),
        (model(ExecutionRoleArn="arn:aws:iam::12:role/x-yz"), "does not match arn:aws"),
        (model(PrimaryContainer={"Image": "a b"}), "PrimaryContainer.Image='a b' (given by --image): does not match"),
        (model(PrimaryContainer={"Environment": {"A": "x" * 1025}}), "1025 characters given, at most 1024"),
        (model(PrimaryContainer={"Environment": {f"A{i}": "" for i in range(101)}}), "101 entries given, at most 100"),
        (model(VpcConfig={"Subnets": ["a"]}), "VpcConfig.SecurityGroupIds is missing"),
        (model(VpcConfig={"Subnets": "a", "SecurityGroupIds": []}), "Subnets='a' is no list"),
        (model(Tags=[{"Key": "a!", "Value": "b"}]), "Tags[0].Key='a!': does not match"),
        (AwsCall("sagemaker", "create_modell", {}), "has no call create_modell (near: create_model"),
    ],
)
def test_values_invalid_for_aws_are_refused_with_field_value_and_allowed_range(call: AwsCall, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check(call)

    assert sentence in str(refused.value)


def test_every_fault_of_a_call_is_named_at_once() -> None:
    assert len(list(problems(config(VolumeSizeInGB=0, InstanceType="x", What=1)))) == 3


def test_every_pattern_of_the_services_that_are_called_is_understood() -> None:
    from botocore.session import get_session

    from s1_mini.deploy.check import _compiled

    for service in ("sagemaker", "sagemaker-runtime", "application-autoscaling", "cloudwatch"):
        described = get_session().get_service_model(service)
        for name in described.shape_names:
            pattern = described.shape_for(name).metadata.get("pattern")
            if pattern:
                _compiled(pattern)
