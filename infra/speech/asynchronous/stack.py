"""The stack that speaks when it has time: endpoint, topics for answers, scaling from and to zero, alarms, dashboard."""

from __future__ import annotations

from aws_cdk import CfnOutput, Environment, Stack
from aws_cdk import aws_sns as sns
from constructs import Construct

from speech.asynchronous.endpoint import AsyncEndpoint
from speech.asynchronous.scaling import BacklogScaling
from speech.foundation.stack import FoundationStack
from speech.monitoring.alarms import ASYNC_WATCHES, Alarms
from speech.monitoring.dashboard import ASYNCHRONOUS, dashboard
from speech.monitoring.logs import SpeechLogs
from speech.monitoring.metrics import Source
from speech.monitoring.topic import alarm_topic
from speech.stages import Stage
from speech.toolchain import tag


class AsyncStack(Stack):
    """The same model as the real-time endpoint's, on instances of its own."""

    def __init__(
        self,
        scope: Construct,
        id: str,  # noqa: A002
        *,
        stage: Stage,
        foundation: FoundationStack,
        env: Environment,
    ) -> None:
        super().__init__(scope, id, env=env, description=f"s1-mini {stage.name}: asynchronous endpoint")
        name, key = f"{stage.endpoint_name}-async", foundation.storage.key
        source = Source(name=name, dimensions={"EndpointName": name}, log_group=f"/aws/sagemaker/Endpoints/{name}")
        done, failed = (
            sns.Topic(self, end.capitalize(), topic_name=f"{name}-{end}", master_key=key, enforce_ssl=True)
            for end in ("done", "failed")
        )
        topic = alarm_topic(self, stage=stage, base_name=name, key=key)
        logs = SpeechLogs(self, "Logs", stage=stage, source=source, key=key)
        alarms = Alarms(self, "Watch", source=source, watches=ASYNC_WATCHES, topic=topic).by_name
        endpoint = AsyncEndpoint(
            self, "Endpoint", stage=stage, foundation=foundation, name=name, done=done, failed=failed
        )
        endpoint.resource.add_resource_dependency(logs.group)
        BacklogScaling(self, "Scaling", stage=stage, endpoint=endpoint)
        dashboard(self, name=name, region=stage.region, pages=[(source, ASYNCHRONOUS)], alarms=list(alarms.values()))
        tag(self, stage)
        CfnOutput(self, "EndpointName", value=name)
