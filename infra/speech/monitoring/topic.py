"""Where alarms are told: one encrypted topic a stage, over TLS only."""

from __future__ import annotations

from aws_cdk import Aws
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from speech.stages import Stage


def alarm_topic(scope: Construct, *, stage: Stage, base_name: str, key: kms.IKey) -> sns.Topic:
    """Make the topic that alarms of this account may publish to, with the stage's readers."""
    topic = sns.Topic(scope, "Alarms", topic_name=f"{base_name}-alarms", master_key=key, enforce_ssl=True)
    topic.add_to_resource_policy(
        iam.PolicyStatement(
            sid="AlarmsPublish",
            principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
            actions=["sns:Publish"],
            resources=[topic.topic_arn],
            conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
        )
    )
    for address in stage.emails:
        topic.add_subscription(subscriptions.EmailSubscription(address))
    return topic
