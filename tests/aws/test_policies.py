"""The policies in docs/policies allow what the commands call, and what CloudFormation calls for their stacks."""

from __future__ import annotations

import ast
import json
import re
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import boto3
import botocore.session
import pytest
from botocore import xform_name

from deployments import FORMS, deployment
from s1_mini.aws.deployment import Scaling
from s1_mini.aws.template import build_template

ROOT = Path(__file__).parents[2]
POLICIES = sorted((ROOT / "docs" / "policies").glob("*.json"))
SERVICES = ("cloudformation", "sagemaker", "sagemaker-runtime", "application-autoscaling", "cloudwatch", "s3", "sts")
OTHER_NAMES = {  # actions that are not named like the operation
    "head_bucket": "s3:ListBucket",
    "head_object": "s3:GetObject",
    "list_objects_v2": "s3:ListBucket",
    "list_parts": "s3:ListMultipartUploadParts",
    "list_multipart_uploads": "s3:ListBucketMultipartUploads",
    "create_multipart_upload": "s3:PutObject",
    "upload_part": "s3:PutObject",
    "complete_multipart_upload": "s3:PutObject",
    "invoke_endpoint_with_bidirectional_stream": "sagemaker:InvokeEndpointWithBidirectionalStream",
}
INVOKER = ("call.py", "bidirectional.py")


def read(name: str) -> list[dict[str, Any]]:
    """Return the statements of a policy, with lists of actions and resources."""
    statements = json.loads((ROOT / "docs" / "policies" / f"{name}.json").read_text(encoding="utf-8"))["Statement"]
    lists = ("Action", "Resource")
    return [
        {key: [value] if key in lists and isinstance(value, str) else value for key, value in each.items()}
        for each in statements
    ]


def allowed(name: str, action: str, resource: str = "*") -> bool:
    """Return whether the policy allows an action; `*` stands for any resource. Conditions count as met."""
    return any(
        action in each["Action"] and (resource == "*" or any(fnmatchcase(resource, one) for one in each["Resource"]))
        for each in read(name)
    )


@cache  # botocore reads and parses the service models again for each session
def operations() -> dict[str, set[str]]:
    """Return the actions of all operations that boto3 knows, by their Python names."""
    session, found = botocore.session.get_session(), dict[str, set[str]]()
    for service in SERVICES:
        prefix = {"sagemaker-runtime": "sagemaker"}.get(service, service)
        for name in session.get_service_model(service).operation_names:
            found.setdefault(xform_name(name), set()).add(f"{prefix}:{name}")
    return found | {name: {action} for name, action in OTHER_NAMES.items()}


def called(path: Path) -> set[str]:
    """Return the operations that a module calls, or passes by name to a paginator or helper."""
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    names = {node.attr if isinstance(node, ast.Attribute) else getattr(node, "value", None) for node in tree}
    return {name for name in names if isinstance(name, str)} & (set(operations()) - {"search"})  # re.search


def test_every_call_of_the_commands_is_allowed_by_the_policy_for_their_user() -> None:
    source, actions = ROOT / "src" / "s1_mini", operations()
    paths = [*(source / "aws").glob("*.py"), source / "sagemaker" / "upload.py"]
    calls = {(path.name, name) for path in paths for name in called(path)}

    assert {("stack.py", "create_stack"), ("call.py", "invoke_endpoint_async"), ("upload.py", "upload_part")} <= calls
    refused = {
        (file, name)
        for file, name in calls
        if not any(allowed("invoker" if file in INVOKER else "deployer", action) for action in actions[name])
    }
    assert refused == set()


@pytest.fixture(scope="module")
def handlers() -> dict[str, Any]:
    """The calls of CloudFormation by type of resource."""
    folder = files("cfnlint").joinpath("data/schemas/resources")
    texts = [path.read_text(encoding="utf-8") for path in folder.iterdir() if path.name.endswith(".json")]
    return {schema["typeName"]: schema.get("handlers", {}) for schema in map(json.loads, texts)}


@pytest.mark.parametrize("form", [form for form in FORMS if form != "batch"])
def test_every_call_of_cloudformation_for_a_stack_is_allowed(form: str, handlers: dict[str, Any]) -> None:
    template = build_template(deployment(form, scaling=Scaling()))

    for kind in {each["Type"] for each in template["Resources"].values()}:
        verbs = handlers[kind]
        needed = {one for verb in ("create", "read", "update", "delete") for one in verbs[verb]["permissions"]}
        assert {one for one in needed if not one.startswith("lambda:") and not allowed("deployer", one)} == set(), kind


@pytest.mark.parametrize(
    ("policy", "action", "resource"),
    [
        ("deployer", "cloudformation:DeleteStack", "arn:aws:cloudformation:eu-west-1:123456789012:stack/other/1"),
        ("deployer", "iam:PassRole", "arn:aws:iam::123456789012:role/admin"),
        ("deployer", "s3:GetObject", "arn:aws:s3:::another-bucket/1/model.tar.gz"),
        ("container", "s3:GetObject", "arn:aws:s3:::my-bucket/2/model.tar.gz"),
        ("container", "s3:PutObject", "arn:aws:s3:::my-bucket/1/model.tar.gz"),
        ("invoker", "sagemaker:InvokeEndpoint", "arn:aws:sagemaker:eu-west-1:123456789012:endpoint/other"),
        ("invoker", "sagemaker:DeleteEndpoint", "arn:aws:sagemaker:eu-west-1:123456789012:endpoint/hello"),
    ],
)
def test_a_policy_allows_nothing_else(policy: str, action: str, resource: str) -> None:
    assert not allowed(policy, action, resource)


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.stem)
def test_a_policy_has_no_wildcard_actions_and_fits_into_a_role(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert not [one for each in read(path.stem) for one in each["Action"] if "*" in one]
    assert len(re.sub(r"\s", "", text)) <= 6144  # limit of a managed policy


def test_iam_accepts_the_policies(aws: None) -> None:
    texts = {path.stem: path.read_text(encoding="utf-8") for path in POLICIES}
    iam = boto3.client("iam")
    iam.create_role(RoleName="s1-mini", AssumeRolePolicyDocument=texts.pop("trust"))
    for name, text in texts.items():
        iam.put_role_policy(RoleName="s1-mini", PolicyName=name, PolicyDocument=text)

    assert iam.list_role_policies(RoleName="s1-mini")["PolicyNames"] == list(texts)
