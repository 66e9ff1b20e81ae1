"""AWS for tests: moto for what it knows, a SageMaker on a local socket for the rest; no request leaves the machine."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import boto3
import botocore.loaders
import pytest
from moto import mock_aws
from rich.console import Console

from deployments import BUCKET, REGION
from s1_mini.deploy.display import Display
from s1_mini.deploy.verbs import Verbs
from sagemaker_server import SageMakerServer

LOADER = botocore.loaders.Loader()


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """Credentials of nobody, a region, and none of this machine's files; AWS's descriptions are read once for all."""
    monkeypatch.setattr("botocore.session.create_loader", lambda *_: LOADER)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_CONFIG_FILE": f"{tmp_path}/config",
        "AWS_SHARED_CREDENTIALS_FILE": f"{tmp_path}/credentials",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def aws(account: None) -> Iterator[None]:
    """An account with a bucket and an artifact in both forms."""
    with mock_aws():
        s3 = boto3.client("s3")
        s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        for key in ("1/model.tar.gz", "1/model.safetensors"):
            s3.put_object(Bucket=BUCKET, Key=key, Body=b"x" * 1000)
        yield


@pytest.fixture
def server(aws: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[SageMakerServer]:
    """SageMaker on a socket, the rest of the account by moto."""
    server = SageMakerServer()
    server.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", server.url)
    yield server
    server.stop()


@pytest.fixture
def said() -> io.StringIO:
    """What is shown on stderr."""
    return io.StringIO()


@pytest.fixture
def verbs(aws: None, said: io.StringIO) -> Callable[..., Verbs]:
    """Make the verbs; nobody sleeps."""

    def make(**more: object) -> Verbs:
        display = Display(Console(file=said, width=1000))
        return Verbs(display=display, sleep=lambda _: None, **more)  # type: ignore[arg-type]

    return make
