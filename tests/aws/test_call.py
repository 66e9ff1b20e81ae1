"""Invoking an endpoint over a socket: whole, streamed and asynchronous responses, and errors."""

from __future__ import annotations

import json
import struct
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest

from deployments import BUCKET
from s1_mini.cli.app import run


def frame(headers: dict[str, str], payload: bytes) -> bytes:
    """Frame an event as AWS does: lengths, headers, payload, two checksums."""
    packed = b"".join(
        struct.pack(">B", len(key)) + key.encode() + struct.pack(">BH", 7, len(value)) + value.encode()
        for key, value in headers.items()
    )
    begin = struct.pack(">II", 16 + len(packed) + len(payload), len(packed))
    body = begin + struct.pack(">I", zlib.crc32(begin)) + packed + payload
    return body + struct.pack(">I", zlib.crc32(body))


def part(sound: bytes) -> bytes:
    return frame({":message-type": "event", ":event-type": "PayloadPart"}, sound)


BROKEN = frame(
    {":message-type": "exception", ":exception-type": "ModelStreamError", ":content-type": "application/json"},
    b'{"Message":"the container stopped","ErrorCode":"StreamBroken"}',
)


class Runtime:
    """The response to the next call, and the recorded request."""

    status, headers, body = 200, dict[str, str](), b""
    path, asked, given = "", dict[str, Any](), dict[str, str]()


@pytest.fixture
def runtime(aws: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    answer = Runtime()

    class Door(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answer.path, answer.given = self.path, dict(self.headers)
            answer.asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Door) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME", f"http://127.0.0.1:{server.server_address[1]}")
        yield answer
        server.shutdown()
        thread.join()


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, bytes | None]]:
    """Run `s1-mini endpoint invoke hello "Good morning."`; return its exit code and the audio."""

    def act(*options: str) -> tuple[int, bytes | None]:
        file = tmp_path / "a.wav"
        command = ["s1-mini", "endpoint", "invoke", "hello", "Good morning.", "-o", str(file), *options]
        monkeypatch.setattr(sys, "argv", command)
        code = run()
        return code, file.read_bytes() if file.exists() else None

    return act


Invoke = Callable[..., tuple[int, bytes | None]]


def test_a_whole_answer_is_written_and_its_file_named(
    runtime: Runtime, invoke: Invoke, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    runtime.body = b"RIFF whole"

    assert invoke("--voice", "clara", "--seed", "1", "--prefix-id", "clara") == (0, b"RIFF whole")

    assert capsys.readouterr().err == f"wrote {tmp_path / 'a.wav'}\n"
    assert runtime.path == "/endpoints/hello/invocations"
    assert runtime.asked == {"text": "Good morning.", "voice": "clara", "format": "wav", "seed": 1}
    assert runtime.given["X-Amzn-SageMaker-Prefix-Aware-Id"] == "clara"


@pytest.mark.usefixtures("without_av")  # the endpoint encodes
@pytest.mark.parametrize("mode", ["whole", "stream"])
@pytest.mark.parametrize(
    ("name", "options", "chosen"),
    [
        ("a.mp3", [], "mp3"),
        ("a.OGG", [], "ogg"),
        ("a.raw", ["--format", "pcm"], "pcm"),
        ("a.ogg", ["--format", "opus"], "opus"),
        ("a.aac", ["--format", "aac"], "aac"),
    ],
)
def test_the_suffix_of_the_file_decides_the_format(  # noqa: PLR0917 - fixtures
    runtime: Runtime, invoke: Invoke, tmp_path: Path, name: str, options: list[str], chosen: str, mode: str
) -> None:
    runtime.headers = {"Content-Type": "application/vnd.amazon.eventstream"} if mode == "stream" else {}
    runtime.body = part(b"sound") if mode == "stream" else b"sound"

    assert invoke("-o", str(tmp_path / name), "--mode", mode, *options)[0] == 0
    assert runtime.asked["format"] == chosen
    assert (tmp_path / name).read_bytes() == b"sound"


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("a.mp3", ["--format", "wav"], "--format: wav does not match"),
        ("a.txt", [], "ends in .txt, which is not an audio format"),
        ("a", [], "has no suffix"),
    ],
)
def test_a_suffix_that_contradicts_the_format_or_names_none_is_refused_before_the_call(  # noqa: PLR0917 - fixtures
    runtime: Runtime,
    invoke: Invoke,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    name: str,
    options: list[str],
    sentence: str,
) -> None:
    assert invoke("-o", str(tmp_path / name), *options)[0] == 1
    assert sentence in capsys.readouterr().err
    assert runtime.path == ""


def test_a_model_or_a_component_is_named(runtime: Runtime, invoke: Invoke) -> None:
    invoke("--target-model", "clara.tar.gz")
    assert runtime.given["X-Amzn-SageMaker-Target-Model"] == "clara.tar.gz"
    invoke("--component", "hello")
    assert runtime.given["X-Amzn-SageMaker-Inference-Component"] == "hello"


def test_a_stream_is_written_part_after_part(runtime: Runtime, invoke: Invoke) -> None:
    runtime.headers = {"Content-Type": "application/vnd.amazon.eventstream"}
    runtime.body = part(b"RIFF") + part(b" in") + part(b" parts")

    assert invoke("--mode", "stream") == (0, b"RIFF in parts")
    assert runtime.asked["stream"] is True


def test_a_stream_that_breaks_off_leaves_no_file_that_looks_whole(
    runtime: Runtime, invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime.headers = {"Content-Type": "application/vnd.amazon.eventstream"}
    runtime.body = part(b"RIFF") + BROKEN

    assert invoke("--mode", "stream") == (1, None)
    assert "the container stopped" in capsys.readouterr().err


def test_the_containers_error_is_shown_verbatim(
    runtime: Runtime, invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime.status = 424
    runtime.headers = {"x-amzn-errortype": "ModelError", "Content-Type": "application/json"}
    said = {"Message": "Received client error", "OriginalStatusCode": 404, "OriginalMessage": "voice='x': not there"}
    runtime.body = json.dumps(said).encode()

    assert invoke() == (1, None)
    shown = capsys.readouterr().err
    assert "the container answered 404: voice='x': not there" in shown
    assert "aws logs tail /aws/sagemaker/Endpoints/hello" in shown


@pytest.mark.parametrize(("key", "code"), [("out/1", 0), ("failed/1", 1)])
def test_an_answer_or_a_failure_that_comes_later_is_fetched_from_s3(
    runtime: Runtime, invoke: Invoke, capsys: pytest.CaptureFixture[str], key: str, code: int
) -> None:
    boto3.client("s3").put_object(Bucket=BUCKET, Key=key, Body=b"RIFF late")
    runtime.status = 202
    runtime.headers = {
        "X-Amzn-SageMaker-OutputLocation": f"s3://{BUCKET}/out/1",
        "X-Amzn-SageMaker-FailureLocation": f"s3://{BUCKET}/failed/1",
    }
    runtime.body = b'{"InferenceId":"1"}'

    assert invoke("--mode", "async") == (code, b"RIFF late" if code == 0 else None)
    assert runtime.path == "/endpoints/hello/async-invocations"
    assert ("RIFF late" in capsys.readouterr().err) == (code == 1)


@pytest.mark.parametrize(("name", "code"), [("an output", 0), ("a failure", 1)])
def test_the_output_of_a_local_endpoint_is_read_from_its_folder(  # noqa: PLR0917 - fixtures
    runtime: Runtime, invoke: Invoke, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, code: int
) -> None:
    (tmp_path / name).write_bytes(b"RIFF late")
    runtime.status, runtime.body = 202, b'{"InferenceId":"1"}'
    runtime.headers = {
        "X-Amzn-SageMaker-OutputLocation": (tmp_path / "an output").as_uri(),
        "X-Amzn-SageMaker-FailureLocation": (tmp_path / "a failure").as_uri(),
    }

    assert invoke("--mode", "async") == (code, b"RIFF late" if code == 0 else None)
    assert ("RIFF late" in capsys.readouterr().err) == (code == 1)


def test_a_missing_asynchronous_result_is_named_with_its_location(
    runtime: Runtime, invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime.status, runtime.body = 202, b"{}"
    runtime.headers = {"X-Amzn-SageMaker-OutputLocation": f"s3://{BUCKET}/out/2"}

    assert invoke("--mode", "async", "--wait-s", "0") == (1, None)
    assert f"it will appear at s3://{BUCKET}/out/2" in capsys.readouterr().err


def test_an_invalid_component_is_rejected_before_it_is_sent(
    runtime: Runtime, invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke("--component", "a_b") == (1, None)
    assert "component='a_b': use 1 to 63" in capsys.readouterr().err
    assert runtime.path == ""


def test_a_bidirectional_stream_on_aws_names_the_client_that_it_needs(
    aws: None, invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke("--mode", "bidirectional") == (1, None)
    shown = capsys.readouterr().err
    assert 'pip install "aws-sdk-sagemaker-runtime-http2[awscrt]~=0.12.0"' in shown
    assert "use --mode stream" in shown


@pytest.mark.parametrize("mode", ["whole", "stream", "bidirectional", "async"])
def test_a_local_url_without_a_server_is_named(
    aws: None, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME", "http://127.0.0.1:9")

    assert invoke("--mode", mode) == (1, None)
    shown = capsys.readouterr().err
    assert "nothing answers at http://127.0.0.1:9: run `s1-mini serve --local-endpoint NAME`" in shown
    assert "region" not in shown
