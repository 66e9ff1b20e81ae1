"""Template checks: AWS Solutions (cdk-nag), CloudFormation's schemas (cfn-lint), our own rules (guard)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deployments import CASES, deployment

pytestmark = pytest.mark.infra
INFRA = Path(__file__).parents[2] / "infra"

# (rule, a word of its message): the justification
EXPLAINED = {("W3037", "invokeendpointwithbidirectionalstream"): "newer than the linter's list of SageMaker's actions"}


def templates(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.template.json"))


def test_a_finding_fails_the_synthesis(tmp_path: Path) -> None:
    from aws_cdk import Stack
    from aws_cdk import aws_sns as sns
    from speech.toolchain import new_app

    app = new_app(outdir=str(tmp_path))
    sns.Topic(Stack(app, "careless"), "Topic")

    with pytest.raises(RuntimeError, match=r"AwsSolutions-SNS"):
        app.synth()


def test_the_templates_pass_cloudformations_schemas(assembly: Path) -> None:
    from cfnlint.api import ManualArgs, lint_file

    config = ManualArgs(regions=["us-east-1", "eu-central-1"])
    found = [
        f"{file.name}: {match.rule.id} {match.message[:200]}"
        for file in templates(assembly)
        for match in lint_file(file, config=config)
        if not any(match.rule.id == rule and word in match.message for rule, word in EXPLAINED)
    ]

    assert not found, "\n".join(found)


def test_the_templates_follow_the_rules(assembly: Path) -> None:
    for file in templates(assembly):
        report = guard(json.loads(file.read_text(encoding="utf-8")))
        assert not report.not_compliant, (file.name, [str(each)[:400] for each in report.not_compliant])


@pytest.mark.parametrize(("form", "values"), CASES)
def test_the_templates_of_the_commands_follow_the_rules(form: str, values: dict[str, Any]) -> None:
    from s1_mini.aws.template import build_template

    report = guard(build_template(deployment(form, **values)))

    assert not report.not_compliant, [str(each)[:400] for each in report.not_compliant]


@pytest.mark.parametrize(
    ("kind", "properties"),
    [
        ("AWS::SNS::Topic", {}),
        ("AWS::Logs::LogGroup", {"RetentionInDays": 30}),
        ("AWS::SageMaker::Endpoint", {"EndpointConfigName": "x"}),
        ("AWS::SageMaker::Model", {"PrimaryContainer": {"Image": "x"}}),
        ("AWS::ECR::Repository", {"ImageTagMutability": "MUTABLE"}),
        ("AWS::IAM::Role", {"ManagedPolicyArns": ["arn:aws:iam::aws:policy/AmazonSageMakerFullAccess"]}),
        ("AWS::EC2::SecurityGroup", {"SecurityGroupIngress": [{"CidrIp": "0.0.0.0/0"}]}),
        ("AWS::CloudWatch::Alarm", {"TreatMissingData": "missing"}),
    ],
)
def test_the_rules_detect_violations(kind: str, properties: dict[str, Any]) -> None:
    assert guard({"Resources": {"Careless": {"Type": kind, "Properties": properties}}}).not_compliant


def guard(template: dict[str, Any]) -> Any:
    import cfn_guard_rs

    return cfn_guard_rs.run_checks(template, (INFRA / "rules" / "speech.guard").read_text(encoding="utf-8"))


def test_a_stage_is_synthesised_without_network_and_credentials(tmp_path: Path) -> None:
    copy = tmp_path / "infra"
    shutil.copytree(INFRA, copy, ignore=shutil.ignore_patterns("cdk.out"))
    (tmp_path / "src").symlink_to(INFRA.parent / "src")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "CDK_"))}
    environment |= {"S1_MINI_STAGE": "staging", "HTTPS_PROXY": "http://127.0.0.1:9"}
    command = [*_unplugged(), sys.executable, str(copy / "app.py")]

    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.endswith(f"The templates are in {copy / 'cdk.out'}\n")
    assert len(templates(copy / "cdk.out")) == 3


def _unplugged() -> list[str]:
    """Return a command prefix that removes the network, where the system allows it; empty elsewhere."""
    prefix = ["unshare", "--map-root-user", "--net"]
    has_unshare = shutil.which("unshare") is not None
    works = has_unshare and subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    return prefix if works else []


def test_an_invalid_stage_is_reported_in_one_sentence_with_its_name(tmp_path: Path) -> None:
    environment = {**os.environ, "S1_MINI_STAGE": "live", "CDK_OUTDIR": str(tmp_path)}
    command = [sys.executable, str(INFRA / "app.py")]

    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr == "infra: stage='live' is not one of dev, staging, prod, shared\n"
