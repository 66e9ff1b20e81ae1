"""A deployment spec becomes the right API calls, with resource names derived from their content."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deployments import ARCHIVE, IMAGE, PREFIX, ROLE, deployment
from s1_mini.deploy.call import AwsCall, answer, is_ours
from s1_mini.deploy.calls import Standing, create_calls, delete_calls, update_calls, would_stand
from s1_mini.deploy.check import check_all
from s1_mini.deploy.scaling import autoscale_calls
from s1_mini.deploy.spec import (
    MAX_NAME,
    Batch,
    Components,
    Deployment,
    Fleet,
    FormName,
    Model,
    MultiModel,
    Rollout,
    Scaling,
)
from s1_mini.exceptions import ConfigurationError


def config_of(wanted: Deployment) -> dict[str, Any]:
    return next(dict(call.parameters) for call in create_calls(wanted) if call.operation == "create_endpoint_config")


def test_same_content_has_the_same_name_and_other_content_another() -> None:
    first = config_of(deployment())["EndpointConfigName"]

    assert config_of(deployment())["EndpointConfigName"] == first
    assert config_of(deployment(artifact=PREFIX))["EndpointConfigName"] != first
    assert config_of(deployment(machine="ml.g5.xlarge"))["EndpointConfigName"] != first
    assert is_ours(first, "hello")
    assert not is_ours(first, "hell")
    assert not is_ours("hello-something-els", "hello")


def test_the_longest_name_gives_names_that_aws_takes() -> None:
    name = config_of(deployment(name="a" * MAX_NAME))["EndpointConfigName"]

    assert len(name) == 63
    with pytest.raises(ConfigurationError, match=f"1 to {MAX_NAME} letters"):
        deployment(name="a" * (MAX_NAME + 1))


def test_an_update_without_changes_calls_nothing() -> None:
    for form in ("real-time", "async", "components", "multi-model"):
        wanted = deployment(form)
        assert update_calls(wanted, would_stand(wanted)) == []


def test_a_new_model_for_a_component_leaves_the_machines_alone() -> None:
    before, after = deployment("components"), deployment("components", artifact=PREFIX)

    operations = [call.operation for call in update_calls(after, would_stand(before))]

    assert operations == ["create_model", "put_metric_alarm", "put_metric_alarm", "update_inference_component"]


def test_alarms_of_an_endpoint_outlive_an_update_that_fails() -> None:
    calls = update_calls(deployment(), Standing("hello", endpoint=True))

    assert all(call.takes_back is None for call in calls if call.operation == "put_metric_alarm")


def test_a_gpu_gets_a_machine_image_that_runs_cuda_13_and_a_cpu_none() -> None:
    gpu, cpu = (config_of(deployment(machine=it))["ProductionVariants"][0] for it in ("ml.g6.xlarge", "ml.c7i.xlarge"))

    assert gpu["InferenceAmiVersion"] == "al2023-ami-sagemaker-inference-gpu-4-1"
    assert "InferenceAmiVersion" not in cpu


def test_components_may_scale_to_no_machine_and_no_copy() -> None:
    config = config_of(deployment("components"))
    calls = autoscale_calls("hello", "components", Scaling(0, 3))

    assert config["ProductionVariants"][0]["ManagedInstanceScaling"]["MinInstanceCount"] == 0
    assert "ModelName" not in config["ProductionVariants"][0]
    assert calls[0].parameters["ScalableDimension"] == "sagemaker:inference-component:DesiredCopyCount"
    assert calls[-1].parameters["AlarmActions"] == [answer("hello-from-zero", "PolicyARN")]


def test_machines_follow_a_share_of_the_engines_slots() -> None:
    policy = autoscale_calls("hello", "real-time", Scaling(1, 4, slots=16, load=0.5))[1].parameters

    assert policy["TargetTrackingScalingPolicyConfiguration"]["TargetValue"] == 8.0


@pytest.mark.parametrize(
    ("form", "machine", "environment", "replicas"),
    [
        ("real-time", "ml.g6.xlarge", {}, 1),
        ("real-time", "ml.c7i.xlarge", {}, 1),
        ("async", "ml.g5.12xlarge", {}, 4),
        ("batch", "ml.g5.48xlarge", {}, 8),
        ("real-time", "ml.g6.48xlarge", {"S1_MINI_SERVER_REPLICAS": "2"}, 2),
        ("real-time", "ml.g6.48xlarge", {"S1_MINI_PLACEMENT": "codec=cuda:1"}, 1),
        ("components", "ml.g6.48xlarge", {}, 1),
    ],
)
def test_every_gpu_of_a_machine_is_counted_where_its_engines_are(
    form: str, machine: str, environment: dict[str, str], replicas: int
) -> None:
    """In the scaling target, in the concurrency per instance, and in an environment variable."""
    wanted = deployment(form, machine=machine)
    wanted = replace(wanted, model=replace(wanted.model, environment=environment))
    made = {call.operation: call.parameters for call in create_calls(wanted)}
    told = made["create_model"]["PrimaryContainer"].get("Environment", {})

    assert wanted.replicas == replicas
    assert (told.get("S1_MINI_SERVER_REPLICAS") == "auto") == (replicas > 2)
    if form == "async":
        asynchronous = made["create_endpoint_config"]["AsyncInferenceConfig"]
        assert asynchronous["ClientConfig"]["MaxConcurrentInvocationsPerInstance"] == 4 * replicas
    if form == "batch":
        assert made["create_transform_job"]["MaxConcurrentTransforms"] == 16  # of 6 MB, and 100 are allowed
    check_all(create_calls(wanted))


@pytest.mark.parametrize(("form", "target"), [("real-time", 32.0), ("components", 32.0), ("async", 20.0)])
def test_machines_with_several_engines_take_a_multiple_of_the_load(form: FormName, target: float) -> None:
    policy = autoscale_calls("hello", form, Scaling(1, 4, slots=16, load=0.5, replicas=4))[1].parameters

    assert policy["TargetTrackingScalingPolicyConfiguration"]["TargetValue"] == target


def test_one_machine_is_replaced_next_to_the_old_one_and_several_in_batches() -> None:
    one = deployment()
    two = replace(one, fleet=replace(one.fleet, instances=2))

    kinds = [next(iter(update_calls(it, Standing("hello"))[-1].parameters["DeploymentConfig"])) for it in (one, two)]

    assert kinds == ["BlueGreenUpdatePolicy", "RollingUpdatePolicy"]


def test_resources_are_removed_before_those_they_refer_to() -> None:
    standing = replace(would_stand(deployment("components")), targets=(("inference-component/hello", "x"),))

    assert [call.operation for call in delete_calls(standing)] == [
        "deregister_scalable_target",
        "delete_inference_component",
        "delete_endpoint",
        "delete_endpoint_config",
        "delete_model",
        "delete_alarms",
    ]


def test_a_later_call_takes_what_an_earlier_one_answered() -> None:
    call = AwsCall("cloudwatch", "put_metric_alarm", {"AlarmActions": [answer("wake", "PolicyARN")]})

    assert call.filled({"wake": {"PolicyARN": "arn:x"}}).parameters == {"AlarmActions": ["arn:x"]}


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Model(IMAGE, ROLE, "/tmp/model.tar.gz"), "not s3://"),
        (lambda: Model(IMAGE, ROLE, "s3://bucket/model.zip"), "a .tar.gz and a prefix"),
        (lambda: Model(IMAGE, ROLE, ARCHIVE, subnets=("a",)), "needs both"),
        (lambda: deployment("batch", artifact=PREFIX), "a batch takes a .tar.gz only"),
        (lambda: deployment("multi-model", artifact=ARCHIVE), "takes the prefix"),
        (lambda: Deployment("a", Model(IMAGE, ROLE, PREFIX), Fleet("ml.g5.xlarge"), MultiModel()), "CPUs only"),
        (lambda: deployment(name="a_b"), "name='a_b': allowed are"),
        (lambda: deployment(name="-a"), "name='-a': allowed are"),
        (lambda: Rollout("canary", 60), "canary takes 1 to 50 percent"),
        (lambda: Rollout("linear", 5), "linear takes 10 to 50 percent"),
        (lambda: Rollout("rolling", 5, 3600), "do not fit"),
        (lambda: Rollout(alarms=tuple("abcdefghijk")), "11 given, 10 allowed"),
        (lambda: Components(min_instances=3), "min_instances=3 is more than max=2"),
        (lambda: Batch("s3://a/in", "s3://a/out", payload_mb=50, concurrent=4), "at most 100 MB together"),
        (lambda: Scaling(3, 2), "0 <= min <= max"),
        (lambda: Scaling(load=0), "load=0"),
        (lambda: autoscale_calls("a", "real-time", Scaling(0, 2)), "only async and components shrink to zero"),
        (lambda: autoscale_calls("a", "batch", Scaling()), "no load to follow"),
    ],
)
def test_settings_that_cannot_work_together_are_refused_at_once(make: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()

    assert sentence in str(refused.value)
