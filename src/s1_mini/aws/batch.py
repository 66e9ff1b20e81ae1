"""Batches: a transform job and its model, created by API calls because CloudFormation does not have transform jobs."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from s1_mini.aws.clients import Clients
from s1_mini.aws.deployment import MAX_TRANSFORMS, PAYLOAD_MB, REQUESTS_PER_ENGINE, Deployment, has_own_disk
from s1_mini.aws.display import Waiter
from s1_mini.aws.failures import find, reason
from s1_mini.aws.template import model_properties, tags
from s1_mini.exceptions import DeploymentError

LINES = "application/jsonlines"
DIGEST = 12  # hexadecimal digits at the end of a model's name


def run(clients: Clients, deployment: Deployment, waiter: Waiter | None) -> None:
    """Start the job and wait for its end (None: do not wait).

    Raises `DeploymentError` if the job fails or has not ended in time, and the errors of botocore.
    """
    sagemaker, name = clients["sagemaker"], deployment.name
    content = model_properties(deployment)
    model = f"{name}-{hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:DIGEST]}"
    sagemaker.create_model(ModelName=model, **content)
    try:
        sagemaker.create_transform_job(**job(deployment, model))
    except BaseException:
        sagemaker.delete_model(ModelName=model)
        raise
    if waiter is None:
        return
    going_on = f"AWS continues: `s1-mini endpoint describe {name}` shows its progress"
    try:
        status, why = wait_for_job(clients, name, waiter)
    except KeyboardInterrupt:
        raise DeploymentError(f"interrupted. {going_on}") from None
    except Exception as error:
        error.add_note(going_on)
        raise
    if status != "Completed":
        sagemaker.delete_model(ModelName=model)
        raise DeploymentError(f"batch {name} is {status}: {reason(why, name, clients.region)}")


def job(deployment: Deployment, model: str) -> dict[str, Any]:
    """Return the parameters of CreateTransformJob: one line of output per line of input, in order."""
    output: dict[str, Any] = {"S3OutputPath": deployment.output, "Accept": LINES, "AssembleWith": "Line"}
    instances: dict[str, Any] = {
        "InstanceType": deployment.instance_type[0],
        "InstanceCount": deployment.instances,
    }
    if deployment.kms_key:
        output["KmsKeyId"] = deployment.kms_key
        if not has_own_disk(deployment.instance_type[0]):
            instances["VolumeKmsKeyId"] = deployment.kms_key
    if deployment.machine_image:  # no default: the default image for endpoints does not exist for batches
        instances["TransformAmiVersion"] = deployment.machine_image
    return {
        "TransformJobName": deployment.name,
        "ModelName": model,
        "MaxConcurrentTransforms": deployment.concurrent
        or min(REQUESTS_PER_ENGINE * deployment.replicas, MAX_TRANSFORMS),
        "MaxPayloadInMB": PAYLOAD_MB,
        "BatchStrategy": "MultiRecord",
        "ModelClientConfig": {"InvocationsTimeoutInSeconds": 600, "InvocationsMaxRetries": 3},
        "TransformInput": {
            "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": deployment.source}},
            "ContentType": LINES,
            "SplitType": "Line",
        },
        "TransformOutput": output,
        "TransformResources": instances,
        "Tags": tags(deployment),
    }


def wait_for_job(clients: Clients, name: str, waiter: Waiter) -> tuple[str, str]:
    """Wait until the transform job has ended; return its status and failure reason. Raises `DeploymentError`."""
    job: dict[str, Any] = {}

    def is_running() -> bool:
        job.update(clients["sagemaker"].describe_transform_job(TransformJobName=name))
        show(job["TransformJobStatus"])
        return job["TransformJobStatus"] in {"InProgress", "Stopping"}

    with waiter.display.waiting(f"batch {name}") as show:
        waiter.until_over(is_running, f"batch {name}")
    return job["TransformJobStatus"], job.get("FailureReason", "")


def describe(clients: Clients, name: str) -> dict[str, Any] | None:
    """Return the state of the batch, or None if it does not exist."""
    job = find(clients["sagemaker"].describe_transform_job, TransformJobName=name)
    if job is None:
        return None
    why = job.get("FailureReason", "")
    return {"name": name, "stack": None, "status": job["TransformJobStatus"], "reason": why, "form": "batch"}


def delete(clients: Clients, name: str, waiter: Waiter) -> bool:
    """Stop the batch and delete its models; return whether the batch was running or had models."""
    sagemaker = clients["sagemaker"]
    job = find(sagemaker.describe_transform_job, TransformJobName=name) or {}
    is_running = job.get("TransformJobStatus") == "InProgress"
    if is_running:
        sagemaker.stop_transform_job(TransformJobName=name)
        wait_for_job(clients, name, waiter)
    pattern = re.compile(rf"{re.escape(name)}-[0-9a-f]{{{DIGEST}}}")
    pages = sagemaker.get_paginator("list_models").paginate(NameContains=name)
    models = [each["ModelName"] for page in pages for each in page["Models"] if pattern.fullmatch(each["ModelName"])]
    for model in models:
        sagemaker.delete_model(ModelName=model)
        waiter.display.line(f"deleted model {model}")
    return is_running or bool(models)
