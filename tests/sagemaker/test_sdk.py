"""AWS's `sagemaker` SDK creates an endpoint and calls the local one: version 3 as in the example, and version 2."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
import soundfile
from moto.core.responses import ActionResult
from moto.server import ThreadedMotoServer

from container_room import ENDPOINT
from door_room import Door
from own_folder import python_with

EXAMPLES = Path(__file__).parents[2] / "examples"
ARTIFACT = "s3://my-bucket/1/model.tar.gz"
VERSION_2 = """
import json
from pathlib import Path

from sagemaker.predictor import Predictor
from sagemaker.serializers import JSONSerializer, SimpleBaseSerializer

class Text(SimpleBaseSerializer):
    def serialize(self, data):
        return json.dumps({"text": data, "max_new_tokens": 8, "seed": 1})

own = Predictor("NAME", serializer=Text())
by_dict = Predictor("NAME", serializer=JSONSerializer())
by_default = Predictor("NAME")  # its serializer passes bytes on, as application/octet-stream
Path("own.wav").write_bytes(own.predict("Good morning."))
Path("dict.wav").write_bytes(by_dict.predict(json.loads(Text().serialize("Good morning."))))
Path("default.wav").write_bytes(by_default.predict(Text().serialize("Good morning.")))
parts = own.predict_stream("Good morning.", initial_args={"Accept": "audio/wav"})
Path("stream.wav").write_bytes(b"".join(parts))
"""


@pytest.fixture
def environment(container: Door, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Variables for AWS's clients: moto creates resources, and the local endpoint runs."""
    # moto returns absent structures as {}, which SageMaker omits and the SDK refuses.
    monkeypatch.setattr(
        "moto.sagemaker.responses.ActionResult",
        lambda result: ActionResult({name: value for name, value in result.items() if value != {}}),
    )
    aws = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    aws.start()
    host, port = aws.get_host_and_port()
    variables = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME": container.url,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1,localhost",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    yield {**os.environ, "S1_MINI_ENDPOINT": ENDPOINT}
    aws.stop()


@pytest.mark.sdk
@pytest.mark.slow
def test_the_example_for_version_3_deploys_an_artifact_and_writes_audio(
    environment: dict[str, str], sdk_python: Path, tmp_path: Path
) -> None:
    deployment = {
        "S1_MINI_AWS_IMAGE": "123456789012.dkr.ecr.eu-west-1.amazonaws.com/s1-mini:1",
        "S1_MINI_AWS_ROLE": "arn:aws:iam::123456789012:role/s1-mini",
        "S1_MINI_AWS_ARTIFACT": ARTIFACT,
        "S1_MINI_AWS_INSTANCE_TYPE": "ml.g4dn.xlarge",
    }

    command = [sdk_python, EXAMPLES / "sagemaker_sdk.py", "--deploy"]
    subprocess.run(command, cwd=tmp_path, env=environment | deployment, check=True)

    for name in ("sagemaker_sdk.flac", "sagemaker_sdk.mp3"):
        assert len(soundfile.read(tmp_path / name)[0]) > 1000
    created = boto3.client("sagemaker")
    assert created.describe_endpoint(EndpointName=ENDPOINT)["EndpointStatus"] == "InService"
    assert created.describe_model(ModelName=ENDPOINT)["PrimaryContainer"]["ModelDataUrl"] == ARTIFACT


@pytest.mark.sdk
@pytest.mark.slow
def test_predictors_of_version_2_get_the_same_audio_with_every_serializer_of_json(
    environment: dict[str, str], tmp_path: Path
) -> None:
    python = python_with(tmp_path / "venv", "sagemaker==2.257.*")

    subprocess.run([python, "-c", VERSION_2.replace("NAME", ENDPOINT)], cwd=tmp_path, env=environment, check=True)

    own = (tmp_path / "own.wav").read_bytes()
    assert own[:4] == b"RIFF"
    assert [(tmp_path / f"{name}.wav").read_bytes() == own for name in ("dict", "default", "stream")] == [True] * 3
