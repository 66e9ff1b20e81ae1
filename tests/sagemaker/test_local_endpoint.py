"""The real boto3 client calls the local endpoint as it calls SageMaker."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx2
import numpy as np
import pytest
import soundfile
from botocore.exceptions import ClientError, EventStreamError

from container_room import ENDPOINT, SHORT
from held_generation import SOUNDS, held_generation
from s1_mini.audio.container import StreamEncoder
from s1_mini.exceptions import ConfigurationError, GenerationError
from s1_mini.sagemaker.async_store import FolderStore
from s1_mini.sagemaker.local_endpoint import LocalEndpoint
from s1_mini.sagemaker.settings import ContainerSettings
from waiting import wait_until

LONG: dict[str, Any] = SHORT | {"text": "One two three. " * 4, "max_new_tokens": 30, "chunk_profile": "ttfa"}


def call(**fields: Any) -> dict[str, Any]:
    return {"EndpointName": ENDPOINT, "ContentType": "application/json", "Body": json.dumps(SHORT | fields)}


def path_of(location: str) -> Path:
    return Path(unquote(urlsplit(location).path))


def wait_for(*locations: str) -> Path:
    paths = [path_of(location) for location in locations]
    wait_until(lambda: any(path.exists() for path in paths))
    return next(path for path in paths if path.exists())


def test_invoke_endpoint_returns_the_containers_response(runtime: Any, http: httpx2.Client) -> None:
    answer = runtime.invoke_endpoint(**call(), Accept="audio/flac", CustomAttributes="caller=test")

    assert answer["ContentType"] == "audio/flac"
    assert answer["InvokedProductionVariant"] == "AllTraffic"
    assert answer["CustomAttributes"].startswith("sample_rate=44100,format=flac,channels=1,digital_source_type=http://")
    direct = http.post("/invocations", json=SHORT, headers={"Accept": "audio/flac"})
    assert answer["Body"].read() == direct.content


def test_boto3_needs_no_content_type_for_json(runtime: Any) -> None:
    untyped = {name: value for name, value in call().items() if name != "ContentType"}

    whole = runtime.invoke_endpoint(**untyped, Accept="audio/pcm")["Body"].read()
    parts = runtime.invoke_endpoint_with_response_stream(**untyped, Accept="audio/pcm")["Body"]

    assert whole == b"".join(event["PayloadPart"]["Bytes"] for event in parts)


def test_sessions_work_through_boto3(runtime: Any) -> None:
    begun = runtime.invoke_endpoint(
        EndpointName=ENDPOINT, Body=b"{}", SessionId="NEW_SESSION", ContentType="application/json"
    )
    session = begun["NewSessionId"].partition(";")[0]
    within = runtime.invoke_endpoint(**call(), SessionId=session)
    closed = runtime.invoke_endpoint(**call() | {"Body": b'{"requestType": "CLOSE"}'}, SessionId=session)

    assert within["Body"].read()[:4] == b"RIFF"
    assert closed["ClosedSessionId"] == session


@pytest.mark.parametrize("stream", [False, True])
def test_the_parts_of_a_response_stream_are_the_whole_answer(runtime: Any, http: httpx2.Client, stream: bool) -> None:
    answer = runtime.invoke_endpoint_with_response_stream(**call(stream=stream), Accept="audio/pcm")
    parts = [event["PayloadPart"]["Bytes"] for event in answer["Body"]]

    assert answer["ContentType"] == "audio/pcm;rate=44100;channels=1"
    assert answer["CustomAttributes"].startswith("sample_rate=44100")
    assert b"".join(parts) == http.post("/invocations", json=SHORT, headers={"Accept": "audio/pcm"}).content


def test_the_first_part_comes_before_the_last_is_made(runtime: Any) -> None:
    with held_generation(SOUNDS) as held:
        answer = runtime.invoke_endpoint_with_response_stream(**call(**LONG, stream=True), Accept="audio/pcm")
        parts = iter(answer["Body"])
        next(parts)
        held.release()

        assert len(list(parts)) > 2


def test_a_failure_midway_is_a_model_stream_error_after_good_parts(
    runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, fed = StreamEncoder.feed, []

    def fail_later(self: StreamEncoder, wave: np.ndarray) -> bytes:
        fed.append(len(wave))
        if len(fed) > 2:
            raise GenerationError("3 samples are NaN")
        return feed(self, wave)

    monkeypatch.setattr(StreamEncoder, "feed", fail_later)
    answer = runtime.invoke_endpoint_with_response_stream(**call(**LONG, stream=True), Accept="audio/pcm")
    parts: list[bytes] = []
    with pytest.raises(EventStreamError) as raised:
        parts.extend(event["PayloadPart"]["Bytes"] for event in answer["Body"])

    assert raised.value.response["Error"]["Code"] == "ModelStreamError"
    assert "generation_failed" in raised.value.response["Error"]["Message"]
    assert sum(map(len, parts)) == 2 * sum(fed[:2])


def test_a_failure_before_the_first_sound_is_a_model_error(runtime: Any) -> None:
    for invoke in (runtime.invoke_endpoint, runtime.invoke_endpoint_with_response_stream):
        with pytest.raises(ClientError) as raised:
            invoke(**call(voice="nobody", stream=True))
        response = raised.value.response

        assert response["Error"]["Code"] == "ModelError"
        assert response["ResponseMetadata"]["HTTPStatusCode"] == 424
        assert response["OriginalStatusCode"] == 404
        assert response["Error"]["Message"].startswith("Received client error (404) from ")
        assert json.loads(response["OriginalMessage"])["error"]["code"] == "voice_not_found"


def test_an_unknown_endpoint_name_is_refused(runtime: Any) -> None:
    with pytest.raises(ClientError) as raised:
        runtime.invoke_endpoint(EndpointName="other", Body=b"{}")

    assert raised.value.response["Error"]["Code"] == "ValidationError"


def test_the_runtimes_accept_header_applies_and_other_container_headers_are_removed(container: Any) -> None:
    headers = {"X-Amzn-SageMaker-Accept": "audio/pcm", "Content-Type": "application/json"}
    with container.http() as http:
        answer = http.post(f"/endpoints/{ENDPOINT}/invocations", json=SHORT, headers=headers)

    assert answer.headers["content-type"] == "audio/pcm;rate=44100;channels=1"
    assert "x-sample-rate" not in answer.headers


def test_asynchronous_invocations_are_answered_in_the_store_and_an_output_each(runtime: Any, container: Any) -> None:
    (container.store / "in.json").write_text(json.dumps(SHORT))
    named = {"EndpointName": ENDPOINT, "ContentType": "application/json"}
    location = (container.store / "in.json").as_uri()
    accepted = runtime.invoke_endpoint_async(**named, InputLocation=location, Accept="audio/flac")
    inline, other = (
        runtime.invoke_endpoint_async(**named, Body=json.dumps(SHORT | {"seed": seed}), InferenceId="mine-1")
        for seed in (1, 2)
    )

    assert accepted["ResponseMetadata"]["HTTPStatusCode"] == 202
    assert soundfile.info(io.BytesIO(wait_for(accepted["OutputLocation"]).read_bytes())).format == "FLAC"
    assert inline["InferenceId"] == other["InferenceId"] == "mine-1"
    assert wait_for(inline["OutputLocation"]).read_bytes() != wait_for(other["OutputLocation"]).read_bytes()


class FullStore(FolderStore):
    """A store whose disk fills up after an invocation was accepted."""

    def write(self, name: str, content: bytes, content_type: str) -> None:  # noqa: ARG002
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_result_that_does_not_fit_on_the_disk_is_a_failure(
    runtime: Any, container: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container.app.state.endpoint, "store", FullStore(container.store))

    accepted = runtime.invoke_endpoint_async(EndpointName=ENDPOINT, Body=json.dumps(SHORT), ContentType="text/json")
    output = json.loads(wait_for(accepted["FailureLocation"], accepted["OutputLocation"]).read_text())

    assert output["error"]["code"] == "insufficient_storage"
    assert "No space left" in output["error"]["message"]
    wait_until(lambda: not list(container.store.glob(".*")))


def test_a_store_without_space_for_a_failure_accepts_nothing(
    runtime: Any, container: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(name: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(container.app.state.endpoint.store, "reserve", full)
    with pytest.raises(ClientError, match="No space left"):
        runtime.invoke_endpoint_async(EndpointName=ENDPOINT, Body=json.dumps(SHORT))


@pytest.mark.parametrize(
    ("given", "code"),
    [
        *(
            ({"InputLocation": location}, "body_invalid")
            for location in ("file:///etc/passwd", "../x", "s3://a/key", "file:///x/%00", "file://[::1", "in-none.json")
        ),
        ({"Body": json.dumps(SHORT | {"voice": "nobody"}), "ContentType": "application/json"}, "voice_not_found"),
    ],
)
def test_an_asynchronous_failure_is_written_to_the_failure_location(
    runtime: Any, given: dict[str, str], code: str
) -> None:
    accepted = runtime.invoke_endpoint_async(EndpointName=ENDPOINT, **given)
    output = json.loads(wait_for(accepted["FailureLocation"], accepted["OutputLocation"]).read_text())

    assert output["error"]["code"] == code


@pytest.mark.parametrize(
    "named",
    [
        {},
        {"InputLocation": "in.json", "Body": b"{}"},
        {"Body": b" " * 128_001},
        {"Body": b"{}", "InferenceId": "../../x"},
        {"Body": b"{}", "InvocationTimeoutSeconds": 3601},
    ],
)
def test_an_invalid_asynchronous_invocation_is_refused_at_once(runtime: Any, named: dict[str, Any]) -> None:
    with pytest.raises(ClientError) as raised:
        runtime.invoke_endpoint_async(EndpointName=ENDPOINT, **named)

    assert raised.value.response["Error"]["Code"] == "ValidationError"


@pytest.mark.parametrize("name", ["", "-x", "x-", "a_b", "x" * 64, "a/b"])
def test_a_name_that_sagemaker_would_not_take_is_refused(name: str, container: Any) -> None:
    with pytest.raises(ConfigurationError, match="endpoint"):
        LocalEndpoint(name, container.app, ContainerSettings())


@pytest.mark.parametrize(
    ("loaded", "asked"), [("voice_a", "voice_a.tar.gz"), ("v1.2", "v1.2"), ("odd.tar.gz", "/odd.tar.gz")]
)
def test_every_model_name_that_can_be_loaded_can_be_invoked(
    runtime: Any, http: httpx2.Client, tiny: Path, loaded: str, asked: str
) -> None:
    http.post("/models", json={"model_name": loaded, "url": str(tiny)}).raise_for_status()
    try:
        answer = runtime.invoke_endpoint(**call(), TargetModel=asked)
    finally:
        http.delete(f"/models/{loaded}")

    assert answer["Body"].read() == http.post("/invocations", json=SHORT).content


@pytest.mark.parametrize("stream", ["", "_with_response_stream"])
def test_an_unknown_variant_is_refused_and_the_known_one_answers(runtime: Any, stream: str) -> None:
    invoke = getattr(runtime, f"invoke_endpoint{stream}")
    with pytest.raises(ClientError, match="Variant 'blue' was not found; the only one is 'AllTraffic'"):
        invoke(**call(), TargetVariant="blue")

    assert invoke(**call(), TargetVariant="AllTraffic")["InvokedProductionVariant"] == "AllTraffic"


@pytest.mark.parametrize("asked", ["..", "folder/voice-a", "voice_a.tar.gz.tar.gz", "none.tar.gz", "v1.2/../x"])
def test_an_unloaded_model_is_never_replaced_by_another(runtime: Any, http: httpx2.Client, asked: str) -> None:
    with pytest.raises(ClientError) as raised:
        runtime.invoke_endpoint(**call(), TargetModel=asked)
    direct = http.post("/invocations", json=SHORT, headers={"X-Amzn-SageMaker-Target-Model": asked})

    assert raised.value.response["OriginalStatusCode"] == 404
    assert direct.status_code == 404
    assert direct.json()["error"]["code"] == "model_not_found"


def test_a_client_that_closes_a_response_stream_frees_its_slot(runtime: Any, container: Any) -> None:
    long = LONG | {"text": "One two three. " * 200, "max_new_tokens": 200, "stream": True}
    with held_generation(SOUNDS):
        answer = runtime.invoke_endpoint_with_response_stream(**call(**long), Accept="audio/pcm")
        next(iter(answer["Body"]))
        assert container.engine.health_check()["requests"] == 1

        answer["Body"].close()

        wait_until(lambda: container.engine.health_check()["requests"] == 0)
