"""Invoke an endpoint with one text and return the audio: whole, as a stream, or from the async output location."""

from __future__ import annotations

import json
import re
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
from s1_mini.exceptions import ConfigurationError, DeploymentError

RUNTIME = "sagemaker-runtime"
COMPONENT = r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}"
POLL_S = 2.0  # poll interval for the output in S3


@dataclass(frozen=True)
class Invocation:
    """The endpoint and the body of a request to `/invocations`; optionally the model, component or prefix id."""

    name: str
    body: Mapping[str, Any]
    target_model: str | None = None
    component: str | None = None
    prefix_id: str | None = None

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of an InvokeEndpoint operation."""
        extra = {
            "TargetModel": self.target_model,
            "InferenceComponentName": self.component,
            "PrefixAwareId": self.prefix_id,
        }
        given = {key: value for key, value in extra.items() if value is not None}
        body = json.dumps(dict(self.body), ensure_ascii=False).encode()
        return {"EndpointName": self.name, "Body": body, "ContentType": "application/json", **given}


def invoke(clients: Clients, invocation: Invocation) -> bytes:
    """Return the whole response. Raises `S1MiniError`."""
    answer = _send(clients, invocation, "invoke_endpoint")
    with explained_call(clients, invocation):
        return bytes(answer["Body"].read())


def stream(clients: Clients, invocation: Invocation) -> Iterator[bytes]:
    """Yield the response as it is generated. Raises `S1MiniError`, possibly after some parts."""
    if invocation.target_model is not None:
        raise DeploymentError("target_model: SageMaker does not stream from multi-model endpoints; use --mode whole")
    answer = _send(clients, invocation, "invoke_endpoint_with_response_stream")
    with explained_call(clients, invocation), closing(answer["Body"]) as body:
        for event in body:
            part = event.get("PayloadPart")
            if part is None:
                raise DeploymentError(f"invoke {invocation.name}: the stream was interrupted: {event}")
            yield bytes(part["Bytes"])


def invoke_async(clients: Clients, invocation: Invocation, *, limit_s: float) -> bytes:
    """Return the output of an async endpoint once it exists in S3, or in the folder of a local endpoint.

    Raises `S1MiniError`, also if there is no output after `limit_s` seconds.
    """
    answer = _send(clients, invocation, "invoke_endpoint_async")
    begin = time.monotonic()
    with explained_call(clients, invocation):
        while time.monotonic() - begin < limit_s:
            sound = _stored(clients, answer.get("OutputLocation"))
            if sound is not None:
                return sound
            failure = _stored(clients, answer.get("FailureLocation"))
            if failure is not None:
                raise DeploymentError(f"invoke {invocation.name}: {failure.decode(errors='replace')[:1000]}")
            time.sleep(POLL_S)
    raise DeploymentError(
        f"invoke {invocation.name}: no response after {limit_s:.0f} s; it will appear at {answer.get('OutputLocation')}"
    )


def _send(clients: Clients, invocation: Invocation, operation: str) -> Mapping[str, Any]:
    if invocation.component is not None and re.fullmatch(COMPONENT, invocation.component) is None:
        raise ConfigurationError(f"component={invocation.component!r}: use 1 to 63 letters, digits and hyphens")
    with explained_call(clients, invocation):
        answer: Mapping[str, Any] = getattr(clients[RUNTIME], operation)(**invocation.parameters())
        return answer


def explained_call(clients: Clients, invocation: Invocation) -> Any:
    """Convert errors of a call to `DeploymentError` with the endpoint's name and region."""
    return explained(About(invocation.name, clients.region, f"invoke {invocation.name}"))


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
            return None  # without s3:ListBucket, S3 reports a missing key as AccessDenied
        raise


def _stored_here(location: str) -> bytes | None:
    path = Path(url2pathname(urlsplit(location).path))
    try:
        return path.read_bytes() if path.is_file() else None
    except OSError as error:
        raise DeploymentError(f"output {location}: cannot be read: {error.strerror}") from error
