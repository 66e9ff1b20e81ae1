"""AWS for tests: moto where it supports the service, a CloudFormation stand-in for states and failures."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws
from rich.console import Console

from deployments import BUCKET, REGION
from s1_mini.aws.display import Display
from s1_mini.aws.stack import Stacks
from service_models import problems

Events = list[tuple[str, str, str]]  # resource, status, reason
DONE = {"create": "CREATE_COMPLETE", "update": "UPDATE_COMPLETE", "delete": "DELETE_COMPLETE"}


class CloudFormation:
    """Stacks in memory. `course` has the states of the next operation; `events` what it reports; `refuse` its error."""

    def __init__(self) -> None:
        self.stacks: dict[str, dict[str, Any]] = {}
        self.templates: dict[str, Any] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.course: list[str] = []
        self.events: Events = []
        self.refuse: dict[str, tuple[str, str]] = {}
        self._log: list[dict[str, Any]] = []
        self._states: dict[str, Iterator[str]] = {}
        self._changes: dict[str, dict[str, Any]] = {}

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        def call(**given: Any) -> Any:
            assert list(problems("cloudformation", operation, given)) == []
            self.calls.append((operation, given))
            if operation in self.refuse:
                code, message = self.refuse[operation]
                raise ClientError({"Error": {"Code": code, "Message": message}}, operation)
            return getattr(self, f"_{operation}")(**given)

        return call

    def get_paginator(self, operation: str) -> Any:
        pages = getattr(self, operation)
        return type("Pages", (), {"paginate": staticmethod(lambda **given: [pages(**given)])})

    def add(self, name: str, tags: dict[str, str], status: str = "CREATE_COMPLETE") -> None:
        listed = [{"Key": key, "Value": value} for key, value in tags.items()]
        self.stacks[name] = {"StackName": name, "StackId": name, "Tags": listed, "CreationTime": datetime.now(UTC)}
        self.stacks[name]["StackStatus"] = status

    def _begin(self, name: str, verb: str) -> None:
        states = [*self.course] or [DONE[verb]]
        self._states[name] = itertools.chain(states, itertools.repeat(states[-1]))
        for resource, status, reason in self.events:
            event = {"EventId": str(len(self._log)), "LogicalResourceId": resource, "ResourceStatus": status}
            self._log.insert(0, event | {"ResourceStatusReason": reason})
        self.course, self.events = [], []

    def _create_stack(self, StackName: str, TemplateBody: str, Tags: Any, **_: Any) -> Any:  # noqa: N803
        self.add(StackName, {tag["Key"]: tag["Value"] for tag in Tags})
        self.templates[StackName] = json.loads(TemplateBody)
        self._begin(StackName, "create")
        return {"StackId": StackName}

    def _describe_stacks(self, StackName: str = "") -> Any:  # noqa: N803
        if StackName and StackName not in self.stacks:
            message = f"Stack with id {StackName} does not exist"
            raise ClientError({"Error": {"Code": "ValidationError", "Message": message}}, "DescribeStacks")
        for name in [StackName] if StackName else []:
            if name in self._states:
                self.stacks[name]["StackStatus"] = next(self._states[name])
        found = [self.stacks[StackName]] if StackName else list(self.stacks.values())
        if StackName and found[0]["StackStatus"] == "DELETE_COMPLETE":
            found = [self.stacks.pop(StackName)]
        return {"Stacks": found}

    def _describe_stack_events(self, **_: Any) -> Any:
        return {"StackEvents": self._log}

    def _list_stack_resources(self, StackName: str) -> Any:  # noqa: N803
        return {
            "StackResourceSummaries": [{"LogicalResourceId": each} for each in self.templates[StackName]["Resources"]]
        }

    def _get_template(self, StackName: str, **_: Any) -> Any:  # noqa: N803
        return {"TemplateBody": self.templates[StackName]}

    def _create_change_set(self, StackName: str, ChangeSetName: str, TemplateBody: str, **_: Any) -> Any:  # noqa: N803
        wanted = json.loads(TemplateBody)
        self._changes[ChangeSetName] = wanted
        same = wanted["Resources"] == self.templates[StackName]["Resources"]
        self._change = {"Status": "FAILED" if same else "CREATE_COMPLETE"}
        if same:
            self._change["StatusReason"] = "The submitted information didn't contain changes."
        return {"Id": ChangeSetName}

    def _describe_change_set(self, **_: Any) -> Any:
        return self._change

    def _delete_change_set(self, **_: Any) -> Any:
        return {}

    def _execute_change_set(self, StackName: str, ChangeSetName: str) -> Any:  # noqa: N803
        if "UPDATE_ROLLBACK_COMPLETE" not in self.course:
            self.templates[StackName] = self._changes[ChangeSetName]
        self._begin(StackName, "update")
        return {}

    def _delete_stack(self, StackName: str) -> Any:  # noqa: N803
        self._begin(StackName, "delete")
        return {}


@pytest.fixture
def aws(account: None) -> Iterator[None]:
    """An account with a bucket and an artifact in both forms."""
    with mock_aws():
        s3 = boto3.client("s3")
        s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        for key in ("1/model.tar.gz", "1/model.safetensors"):
            s3.put_object(Bucket=BUCKET, Key=key, Body=b"x" * 1000)
        yield


@pytest.fixture
def cloudformation() -> CloudFormation:
    return CloudFormation()


@pytest.fixture
def said() -> io.StringIO:
    """Text shown on stderr."""
    return io.StringIO()


@pytest.fixture
def stacks(aws: None, said: io.StringIO, cloudformation: CloudFormation) -> Callable[..., Stacks]:
    """Build `Stacks` on the stand-in, with waits that return at once."""

    def make(**more: Any) -> Stacks:
        built = Stacks(display=Display(Console(file=said, width=1000)), **{"sleep": lambda _: None, **more})
        built.clients._clients["cloudformation"] = cloudformation
        return built

    return make
