"""`s1-mini serve --local-endpoint` as a subprocess, called by unchanged client code.

test_local_endpoint.py has the same in this process, and test_run.py the signal.
"""

from __future__ import annotations

import json
from pathlib import Path

import boto3
import pytest

from container_room import SHORT
from s1_mini.sagemaker.contract import ENDING
from tests.server.test_run import served
from waiting import wait_until


@pytest.mark.long
def test_client_code_of_aws_speaks_with_the_command_line_and_a_signal_ends_it(
    tiny: Path, tmp_path: Path, account: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--device", "cpu", "--local-endpoint", "speech", "--async-store", str(tmp_path / "store"))
    call = {"EndpointName": "speech", "ContentType": "application/json", "Body": json.dumps(SHORT)}
    with served(tiny, options=options) as running:
        wait_until(running.is_ready)
        monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME", f"http://127.0.0.1:{running.port}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        runtime = boto3.client("sagemaker-runtime")
        whole = runtime.invoke_endpoint(**call, Accept="audio/pcm")["Body"].read()
        events = runtime.invoke_endpoint_with_response_stream(**call, Accept="audio/pcm")["Body"]
        parts = b"".join(event["PayloadPart"]["Bytes"] for event in events)
        runtime.invoke_endpoint_async(**call)
        runtime.close()
        running.process.send_signal(ENDING.signal)
        code = running.end()

    assert parts == whole != b""
    assert code == 0
    (output,) = (tmp_path / "store").iterdir()
    assert output.read_bytes()[:4] == b"RIFF"  # including requests accepted just before the signal
