"""Templates of all forms are valid, and hold what makes updates safe."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deployments import ARCHIVE, CASES, ENDPOINTS, FULL, NIGHT, PREFIX, deployment
from s1_mini.aws.batch import job
from s1_mini.aws.deployment import Scaling
from s1_mini.aws.template import build_template, build_with_parameters, model_properties, read_template
from s1_mini.exceptions import ConfigurationError
from service_models import problems


def resources(form: str = "real-time", **values: Any) -> dict[str, Any]:
    built = build_template(deployment(form, **values))["Resources"]
    return {name: resource["Properties"] for name, resource in built.items()}


@pytest.fixture(scope="module")
def linter() -> Any:
    """CloudFormation's linter, which reads its rules and schemas for half a second."""
    from cfnlint.config import ConfigMixIn  # takes seconds to import
    from cfnlint.runner import Runner

    return Runner(ConfigMixIn(regions=["eu-west-1"]))


def problems_of(template: dict[str, Any], linter: Any) -> list[tuple[str, str]]:
    from cfnlint.decode.decode import decode_str

    decoded, errors = decode_str(json.dumps(template))
    return [(each.rule.id, each.message) for each in [*errors, *linter.validate_template(decoded)]]


@pytest.mark.parametrize(("form", "values"), CASES)
def test_cloudformation_accepts_the_template(form: str, values: dict[str, Any], linter: Any) -> None:
    assert problems_of(build_template(deployment(form, **values)), linter) == []


def test_the_shared_linter_still_finds_a_mistake(linter: Any) -> None:
    template = build_template(deployment("real-time"))
    template["Resources"]["Endpoint"]["Properties"]["EndpointConfigName"] = {"Ref": "Missing"}

    assert "E1020" in {rule for rule, _ in problems_of(template, linter)}


@pytest.mark.parametrize(("form", "values"), CASES)
def test_the_deployment_is_read_back_from_its_template(form: str, values: dict[str, Any]) -> None:
    wanted = deployment(form, **values)

    assert read_template(json.loads(json.dumps(build_template(wanted)))) == wanted


@pytest.mark.parametrize("form", ENDPOINTS)
def test_the_values_of_parameters_are_the_only_difference_from_the_template(form: str, linter: Any) -> None:
    fields = ("image", "role", "artifact", "kms_key", "subnet", "security_group", "output")
    wanted = deployment(form, **{**FULL, "accelerators": 0, "instance_type": ["ml.c5.xlarge"]})

    template = build_with_parameters(wanted, *fields)

    assert problems_of(template, linter) == []
    text = json.dumps(template["Resources"])
    for name, field in zip(template["Parameters"], (each for each in fields if getattr(wanted, each)), strict=True):
        assert json.dumps(getattr(wanted, field)) not in text
        text = text.replace(json.dumps({"Ref": name}), json.dumps(getattr(wanted, field)))
    assert json.loads(text) == build_template(wanted)["Resources"]


def test_components_can_share_the_instances_of_another_deployment() -> None:
    built = resources("components", endpoint="english", scaling=Scaling(minimum=0))

    assert built["Component"]["EndpointName"] == "english"
    assert not {"Config", "Endpoint"} & set(built)
    with pytest.raises(ConfigurationError, match="endpoint='english': only components share"):
        deployment(endpoint="english")


@pytest.mark.parametrize("form", ENDPOINTS)
def test_only_the_endpoint_and_the_component_have_fixed_names(form: str) -> None:
    names = {"ModelName", "EndpointConfigName", "AlarmName", "EndpointName", "InferenceComponentName"}
    built = resources(form, scaling=Scaling())
    fixed = {kind for kind, given in built.items() if any(isinstance(given.get(name), str) for name in names)}

    assert fixed - {"ScalingPolicy"} == ({"Endpoint", "Component"} if form == "components" else {"Endpoint"})


@pytest.mark.parametrize("form", ENDPOINTS)
def test_an_update_keeps_the_number_of_instances_and_rolls_back_by_alarm(form: str) -> None:
    built = resources(form)
    rollout = built["Component" if form == "components" else "Endpoint"]["DeploymentConfig"]

    assert built["Endpoint"]["RetainAllVariantProperties"] is True
    names = [each["AlarmName"]["Ref"] for each in rollout["AutoRollbackConfiguration"]["Alarms"]]
    assert names == (["RollbackFailures"] if form == "async" else ["Rollback5xx", "RollbackLatency"])
    assert set(names) <= set(built)


def test_several_instance_types_are_a_pool_in_order_of_preference() -> None:
    (variant,) = resources(instance_type=["ml.g6.xlarge", "ml.g5.xlarge"])["Config"]["ProductionVariants"]

    assert "InstanceType" not in variant
    assert variant["InstancePools"] == [
        {"InstanceType": "ml.g6.xlarge", "Priority": 1},
        {"InstanceType": "ml.g5.xlarge", "Priority": 2},
    ]


def test_one_instance_is_replaced_next_to_the_old_one_and_several_in_batches() -> None:
    kinds = [next(iter(resources(instances=count)["Endpoint"]["DeploymentConfig"])) for count in (1, 2)]

    assert kinds == ["BlueGreenUpdatePolicy", "RollingUpdatePolicy"]


@pytest.mark.parametrize(
    ("form", "values", "target"),
    [
        ("real-time", {"instance_type": ["ml.g6.12xlarge"]}, 32.0),
        ("real-time", {"env": {"S1_MINI_SERVER_REPLICAS": "2"}}, 16.0),
        ("components", {"accelerators": 4}, 32.0),
        ("async", {"instance_type": ["ml.g6.12xlarge"]}, 20.0),
        ("multi-model", {}, 96.0),
    ],
)
def test_instances_with_several_engines_take_a_multiple_of_the_load(
    form: str, values: dict[str, Any], target: float
) -> None:
    policy = resources(form, scaling=Scaling(slots=16, load=0.5), **values)["ScalingPolicy"]

    assert policy["TargetTrackingScalingPolicyConfiguration"]["TargetValue"] == target


def test_a_schedule_has_the_time_zone_of_the_scaling() -> None:
    (action,) = resources(scaling=Scaling(schedule=[NIGHT], timezone="Europe/Berlin"))["ScalableTarget"][
        "ScheduledActions"
    ]

    assert action["Timezone"] == "Europe/Berlin"


@pytest.mark.parametrize("form", ["async", "components"])
def test_an_alarm_starts_an_instance_after_scaling_to_zero(form: str) -> None:
    built = resources(form, scaling=Scaling(minimum=0))

    assert built["FromZero"]["AlarmActions"] == [{"Ref": "FromZeroPolicy"}]
    assert "FromZero" not in resources(form, scaling=Scaling(minimum=1))


@pytest.mark.parametrize("values", [{}, FULL, {"machine_image": "al2-ami-sagemaker-batch-gpu-470"}])
def test_the_calls_of_a_batch_are_valid(values: dict[str, Any]) -> None:
    wanted = deployment("batch", **{key: value for key, value in values.items() if key != "routing"})
    model = {"ModelName": "hello-0", **model_properties(wanted)}

    assert list(problems("sagemaker", "create_model", model)) == []
    assert list(problems("sagemaker", "create_transform_job", job(wanted, "hello-0"))) == []


@pytest.mark.parametrize(
    ("form", "values", "sentence"),
    [
        (
            "real-time",
            {"artifact": "/tmp/model.tar.gz"},
            "artifact='/tmp/model.tar.gz': must have the form s3://bucket/key",
        ),
        ("real-time", {"artifact": "s3://bucket/model.zip"}, "use a .tar.gz, or a prefix"),
        ("real-time", {"subnet": ["a"]}, "needs both"),
        ("real-time", {"role": "me"}, "role='me': must have the form arn:aws:iam::ACCOUNT:role/NAME"),
        ("real-time", {"image": "a b"}, "image='a b': must be an image in ECR, such as 123456789012.dkr.ecr."),
        ("real-time", {"image": "s1-mini:1"}, "because SageMaker pulls from no other registry"),
        ("real-time", {"image": "docker.io/owner/s1-mini:1"}, "must be an image in ECR"),
        ("real-time", {"artifact": "s3://b/m.tar.gz"}, "'b' cannot be the name of a bucket, which has 3 to 63"),
        ("async", {"output": "s3://My_Bucket/out"}, "'My_Bucket' cannot be the name of a bucket"),
        ("async", {"failures": "https://bucket/out"}, "must have the form s3://bucket/key"),
        ("batch", {"source": f"s3://{'b' * 64}/in"}, "cannot be the name of a bucket"),
        ("real-time", {"env": ["A"]}, "env=['A']: 'A' is not NAME=VALUE"),
        ("batch", {"artifact": PREFIX}, "a batch takes a .tar.gz only"),
        ("batch", {"source": None}, "form batch needs --source s3://"),
        ("batch", {"concurrent": 17}, "100 MB"),
        ("batch", {"scaling": Scaling()}, "a batch does not scale"),
        ("async", {"output": None}, "form async needs --output s3://"),
        ("multi-model", {"artifact": ARCHIVE}, "takes the prefix"),
        ("multi-model", {"instance_type": ["ml.g5.xlarge"]}, "CPUs only"),
        ("components", {"min_instances": 3}, "min_instances=3 is more than max_instances=2"),
        ("real-time", {"instance_type": ["ml.g6.xlarge", "ml.c5.xlarge"]}, "they share one image"),
        ("real-time", {"instance_type": ["ml.g6.xlarge", "ml.g6.12xlarge"]}, "same number of GPUs"),
        ("real-time", {"instance_type": ["ml.g6.xlarge"] * 2}, "1 to 5 different instance types"),
        ("components", {"instance_type": ["ml.g6.xlarge", "ml.g5.xlarge"]}, "takes one instance type"),
        ("real-time", {"volume_gb": 30}, "ml.g4dn.xlarge has a local disk"),
        ("real-time", {"volume_gb": 600}, "volume_gb=600: Input should be less than or equal to 512"),
        ("real-time", {"name": "a_b"}, "name='a_b': use 1 to 50"),
        ("real-time", {"name": "-a"}, "name='-a': use 1 to 50"),
        ("real-time", {"strategy": "canary", "step_percent": 60}, "canary allows 1 to 50 percent"),
        ("real-time", {"strategy": "linear", "step_percent": 5}, "linear allows 10 to 50 percent"),
        ("real-time", {"step_percent": 5, "step_wait_s": 3600}, "exceed limit_s=7200"),
        ("real-time", {"alarm": list("abcdefghijk")}, "at most 10"),
        ("real-time", {"scaling": Scaling(minimum=0)}, "only async and components scale to zero"),
        ("real-time", {"scaling": {"minimum": 3, "maximum": 2}}, "0 <= min <= max"),
        ("real-time", {"scaling": {"schedule": ["night"]}}, "TITLE=MIN:MAX@EXPRESSION"),
    ],
)
def test_settings_that_cannot_work_together_are_rejected(form: str, values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as rejected:
        deployment(form, **values)

    assert sentence in str(rejected.value)
    assert "\n" not in str(rejected.value)
