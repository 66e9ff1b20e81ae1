"""scripts/try_aws.py: everything but the invocations runs on moto, these on the local endpoint."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest
from moto import mock_aws

from container_room import ENDPOINT
from deployments import ARCHIVE, BUCKET, IMAGE, REGION, ROLE
from s1_mini.audio.container import encode
from s1_mini.exceptions import DeploymentError

SCRIPT = Path(__file__).parents[2] / "scripts" / "try_aws.py"
Try = Callable[..., int]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("try_aws", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "try_aws", module)  # its dataclass looks itself up
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "new_name", lambda: ENDPOINT)
    monkeypatch.setattr("s1_mini.aws.stack.POLL_S", 0)
    return module


@pytest.fixture
def attempt(script: Any, account: None, container: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Try]:
    """Run the script on an account with a bucket and an artifact."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME", container.url)
    with mock_aws(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # moto's CloudFormation skips alarms and scaling
        s3 = boto3.client("s3")
        s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        s3.put_object(Bucket=BUCKET, Key="1/model.tar.gz", Body=b"x")

        def act(*options: str) -> int:
            given = {"--image": IMAGE, "--role": ROLE, "--artifact": ARCHIVE, "--instance-type": "ml.g4dn.xlarge"}
            return script.main([*(word for pair in given.items() for word in pair), "--yes", *options])

        yield act


def report(out: str) -> dict[str, str]:
    """Return the outcome of each step."""
    lines = out.partition("Report for")[2].splitlines()[1:]
    return {line[:22].strip(): line[22:].partition(" s  ")[2] for line in lines if " s  " in line}


@pytest.mark.long  # tests/test_readme.py runs the same steps as commands
def test_every_step_succeeds_and_nothing_is_left(attempt: Try, capsys: pytest.CaptureFixture[str]) -> None:
    assert attempt() == 0

    out = capsys.readouterr().out
    steps = report(out)
    assert all("bytes, first audio after" in steps[f"invoke{mode}"] for mode in ("", ", streamed", ", bidirectional"))
    assert all(" at 16000 Hz, RMS " in steps[f"invoke, {form}"] for form in ("flac", "mp3", "ogg"))
    assert "with speed 2 " in steps["speed"]
    assert all("container answered 4" in steps[f"refuses {field}"] for field in ("text", "speed", "voice", "pitch"))
    assert (steps["create"], steps["autoscale"], steps["delete"]) == ("ok", "ok", "ok")
    assert "cost of the instance: at most 0.0" in out
    assert boto3.client("sagemaker").list_endpoints()["Endpoints"] == []


@pytest.mark.parametrize(
    ("loudness", "container", "rate", "message"),
    [
        (0.1, "wav", 16_000, ""),
        (0.0, "wav", 16_000, "is silent"),
        (0.1, "flac", 16_000, "is wav at 16000 Hz, not flac"),
        (0.1, "wav", 24_000, "not wav at 24000 Hz"),
        (None, "wav", 16_000, "is not audio"),
    ],
)
def test_the_audio_itself_is_checked(
    script: Any, loudness: float | None, container: str, rate: int, message: str
) -> None:
    noise = np.random.default_rng(1).standard_normal(16_000).astype(np.float32)
    audio = b"{}" if loudness is None else encode(loudness * noise, 16_000, "wav")

    if not message:
        assert script.check(audio, container, rate).seconds == 1
        return
    with pytest.raises(DeploymentError, match=message):
        script.check(audio, container, rate)


def test_an_ignored_speed_and_an_accepted_mistake_are_failures(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    audio = encode(np.full(16_000, 0.1, np.float32), 16_000, "wav")
    monkeypatch.setattr(script.call, "invoke", lambda *_: audio)
    request = script.call.Invocation("speech", {"text": "Hi."})

    with pytest.raises(DeploymentError, match="the speed has no effect"):
        script.compare_speeds(None, request)
    with pytest.raises(DeploymentError, match="instead of an error"):
        script.refusal(None, request)


def test_a_failed_step_is_reported_and_the_endpoint_is_deleted(
    attempt: Try, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME", "http://127.0.0.1:9")

    assert attempt() == 1

    steps = report(capsys.readouterr().out)
    assert "FAILED" in steps["invoke"]
    assert steps["delete"] == "ok"
    assert boto3.client("sagemaker").list_endpoints()["Endpoints"] == []


def test_nothing_is_created_without_consent(
    script: Any, attempt: Try, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("builtins.input", lambda _: "")
    options = ["--image", IMAGE, "--role", ROLE, "--artifact", ARCHIVE]

    assert script.main(options) == 1
    assert "0.20 USD per hour" in capsys.readouterr().out
    assert boto3.client("cloudformation").list_stacks()["StackSummaries"] == []
