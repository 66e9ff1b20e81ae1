"""Messages for errors of boto3: one sentence with the cause and the next command.

Messages never contain secrets: they quote messages of AWS, but no headers or signatures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from s1_mini.exceptions import DeploymentError, S1MiniError

Result = TypeVar("Result")


@dataclass(frozen=True)
class About:
    """The operation that may fail and its resources, as the message names them."""

    name: str = "NAME"
    region: str | None = None
    doing: str = ""
    bucket: str = ""
    needs: str = ""  # required permissions


def explain(error: BaseException, about: About, kind: type[S1MiniError] = DeploymentError) -> S1MiniError:
    """Return an error whose message explains `error`, including its notes; an `S1MiniError` is returned unchanged."""
    if isinstance(error, S1MiniError):
        return error
    doing = f"{about.doing}: " if about.doing else ""
    return kind("; ".join([doing + _cause(error, about), *getattr(error, "__notes__", [])]))


@contextmanager
def explained(about: About, kind: type[S1MiniError] = DeploymentError) -> Iterator[None]:
    """Convert every exception in this block, except an `S1MiniError`, to `kind`."""
    try:
        yield
    except S1MiniError:
        raise
    except Exception as error:  # includes errors of the HTTP library and of credential plugins
        raise explain(error, about, kind) from error


def _cause(error: BaseException, about: About) -> str:
    response, place = getattr(error, "response", None), about.region or "the configured region"
    if isinstance(response, dict) and response.get("Error", {}).get("Code") == "ModelError":
        message = str(response.get("OriginalMessage") or response["Error"].get("Message", ""))[:500]
        return (
            f"the container answered {response.get('OriginalStatusCode', 'no status')}: {message or 'no message'}. "
            f"Its log: aws logs tail /aws/sagemaker/Endpoints/{about.name} --since 1h"
        )
    if isinstance(response, dict) and "Error" in response:
        code, message = (str(response["Error"].get(name, "")).strip() for name in ("Code", "Message"))
        for pattern, sentence in _REFUSALS:
            if re.search(pattern, f"{code}: {message}", re.I):
                bucket, permission = about.bucket or "of that name", _no_permission(message, about)
                named = {"code": code, "message": message, "clause": message.rstrip("."), "permission": permission}
                return sentence.format(**named, name=about.name, bucket=bucket, place=place)
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return f"AWS answered {code} ({status}): {message or 'no message'}"
    if (local := re.search(r"http://[^/\"\s]+", str(error))) and type(error).__name__ in _UNREACHABLE.split():
        return no_answer(local[0])
    for names, sentence in _FAILURES.items():
        if type(error).__name__ in names.split():
            return sentence.format(error=error, place=place)
    return f"{type(error).__name__}: {error}"


def no_answer(url: str) -> str:
    """Return the message for a local endpoint that is not running."""
    return (
        f"nothing answers at {url}: run `s1-mini serve --local-endpoint NAME`, or unset AWS_ENDPOINT_URL and "
        "AWS_ENDPOINT_URL_* to call AWS"
    )


def find(ask: Callable[..., Result], **which: Any) -> Result | None:
    """Return the response of `ask(**which)`, or None if AWS reports that the resource does not exist."""
    from botocore.exceptions import ClientError

    try:
        return ask(**which)
    except ClientError as error:
        if is_missing(error):
            return None
        raise


def is_missing(error: BaseException) -> bool:
    """Return whether the requested resource does not exist."""
    details = getattr(error, "response", {}).get("Error", {})
    code, message = str(details.get("Code", "")), str(details.get("Message", ""))
    return code in {"ResourceNotFound", "ObjectNotFoundException", "ResourceNotFoundException", "404"} or (
        code in {"ValidationException", "ValidationError"}
        and re.search(r"could not find|does not exist|not found|no scalable target", message, re.I) is not None
    )


def reason(text: str, name: str, region: str | None = None) -> str:
    """Return the cause that SageMaker or CloudFormation states for a failure, and what to do about it."""
    logs = f"aws logs tail /aws/sagemaker/Endpoints/{name} --since 1h"
    about = About(name, region)
    if "not authorized to perform" in text:
        return _no_permission(text, about)
    text = re.sub(r"^Resource handler returned message: \"(.*?)\"?( \(RequestToken.*)?$", r"\1", text, flags=re.DOTALL)
    text = " ".join(text.split()).rstrip(". ")
    for pattern, advice in _REASONS:
        if re.search(pattern, text, re.I):
            return f"{text}. {advice.format(logs=logs, name=name)}"
    return f"{text or 'AWS states no reason'}. Read the container's log: {logs}"


def _no_permission(message: str, about: About) -> str:
    found = re.search(r"not authorized to perform: ?([\w:*]+)(?: on resource: ?(\S+))?", message)
    if found is None and about.bucket:
        return (
            f"bucket {about.bucket} belongs to another account, or your permissions do not cover it"
            f"{f' (needed: {about.needs})' if about.needs else ''}; `aws sts get-caller-identity` shows your identity"
        )
    what = f"{found[1]}" + (f" on {found[2]}" if found[2] else "") if found else (message or "no details")
    return (
        f"no permission: {what}. Add it to your policy (docs/policies/deployer.json), or select another profile with "
        "--profile; `aws sts get-caller-identity` shows your identity"
    )


# Pairs of a pattern and the advice. The first pattern that matches AWS's `code: message` determines the advice.
# `clause` is the message without its full stop.
_REFUSALS = (
    (r"^(PreconditionFailed|412):", "the object already exists and is never overwritten: upload to a new prefix"),
    (
        r"^ConditionalRequestConflict:",
        "another upload of the same object is in progress: wait a minute, then run the command again",
    ),
    (r"^NoSuchUpload:", "the multipart upload no longer exists: run the command again to start a new one"),
    (
        r"^EntityTooLarge:",
        "the file exceeds S3's limit for one object: upload uncompressed files with `s1-mini package --layout prefix`",
    ),
    (
        r"^KMS\.",
        "the KMS key cannot be used ({code}: {clause}): set --kms-key to a key of this region that the role may use",
    ),
    (r"^RequestTimeTooSkewed:", "the clock of this machine is wrong: set it, then run the command again"),
    (
        r"^(ExpiredToken|RequestExpired|TokenRefreshRequired)|token.* expired",
        "the AWS credentials have expired: run `aws sso login` or renew them, then run the command again",
    ),
    (
        r"^(UnrecognizedClient|InvalidClientTokenId|InvalidAccessKeyId|AuthFailure|SignatureDoesNotMatch"
        r"|InvalidSignature|IncompleteSignature|MissingAuthenticationToken)",
        "AWS rejected the credentials: check them with `aws sts get-caller-identity`, check the clock of this "
        "machine, or run `aws configure`",
    ),
    (
        r"^(OptInRequired|SubscriptionRequired)",
        "region {place} is not enabled for this account: enable it, or set --region to another",
    ),
    (
        r"^(ResourceLimitExceeded|LimitExceeded|ServiceQuotaExceeded)|service limit",
        "a quota in {place} is exceeded: {clause}. Find it with `aws service-quotas list-service-quotas "
        "--service-code sagemaker`, request an increase with `aws service-quotas request-service-quota-increase`, or "
        "use another --instance-type",
    ),
    (
        r"deregistered as scalable targets",
        "the instance type cannot change while the endpoint scales automatically: run `s1-mini endpoint autoscale "
        "{name} --off`, update it, then run autoscale again",
    ),
    (r"NoSuchBucket|^404", "bucket {bucket} does not exist: create it with `aws s3 mb`, or use another bucket"),
    (
        r"NoSuchKey",
        "the S3 object does not exist: upload it with `s1-mini package --upload`, or check --artifact",
    ),
    (
        r"PermanentRedirect|^301|AuthorizationHeaderMalformed|IllegalLocationConstraint",
        "bucket {bucket} is not in {place}: endpoint and bucket must be in the same region. Set --region or "
        "AWS_DEFAULT_REGION to the bucket's region, or use a bucket in {place}",
    ),
    (
        r"could not assume role|AssumeRole|role.*(invalid|does not exist|trust)",
        "SageMaker cannot assume the role: {clause}. Check --role, and that its trust policy allows "
        "sagemaker.amazonaws.com",
    ),
    (r"AccessDenied|^403|Forbidden|not authorized", "{permission}"),
    (
        r"in.progress|currently being|is (creating|updating)|in .?(Creating|Updating|RollingBack)",
        "endpoint {name} is being changed ({clause}): wait until `status` in `s1-mini endpoint describe {name}` is "
        "InService, then run the command again",
    ),
    (
        r"job name must be unique|ResourceInUse.*job",
        "batch {name} already exists, and SageMaker keeps the names of finished batches: use another name",
    ),
    (
        r"already exist",
        "{clause}: change it with `s1-mini endpoint update {name} …`, or run `s1-mini endpoint delete {name}` first",
    ),
    (
        r"this server's is ",  # from `s1-mini serve --local-endpoint`
        "{clause}: use that name, or start `s1-mini serve --local-endpoint {name}`",
    ),
    (
        r"(could not find|not found|does not exist).*endpoint|endpoint .*not found",
        "endpoint {name} does not exist in {place}: set --region to its region, or create it with `s1-mini endpoint "
        "create {name} …`",
    ),
    (
        r"no capacity|inference component has no capacity",
        "endpoint {name} has scaled to zero and is starting an instance: retry in a few minutes; `s1-mini endpoint "
        "describe {name}` shows the number of instances",
    ),
    (
        r"model data|s3 object|ModelDataUrl",
        "{clause}: check --artifact with `aws s3 ls`, and the role's permission s3:GetObject",
    ),
    (r"instance ?type", "{clause}: use another --instance-type (docs/machines.md lists those that fit)"),
    (
        r"Throttling|TooManyRequests|RequestLimitExceeded|SlowDown",
        "AWS throttled the request, even after several retries: run the command again in a minute",
    ),
)

# Pairs of a pattern and the advice. The first pattern that matches AWS's reason for a failed resource determines the
# advice.
_REASONS = (
    (
        r"service limit|quota|LimitExceeded",
        "Request an increase with `aws service-quotas request-service-quota-increase --service-code sagemaker`, or "
        "use another --instance-type",
    ),
    (
        r"insufficient.*capacity|unable to provision|capacity error|InsufficientInstanceCapacity",
        "AWS has no such instance available: give several --instance-type in order of preference, try later, or use "
        "another region",
    ),
    (
        r"assume role|role.*(invalid|does not exist|trust)",
        "Check --role, and that its trust policy allows sagemaker.amazonaws.com",
    ),
    (
        r"ping health check|health check",
        "The container started but was not ready in time: read its log with `{logs}`, check the artifact with "
        "`s1-mini package --check model.tar.gz`, or raise --startup-timeout-s",
    ),
    (
        r"CannotStartContainer",
        "Usually the instance's driver is too old for the image's CUDA: set another --machine-image, and read the log "
        "with `{logs}`",
    ),
    (
        r"no space left|disk|too large|exceeds.*volume",
        "The artifact does not fit: raise --volume-gb, or use an instance with a larger disk",
    ),
    (
        r"alarm",
        "An alarm fired during the update: run `aws cloudwatch describe-alarm-history` and `{logs}`",
    ),
    (r"already exist", "Run `s1-mini endpoint delete {name}` first, or use another name"),
    (r"instance ?type", "Use another --instance-type (docs/machines.md lists those that fit)"),
    (
        r"model data|S3 object|download",
        "Check --artifact with `aws s3 ls`, and the role's permissions s3:GetObject and, with a key, kms:Decrypt",
    ),
    (
        r"image|ECR|repository",
        "Check --image with `aws ecr describe-images`, and the role's permission ecr:BatchGetImage",
    ),
)

_UNREACHABLE = (
    "EndpointConnectionError ConnectTimeoutError ConnectionClosedError ProxyConnectionError SSLError ReadTimeoutError"
)

# Messages by the names of botocore's exceptions without a response.
_FAILURES = {
    "NoCredentialsError CredentialRetrievalError": "no AWS credentials were found: run `aws configure` or "
    "`aws sso login`, or set AWS_PROFILE",
    "PartialCredentialsError": "the AWS credentials are incomplete ({error}): run `aws configure`",
    "SSOTokenLoadError UnauthorizedSSOTokenError TokenRetrievalError SSOError LoginRefreshRequired": "the AWS sign-in "
    "has expired: run `aws sso login`, then run the command again",
    "ProfileNotFound": "{error}: `aws configure list-profiles` lists the available profiles",
    "NoRegionError": "no region is set: use --region, or set AWS_DEFAULT_REGION",
    "InvalidRegionError EndpointProviderError UnknownRegionError UnknownEndpointError": "{place!r} is not an AWS "
    "region ({error}): set --region, for example eu-west-1",
    "S3UploadFailedError IncompleteReadError": "the upload was interrupted ({error}): run the command again to "
    "resume it",
    _UNREACHABLE: "cannot reach AWS in {place} ({error}): check the region (--region or AWS_DEFAULT_REGION), the "
    "network and the proxy of this machine",
}
