"""Invoke a SageMaker endpoint: a local one or, without the four marked lines, one on AWS with your credentials.

Needs `pip install boto3` and `s1-mini serve --local-endpoint speech`.
"""

import json
import os
from pathlib import Path

import boto3

runtime = boto3.client(
    "sagemaker-runtime",
    endpoint_url=os.environ.get("S1_MINI_URL", "http://localhost:8080"),  # remove these four lines on AWS
    region_name="eu-central-1",
    aws_access_key_id="none",
    aws_secret_access_key="none",  # noqa: S106 - the local endpoint verifies nothing
)

answer = runtime.invoke_endpoint_with_response_stream(
    EndpointName=os.environ.get("S1_MINI_ENDPOINT", "speech"),
    ContentType="application/json",
    Body=json.dumps({"text": "Streamed from an endpoint.", "format": "mp3", "stream": True}),
)

with Path("sagemaker.mp3").open("wb") as file:
    for event in answer["Body"]:
        file.write(event["PayloadPart"]["Bytes"])
