"""A key, a bucket for models and async responses, a bucket for access logs, and an image repository."""

from __future__ import annotations

from typing import Any

from aws_cdk import Aws, Duration, RemovalPolicy
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from speech.stages import ANSWERS, MODELS, Stage

ANSWER_DAYS = 7  # until async requests and responses expire; old versions are kept longer


class Storage(Construct):
    """`key`, `bucket` and `repository`, which remain when the stack is deleted."""

    def __init__(self, scope: Construct, stage: Stage) -> None:
        super().__init__(scope, "Storage")
        self.key = kms.Key(
            self,
            "Key",
            description=f"s1-mini {stage.name}: models, responses, images, logs, notifications",
            enable_key_rotation=True,
            removal_policy=RemovalPolicy.RETAIN,
        )
        self._allow_services()
        self.bucket = self._bucket()
        self.repository = self._repository(stage)

    def _allow_services(self) -> None:
        """Allow use of the key for encrypted log groups, and by alarms that publish to an encrypted topic."""
        logs = iam.PolicyStatement(
            sid="Logs",
            principals=[iam.ServicePrincipal(f"logs.{Aws.REGION}.amazonaws.com")],
            actions=["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"],
            resources=["*"],
            conditions={
                "ArnLike": {
                    "kms:EncryptionContext:aws:logs:arn": f"arn:{Aws.PARTITION}:logs:{Aws.REGION}:{Aws.ACCOUNT_ID}:*"
                }
            },
        )
        alarms = iam.PolicyStatement(
            sid="Alarms",
            principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
            actions=["kms:Decrypt", "kms:GenerateDataKey*"],
            resources=["*"],
            conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
        )
        self.key.add_to_resource_policy(logs)
        self.key.add_to_resource_policy(alarms)

    def _bucket(self) -> s3.Bucket:
        shared: dict[str, Any] = {
            "block_public_access": s3.BlockPublicAccess.BLOCK_ALL,
            "enforce_ssl": True,
            "object_ownership": s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            "removal_policy": RemovalPolicy.RETAIN,
        }
        accesses = s3.Bucket(
            self,
            "Accesses",
            encryption=s3.BucketEncryption.S3_MANAGED,  # log delivery does not support customer keys
            lifecycle_rules=[s3.LifecycleRule(expiration=Duration.days(90))],
            **shared,
        )
        bucket = s3.Bucket(
            self,
            "Bucket",
            encryption=s3.BucketEncryption.KMS,
            encryption_key=self.key,
            bucket_key_enabled=True,
            versioned=True,
            server_access_logs_bucket=accesses,
            server_access_logs_prefix="bucket/",
            lifecycle_rules=[
                s3.LifecycleRule(prefix=ANSWERS, expiration=Duration.days(ANSWER_DAYS)),
                s3.LifecycleRule(abort_incomplete_multipart_upload_after=Duration.days(1)),
                s3.LifecycleRule(noncurrent_version_expiration=Duration.days(30)),
            ],
            **shared,
        )
        bucket.add_to_resource_policy(
            iam.PolicyStatement(
                sid="ReleasesAreImmutable",
                effect=iam.Effect.DENY,
                principals=[iam.AnyPrincipal()],
                actions=["s3:PutObject"],
                resources=[bucket.arn_for_objects(f"{MODELS}*")],
                # Only the creation of the object needs If-None-Match, not the upload of a part.
                conditions={"Null": {"s3:if-none-match": "true"}, "Bool": {"s3:ObjectCreationOperation": "true"}},
            )
        )
        return bucket

    def _repository(self, stage: Stage) -> ecr.Repository:
        return ecr.Repository(
            self,
            "Repository",
            repository_name=f"s1-mini-{stage.name}",
            encryption=ecr.RepositoryEncryption.KMS,
            encryption_key=self.key,
            image_scan_on_push=True,
            image_tag_mutability=ecr.TagMutability.IMMUTABLE,
            lifecycle_rules=[
                ecr.LifecycleRule(tag_status=ecr.TagStatus.UNTAGGED, max_image_age=Duration.days(14)),
                ecr.LifecycleRule(max_image_count=50),
            ],
            removal_policy=RemovalPolicy.RETAIN,
        )
