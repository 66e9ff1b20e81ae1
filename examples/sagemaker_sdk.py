"""Invoke a SageMaker endpoint with AWS's `sagemaker` SDK 3; `--deploy` first creates the endpoint from an artifact.

Needs `pip install -e ".[sdk]"`. docs/endpoint.md has the variables for a local endpoint. `--deploy` needs an AWS
account, and the image, role and artifact of docs/deploy.md in the variables that are read below.
"""

import json
import os
import sys
from pathlib import Path

import boto3
from sagemaker.core.deserializers import BytesDeserializer
from sagemaker.core.resources import Endpoint, EndpointConfig, Model
from sagemaker.core.serializers import JSONSerializer
from sagemaker.core.shapes import ContainerDefinition, ProductionVariant

name = os.environ.get("S1_MINI_ENDPOINT", "speech")


def deploy() -> None:
    """Create a model, a configuration and an endpoint; wait until it serves. Delete all three when they are unused."""
    Model.create(
        model_name=name,
        primary_container=ContainerDefinition(
            image=os.environ["S1_MINI_AWS_IMAGE"], model_data_url=os.environ["S1_MINI_AWS_ARTIFACT"]
        ),
        execution_role_arn=os.environ["S1_MINI_AWS_ROLE"],
        enable_network_isolation=True,
    )
    variant = ProductionVariant(
        variant_name="AllTraffic",
        model_name=name,
        instance_type=os.environ.get("S1_MINI_AWS_INSTANCE_TYPE", "ml.g6.xlarge"),
        initial_instance_count=1,
        inference_ami_version="al2023-ami-sagemaker-inference-gpu-4-1",  # for GPUs; remove it for a CPU
        container_startup_health_check_timeout_in_seconds=900,
    )
    EndpointConfig.create(endpoint_config_name=name, production_variants=[variant])
    Endpoint.create(endpoint_name=name, endpoint_config_name=name).wait_for_status("InService")


if "--deploy" in sys.argv:
    deploy()

endpoint = Endpoint(endpoint_name=name, serializer=JSONSerializer(), deserializer=BytesDeserializer())
answer = endpoint.invoke(body={"text": "A dictionary becomes speech."}, accept="audio/flac")
Path("sagemaker_sdk.flac").write_bytes(answer.body)

# `Endpoint.invoke_with_response_stream` of SDK 3.27 cannot read streams: 'EventStream' object has no attribute 'get'.
streamed = boto3.client("sagemaker-runtime").invoke_endpoint_with_response_stream(
    EndpointName=name,
    ContentType="application/json",
    Accept="audio/mpeg",
    Body=json.dumps({"text": "Streamed from an endpoint.", "stream": True}),
)
with Path("sagemaker_sdk.mp3").open("wb") as file:
    for event in streamed["Body"]:
        file.write(event["PayloadPart"]["Bytes"])
