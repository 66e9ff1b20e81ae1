"""Put a stage's stacks together; both apps are one call of this."""

from __future__ import annotations

from aws_cdk import App

from speech.asynchronous.stack import AsyncStack
from speech.components.stack import ComponentsStack
from speech.foundation.stack import FoundationStack
from speech.realtime.stack import RealtimeStack
from speech.stages import ComponentModel, Components, Stage, StageError
from speech.toolchain import environment_of


def compose_speech(app: App, stage: Stage) -> None:
    """Add the stacks of one endpoint: foundation, real-time (or going to zero), asynchronous if the stage wants it."""
    env = environment_of(stage)
    foundation = FoundationStack(app, f"s1-mini-{stage.name}-foundation", stage=stage, env=env)
    if stage.capacity == "zero":
        ComponentsStack(
            app,
            f"s1-mini-{stage.name}-realtime",
            stage=stage,
            foundation=foundation,
            components=_one_component(stage),
            endpoint_name=stage.endpoint_name,
            env=env,
        )
    else:
        RealtimeStack(app, f"s1-mini-{stage.name}-realtime", stage=stage, foundation=foundation, env=env)
    if stage.asynchronous:
        AsyncStack(app, f"s1-mini-{stage.name}-async", stage=stage, foundation=foundation, env=env)


def compose_components(app: App, stage: Stage) -> None:
    """Add the stacks of many models on shared instances.

    Raises:
        StageError: the stage has no `[STAGE.components]`.
    """
    if stage.components is None:
        raise StageError(f"[{stage.name}.components] is missing: it says which models share instances")
    env = environment_of(stage)
    foundation = FoundationStack(app, f"s1-mini-{stage.name}-foundation", stage=stage, env=env)
    ComponentsStack(
        app,
        f"s1-mini-{stage.name}-components",
        stage=stage,
        foundation=foundation,
        components=stage.components,
        endpoint_name=f"{stage.endpoint_name}-shared",
        env=env,
    )


def _one_component(stage: Stage) -> Components:
    """Give the stage's model as the only component: a variant with a model of its own could not go below one."""
    model = ComponentModel(
        name="speech", model_prefix=stage.model_prefix, min_copies=stage.min_instances, max_copies=stage.max_instances
    )
    return Components(
        instance_type=stage.instance_type,
        min_instances=stage.min_instances,
        max_instances=stage.max_instances,
        models=(model,),
    )
