"""With moto through the real client and command line: a stack's life, batches, and endpoints of earlier versions."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import boto3
import pytest

from deployments import ARCHIVE, IMAGE, ROLE, deployment
from s1_mini.aws.deployment import OWNER_TAG, Scaling
from s1_mini.aws.stack import Stacks
from s1_mini.cli.app import run
from s1_mini.exceptions import DeploymentError

Make = Callable[..., Stacks]
DIGEST = "0123456789ab"


@pytest.fixture
def call(aws: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run `s1-mini endpoint` and return the exit code."""
    values = {"IMAGE": IMAGE, "ROLE": ROLE, "ARTIFACT": ARCHIVE, "INSTANCE_TYPE": "ml.g4dn.xlarge"}
    for name, value in values.items():
        monkeypatch.setenv(f"S1_MINI_AWS_{name}", value)

    def act(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["s1-mini", "endpoint", *arguments])
        with warnings.catch_warnings():  # moto's CloudFormation skips alarms and scaling
            warnings.simplefilter("ignore")
            return run()

    return act


def test_a_stack_is_created_updated_scaled_and_deleted(
    call: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    sagemaker = boto3.client("sagemaker")

    assert call("create", "hello") == 0
    (model,) = sagemaker.list_models()["Models"]
    assert model["ModelName"].startswith("s1-mini-hello-Model-")
    assert call("update", "hello") == 0
    assert "hello: no changes" in capsys.readouterr().err
    assert call("update", "hello", "--env", "A=1") == 0
    assert call("autoscale", "hello", "--max", "3") == 0
    assert call("describe", "hello") == 0
    described = json.loads(capsys.readouterr().out)
    assert (described["stack_status"], described["status"]) == ("UPDATE_COMPLETE", "InService")
    assert described["scaling"]["maximum"] == 3
    assert call("list") == 0
    assert "hello" in capsys.readouterr().out
    assert call("delete", "hello") == 0

    assert sagemaker.list_endpoints()["Endpoints"] == sagemaker.list_models()["Models"] == []
    assert call("describe", "hello") == 1


@pytest.fixture
def old(aws: None) -> Any:
    """Create the endpoint `hello` as the previous commands did, with the given tag."""
    sagemaker = boto3.client("sagemaker")

    def make(owner: str = "hello") -> None:
        name = f"hello-{DIGEST}"
        sagemaker.create_model(ModelName=name, PrimaryContainer={"Image": IMAGE}, ExecutionRoleArn=ROLE)
        variant = {"VariantName": "main", "ModelName": name, "InstanceType": "ml.c5.xlarge", "InitialInstanceCount": 2}
        sagemaker.create_endpoint_config(EndpointConfigName=name, ProductionVariants=[variant])
        tags = [{"Key": OWNER_TAG, "Value": owner}]
        sagemaker.create_endpoint(EndpointName="hello", EndpointConfigName=name, Tags=tags)
        boto3.client("application-autoscaling").register_scalable_target(
            ServiceNamespace="sagemaker",
            ResourceId="endpoint/hello/variant/main",
            ScalableDimension="sagemaker:variant:DesiredInstanceCount",
            MinCapacity=1,
            MaxCapacity=4,
        )
        boto3.client("cloudwatch").put_metric_alarm(
            AlarmName="hello-rollback-5xx",
            MetricName="Invocation5XXErrors",
            Namespace="AWS/SageMaker",
            Period=60,
            Statistic="Sum",
            EvaluationPeriods=1,
            Threshold=1,
            ComparisonOperator="GreaterThanOrEqualToThreshold",
        )

    return make


def test_an_endpoint_of_an_earlier_version_is_shown_and_deleted(stacks: Make, old: Any) -> None:
    old()
    here, sagemaker = stacks(), boto3.client("sagemaker")

    assert here.describe("hello")["instances"] == [{"variant": "main", "current": 2, "desired": 2}]
    assert [(each["name"], each["instances"]) for each in here.list_all()] == [("hello", 2)]
    here.delete("hello")

    assert sagemaker.list_endpoints()["Endpoints"] == sagemaker.list_endpoint_configs()["EndpointConfigs"] == []
    assert sagemaker.list_models()["Models"] == boto3.client("cloudwatch").describe_alarms()["MetricAlarms"] == []
    scaling = boto3.client("application-autoscaling")
    assert scaling.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"] == []


def test_an_endpoint_of_an_earlier_version_says_how_to_move(stacks: Make, old: Any) -> None:
    old()
    for act in (lambda: stacks().update(deployment()), lambda: stacks().autoscale("hello", Scaling())):
        with pytest.raises(DeploymentError, match="earlier version, without a stack: create one with another name"):
            act()
    with pytest.raises(DeploymentError, match="exists already, without a stack"):
        stacks().create(deployment())


def test_an_endpoint_of_someone_else_is_left_alone(stacks: Make, old: Any) -> None:
    old("others")
    here = stacks()

    assert here.list_all() == []
    for act in (lambda: here.update(deployment()), lambda: here.delete("hello")):
        with pytest.raises(DeploymentError, match="`s1-mini endpoint` did not create it"):
            act()
    assert len(boto3.client("sagemaker").list_endpoints()["Endpoints"]) == 1


def test_a_batch_starts_and_its_model_is_deleted(stacks: Make) -> None:
    here, sagemaker = stacks(), boto3.client("sagemaker")

    here.create(deployment("batch"), wait=False)

    job = sagemaker.describe_transform_job(TransformJobName="hello")
    assert job["TransformInput"]["SplitType"] == job["TransformOutput"]["AssembleWith"] == "Line"
    here.delete("hello")
    assert sagemaker.list_models()["Models"] == []
