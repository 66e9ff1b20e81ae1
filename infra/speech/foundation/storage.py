"""Where models and images lie: one key, a bucket of releases and answers, a bucket of access logs, a repository."""

from __future__ import annotations

from typing import Any

from aws_cdk import Aws, Duration, RemovalPolicy
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from speech.stages import Stage

ANSWERS = "async/"  # requests, answers and failures of the asynchronous endpoint
ANSWER_DAYS = 7


class Storage(Construct):
    """`key`, `bucket`, `repository`; all of them outlive the stack that made them."""

    def __init__(self, scope: Construct, id: str, *, stage: Stage) -> None:  # noqa: A002
        super().__init__(scope, id)
        self.key = kms.Key(
            self,
            "Key",
            description=f"s1-mini {stage.name}: models, answers, images, logs, notices",
            enable_key_rotation=True,
            removal_policy=RemovalPolicy.RETAIN,
        )
        self._let_services_use_the_key()
        self.bucket = self._bucket()
        self.repository = self._repository(stage)

    def _let_services_use_the_key(self) -> None:
        """Logs writes encrypted groups; CloudWatch's alarms and SageMaker publish to an encrypted topic."""
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
            encryption=s3.BucketEncryption.S3_MANAGED,  # log delivery cannot use a customer's key
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
                sid="AReleaseIsNeverOverwritten",
                effect=iam.Effect.DENY,
                principals=[iam.AnyPrincipal()],
                actions=["s3:PutObject"],
                resources=[bucket.arn_for_objects("models/*")],
                # Uploading a part creates nothing yet; creating the object must say If-None-Match.
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
