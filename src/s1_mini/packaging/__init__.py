"""Artifacts for endpoints and converted checkpoints.

`write` defines their content and writes them, `manifest` lists an artifact's files, and `verify` checks them before
anything of it is used. Knows no AWS: `s1_mini.sagemaker.upload` sends artifacts to S3.
"""
