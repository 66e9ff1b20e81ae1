"""The first stack of a stage: deploy it, push the image and the model, then deploy what speaks."""

from __future__ import annotations

from aws_cdk import CfnOutput, Environment, Stack
from constructs import Construct

from speech.foundation.access import Access
from speech.foundation.network import Network
from speech.foundation.storage import Storage
from speech.stages import Stage
from speech.toolchain import tag


class FoundationStack(Stack):
    """`storage`, `network` and `access` of a stage."""

    def __init__(self, scope: Construct, id: str, *, stage: Stage, env: Environment) -> None:  # noqa: A002
        super().__init__(scope, id, env=env, description=f"s1-mini {stage.name}: network, key, buckets, images, roles")
        self.storage = Storage(self, "Storage", stage=stage)
        self.network = Network(self, "Network", stage=stage, key=self.storage.key)
        self.access = Access(self, "Access", stage=stage, storage=self.storage, network=self.network)
        tag(self, stage)
        CfnOutput(
            self, "BucketName", value=self.storage.bucket.bucket_name, description="s1-mini package --upload s3://…"
        )
        CfnOutput(self, "RepositoryUri", value=self.storage.repository.repository_uri, description="docker push …")
        CfnOutput(self, "CallersPolicy", value=self.access.callers.managed_policy_arn, description="attach to callers")
