"""Invoke an endpoint with one sentence and return the audio: whole, streamed, or from its async output location."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from s1_mini.aws.clients import Clients
from s1_mini.aws.failures import About, explained
from s1_mini.aws.place import split_location
from s1_mini.deploy.call import AwsCall
from s1_mini.deploy.check import check
from s1_mini.exceptions import DeploymentError

RUNTIME = "sagemaker-runtime"
JSON = "application/json"
LOOK_AGAIN_S = 2.0


@dataclass(frozen=True)
class Question:
    """A body for `/invocations`, and which model, copy or machine is to answer it."""

    name: str
    body: Mapping[str, Any]
    target_model: str | None = None
    component: str | None = None
    prefix_id: str | None = None

    def call(self, operation: str) -> AwsCall:
        """Give the call that asks it."""
        extra = {
            "TargetModel": self.target_model,
            "InferenceComponentName": self.component,
            "PrefixAwareId": self.prefix_id,
        }
        given = {key: value for key, value in extra.items() if value is not None}
        body = json.dumps(dict(self.body), ensure_ascii=False).encode()
        return AwsCall(RUNTIME, operation, {"EndpointName": self.name, "Body": body, "ContentType": JSON, **given})


def ask(clients: Clients, question: Question) -> bytes:
    """Give the whole answer. Raises `S1MiniError`."""
    answer = _send(clients, question, "invoke_endpoint")
    with _explained(clients, question):
        return bytes(answer["Body"].read())


def ask_in_parts(clients: Clients, question: Question) -> Iterator[bytes]:
    """Give the answer while it is made. Raises `S1MiniError`, also after some parts."""
    if question.target_model is not None:
        raise DeploymentError("target_model: SageMaker does not stream from one of several models; leave --stream out")
    answer = _send(clients, question, "invoke_endpoint_with_response_stream")
    with _explained(clients, question), closing(answer["Body"]) as body:
        for event in body:
            part = event.get("PayloadPart")
            if part is None:
                raise DeploymentError(f"ask {question.name}: the stream broke off: {event}")
            yield bytes(part["Bytes"])


def ask_later(clients: Clients, question: Question, *, limit_s: float) -> bytes:
    """Return the output of an async endpoint once it exists in S3, or in the folder of a local endpoint.

    Raises `S1MiniError`.
    """
    answer = _send(clients, question, "invoke_endpoint_async")
    begin = time.monotonic()
    with _explained(clients, question):
        while time.monotonic() - begin < limit_s:
            sound = _stored(clients, answer.get("OutputLocation"))
            if sound is not None:
                return sound
            failure = _stored(clients, answer.get("FailureLocation"))
            if failure is not None:
                raise DeploymentError(f"ask {question.name}: {failure.decode(errors='replace')[:1000]}")
            time.sleep(LOOK_AGAIN_S)
    raise DeploymentError(
        f"ask {question.name}: no answer after {limit_s:.0f} s; it will lie at {answer.get('OutputLocation')}"
    )


def _send(clients: Clients, question: Question, operation: str) -> Mapping[str, Any]:
    call = question.call(operation)
    check(call)
    with _explained(clients, question):
        answer: Mapping[str, Any] = getattr(clients[RUNTIME], operation)(**call.parameters)
        return answer


def _explained(clients: Clients, question: Question) -> Any:
    return explained(About(question.name, clients.region, f"ask {question.name}"))


def _stored(clients: Clients, location: str | None) -> bytes | None:
    """Return the content at `location`; None if it does not exist yet."""
    if not location:
        return None
    if location.startswith("file:"):
        return _stored_here(location)
    from botocore.exceptions import ClientError

    bucket, key = split_location(location)
    try:
        return bytes(clients["s3"].get_object(Bucket=bucket, Key=key)["Body"].read())
    except ClientError as error:
        if error.response["Error"]["Code"] in {"NoSuchKey", "404", "AccessDenied"}:
            return None  # without s3:ListBucket a missing key is AccessDenied
        raise


def _stored_here(location: str) -> bytes | None:
    path = Path(url2pathname(urlsplit(location).path))
    try:
        return path.read_bytes() if path.is_file() else None
    except OSError as error:
        raise DeploymentError(f"output {location}: cannot be read: {error.strerror}") from error
