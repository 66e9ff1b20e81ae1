"""The stack of one endpoint: the template of `s1-mini endpoint`, and its topics, logs, alarms and dashboard."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aws_cdk import CfnOutput, Stack
from aws_cdk import aws_sns as sns
from aws_cdk.cloudformation_include import CfnInclude
from constructs import Construct

from s1_mini.aws.deployment import Deployment
from s1_mini.aws.template import build_with_parameters
from speech.foundation.stack import FoundationStack
from speech.monitoring.alarms import add_alarm, alarm_topic, watches
from speech.monitoring.dashboard import add_dashboard
from speech.monitoring.logs import add_logs
from speech.monitoring.metrics import Source
from speech.stages import ASYNC_PLACEHOLDERS, BUCKET, PLACEHOLDERS, Endpoint, Stage
from speech.toolchain import stack_options


class EndpointStack(Stack):
    """The resources of one deployment and its monitoring."""

    def __init__(self, scope: Construct, stage: Stage, endpoint: Endpoint, foundation: FoundationStack) -> None:
        deployment = endpoint.deployment
        name, key = deployment.name, foundation.storage.key
        super().__init__(scope, name, **stack_options(stage, f"{deployment.form} endpoint"))
        source = Source.of(deployment)
        logs = add_logs(self, stage, source, key)
        topic = alarm_topic(self, stage, f"{name}-alarms", key)
        alarms = [add_alarm(self, source, watch, topic) for watch in watches(stage, endpoint)]
        template = build_with_parameters(deployment, "artifact", *PLACEHOLDERS, *ASYNC_PLACEHOLDERS)
        included = self._include(template, self._values(stage, deployment, foundation))
        for logical_id, resource in template["Resources"].items():
            match resource["Type"]:
                case "AWS::SageMaker::Endpoint" | "AWS::SageMaker::InferenceComponent":
                    included.get_resource(logical_id).add_resource_dependency(logs)
                case "AWS::CloudWatch::Alarm":
                    alarms.append(included.get_resource(logical_id))
        add_dashboard(self, stage.region, source, deployment.form, alarms)
        CfnOutput(self, "EndpointName", value=deployment.endpoint or name)

    def _values(self, stage: Stage, deployment: Deployment, foundation: FoundationStack) -> dict[str, Any]:
        storage, network = foundation.storage, foundation.network

        def in_bucket(location: str | None) -> str:
            return storage.bucket.s3_url_for_object((location or "").removeprefix(BUCKET))

        values: dict[str, Any] = {
            "Artifact": in_bucket(deployment.artifact),
            "Image": storage.repository.repository_uri_for_tag(stage.image_tag),
            "Role": foundation.access.execution.role_arn,
            "KmsKey": storage.key.key_arn,
            "Subnet": network.subnet_ids,
            "SecurityGroup": [network.containers.security_group_id],
        }
        if deployment.form == "async":
            done, failed = (
                sns.Topic(
                    self, end, topic_name=f"{deployment.name}-{end.lower()}", master_key=storage.key, enforce_ssl=True
                ).topic_arn
                for end in ("Done", "Failed")
            )
            values |= {"Output": in_bucket(deployment.output), "Failures": in_bucket(deployment.failures)}
            values |= {"SuccessTopic": done, "ErrorTopic": failed}
        return values

    def _include(self, template: dict[str, Any], values: dict[str, Any]) -> CfnInclude:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "template.json"
            file.write_text(json.dumps(template), encoding="utf-8")
            return CfnInclude(self, "Deployment", template_file=str(file), parameters=values)
