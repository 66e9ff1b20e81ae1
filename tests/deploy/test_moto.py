"""The life cycle of an endpoint, from `create` to complete removal, on moto, for each form that moto supports."""

from __future__ import annotations

import io
from collections.abc import Callable

import boto3
import pytest

from deployments import deployment
from s1_mini.deploy.spec import Scaling
from s1_mini.deploy.verbs import Verbs
from s1_mini.exceptions import DeploymentError


def alarms() -> list[str]:
    return sorted(it["AlarmName"] for it in boto3.client("cloudwatch").describe_alarms()["MetricAlarms"])


@pytest.mark.parametrize(("form", "minimum"), [("real-time", 1), ("async", 0), ("multi-model", 1)])
def test_an_endpoint_is_made_seen_scaled_and_removed(
    verbs: Callable[..., Verbs], form: str, minimum: int, said: io.StringIO
) -> None:
    here, sagemaker = verbs(), boto3.client("sagemaker")

    here.create(deployment(form))
    assert sagemaker.describe_endpoint(EndpointName="hello")["EndpointStatus"] == "InService"
    assert "endpoint hello: InService" in said.getvalue()
    seen = here.describe("hello")
    assert (seen["status"], seen["form"]) == ("InService", form)

    here.autoscale("hello", Scaling(minimum, 3))
    scaler = boto3.client("application-autoscaling")
    policies = scaler.describe_scaling_policies(ServiceNamespace="sagemaker")["ScalingPolicies"]
    assert len(policies) == (2 if minimum == 0 else 1)
    assert here.describe("hello")["scales"] == [
        {"what": "endpoint/hello/variant/main", "min": minimum, "max": 3},
    ]
    if minimum == 0:
        wake = boto3.client("cloudwatch").describe_alarms(AlarmNames=["hello-from-zero"])["MetricAlarms"][0]
        assert wake["AlarmActions"] == [it["PolicyARN"] for it in policies if it["PolicyType"] == "StepScaling"]

    gone = here.delete("hello")
    assert "endpoint hello" in gone
    assert sagemaker.list_endpoints()["Endpoints"] == []
    assert sagemaker.list_endpoint_configs()["EndpointConfigs"] == []
    assert sagemaker.list_models()["Models"] == []
    assert scaler.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"] == []
    assert alarms() == []
    with pytest.raises(DeploymentError, match="nothing named hello stands"):
        here.delete("hello")


def test_scaling_counts_one_engine_for_each_gpu(verbs: Callable[..., Verbs]) -> None:
    here, wanted = verbs(), deployment(machine="ml.g4dn.12xlarge")
    here.create(wanted)

    targets = []
    for replicas in (None, 2):
        here.autoscale("hello", Scaling(slots=10, load=0.5, replicas=replicas))
        scaler = boto3.client("application-autoscaling")
        (policy,) = scaler.describe_scaling_policies(ServiceNamespace="sagemaker")["ScalingPolicies"]
        targets.append(policy["TargetTrackingScalingPolicyConfiguration"]["TargetValue"])

    assert targets == [20.0, 10.0]


def test_scaling_is_stopped_and_the_endpoint_stays(verbs: Callable[..., Verbs]) -> None:
    here = verbs()
    here.create(deployment("async"))
    here.autoscale("hello", Scaling(0, 3))

    assert here.stop_scaling("hello")

    assert here.describe("hello")["scales"] == []
    assert here.describe("hello")["status"] == "InService"
    assert alarms() == ["hello-rollback-failures"]
    assert not here.stop_scaling("hello")


def test_removing_one_endpoint_leaves_its_neighbours(verbs: Callable[..., Verbs]) -> None:
    here = verbs()
    for name in ("hello", "hello-2"):
        here.create(deployment(name=name))

    here.delete("hello")

    assert here.describe("hello-2")["status"] == "InService"
    assert len(here.describe("hello-2")["stands"]) == 5
    assert alarms() == ["hello-2-rollback-5xx", "hello-2-rollback-latency"]


def test_a_batch_runs_to_its_end_and_its_model_is_removed(verbs: Callable[..., Verbs]) -> None:
    here = verbs()

    here.create(deployment("batch"), wait=False)

    job = boto3.client("sagemaker").describe_transform_job(TransformJobName="hello")
    assert job["TransformInput"]["SplitType"] == job["TransformOutput"]["AssembleWith"] == "Line"
    here.delete("hello")
    assert boto3.client("sagemaker").list_models()["Models"] == []


def test_only_our_own_endpoints_are_listed_over_many_pages(verbs: Callable[..., Verbs]) -> None:
    here, sagemaker = verbs(), boto3.client("sagemaker")
    assert here.list_all() == []
    here.create(deployment("async"))
    model = sagemaker.list_models()["Models"][0]["ModelName"]
    variant = {"VariantName": "main", "ModelName": model, "InstanceType": "ml.c5.xlarge", "InitialInstanceCount": 2}
    made = {f"far-{number}": f"far-{number}-{number:012x}" for number in range(101)} | {"foreign": "of-somebody-else"}
    for name, config in made.items():
        sagemaker.create_endpoint_config(EndpointConfigName=config, ProductionVariants=[variant])
        sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=config)

    listed = here.list_all()

    assert [it["name"] for it in listed] == sorted({*made, "hello"} - {"foreign"})
    assert (listed[-1]["status"], listed[-1]["instances"]) == ("InService", 1)
    assert (listed[0]["status"], listed[0]["instances"]) == ("InService", 2)
    assert listed[0]["changed"].tzinfo is not None
