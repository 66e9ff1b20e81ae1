"""What AWS, or the way to it, has against us, in one sentence: the cause, and the next command.

boto3's errors go in, sentences come out; nothing else here. A sentence never holds a secret: messages of AWS are
quoted, headers and signatures are not.
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
    """What was being done, for the sentence."""

    name: str = "NAME"
    region: str | None = None
    doing: str = ""
    bucket: str = ""
    needs: str = ""  # permissions that the doing takes

    @property
    def place(self) -> str:
        """The region, in words."""
        return self.region or "no region"


def explain(error: BaseException, about: About, kind: type[S1MiniError] = DeploymentError) -> S1MiniError:
    """Give the error that a person sees for `error`, with its notes; an error of ours is given back as it is."""
    if isinstance(error, S1MiniError):
        return error
    return kind("; ".join([_begin(about) + _cause(error, about), *getattr(error, "__notes__", [])]))


@contextmanager
def explained(about: About, kind: type[S1MiniError] = DeploymentError) -> Iterator[None]:
    """Turn whatever boto3 raises inside into an error of ours."""
    try:
        yield
    except S1MiniError:
        raise
    except Exception as error:  # also of the HTTP library and of plugins for credentials
        raise explain(error, about, kind) from error


def _cause(error: BaseException, about: About) -> str:
    response = getattr(error, "response", None)
    if isinstance(response, dict) and response.get("Error", {}).get("Code") == "ModelError":
        return _model_error(response, about)
    if isinstance(response, dict) and "Error" in response:
        return _refusal(response, about)
    for names, sentence in _ON_THE_WAY:
        if type(error).__name__ in names:
            return sentence(error, about)
    return f"{type(error).__name__}: {error}"


def find(ask: Callable[..., Result], **which: Any) -> Result | None:
    """Return the answer to `ask(**which)`, or None if AWS answers that the thing is missing."""
    from botocore.exceptions import ClientError

    try:
        return ask(**which)
    except ClientError as error:
        if is_missing(error):
            return None
        raise


def is_refusal(error: BaseException) -> bool:
    """Tell whether AWS answered and said no, so that nothing was done."""
    status = getattr(error, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return 400 <= int(status) < 500


def is_missing(error: BaseException) -> bool:
    """Tell whether the thing that was asked about is not there."""
    details = getattr(error, "response", {}).get("Error", {})
    code, message = str(details.get("Code", "")), str(details.get("Message", ""))
    return code in {"ResourceNotFound", "ObjectNotFoundException", "ResourceNotFoundException", "404"} or (
        code == "ValidationException"
        and re.search(r"could not find|does not exist|not found|no scalable target", message, re.I) is not None
    )


def is_there_already(error: BaseException) -> bool:
    """Tell whether a thing of that name exists."""
    details = getattr(error, "response", {}).get("Error", {})
    text = f"{details.get('Code', '')} {details.get('Message', '')}"
    return re.search(r"already exist|ResourceInUse", text, re.I) is not None


def _begin(about: About) -> str:
    return f"{about.doing}: " if about.doing else ""


def _refusal(response: dict[str, Any], about: About) -> str:
    details = response["Error"]
    code, message = str(details.get("Code", "")), str(details.get("Message", "")).strip()
    for pattern, sentence in _REFUSALS:
        if re.search(pattern, f"{code}: {message}", re.I):
            return sentence(code, message, about)
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return f"AWS answered {code} ({status}): {message or 'no more'}"


def _model_error(response: dict[str, Any], about: About) -> str:
    """Give what the container itself answered: SageMaker wraps it."""
    said = str(response.get("OriginalMessage") or response["Error"].get("Message", ""))[:500]
    status = response.get("OriginalStatusCode", "no status")
    return (
        f"the container answered {status}: {said or 'nothing'}. Its log: "
        f"aws logs tail /aws/sagemaker/Endpoints/{about.name} --since 1h"
    )


def _no_permission(_: str, message: str, about: About) -> str:
    found = re.search(r"not authorized to perform: ?([\w:*]+)(?: on resource: ?(\S+))?", message)
    if found is None and about.bucket:
        return (
            f"bucket {about.bucket} belongs to another account, or you may not do this there"
            f"{f' (needed: {about.needs})' if about.needs else ''}; `aws sts get-caller-identity` shows who you are"
        )
    what = f"{found[1]}" + (f" on {found[2]}" if found[2] else "") if found else (message or "no more is said")
    return (
        f"no permission: {what}. Have it added to your policy (docs/deploy.md has the list), or take another "
        "profile with --profile; `aws sts get-caller-identity` shows who you are"
    )


def _quota(_: str, message: str, about: About) -> str:
    return (
        f"a quota of {about.place} is used up: {message} Ask for more with `aws service-quotas "
        "list-service-quotas --service-code sagemaker` and `request-service-quota-increase`, or take another "
        "--instance-type"
    )


def _being_changed(_: str, message: str, about: About) -> str:
    return (
        f"endpoint {about.name} is being changed just now ({message}); wait until "
        f"`s1-mini endpoint describe {about.name}` shows InService, then run this again"
    )


_Refusal = Callable[[str, str, About], str]
_REFUSALS: tuple[tuple[str, _Refusal], ...] = (
    (
        r"^(PreconditionFailed|412):",
        lambda *_: "something is there already and is never written over: name a new prefix",
    ),
    (
        r"^ConditionalRequestConflict:",
        lambda *_: "somebody else is writing the same just now: look again in a while",
    ),
    (
        r"^NoSuchUpload:",
        lambda *_: "the upload was dropped meanwhile: run the same command again, it begins anew",
    ),
    (
        r"^EntityTooLarge:",
        lambda *_: "it is larger than S3 takes as one object: send the prefix layout",
    ),
    (
        r"^KMS\.",
        lambda code, message, _: (
            f"the KMS key cannot be used ({code}: {message.rstrip('.')}): name another of this region with --kms-key"
        ),
    ),
    (
        r"^RequestTimeTooSkewed:",
        lambda *_: "the clock of this machine is wrong: set it, and run this again",
    ),
    (
        r"^(ExpiredToken|RequestExpired|TokenRefreshRequired)|token.* expired",
        lambda *_: "your credentials have expired: run `aws sso login`, or get new ones, and run this again",
    ),
    (
        r"^(UnrecognizedClient|InvalidClientTokenId|InvalidAccessKeyId|AuthFailure|SignatureDoesNotMatch"
        r"|InvalidSignature|IncompleteSignature|MissingAuthenticationToken)",
        lambda *_: (
            "AWS does not know these credentials: check them with `aws sts get-caller-identity` and the clock of "
            "this machine, or run `aws configure`"
        ),
    ),
    (
        r"^(OptInRequired|SubscriptionRequired)",
        lambda _c, _m, about: f"this account has not turned on {about.place}; name another with --region",
    ),
    (
        r"^(ResourceLimitExceeded|LimitExceeded|ServiceQuotaExceeded)|service limit",
        _quota,
    ),
    (
        r"deregistered as scalable targets",
        lambda _c, _m, about: (
            "the machines of this endpoint scale by themselves, so their type cannot be changed: run "
            f"`s1-mini endpoint autoscale {about.name} --off`, update, and autoscale again"
        ),
    ),
    (
        r"NoSuchBucket|^404",
        lambda _c, _m, about: (
            f"there is no bucket {about.bucket or 'of that name'}: make it with `aws s3 mb`, or name another"
        ),
    ),
    (
        r"NoSuchKey",
        lambda *_: "nothing is at that place in S3: put it there with `s1-mini package --upload`, or check --artifact",
    ),
    (
        r"PermanentRedirect|^301|AuthorizationHeaderMalformed|IllegalLocationConstraint",
        lambda _c, _m, about: (
            f"bucket {about.bucket} is not in {about.place}: the artifact must lie in the endpoint's region; name "
            "the other with --region or AWS_DEFAULT_REGION, or take a bucket here"
        ),
    ),
    (
        r"could not assume role|AssumeRole|role.*(invalid|does not exist|trust)",
        lambda _c, message, _a: (
            f"SageMaker cannot take on the role: {message} Check --role, and that it trusts sagemaker.amazonaws.com"
        ),
    ),
    (r"AccessDenied|^403|Forbidden|not authorized", _no_permission),
    (r"in.progress|currently being|is (creating|updating)|in .?(Creating|Updating|RollingBack)", _being_changed),
    (
        r"job name must be unique|ResourceInUse.*job",
        lambda _c, _m, about: f"a batch named {about.name} has been run before: give this one another name",
    ),
    (
        r"already exist",
        lambda _c, message, about: (
            f"{message.rstrip('.')}: change it with `s1-mini endpoint update {about.name} …`, or first "
            f"`s1-mini endpoint delete {about.name}`"
        ),
    ),
    (
        r"(could not find|not found|does not exist).*endpoint|endpoint .*not found",
        lambda _c, _m, about: (
            f"there is no endpoint {about.name} in {about.place}: name its region with --region, or make it with "
            f"`s1-mini endpoint create {about.name} …`"
        ),
    ),
    (
        r"no capacity|inference component has no capacity",
        lambda _c, _m, about: (
            f"{about.name} has shrunk to zero and is waking up: try again in a few minutes; "
            f"`s1-mini endpoint describe {about.name}` shows its machines"
        ),
    ),
    (
        r"model data|s3 object|ModelDataUrl",
        lambda _c, message, _a: f"{message.rstrip('.')}: check --artifact with `aws s3 ls`, and what the role may read",
    ),
    (
        r"instance ?type",
        lambda _c, message, _a: (
            f"{message.rstrip('.')}: name another --instance-type (docs/machines.md has those that fit)"
        ),
    ),
    (
        r"Throttling|TooManyRequests|RequestLimitExceeded|SlowDown",
        lambda *_: "AWS asks us to slow down and several tries were not enough: run this again in a minute",
    ),
)


def _unreachable(error: BaseException, about: About) -> str:
    ways = "check the region (--region or AWS_DEFAULT_REGION), and the network or proxy of this machine"
    return f"cannot reach AWS in {about.place} ({error}): {ways}"


_Trouble = Callable[[BaseException, About], str]
_ON_THE_WAY: tuple[tuple[set[str], _Trouble], ...] = (
    (
        {"NoCredentialsError", "CredentialRetrievalError"},
        lambda *_: "no AWS credentials were found: run `aws configure` or `aws sso login`, or set AWS_PROFILE",
    ),
    (
        {"PartialCredentialsError"},
        lambda error, _: f"half of the credentials is missing ({error}): run `aws configure`",
    ),
    (
        {"SSOTokenLoadError", "UnauthorizedSSOTokenError", "TokenRetrievalError", "SSOError", "LoginRefreshRequired"},
        lambda *_: "your sign-in has expired: run `aws sso login`, and this again",
    ),
    (
        {"ProfileNotFound"},
        lambda error, _: f"{error}: `aws configure list-profiles` shows those that there are",
    ),
    (
        {"NoRegionError"},
        lambda *_: "no region is set: name it with --region, or set AWS_DEFAULT_REGION",
    ),
    (
        {"InvalidRegionError", "EndpointProviderError", "UnknownRegionError", "UnknownEndpointError"},
        lambda error, about: f"{about.place} is no region of AWS ({error}): name one with --region, as eu-west-1",
    ),
    (
        {"S3UploadFailedError", "IncompleteReadError"},
        lambda error, _: f"the upload was interrupted ({error}): run the same command again, it goes on from there",
    ),
    (
        {
            "EndpointConnectionError",
            "ConnectTimeoutError",
            "ConnectionClosedError",
            "ProxyConnectionError",
            "SSLError",
            "ReadTimeoutError",
        },
        _unreachable,
    ),
)
