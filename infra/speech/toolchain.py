"""What both apps share: the app with its checks and tags, and the one way to explain a finding away."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import cdk_nag
from aws_cdk import Acknowledgment, App, Environment, Stack, Tags, Validations
from constructs import IConstruct

from speech.stages import Stage, StageError, read_stage

FLAGS = {
    "@aws-cdk/aws-s3:serverAccessLogsUseBucketPolicy": True,  # without it access logs need the old ACLs
    "@aws-cdk/aws-iam:minimizePolicies": True,
}


def new_app(*, outdir: str | None = None, check: bool = True) -> App:
    """Make an app that AWS Solutions' rules are run over when it is synthesised; a finding fails the synthesis."""
    app = App(outdir=outdir, analytics_reporting=False, context=FLAGS)
    if check:
        Validations.of(app).add_plugins(cdk_nag.AwsSolutionsChecks(app, verbose=True))
    return app


def synthesise(compose: Callable[[App, Stage], None], *, default: str) -> None:
    """Write the templates of the stage that `S1_MINI_STAGE` names; a mistake in a stage ends in a sentence, with 1."""
    app = new_app()
    try:
        compose(app, read_stage(os.environ.get("S1_MINI_STAGE") or default))
    except StageError as error:
        sys.exit(f"infra: {error}")
    app.synth()


def environment_of(stage: Stage) -> Environment:
    """Give the stage's region and, if the file names it, its account: without one, synthesis asks nobody anything."""
    return Environment(region=stage.region, account=stage.account or None)


def tag(scope: IConstruct, stage: Stage) -> None:
    """Tag all that can be tagged; cost reports and the guard rules ask for both."""
    Tags.of(scope).add("project", "s1-mini")
    Tags.of(scope).add("stage", stage.name)


def explain(scope: IConstruct, rules: Sequence[str], *, reason: str) -> None:
    """Acknowledge findings at one construct and below, with the sentence why they are right there."""
    for rule in rules:
        Validations.of(scope).acknowledge(Acknowledgment(id=rule, reason=reason))


def explain_wildcards(scope: IConstruct, resources: Sequence[str], *, reason: str) -> None:
    """Acknowledge the wildcards among a statement's resources, each by itself: another one is still a finding."""
    wild = [_as_findings_write(Stack.of(scope).resolve(each)) for each in resources]
    explain(
        scope, [f"AwsSolutions::AwsSolutions-IAM5[Resource::{each}]" for each in wild if "*" in each], reason=reason
    )


def _as_findings_write(value: Any) -> str:
    match value:
        case {"Ref": name}:
            return f"<{name}>"
        case {"Fn::GetAtt": [name, attribute]}:
            return f"<{name}.{attribute}>"
        case {"Fn::Join": [separator, parts]}:
            return str(separator).join(map(_as_findings_write, parts))
    return str(value)
