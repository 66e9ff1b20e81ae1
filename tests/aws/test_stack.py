"""Stacks are created, updated, scaled and deleted; each failure is one sentence with the next command."""

from __future__ import annotations

import io
import signal
from collections.abc import Callable
from typing import Any

import pytest

from deployments import IMAGE, PREFIX, REGION, deployment
from s1_mini.aws.deployment import OWNER_TAG, Scaling
from s1_mini.aws.stack import Stacks
from s1_mini.exceptions import ConfigurationError, DeploymentError
from tests.aws.conftest import CloudFormation

Make = Callable[..., Stacks]
STACK = "s1-mini-hello"
GONE = ["CREATE_FAILED", "DELETE_IN_PROGRESS", "DELETE_COMPLETE"]
BACK = ["UPDATE_IN_PROGRESS", "UPDATE_ROLLBACK_IN_PROGRESS", "UPDATE_ROLLBACK_COMPLETE"]
NO_CAPACITY = "Unable to provision requested ML compute capacity due to InsufficientInstanceCapacity error."


def failure(act: Callable[[], object]) -> str:
    with pytest.raises(DeploymentError) as raised:
        act()
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.fixture
def hello(stacks: Make) -> Stacks:
    """Stacks with the endpoint `hello`."""
    here = stacks()
    here.create(deployment())
    return here


def test_create_shows_events_until_the_stack_is_complete(
    stacks: Make, cloudformation: CloudFormation, said: io.StringIO
) -> None:
    cloudformation.course = ["CREATE_IN_PROGRESS", "CREATE_IN_PROGRESS", "CREATE_COMPLETE"]
    cloudformation.events = [("Model", "CREATE_COMPLETE", ""), ("Endpoint", "CREATE_IN_PROGRESS", "")]

    stacks().create(deployment())

    assert "Model CREATE_COMPLETE" in said.getvalue()
    assert said.getvalue().count("Endpoint CREATE_IN_PROGRESS") == 1
    created = dict(cloudformation.calls)["create_stack"]
    assert created["OnFailure"] == "DELETE"
    assert {"Key": OWNER_TAG, "Value": "hello"} in created["Tags"]


def test_an_image_of_another_region_is_refused_before_anything_is_created(
    stacks: Make, cloudformation: CloudFormation
) -> None:
    elsewhere = deployment(image=IMAGE.replace(REGION, "us-east-1"))
    here = stacks()

    for act in (here.create, here.update):
        with pytest.raises(ConfigurationError, match=f"is in us-east-1, the endpoint in {REGION}"):
            act(elsewhere)

    assert not {"create_stack", "create_change_set"} & {name for name, _ in cloudformation.calls}


@pytest.mark.parametrize(
    ("why", "advice"),
    [
        ("The primary container did not pass the ping health check.", "aws logs tail /aws/sagemaker/Endpoints/hello"),
        (NO_CAPACITY, "give several --instance-type in order of preference"),
    ],
)
def test_a_failed_creation_leaves_nothing_and_names_the_first_cause(
    stacks: Make, cloudformation: CloudFormation, why: str, advice: str
) -> None:
    cloudformation.course = list(GONE)
    cloudformation.events = [
        ("Model", "CREATE_FAILED", "Resource creation cancelled"),
        (
            "Endpoint",
            "CREATE_FAILED",
            f'Resource handler returned message: "{why}" (RequestToken: 1, HandlerErrorCode: 2)',
        ),
        (STACK, "CREATE_FAILED", "The following resource(s) failed to create: [Endpoint]."),
    ]

    sentence = failure(lambda: stacks().create(deployment()))

    assert sentence.startswith("create hello: ")
    assert advice in sentence
    assert "RequestToken" not in sentence
    assert "Nothing that was created for hello is left" in sentence
    assert cloudformation.stacks == {}


def test_a_creation_whose_deletion_fails_says_how_to_remove_the_rest(
    stacks: Make, cloudformation: CloudFormation
) -> None:
    cloudformation.course = ["CREATE_FAILED", "DELETE_FAILED"]
    cloudformation.events = [("Endpoint", "CREATE_FAILED", NO_CAPACITY)]

    assert "Resources are left: run `s1-mini endpoint delete hello`" in failure(lambda: stacks().create(deployment()))


def test_after_an_interrupted_wait_aws_continues_and_the_message_says_how_to_resume(
    stacks: Make, cloudformation: CloudFormation
) -> None:
    cloudformation.course = ["CREATE_IN_PROGRESS"]
    here = stacks(sleep=lambda _: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored when tests run in the background
    try:
        sentence = failure(lambda: here.create(deployment()))
    finally:
        signal.signal(signal.SIGINT, before)

    assert "interrupted. AWS continues to create hello: `s1-mini endpoint describe hello`" in sentence
    assert list(cloudformation.stacks) == [STACK]


def test_after_a_wait_that_times_out_aws_continues(stacks: Make, cloudformation: CloudFormation) -> None:
    cloudformation.course = ["CREATE_IN_PROGRESS"]

    assert "not finished after 0 s. AWS continues" in failure(lambda: stacks(limit_s=0).create(deployment()))


def test_an_update_keeps_the_scaling_and_autoscale_keeps_everything_else(
    hello: Stacks, cloudformation: CloudFormation
) -> None:
    assert hello.autoscale("hello", Scaling(maximum=7))
    assert hello.update(deployment(artifact=PREFIX))
    kept = cloudformation.templates[STACK]["Resources"]
    assert kept["ScalableTarget"]["Properties"]["MaxCapacity"] == 7
    assert "ModelDataSource" in kept["Model"]["Properties"]["PrimaryContainer"]

    assert hello.autoscale("hello", None)
    assert not hello.autoscale("hello", None)
    kept = cloudformation.templates[STACK]["Resources"]
    assert "ScalableTarget" not in kept
    assert "ModelDataSource" in kept["Model"]["Properties"]["PrimaryContainer"]


def test_a_failed_update_is_rolled_back_and_names_its_cause(hello: Stacks, cloudformation: CloudFormation) -> None:
    cloudformation.course = list(BACK)
    cloudformation.events = [("Endpoint", "UPDATE_FAILED", "One or more alarms are in the ALARM state")]

    sentence = failure(lambda: hello.update(deployment(artifact=PREFIX)))

    assert "One or more alarms are in the ALARM state. An alarm fired" in sentence
    assert "hello runs again as before" in sentence


def test_a_failed_rollback_names_the_command_that_continues_it(hello: Stacks, cloudformation: CloudFormation) -> None:
    cloudformation.course = ["UPDATE_ROLLBACK_FAILED"]
    cloudformation.events = [("Endpoint", "UPDATE_FAILED", NO_CAPACITY)]
    command = "`aws cloudformation continue-update-rollback --stack-name s1-mini-hello`"

    assert command in failure(lambda: hello.update(deployment(artifact=PREFIX)))
    assert command in failure(lambda: hello.update(deployment(artifact=PREFIX)))


@pytest.mark.parametrize("verb", ["create", "update", "autoscale", "describe", "delete"])
def test_a_stack_of_someone_else_is_refused(stacks: Make, cloudformation: CloudFormation, verb: str) -> None:
    cloudformation.add(STACK, {"team": "others"})
    arguments: dict[str, Any] = {"create": (deployment(),), "update": (deployment(),), "autoscale": ("hello", None)}

    sentence = failure(lambda: getattr(stacks(), verb)(*arguments.get(verb, ("hello",))))

    assert "`s1-mini endpoint` did not create it: choose another name" in sentence
    assert {operation for operation, _ in cloudformation.calls} == {"describe_stacks"}


@pytest.mark.parametrize(
    ("status", "verb", "sentence"),
    [
        ("CREATE_COMPLETE", "create", "already exists (CREATE_COMPLETE): change it with `s1-mini endpoint update"),
        ("UPDATE_IN_PROGRESS", "update", "is being changed (UPDATE_IN_PROGRESS): wait until"),
        ("DELETE_FAILED", "update", "cannot be changed: run `s1-mini endpoint delete hello`"),
    ],
)
def test_an_endpoint_in_the_wrong_state_is_named_with_it(
    hello: Stacks, cloudformation: CloudFormation, status: str, verb: str, sentence: str
) -> None:
    cloudformation._states.clear()
    cloudformation.stacks[STACK]["StackStatus"] = status
    acts = {
        "create": lambda: hello.create(deployment()),
        "update": lambda: hello.update(deployment(artifact=PREFIX)),
        "delete": lambda: hello.delete("hello"),
    }

    assert sentence in failure(acts[verb])


def test_the_form_and_the_type_of_scaling_instances_are_fixed(hello: Stacks) -> None:
    hello.autoscale("hello", Scaling())

    assert "endpoint hello is real-time, which cannot change" in failure(lambda: hello.update(deployment("async")))
    changed = deployment(instance_type=["ml.g6.xlarge"])
    assert "`s1-mini endpoint autoscale hello --off`" in failure(lambda: hello.update(changed))
    hello.autoscale("hello", None)
    assert hello.update(changed)


def test_a_failed_deletion_names_its_cause_and_can_be_repeated(hello: Stacks, cloudformation: CloudFormation) -> None:
    cloudformation.course = ["DELETE_FAILED"]
    cloudformation.events = [("Endpoint", "DELETE_FAILED", "User: a is not authorized to perform: sagemaker:X")]

    assert "no permission: sagemaker:X" in failure(lambda: hello.delete("hello"))
    hello.delete("hello")
    assert cloudformation.stacks == {}


def test_a_name_that_does_not_exist_says_how_to_create_it(stacks: Make) -> None:
    for act in (stacks().describe, stacks().delete, lambda name: stacks().autoscale(name, None)):
        assert "create it with `s1-mini endpoint create hello" in failure(lambda act=act: act("hello"))


@pytest.mark.parametrize("operation", ["create_stack", "describe_stack_events"])
def test_a_failed_call_says_that_aws_continues_only_after_the_stack_was_submitted(
    stacks: Make, cloudformation: CloudFormation, operation: str
) -> None:
    cloudformation.refuse[operation] = ("ThrottlingException", "Rate exceeded")

    sentence = failure(lambda: stacks().create(deployment()))

    assert ("AWS continues" in sentence) == (operation == "describe_stack_events")
