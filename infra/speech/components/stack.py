"""A stage whose instances are shared: many models and voices, a table of who speaks which voice, routing by voice."""

from __future__ import annotations

import json
from collections.abc import Sequence

from aws_cdk import CfnOutput, Environment, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_ssm as ssm
from constructs import Construct

from speech.components.component import SpeechComponent, component_name
from speech.components.endpoint import SharedEndpoint
from speech.foundation.stack import FoundationStack
from speech.monitoring.alarms import Alarms, component_watches, rollback_watches
from speech.monitoring.dashboard import COMPONENT, dashboard
from speech.monitoring.logs import SpeechLogs
from speech.monitoring.metrics import Source
from speech.monitoring.topic import alarm_topic
from speech.stages import ComponentModel, Components, Stage
from speech.toolchain import tag


class ComponentsStack(Stack):
    """One endpoint, a component for each model; also the stage that goes down to no instance, with one component."""

    def __init__(
        self,
        scope: Construct,
        id: str,  # noqa: A002
        *,
        stage: Stage,
        foundation: FoundationStack,
        components: Components,
        endpoint_name: str,
        env: Environment,
    ) -> None:
        super().__init__(scope, id, env=env, description=f"s1-mini {stage.name}: models that share instances")
        endpoint = SharedEndpoint(
            self,
            "Endpoint",
            stage=stage,
            foundation=foundation,
            name=endpoint_name,
            instance_type=components.instance_type,
            min_instances=components.min_instances,
            max_instances=components.max_instances,
            prefix_bytes=components.prefix_bytes if any(model.voices for model in components.models) else None,
        )
        topic = alarm_topic(self, stage=stage, base_name=endpoint_name, key=foundation.storage.key)
        sources = [_source(endpoint_name, model) for model in components.models]
        alarms: list[cloudwatch.CfnAlarm] = []
        for model, source in zip(components.models, sources, strict=True):
            room = Construct(self, model.name.capitalize())
            SpeechLogs(room, "Logs", stage=stage, source=source, key=foundation.storage.key)
            watches = (*component_watches(stage), *rollback_watches(stage))
            made = Alarms(room, "Alarms", source=source, watches=watches, topic=topic).by_name
            SpeechComponent(
                room,
                "Component",
                stage=stage,
                foundation=foundation,
                endpoint=endpoint,
                spoken=model,
                instance_type=components.instance_type,
                rollback=[alarm for name, alarm in made.items() if name.startswith("rollback-")],
            )
            alarms += made.values()
        pages = [(source, COMPONENT) for source in sources]
        dashboard(self, name=endpoint_name, region=stage.region, pages=pages, alarms=alarms)
        self._voices(stage, endpoint_name, components.models)
        tag(self, stage)
        CfnOutput(self, "EndpointName", value=endpoint_name)

    def _voices(self, stage: Stage, endpoint_name: str, models: Sequence[ComponentModel]) -> None:
        """Write down where each voice is: callers read it once and give both names with every request."""
        table = {
            voice: {
                "endpoint": endpoint_name,
                "component": component_name(endpoint_name, model),
                "prefix_aware_id": voice,
            }
            for model in models
            for voice in model.voices
        }
        if not table:
            return
        ssm.CfnParameter(
            self,
            "Voices",
            name=f"/s1-mini/{stage.name}/voices",
            type="String",
            tier="Intelligent-Tiering",
            description="voice: EndpointName, InferenceComponentName, PrefixAwareId",
            value=json.dumps(table, sort_keys=True),
        )


def _source(endpoint_name: str, model: ComponentModel) -> Source:
    name = component_name(endpoint_name, model)
    return Source(
        name=name,
        dimensions={"InferenceComponentName": name},
        log_group=f"/aws/sagemaker/InferenceComponents/{name}",
    )
