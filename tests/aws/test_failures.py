"""Every AWS failure is reported in one sentence with the cause and the next command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore import exceptions
from botocore.stub import Stubber

from deployments import BUCKET, FULL, PREFIX, REGION, deployment
from s1_mini.aws.failures import About, explain, is_missing, reason
from s1_mini.aws.stack import Stacks
from s1_mini.exceptions import DeploymentError

Make = Callable[..., Stacks]
ABOUT = About("hello", REGION, "create hello", BUCKET)


@pytest.fixture(autouse=True)
def _somewhere(account: None) -> None:
    """Keep tests from querying this machine's AWS account."""


def refused(code: str, message: str = "", status: int = 400, **more: Any) -> str:
    """Return our message for an error that botocore raises from a stubbed response."""
    client = boto3.client("sagemaker", REGION, aws_access_key_id="x", aws_secret_access_key="x")
    with Stubber(client) as stub:
        stub.add_client_error("create_endpoint", code, message, status, response_meta=more)
        with pytest.raises(exceptions.ClientError) as raised:
            client.create_endpoint(EndpointName="hello", EndpointConfigName="hello-1")
    return str(explain(raised.value, ABOUT))


@pytest.mark.parametrize(
    ("code", "message", "cause", "command"),
    [
        ("ExpiredToken", "The security token included in the request is expired", "have expired", "aws sso login"),
        ("ExpiredTokenException", "", "have expired", "aws sso login"),
        ("UnrecognizedClientException", "The security token is invalid", "rejected the credentials", "aws configure"),
        ("InvalidClientTokenId", "", "rejected the credentials", "aws configure"),
        ("SignatureDoesNotMatch", "", "the clock of this machine", "aws sts get-caller-identity"),
        ("OptInRequired", "", "region eu-west-1 is not enabled", "--region"),
        (
            "AccessDeniedException",
            "User: arn:aws:iam::1:user/a is not authorized to perform: sagemaker:CreateEndpoint on resource: arn:b",
            "no permission: sagemaker:CreateEndpoint on arn:b",
            "--profile",
        ),
        ("NoSuchBucket", "", f"bucket {BUCKET} does not exist", "aws s3 mb"),
        ("404", "Not Found", f"bucket {BUCKET} does not exist", "aws s3 mb"),
        ("403", "Forbidden", f"bucket {BUCKET} belongs to another account", "aws sts get-caller-identity"),
        ("301", "Moved Permanently", f"bucket {BUCKET} is not in eu-west-1", "--region"),
        (
            "ResourceLimitExceeded",
            "The account-level service limit 'ml.g5.xlarge for endpoint usage' is 0 Instances.",
            "ml.g5.xlarge for endpoint usage",
            "service-quotas",
        ),
        (
            "ValidationException",
            "Cannot create already existing endpoint x.",
            "already existing",
            "endpoint update hello",
        ),
        (
            "ResourceInUse",
            "Job name must be unique within an AWS account and region, and a job with this name already exists",
            "batch hello already exists",
            "another name",
        ),
        (
            "ValidationException",
            "Cannot update in-progress endpoint x.",
            "endpoint hello is being changed",
            "describe hello",
        ),
        (
            "ValidationException",
            'Could not find endpoint "x".',
            "endpoint hello does not exist in eu-west-1",
            "create hello",
        ),
        (
            "ValidationError",
            "Endpoint 'x' was not found; this server's is 'speech'",
            "this server's is 'speech': use that name",
            "s1-mini serve --local-endpoint hello",
        ),
        ("ValidationException", "Could not access model data at s3://x.", "Could not access model data", "aws s3 ls"),
        ("ValidationException", "Could not assume role arn:x.", "cannot assume the role", "--role"),
        ("ValidationException", "Unsupported instance type ml.x.", "Unsupported instance type", "--instance-type"),
        (
            "ValidationException",
            'The variant(s) "main" must be deregistered as scalable targets with AutoScaling before they are removed.',
            "scales automatically",
            "endpoint autoscale hello --off",
        ),
        ("ValidationError", "Inference Component has no capacity to process it.", "has scaled to zero", "describe"),
        ("ThrottlingException", "Rate exceeded", "throttled", "again"),
        ("PreconditionFailed", "At least one of the pre-conditions did not hold", "is never overwritten", "new"),
        ("ConditionalRequestConflict", "", "another upload of the same object", "again"),
        ("NoSuchUpload", "The specified upload does not exist.", "no longer exists", "run the command again"),
        ("EntityTooLarge", "", "exceeds S3's limit", "--layout prefix"),
        ("KMS.NotFoundException", "Key 'arn:k' does not exist", "KMS key cannot be used", "--kms-key"),
        ("RequestTimeTooSkewed", "", "clock of this machine is wrong", "again"),
        ("Strange", "something new", "AWS answered Strange (400): something new", ""),
    ],
)
def test_an_aws_error_names_the_cause_and_the_next_command(code: str, message: str, cause: str, command: str) -> None:
    sentence = refused(code, message)

    assert sentence.startswith("create hello: ")
    assert cause in sentence
    assert command in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("error", "cause", "command"),
    [
        (exceptions.NoCredentialsError(), "no AWS credentials were found", "aws configure"),
        (
            exceptions.PartialCredentialsError(provider="env", cred_var="AWS_SECRET_ACCESS_KEY"),
            "incomplete",
            "aws configure",
        ),
        (exceptions.SSOTokenLoadError(error_msg="x"), "sign-in has expired", "aws sso login"),
        (exceptions.ProfileNotFound(profile="me"), "(me)", "aws configure list-profiles"),
        (exceptions.NoRegionError(), "no region is set", "--region"),
        (exceptions.InvalidRegionError(region_name="nowhere!"), "is not an AWS region", "--region"),
        (exceptions.EndpointConnectionError(endpoint_url="https://x"), "cannot reach AWS in eu-west-1", "--region"),
        (exceptions.ReadTimeoutError(endpoint_url="https://x"), "cannot reach AWS", "network"),
        (
            boto3.exceptions.S3UploadFailedError("part 3"),
            "the upload was interrupted (part 3)",
            "run the command again",
        ),
    ],
)
def test_a_network_failure_names_the_cause_and_the_next_command(error: Exception, cause: str, command: str) -> None:
    sentence = str(explain(error, ABOUT))

    assert cause in sentence
    assert command in sentence


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("did not pass the ping health check", "s1-mini package --check"),
        ("CannotStartContainerError.", "--machine-image"),
        ("No space left on device", "--volume-gb"),
        ("Unable to provision ML compute capacity: InsufficientInstanceCapacity", "several --instance-type"),
        ("Failed to download model data", "s3:GetObject"),
        ("The account-level service limit is 0 Instances.", "request-service-quota-increase"),
        (
            "User: a is not authorized to perform: iam:PassRole on resource: arn:b",
            "no permission: iam:PassRole on arn:b",
        ),
        ("Unsupported instance type ml.x.", "Use another --instance-type"),
        ("", "AWS states no reason"),
    ],
)
def test_the_reason_of_a_failed_resource_comes_with_advice(words: str, advice: str) -> None:
    assert advice in reason(words, "hello")


def test_only_absent_resources_count_as_missing() -> None:
    def error(code: str, message: str) -> exceptions.ClientError:
        return exceptions.ClientError({"Error": {"Code": code, "Message": message}}, "DescribeEndpoint")

    assert is_missing(error("ValidationException", 'Could not find endpoint "x".'))
    assert not is_missing(error("ValidationException", "1 validation error detected"))
    assert is_missing(error("ValidationError", "Stack with id x does not exist"))
    assert not is_missing(error("AccessDeniedException", "not found in your policy"))


def failure(act: Callable[[], object]) -> str:
    with pytest.raises(DeploymentError) as raised:
        act()
    return str(raised.value)


MISSING = "s3://not-there"


@pytest.mark.parametrize(
    ("form", "values", "sentence"),
    [
        ("real-time", {"artifact": f"{MISSING}/model.tar.gz"}, "bucket not-there does not exist"),
        ("async", {"output": f"{MISSING}/out"}, "bucket not-there does not exist"),
        ("batch", {"source": f"{MISSING}/in"}, "bucket not-there does not exist"),
        ("real-time", {"artifact": f"s3://{BUCKET}/2/model.tar.gz"}, "upload it with `s1-mini package --upload"),
        ("real-time", {"artifact": f"s3://{BUCKET}/2/"}, f"s3://{BUCKET}/2/ does not exist"),
        ("real-time", {"artifact": "s3://far-away/1/"}, "far-away is in eu-central-1, the endpoint in eu-west-1"),
    ],
)
def test_a_wrong_place_is_named_before_anything_is_created(
    cloudformation: Any, stacks: Make, form: str, values: dict[str, str], sentence: str
) -> None:
    elsewhere = {"LocationConstraint": "eu-central-1"}
    boto3.client("s3", "eu-central-1").create_bucket(Bucket="far-away", CreateBucketConfiguration=elsewhere)

    assert sentence in failure(lambda: stacks().create(deployment(form, **values)))
    assert cloudformation.stacks == {}


@pytest.mark.parametrize(("artifact", "is_too_large"), [(f"s3://{BUCKET}/1/model.tar.gz", True), (PREFIX, False)])
def test_an_artifact_larger_than_the_volume_is_rejected(
    stacks: Make, artifact: str, is_too_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s1_mini.aws.preflight._size", lambda *_: 2 * 10**9)
    wanted = deployment(**FULL | {"artifact": artifact, "volume_gb": 3})

    if not is_too_large:  # uncompressed files need no second copy
        stacks().create(wanted)
        return
    assert "needs 4.0 GB, but the disk of ml.c5.xlarge is 3 GB: set --volume-gb 5 or more" in failure(
        lambda: stacks().create(wanted)
    )


def test_a_missing_or_wrong_region_is_named(stacks: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is not an AWS region" in failure(lambda: stacks(region="not a region").create(deployment()))
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert "no region is set" in failure(lambda: Stacks().describe("hello"))


def test_missing_credentials_are_named(account: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    assert "no AWS credentials were found: run `aws configure`" in failure(lambda: Stacks().create(deployment()))


def test_a_profile_that_is_missing_is_named(account: None) -> None:
    assert "`aws configure list-profiles`" in failure(lambda: Stacks(profile="nobody"))


def test_a_missing_network_is_reported(aws: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDFORMATION", "https://127.0.0.1:9")

    assert "cannot reach AWS in eu-west-1" in failure(lambda: Stacks().describe("hello"))
