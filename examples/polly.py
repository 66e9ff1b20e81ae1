"""Speak with boto3's Amazon Polly client: only the endpoint URL changes. Needs `pip install boto3`."""

import os
from pathlib import Path

import boto3

polly = boto3.client(
    "polly",
    endpoint_url=os.environ.get("S1_MINI_URL", "http://localhost:8080"),
    region_name="eu-central-1",
    aws_access_key_id=os.environ.get("S1_MINI_API_KEY", "none"),
    aws_secret_access_key="none",  # noqa: S106 - signatures are not verified
)

answer = polly.synthesize_speech(Text="Hello from Polly's client.", VoiceId="Joanna", OutputFormat="mp3")

Path("polly.mp3").write_bytes(answer["AudioStream"].read())
