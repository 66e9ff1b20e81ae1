"""The app with its checks, the stacks of a stage, and justifications of findings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import cdk_nag
from aws_cdk import Acknowledgment, App, Stack, Validations
from aws_cdk import aws_ssm as ssm
from constructs import IConstruct

from speech.stages import Stage

FLAGS = {
    "@aws-cdk/aws-s3:serverAccessLogsUseBucketPolicy": True,  # otherwise access logs need ACLs
    "@aws-cdk/aws-iam:minimizePolicies": True,
}


def new_app(*, outdir: str | None = None, check: bool = True) -> App:
    """Return an app whose synthesis fails on a finding of AWS Solutions' rules."""
    app = App(outdir=outdir, analytics_reporting=False, context=FLAGS)
    if check:
        Validations.of(app).add_plugins(cdk_nag.AwsSolutionsChecks(app, verbose=True))
    return app


def compose(app: App, stage: Stage) -> None:
    """Add the stacks of the stage: foundation, one per endpoint, and the voices."""
    from speech.endpoint import EndpointStack
    from speech.foundation.stack import FoundationStack

    foundation = FoundationStack(app, stage)
    stacks = {each.deployment.name: EndpointStack(app, stage, each, foundation) for each in stage.endpoints}
    for each in stage.endpoints:
        if each.deployment.endpoint is not None:
            stacks[each.deployment.name].add_stack_dependency(stacks[each.deployment.endpoint])
    if any(each.voices for each in stage.endpoints):
        voices = _voices(app, stage)
        for stack in stacks.values():
            voices.add_stack_dependency(stack)


def _voices(app: App, stage: Stage) -> Stack:
    """Return the stack with the parameter that maps each voice to its component."""
    table = {
        voice: {
            "endpoint": each.deployment.endpoint or each.deployment.name,
            "component": each.deployment.name,
            "prefix_aware_id": voice,
        }
        for each in stage.endpoints
        for voice in each.voices
    }
    stack = Stack(app, f"{stage.prefix}-voices", **stack_options(stage, "component of each voice"))
    ssm.CfnParameter(
        stack,
        "Voices",
        name=f"/s1-mini/{stage.name}/voices",
        type="String",
        tier="Intelligent-Tiering",
        description="voice: EndpointName, InferenceComponentName, PrefixAwareId",
        value=json.dumps(table, sort_keys=True),
    )
    return stack


def stack_options(stage: Stage, contents: str) -> dict[str, Any]:
    """Return region, account, tags and description of a stack. Synthesis works offline without an account."""
    return {
        "env": {"region": stage.region, "account": stage.account or None},
        "tags": {"project": "s1-mini", "stage": stage.name},  # CloudFormation adds these tags to the resources
        "description": f"s1-mini {stage.name}: {contents}",
    }


def explain(scope: IConstruct, resources: Sequence[str], *, reason: str) -> None:
    """Acknowledge each wildcard of a statement's resources separately, so that every other wildcard stays a finding."""
    for resource in map(_as_finding, map(Stack.of(scope).resolve, resources)):
        if "*" in resource:
            rule = f"AwsSolutions::AwsSolutions-IAM5[Resource::{resource}]"
            Validations.of(scope).acknowledge(Acknowledgment(id=rule, reason=reason))


def _as_finding(value: Any) -> str:
    match value:
        case {"Ref": name}:
            return f"<{name}>"
        case {"Fn::GetAtt": [name, attribute]}:
            return f"<{name}.{attribute}>"
        case {"Fn::Join": [separator, parts]}:
            return str(separator).join(map(_as_finding, parts))
    return str(value)
