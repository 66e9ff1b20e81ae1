"""Looks before anything is made: who we are, whether the artifact is there and fits, what the endpoint is doing."""

from __future__ import annotations

from s1_mini.aws.clients import Clients
from s1_mini.aws.failures import About, explained
from s1_mini.aws.place import split_location
from s1_mini.deploy.find import Found
from s1_mini.deploy.machines import OWN_DISK_GB
from s1_mini.deploy.reasons import reason
from s1_mini.deploy.spec import Async, Batch, Deployment, MultiModel, form_name
from s1_mini.exceptions import DeploymentError

BUSY = {"Creating", "Updating", "SystemUpdating", "RollingBack", "Deleting"}


def account(clients: Clients) -> str:
    """Give the number of the account that we are in; it fails where credentials do."""
    return str(clients["sts"].get_caller_identity()["Account"])


def check_artifact(clients: Clients, deployment: Deployment, owner: str) -> None:
    """See that the buckets are `owner`'s and in this region, that the artifact is there, and that it fits.

    Raises `DeploymentError`.
    """
    model = deployment.model
    for place in _places(deployment):
        _check_bucket(clients, deployment.name, place, owner)
    with explained(About(deployment.name, clients.region, f"artifact {model.artifact}", model.bucket)):
        size = _size(clients, deployment, owner)
    fleet = deployment.fleet
    disk_gb = fleet.volume_gb or OWN_DISK_GB.get(fleet.instance_type)
    needs = size if model.is_prefix else 2 * size  # an archive lies beside what comes out of it
    if disk_gb is not None and needs > disk_gb * 10**9 and not isinstance(deployment.form, MultiModel):
        way = "" if fleet.instance_type in OWN_DISK_GB else f": give --volume-gb {-(-needs * 5 // 4 // 10**9)} or more"
        raise DeploymentError(
            f"artifact {model.artifact} needs {needs / 1e9:.1f} GB, {fleet.instance_type} has {disk_gb} GB"
            + (
                way
                or ": take a machine with a larger disk, or the uncompressed form (`s1-mini package --layout prefix`)"
            )
        )


def check_free(found: Found) -> None:
    """See that nothing of that name is there. Raises `DeploymentError`."""
    name = found.standing.name
    if not found.standing.endpoint:
        return
    if found.status == "Failed":
        raise DeploymentError(
            f"endpoint {name} is there and has failed: {reason(found.why, name)}; then `s1-mini endpoint delete {name}`"
        )
    raise DeploymentError(
        f"endpoint {name} is there already ({found.status}): change it with `s1-mini endpoint update {name} …`, "
        f"or first `s1-mini endpoint delete {name}`"
    )


def check_changeable(found: Found) -> None:
    """See that the endpoint is there, ours, and at rest. Raises `DeploymentError`."""
    name = found.standing.name
    if not found.standing.endpoint:
        raise DeploymentError(f"there is no endpoint {name}: make it with `s1-mini endpoint create {name} …`")
    check_ours(found)
    check_at_rest(found)
    if found.status in {"Failed", "UpdateRollbackFailed", "OutOfService"}:
        raise DeploymentError(
            f"endpoint {name} is {found.status} and cannot be updated: {reason(found.why, name)}; then "
            f"`s1-mini endpoint delete {name}` and create it again"
        )


def check_at_rest(found: Found) -> None:
    """See that nothing is changing the endpoint. Raises `DeploymentError`."""
    name = found.standing.name
    if found.status in BUSY:
        raise DeploymentError(
            f"endpoint {name} is {found.status} just now: wait until `s1-mini endpoint describe {name}` shows "
            "InService, then run this again"
        )


def check_ours(found: Found) -> None:
    """See that what runs was made here. Raises `DeploymentError`."""
    if found.standing.endpoint and not found.is_ours:
        raise DeploymentError(
            f"endpoint {found.standing.name} runs {found.standing.config}, which `s1-mini endpoint` did not make: "
            "change or delete it where it was made"
        )


def check_form(found: Found, deployment: Deployment) -> None:
    """See that the endpoint stays of its form: SageMaker cannot change that. Raises `DeploymentError`."""
    wanted = form_name(deployment.form)
    if found.form != wanted:
        raise DeploymentError(
            f"form={wanted!r}: endpoint {deployment.name} is {found.form}, and that cannot be changed: create another "
            f"with another name, or first `s1-mini endpoint delete {deployment.name}`"
        )


def check_type_change(found: Found, deployment: Deployment) -> None:
    """See that machines which scale by themselves keep their type. Raises `DeploymentError`."""
    given, name = deployment.fleet.instance_type, deployment.name
    if found.scales and found.instance_type and given != found.instance_type:
        raise DeploymentError(
            f"instance_type={given!r}: the machines of {name} are {found.instance_type} and scale by themselves, so "
            f"their type cannot change: run `s1-mini endpoint autoscale {name} --off`, update, and autoscale again"
        )


def _places(deployment: Deployment) -> list[str]:
    form, places = deployment.form, [deployment.model.artifact]
    if isinstance(form, Async):
        places += [form.output, *([form.failures] if form.failures else [])]
    if isinstance(form, Batch):
        places += [form.source, form.output]
    return places


def _check_bucket(clients: Clients, name: str, place: str, owner: str) -> None:
    bucket, _ = split_location(place)
    with explained(About(name, clients.region, place, bucket)):
        seen = clients["s3"].head_bucket(Bucket=bucket, ExpectedBucketOwner=owner)
    region = seen["ResponseMetadata"].get("HTTPHeaders", {}).get("x-amz-bucket-region", clients.region)
    if region != clients.region:  # boto3 finds it wherever it is; SageMaker does not
        raise DeploymentError(
            f"{place}: bucket {bucket} is in {region}, the endpoint in {clients.region}: use a bucket there, or name "
            "the other with --region"
        )


def _size(clients: Clients, deployment: Deployment, owner: str) -> int:
    from botocore.exceptions import ClientError

    model = deployment.model
    if not model.is_prefix:
        try:
            return int(clients["s3"].head_object(Bucket=model.bucket, Key=model.key)["ContentLength"])
        except ClientError as error:
            if error.response["Error"]["Code"] == "404":
                raise _nothing_there(model.artifact) from error
            raise
    pages = clients["s3"].get_paginator("list_objects_v2")
    asked = {"Bucket": model.bucket, "Prefix": model.key, "ExpectedBucketOwner": owner}
    sizes = [item["Size"] for page in pages.paginate(**asked) for item in page.get("Contents", [])]
    if not sizes:
        raise _nothing_there(model.artifact)
    return sum(sizes)


def _nothing_there(artifact: str) -> DeploymentError:
    prefix = artifact.rpartition("/")[0]
    return DeploymentError(
        f"nothing is at {artifact}: put it there with `s1-mini package --upload {prefix}`, or check --artifact"
    )
