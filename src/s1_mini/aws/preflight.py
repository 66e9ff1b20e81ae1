"""Checks of instance types, buckets and artifact, whose errors CloudFormation would report only minutes later."""

from __future__ import annotations

import difflib
from importlib.util import find_spec

from s1_mini.aws.clients import Clients
from s1_mini.aws.deployment import OWN_DISK_GB, Deployment, has_own_disk
from s1_mini.aws.failures import About, explained, find
from s1_mini.aws.place import split_location
from s1_mini.exceptions import ConfigurationError, DeploymentError


def account(clients: Clients) -> str:
    """Return the account number. Raises an error of boto3 if credentials are missing or invalid."""
    return str(clients["sts"].get_caller_identity()["Account"])


def check_instance_types(deployment: Deployment) -> None:
    """Raise `ConfigurationError` for instance types that boto3 does not know; do nothing without boto3."""
    if find_spec("botocore") is None:
        return
    import botocore.session

    model = botocore.session.get_session().get_service_model("sagemaker")
    batch = deployment.form == "batch"
    known = model.shape_for("TransformInstanceType" if batch else "ProductionVariantInstanceType").enum
    for each in deployment.instance_type:
        if each not in known:
            near = difflib.get_close_matches(each, known, n=3, cutoff=0) or known[:3]
            raise ConfigurationError(
                f"instance_type={each!r}: not an instance type of SageMaker for {'batches' if batch else 'endpoints'}; "
                f"similar ones are {', '.join(near)}. If it is new, run `pip install --upgrade boto3`"
            )


def check_artifact(clients: Clients, deployment: Deployment, owner: str) -> None:
    """Check that the artifact exists and fits the disk, and that all buckets belong to `owner` and are in the region.

    Raises `DeploymentError`.
    """
    given = (deployment.artifact, deployment.output, deployment.failures, deployment.source)
    for place in filter(None, given):
        _check_bucket(clients, deployment.name, place, owner)
    about = About(deployment.name, clients.region, f"artifact {deployment.artifact}", deployment.bucket)
    with explained(about):
        size = _size(clients, deployment, owner)
    disks = {each: deployment.volume_gb or OWN_DISK_GB.get(each) for each in deployment.instance_type}
    needed = size if deployment.is_prefix else 2 * size  # the archive and its unpacked files
    for instance_type, disk_gb in disks.items():
        if disk_gb is None or needed <= disk_gb * 10**9 or deployment.form == "multi-model":
            continue
        way = f"set --volume-gb {-(-needed * 5 // 4 // 10**9)} or more"
        if has_own_disk(instance_type):
            way = "use an instance with a larger disk, or the uncompressed form (`s1-mini package --layout prefix`)"
        raise DeploymentError(
            f"artifact {deployment.artifact} needs {needed / 1e9:.1f} GB, but the disk of {instance_type} is "
            f"{disk_gb} GB: {way}"
        )


def _check_bucket(clients: Clients, name: str, place: str, owner: str) -> None:
    bucket, _ = split_location(place)
    with explained(About(name, clients.region, place, bucket)):
        seen = clients["s3"].head_bucket(Bucket=bucket, ExpectedBucketOwner=owner)
    region = seen["ResponseMetadata"].get("HTTPHeaders", {}).get("x-amz-bucket-region", clients.region)
    if region != clients.region:  # boto3 follows redirects between regions, SageMaker does not
        raise DeploymentError(
            f"{place}: bucket {bucket} is in {region}, the endpoint in {clients.region}: use a bucket in "
            f"{clients.region}, or set --region to {region}"
        )


def _size(clients: Clients, deployment: Deployment, owner: str) -> int:
    bucket, key = split_location(deployment.artifact)
    if not deployment.is_prefix:
        seen = find(clients["s3"].head_object, Bucket=bucket, Key=key, ExpectedBucketOwner=owner)
        if seen is None:
            raise _missing(deployment.artifact)
        return int(seen["ContentLength"])
    pages = clients["s3"].get_paginator("list_objects_v2")
    which = {"Bucket": bucket, "Prefix": key, "ExpectedBucketOwner": owner}
    sizes = [item["Size"] for page in pages.paginate(**which) for item in page.get("Contents", [])]
    if not sizes:
        raise _missing(deployment.artifact)
    return sum(sizes)


def _missing(artifact: str) -> DeploymentError:
    prefix = artifact.rpartition("/")[0]
    return DeploymentError(
        f"{artifact} does not exist: upload it with `s1-mini package --upload {prefix}`, or check --artifact"
    )
