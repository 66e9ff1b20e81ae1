"""AWS for tests: moto where it supports the service, a local SageMaker stand-in for the rest; no external traffic."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import boto3
import pytest
from moto import mock_aws
from rich.console import Console

from deployments import BUCKET, REGION
from s1_mini.deploy.display import Display
from s1_mini.deploy.verbs import Verbs
from sagemaker_server import SageMakerServer


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
    """Text shown on stderr."""
    return io.StringIO()


@pytest.fixture
def verbs(aws: None, said: io.StringIO) -> Callable[..., Verbs]:
    """Build the verbs with waits that return at once."""

    def make(**more: object) -> Verbs:
        display = Display(Console(file=said, width=1000))
        return Verbs(display=display, sleep=lambda _: None, **more)  # type: ignore[arg-type]

    return make
