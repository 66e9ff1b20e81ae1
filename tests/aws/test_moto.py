"""With moto through the real client and command line: a stack's life, batches, and endpoints of others."""

from __future__ import annotations

import json
import signal
import warnings
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import EndpointConnectionError

from deployments import ARCHIVE, IMAGE, ROLE, deployment
from s1_mini.aws.deployment import Scaling
from s1_mini.aws.stack import Stacks
from s1_mini.cli.app import run
from s1_mini.exceptions import DeploymentError

Make = Callable[..., Stacks]


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
    call: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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
    for name in ("IMAGE", "ROLE", "ARTIFACT"):
        monkeypatch.delenv(f"S1_MINI_AWS_{name}")
    assert call("plan", "autoscale", "hello", "--max", "5") == 0
    planned = json.loads(capsys.readouterr().out)["Resources"]
    assert planned["ScalableTarget"]["Properties"]["MaxCapacity"] == 5
    assert planned["Model"]["Properties"]["PrimaryContainer"]["Environment"] == {"A": "1"}
    assert call("list") == 0
    assert "hello" in capsys.readouterr().out
    assert call("delete", "hello") == 0

    assert sagemaker.list_endpoints()["Endpoints"] == sagemaker.list_models()["Models"] == []
    assert call("describe", "hello") == 1


def test_an_endpoint_of_someone_else_is_left_alone(stacks: Make) -> None:
    here, sagemaker = stacks(), boto3.client("sagemaker")
    model = "hello-0123456789ab"  # like the model of a batch
    sagemaker.create_model(ModelName=model, PrimaryContainer={"Image": IMAGE}, ExecutionRoleArn=ROLE)
    variant = {"VariantName": "a", "ModelName": model, "InstanceType": "ml.c5.xlarge", "InitialInstanceCount": 2}
    sagemaker.create_endpoint_config(EndpointConfigName="others", ProductionVariants=[variant])
    sagemaker.create_endpoint(EndpointName="hello", EndpointConfigName="others")

    assert here.list_all() == []
    for act in (
        lambda: here.create(deployment()),
        lambda: here.update(deployment()),
        lambda: here.autoscale("hello", Scaling()),
        lambda: here.describe("hello"),
        lambda: here.delete("hello"),
    ):
        with pytest.raises(DeploymentError, match="`s1-mini endpoint` did not create it"):
            act()
    assert len(sagemaker.list_endpoints()["Endpoints"]) == len(sagemaker.list_models()["Models"]) == 1


def test_a_name_that_does_not_exist_is_reported_with_the_region(stacks: Make) -> None:
    for act in (stacks().describe, stacks().delete):
        with pytest.raises(DeploymentError, match="endpoint hello does not exist in eu-west-1: set --region"):
            act("hello")


def test_a_batch_starts_and_its_model_is_deleted(stacks: Make) -> None:
    here, sagemaker = stacks(), boto3.client("sagemaker")

    here.create(deployment("batch"), wait=False)

    job = sagemaker.describe_transform_job(TransformJobName="hello")
    assert job["TransformInput"]["SplitType"] == job["TransformOutput"]["AssembleWith"] == "Line"
    assert here.describe("hello")["status"] == job["TransformJobStatus"]
    here.delete("hello")
    assert sagemaker.list_models()["Models"] == []


def answer(stacks: Stacks, operation: str, function: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer an operation that moto lacks, or knows in one state only, by `function` of its parameters."""
    given: list[dict[str, Any]] = []
    events, name = stacks.clients["sagemaker"].meta.events, f"sagemaker.{operation}"
    events.register(f"provide-client-params.{name}", lambda params, **_: given.append(params))
    http = AWSResponse("", 200, {}, None)
    events.register(f"before-call.{name}", lambda **_: (http, function(given[-1])))


def running(stacks: Stacks, *states: str, why: str = "") -> None:
    """Report `states` for the batch, one per call; the last one stays."""
    left = list(states)

    def describe(_: dict[str, Any]) -> dict[str, Any]:
        return {"TransformJobStatus": left.pop(0) if len(left) > 1 else left[0], "FailureReason": why}

    answer(stacks, "DescribeTransformJob", describe)


def test_a_failed_batch_names_its_cause_and_leaves_no_model(stacks: Make) -> None:
    here = stacks()
    running(here, "InProgress", "Failed", why="CannotStartContainerError.")

    with pytest.raises(
        DeploymentError, match=r"batch hello is Failed: CannotStartContainerError. Usually the instance"
    ):
        here.create(deployment("batch"))

    assert boto3.client("sagemaker").list_models()["Models"] == []


def test_an_interrupted_batch_continues_and_can_be_stopped(stacks: Make) -> None:
    here = stacks(sleep=lambda _: signal.raise_signal(signal.SIGINT))
    running(here, "InProgress")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(DeploymentError, match=r"interrupted. AWS continues: `s1-mini endpoint describe hello`"):
            here.create(deployment("batch"))
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(boto3.client("sagemaker").list_models()["Models"]) == 1

    stopped: list[str] = []
    again = stacks()
    running(again, "InProgress", "Stopping", "Stopped")
    answer(again, "StopTransformJob", lambda given: stopped.append(given["TransformJobName"]) or {})
    again.delete("hello")

    assert stopped == ["hello"]
    assert boto3.client("sagemaker").list_models()["Models"] == []


def test_a_stack_and_a_batch_of_the_same_name_are_both_deleted(stacks: Make, cloudformation: Any) -> None:
    here = stacks()
    here.create(deployment())
    here.create(deployment("batch"), wait=False)

    here.delete("hello")

    assert cloudformation.stacks == {}
    assert boto3.client("sagemaker").list_models()["Models"] == []


@pytest.mark.parametrize(("operation", "is_submitted"), [("CreateTransformJob", False), ("DescribeTransformJob", True)])
def test_a_network_error_says_that_aws_continues_only_after_the_job_was_submitted(
    stacks: Make, operation: str, is_submitted: bool
) -> None:
    def fail(_: dict[str, Any]) -> dict[str, Any]:
        raise EndpointConnectionError(endpoint_url="https://api.sagemaker.eu-west-1.amazonaws.com")

    here = stacks()
    answer(here, operation, fail)

    with pytest.raises(DeploymentError, match="cannot reach AWS in eu-west-1") as raised:
        here.create(deployment("batch"))
    assert ("AWS continues" in str(raised.value)) == is_submitted
