"""The foundation stack: deploy it, push the image and upload the model, then deploy the endpoints."""

from __future__ import annotations

from aws_cdk import CfnOutput, Stack
from constructs import Construct

from speech.foundation.access import Access
from speech.foundation.network import Network
from speech.foundation.storage import Storage
from speech.stages import Stage
from speech.toolchain import stack_options


class FoundationStack(Stack):
    """`storage`, `network` and `access` of a stage."""

    def __init__(self, scope: Construct, stage: Stage) -> None:
        options = stack_options(stage, "network, key, buckets, images, roles")
        super().__init__(scope, f"{stage.prefix}-foundation", **options)
        self.storage = Storage(self, stage)
        self.network = Network(self, stage, self.storage.key)
        self.access = Access(self, stage, self.storage, self.network)
        bucket, repository = self.storage.bucket.bucket_name, self.storage.repository.repository_uri
        CfnOutput(self, "BucketName", value=bucket, description="s1-mini package --upload s3://…")
        CfnOutput(self, "RepositoryUri", value=repository, description="docker push …")
        CfnOutput(self, "CallersPolicy", value=self.access.callers.managed_policy_arn, description="attach to callers")
