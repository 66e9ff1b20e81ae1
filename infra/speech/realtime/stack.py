"""The stack that speaks in real time: alarms first, for the endpoint's rollouts look at them."""

from __future__ import annotations

from aws_cdk import CfnOutput, Environment, Stack
from constructs import Construct

from speech.foundation.stack import FoundationStack
from speech.monitoring.alarms import Alarms, realtime_watches, rollback_watches
from speech.monitoring.dashboard import REALTIME, dashboard
from speech.monitoring.logs import SpeechLogs
from speech.monitoring.metrics import Source
from speech.monitoring.topic import alarm_topic
from speech.realtime.endpoint import VARIANT, RealtimeEndpoint
from speech.realtime.scaling import InstanceScaling
from speech.stages import Stage
from speech.toolchain import tag


class RealtimeStack(Stack):
    """One endpoint with one model, its scaling, and what is seen of it."""

    def __init__(
        self,
        scope: Construct,
        id: str,  # noqa: A002
        *,
        stage: Stage,
        foundation: FoundationStack,
        env: Environment,
    ) -> None:
        super().__init__(scope, id, env=env, description=f"s1-mini {stage.name}: real-time endpoint")
        name = stage.endpoint_name
        source = Source(
            name=name,
            dimensions={"EndpointName": name, "VariantName": VARIANT},
            log_group=f"/aws/sagemaker/Endpoints/{name}",
        )
        topic = alarm_topic(self, stage=stage, base_name=name, key=foundation.storage.key)
        logs = SpeechLogs(self, "Logs", stage=stage, source=source, key=foundation.storage.key)
        watches = (*realtime_watches(stage), *rollback_watches(stage))
        alarms = Alarms(self, "Watch", source=source, watches=watches, topic=topic).by_name
        rollback = [alarm for key, alarm in alarms.items() if key.startswith("rollback-")]
        endpoint = RealtimeEndpoint(self, "Endpoint", stage=stage, foundation=foundation, rollback=rollback)
        endpoint.resource.add_resource_dependency(logs.group)
        InstanceScaling(self, "Scaling", stage=stage, endpoint=endpoint.resource)
        dashboard(self, name=name, region=stage.region, pages=[(source, REALTIME)], alarms=list(alarms.values()))
        tag(self, stage)
        CfnOutput(self, "EndpointName", value=name)
