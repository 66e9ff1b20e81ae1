"""Artifacts for endpoints and converted checkpoints.

`write` defines their content and writes them; `verify` defines the manifest of an artifact, and checks an artifact
before it is used. Independent of AWS: `s1_mini.sagemaker.upload` sends artifacts to S3.
"""
