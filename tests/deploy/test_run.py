"""Over a socket: updates and components succeed or roll back; a failure leaves nothing, or lists what is left."""

from __future__ import annotations

import io
import signal
from collections.abc import Callable
from dataclasses import replace

import boto3
import pytest

from deployments import PREFIX, deployment
from s1_mini.deploy.calls import would_stand
from s1_mini.deploy.verbs import Verbs
from s1_mini.exceptions import DeploymentError
from sagemaker_server import Refused, SageMakerServer

Make = Callable[..., Verbs]
CREATING = {"EndpointStatus": "Creating"}
UPDATING = {"EndpointStatus": "Updating"}
IN_SERVICE: dict[str, str] = {}


def failure(act: Callable[[], object]) -> str:
    with pytest.raises(DeploymentError) as raised:
        act()
    return str(raised.value)


def test_create_waits_until_the_endpoint_serves(server: SageMakerServer, verbs: Make, said: io.StringIO) -> None:
    server.course["Endpoint"] = [CREATING, CREATING, IN_SERVICE]

    verbs().create(deployment())

    assert said.getvalue().count("Creating") == 1
    assert "endpoint hello: InService" in said.getvalue()
    assert server.operations("Create") == ["CreateModel", "CreateEndpointConfig", "CreateEndpoint"]


def test_an_endpoint_that_fails_leaves_nothing_and_says_why(server: SageMakerServer, verbs: Make) -> None:
    why = "The primary container for production variant main did not pass the ping health check."
    server.course["Endpoint"] = [CREATING, {"EndpointStatus": "Failed", "FailureReason": why}]

    sentence = failure(lambda: verbs().create(deployment()))

    assert server.names() == {}
    assert boto3.client("cloudwatch").describe_alarms()["MetricAlarms"] == []
    assert "did not pass the ping health check" in sentence
    assert "aws logs tail /aws/sagemaker/Endpoints/hello" in sentence
    assert "Nothing that was made for it is left" in sentence


@pytest.mark.parametrize("broken", ["CreateModel", "CreateEndpointConfig", "CreateEndpoint"])
def test_a_refused_call_rolls_back_the_earlier_ones(server: SageMakerServer, verbs: Make, broken: str) -> None:
    server.refuse[broken] = Refused("ResourceLimitExceeded", "The account-level service limit is 0 Instances.")

    sentence = failure(lambda: verbs().create(deployment()))

    assert server.names() == {}
    assert "a quota of eu-west-1 is used up" in sentence


def test_resources_that_cannot_be_rolled_back_are_listed_and_their_dependencies_left(
    server: SageMakerServer, verbs: Make
) -> None:
    server.course["Endpoint"] = [{"EndpointStatus": "Failed", "FailureReason": "CapacityError"}]
    server.refuse["DeleteEndpoint"] = Refused("AccessDeniedException", "not authorized to perform: sagemaker:Delete")
    standing = would_stand(deployment())

    sentence = failure(lambda: verbs().create(deployment()))

    assert server.names() == {
        "Endpoint": ["hello"],
        "EndpointConfig": [standing.config],
        "Model": list(standing.models),
    }
    assert "delete_endpoint hello" in sentence
    assert f"delete_endpoint_config {standing.config}" in sentence
    assert f"delete_model {standing.models[0]}" in sentence
    assert "`s1-mini endpoint delete hello` removes all of it" in sentence


def test_a_create_call_with_a_lost_response_is_rolled_back(server: SageMakerServer, verbs: Make) -> None:
    server.drop.add("CreateEndpoint")

    failure(lambda: verbs().create(deployment()))

    assert server.names() == {}


def test_an_answer_lost_before_a_second_try_does_not_look_like_a_clash(
    server: SageMakerServer, verbs: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    server.drop.add("CreateEndpoint")
    server.on["CreateEndpoint"] = lambda: (
        server.drop.clear() if [it for it, _ in server.seen].count("CreateEndpoint") > 1 else None
    )

    verbs().create(deployment())

    assert server.operations("Create")[-2:] == ["CreateEndpoint", "CreateEndpoint"]
    assert server.names()["Endpoint"] == ["hello"]


def test_an_interrupted_deployment_reports_what_aws_is_still_doing(server: SageMakerServer, verbs: Make) -> None:
    server.course["Endpoint"] = [CREATING]
    looks = iter(range(3))

    def interrupt(_: float) -> None:
        if next(looks) == 2:
            signal.raise_signal(signal.SIGINT)

    here = verbs()
    here._watch.sleep = interrupt
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored when tests run in the background
    try:
        sentence = failure(lambda: here.create(deployment()))
    finally:
        signal.signal(signal.SIGINT, before)

    assert "AWS has begun these and may go on" in sentence
    assert "create_endpoint hello" in sentence
    assert server.names()["Endpoint"] == ["hello"]


def test_a_deployment_that_times_out_is_left_to_aws_and_named(server: SageMakerServer, verbs: Make) -> None:
    server.course["Endpoint"] = [CREATING]

    sentence = failure(lambda: verbs(limit_s=0).create(deployment()))

    assert "still Creating" in sentence
    assert "`s1-mini endpoint describe hello` shows how far it is" in sentence


def test_an_update_waits_for_the_new_config_and_keeps_the_number_of_machines(
    server: SageMakerServer, verbs: Make
) -> None:
    here, after = verbs(), deployment(artifact=PREFIX)
    here.create(deployment())
    server.course["Endpoint"] = [IN_SERVICE, IN_SERVICE, {"went back": True}, UPDATING, UPDATING, IN_SERVICE]

    assert here.update(after)

    sent = next(given for operation, given in server.seen if operation == "UpdateEndpoint")
    assert sent["RetainAllVariantProperties"] is True
    assert sent["EndpointConfigName"] == would_stand(after).config
    assert len(server.names()["EndpointConfig"]) == 2  # the old config is kept until `delete`
    assert not here.update(after)


def test_an_update_that_aws_rolls_back_leaves_nothing_new(server: SageMakerServer, verbs: Make) -> None:
    here, before = verbs(), deployment()
    here.create(before)
    kept = server.names()
    back = {"went back": True, "FailureReason": "One or more alarms are in the ALARM state"}
    server.course["Endpoint"] = [IN_SERVICE, IN_SERVICE, UPDATING, {"EndpointStatus": "RollingBack"}, back]

    sentence = failure(lambda: here.update(deployment(artifact=PREFIX)))

    assert server.names() == kept
    assert "SageMaker went back to what ran before: One or more alarms" in sentence
    assert "Nothing that was made for it is left" in sentence
    assert len(boto3.client("cloudwatch").describe_alarms()["MetricAlarms"]) == 2


def test_an_update_with_an_unknown_outcome_deletes_nothing_the_endpoint_may_use(
    server: SageMakerServer, verbs: Make
) -> None:
    here = verbs()
    here.create(deployment())
    server.course["Endpoint"] = [IN_SERVICE, IN_SERVICE, UPDATING, {"EndpointStatus": "UpdateRollbackFailed"}]

    sentence = failure(lambda: here.update(deployment(artifact=PREFIX)))

    assert len(server.names()["EndpointConfig"]) == 2
    assert "AWS has begun these and may go on" in sentence
    assert f"create_endpoint_config {would_stand(deployment(artifact=PREFIX)).config}" in sentence


def test_the_same_config_left_by_an_earlier_try_is_used(server: SageMakerServer, verbs: Make) -> None:
    here = verbs()
    here.create(deployment())
    del server.kept["Endpoint"]["hello"]

    here.create(deployment())

    assert server.names()["Endpoint"] == ["hello"]


def test_components_are_made_changed_and_removed(server: SageMakerServer, verbs: Make) -> None:
    here, after = verbs(), deployment("components", artifact=PREFIX)
    coming = {"InferenceComponentStatus": "Creating", "RuntimeConfig": {"DesiredCopyCount": 1, "CurrentCopyCount": 0}}
    server.course["InferenceComponent"] = [coming, {}]

    here.create(deployment("components"))
    assert here.describe("hello")["form"] == "components"
    assert here.update(after)
    assert not here.update(after)
    assert server.operations("Update") == ["UpdateInferenceComponent"]
    here.delete("hello")

    assert server.names() == {}


def test_a_component_that_fails_takes_its_endpoint_with_it(server: SageMakerServer, verbs: Make) -> None:
    gone_wrong = {"InferenceComponentStatus": "Failed", "FailureReason": "CannotStartContainerError"}
    server.course["InferenceComponent"] = [gone_wrong]

    sentence = failure(lambda: verbs().create(deployment("components")))

    assert server.names() == {}
    assert "driver is too old" in sentence


def test_machines_that_scale_keep_their_type_until_scaling_is_off(server: SageMakerServer, verbs: Make) -> None:
    from s1_mini.deploy.spec import Scaling

    here, before = verbs(), deployment()
    here.create(before)
    here.autoscale("hello", Scaling())
    after = replace(before, fleet=replace(before.fleet, instance_type="ml.g6.xlarge"))

    assert "`s1-mini endpoint autoscale hello --off`" in failure(lambda: here.update(after))
    here.stop_scaling("hello")
    assert here.update(after)


def test_the_form_of_an_endpoint_cannot_be_changed(server: SageMakerServer, verbs: Make) -> None:
    here = verbs()
    here.create(deployment())

    assert "endpoint hello is real-time, and that cannot be changed" in failure(
        lambda: here.update(deployment("async"))
    )


@pytest.mark.parametrize(
    ("state", "verb", "sentence"),
    [
        (IN_SERVICE, "create", "is there already (InService): change it with `s1-mini endpoint update hello"),
        (CREATING, "create", "is there already (Creating)"),
        ({"EndpointStatus": "Failed", "FailureReason": "no"}, "create", "has failed: no."),
        (UPDATING, "update", "is Updating just now: wait until"),
        ({"EndpointStatus": "Failed", "FailureReason": "no"}, "update", "is Failed and cannot be updated: no."),
        (UPDATING, "delete", "is Updating just now: wait until"),
    ],
)
def test_an_existing_endpoint_is_named_with_its_state_and_nothing_is_created(
    server: SageMakerServer, verbs: Make, state: dict[str, str], verb: str, sentence: str
) -> None:
    here = verbs()
    here.create(deployment())
    server.course["Endpoint"] = [state]
    server.seen.clear()
    acts = {
        "create": lambda: here.create(deployment(artifact=PREFIX)),
        "update": lambda: here.update(deployment(artifact=PREFIX)),
        "delete": lambda: here.delete("hello"),
    }

    assert sentence in failure(acts[verb])

    assert server.operations("Create", "Update", "Delete") == []


def test_an_endpoint_made_elsewhere_is_left_alone(server: SageMakerServer, verbs: Make) -> None:
    here = verbs()
    here.create(deployment())
    server.kept["Endpoint"]["hello"]["EndpointConfigName"] = "theirs"

    for act in (lambda: here.update(deployment(artifact=PREFIX)), lambda: here.delete("hello")):
        assert "runs theirs, which `s1-mini endpoint` did not make" in failure(act)


def test_a_delete_that_stops_half_way_lists_the_rest_and_goes_on_when_run_again(
    server: SageMakerServer, verbs: Make
) -> None:
    here = verbs()
    here.create(deployment())
    server.refuse["DeleteModel"] = Refused("AccessDeniedException", "not authorized to perform: sagemaker:DeleteModel")

    sentence = failure(lambda: here.delete("hello"))
    server.refuse.clear()

    assert f"Not done: delete_model {would_stand(deployment()).models[0]}, delete_alarms" in sentence
    here.delete("hello")
    assert server.names() == {}
