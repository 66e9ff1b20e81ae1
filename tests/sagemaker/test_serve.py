"""`s1-mini serve --local-endpoint` as a process of its own, with unchanged client code in another."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx2

from container_room import SHORT
from s1_mini.sagemaker.contract import ENDING
from waiting import EVENTUALLY_S, wait_until

ROOT = Path(__file__).parents[2]
CLIENT = """
import boto3, json, sys
runtime = boto3.client("sagemaker-runtime")
body = sys.argv[1]
call = {"EndpointName": "speech", "ContentType": "application/json", "Accept": "audio/pcm"}
whole = runtime.invoke_endpoint(**call, Body=body)["Body"].read()
events = runtime.invoke_endpoint_with_response_stream(**call, Body=body)["Body"]
parts = b"".join(event["PayloadPart"]["Bytes"] for event in events)
later = runtime.invoke_endpoint_async(EndpointName="speech", ContentType="application/json", Body=body)
print(json.dumps({"bytes": len(whole), "same": whole == parts, "output": later["OutputLocation"]}))
"""


def test_client_code_of_aws_speaks_with_the_command_line_and_a_signal_ends_it(tiny: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = tmp_path / "store"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    options = ["--host", "127.0.0.1", "--port", str(port), "--checkpoint", str(tiny), "--device", "cpu"]
    options += ["--local-endpoint", "speech", "--async-store", str(store)]
    server = subprocess.Popen(
        [sys.executable, "-m", "s1_mini", "serve", *options], env=environment, creationflags=ENDING.creation_flags
    )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(url))
        aws = {"AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME": url, "AWS_DEFAULT_REGION": "eu-central-1"}
        aws |= {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "NO_PROXY": "127.0.0.1"}
        said = subprocess.check_output([sys.executable, "-c", CLIENT, json.dumps(SHORT)], env=environment | aws)
        server.send_signal(ENDING.signal)
        code = server.wait(EVENTUALLY_S)
    finally:
        server.kill()
        server.wait()

    told = json.loads(said)
    assert told["same"]
    assert told["bytes"] > 0
    assert code == 0
    assert next(iter(store.iterdir())).read_bytes()[:4] == b"RIFF"  # also what was accepted just before the signal


def answers(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/ping", trust_env=False, verify=False).status_code == 200
    except httpx2.TransportError:
        return False
