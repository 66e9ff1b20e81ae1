"""Why an endpoint failed, in SageMaker's words, and what to do about it."""

from __future__ import annotations

import re

_REASONS = (
    (
        r"ping health check|health check",
        "The container started and did not get ready in time: read its log with `{logs}`, try the artifact with "
        "`s1-mini package --check model.tar.gz`, or allow more with --startup-timeout-s",
    ),
    (
        r"CannotStartContainer",
        "Most often the machine's driver is too old for the image's CUDA: name another --machine-image, and read "
        "`{logs}`",
    ),
    (
        r"no space left|disk|too large|exceeds.*volume",
        "The artifact does not fit: give a larger --volume-gb, or a machine with a larger disk",
    ),
    (
        r"insufficient.*capacity|unable to provision|capacity error|InsufficientInstanceCapacity",
        "AWS has no such machine free there now: try later, in another region, or with another --instance-type",
    ),
    (
        r"alarm",
        "An alarm went off during the update: look at it with `aws cloudwatch describe-alarm-history` and at `{logs}`",
    ),
    (
        r"model data|S3 object|download",
        "Check --artifact with `aws s3 ls`, and that the role may s3:GetObject it and kms:Decrypt its key",
    ),
    (
        r"image|ECR|repository",
        "Check --image with `aws ecr describe-images`, and that the role may pull it",
    ),
)


def reason(text: str, name: str) -> str:
    """Put why an endpoint failed, in SageMaker's words, together with what to do about it."""
    logs = f"aws logs tail /aws/sagemaker/Endpoints/{name} --since 1h"
    for pattern, advice in _REASONS:
        if re.search(pattern, text, re.I):
            return f"{text.rstrip('. ')}. {advice.format(logs=logs, name=name)}"
    return f"{text.rstrip('. ') or 'SageMaker gives no reason'}. The container's own words: {logs}"
