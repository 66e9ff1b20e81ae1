"""Deployments as CloudFormation stacks: create, update, describe, list and delete them, and watch their events."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from s1_mini.aws import batch, preflight
from s1_mini.aws.clients import Clients
from s1_mini.aws.deployment import OWNER_TAG, Deployment, Scaling, check_name
from s1_mini.aws.display import POLL_S, Display, Waiter
from s1_mini.aws.failures import About, explained, find, reason
from s1_mini.aws.template import build_template, read_template, tags
from s1_mini.exceptions import ConfigurationError, DeploymentError

# CREATE_FAILED is not final: CloudFormation deletes the stack after it, because of OnFailure=DELETE.
FINAL = ("CREATE_COMPLETE", "ROLLBACK_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "DELETE_COMPLETE")
BROKEN = ("ROLLBACK_FAILED", "UPDATE_ROLLBACK_FAILED", "DELETE_FAILED", "UPDATE_FAILED")
NO_CHANGES = r"didn't contain changes|No updates are to be performed"


class Stacks:
    """The endpoints of one account and region. All methods raise only `S1MiniError`."""

    def __init__(
        self,
        region: str | None = None,
        profile: str | None = None,
        *,
        display: Display | None = None,
        limit_s: float = 3600.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._waiter = Waiter(display or Display(), limit_s, sleep)
        with explained(About(region=region)):
            self.clients = Clients(region, profile)
        self._progress = _Progress(self.clients, self._waiter)

    def create(self, deployment: Deployment, *, wait: bool = True) -> None:
        """Create the endpoint, or run the batch.

        If a resource cannot be created, CloudFormation deletes the others. If this method stops waiting, AWS continues.
        """
        name = deployment.name
        preflight.check_instance_types(deployment)
        with _explained(self.clients, name, "create"):
            owner = preflight.account(self.clients)
            deployment.check_region(self.clients.region)
            self._check_free(deployment)
            preflight.check_artifact(self.clients, deployment, owner)
            if deployment.form == "batch":
                batch.run(self.clients, deployment, self._waiter if wait else None)
                return
            stack = self._cloudformation.create_stack(
                StackName=stack_name(name),
                TemplateBody=json.dumps(build_template(deployment)),
                Tags=tags(deployment),
                OnFailure="DELETE",
                ClientRequestToken=uuid.uuid4().hex,  # makes a retry after a lost response idempotent
            )
        if wait:
            self._progress.watch(stack["StackId"], name, "create", set())

    def update(self, deployment: Deployment, *, wait: bool = True) -> bool:
        """Change the endpoint and keep its scaling; return False if there is nothing to change."""
        if deployment.form == "batch":
            raise ConfigurationError("form='batch': a batch cannot be updated; run `s1-mini endpoint create`")
        preflight.check_instance_types(deployment)
        with _explained(self.clients, deployment.name, "update"):
            owner = preflight.account(self.clients)
            deployment.check_region(self.clients.region)
            stack, before = self._changeable(deployment.name)
            _check_change(before, deployment)
            preflight.check_artifact(self.clients, deployment, owner)
        return self._change(stack, deployment.changed(scaling=before.scaling), wait=wait)

    def autoscale(self, name: str, scaling: Scaling | None) -> bool:
        """Change only the scaling (None: remove it); return False if there is nothing to change."""
        with _explained(self.clients, name, "autoscale"):
            stack, before = self._changeable(name)
        return self._change(stack, before.changed(scaling=scaling), wait=True)

    def plan_scaling(self, name: str, scaling: Scaling) -> Deployment:
        """Return the deployment that `autoscale` would submit."""
        with _explained(self.clients, name, "plan"):
            return self._changeable(name)[1].changed(scaling=scaling)

    def describe(self, name: str) -> dict[str, Any]:
        """Return the state of the endpoint and its resources."""
        with _explained(self.clients, name, "describe"):
            stack = self._find(name)
            if stack is None:
                if (job := batch.describe(self.clients, name)) is not None:
                    return job
                raise self._missing(name)
            resources = self._resources(stack)
            endpoint = self._endpoint(resources) or {}
            deployment = self._deployment(stack)
            events = [] if _is_busy(stack) else self._progress.events(stack["StackId"])
        why = endpoint.get("FailureReason") or _first_failure(events)
        return {
            "name": name,
            "stack": stack["StackName"],
            "stack_status": stack["StackStatus"],
            "status": endpoint.get("EndpointStatus", "missing"),
            "reason": why if "FAILED" in stack["StackStatus"] or "ROLLBACK" in stack["StackStatus"] else "",
            "form": deployment.form,
            "instance_type": list(deployment.instance_type),
            "instances": _instances(endpoint),
            "scaling": deployment.scaling and deployment.scaling.model_dump(mode="json"),
            "resources": {each["LogicalResourceId"]: each.get("PhysicalResourceId", "") for each in resources},
        }

    def list_all(self) -> list[dict[str, Any]]:
        """For each endpoint, return name, status, number of instances and time of the last change, sorted by name."""
        listed = []
        with explained(About(region=self.clients.region, doing="list the endpoints")):
            for page in self._cloudformation.get_paginator("describe_stacks").paginate():
                for stack in page["Stacks"]:
                    name = _owner(stack)
                    if name is None:
                        continue
                    endpoint = self._endpoint(self._resources(stack)) or {}
                    status = endpoint.get("EndpointStatus", stack["StackStatus"])
                    changed = stack.get("LastUpdatedTime", stack["CreationTime"])
                    count = sum(each["current"] or 0 for each in _instances(endpoint))
                    listed.append({"name": name, "status": status, "instances": count, "changed": changed})
        return sorted(listed, key=lambda each: str(each["name"]))

    def delete(self, name: str) -> None:
        """Delete the stack and the batch of that name; an endpoint without a stack and its models are refused."""
        with _explained(self.clients, name, "delete"):
            stack = self._find(name)
            if stack is None:
                # The endpoint is looked up first, because its model may have a name like the models of a batch.
                if self._find_endpoint(name) or not batch.delete(self.clients, name, self._waiter):
                    raise self._missing(name)
                return
            if stack["StackStatus"].startswith("UPDATE_") and _is_busy(stack):
                raise _busy(name, stack)
            seen = {event["EventId"] for event in self._progress.events(stack["StackId"])}
            self._cloudformation.delete_stack(StackName=stack["StackId"])
        self._progress.watch(stack["StackId"], name, "delete", seen)
        with _explained(self.clients, name, "delete"):
            batch.delete(self.clients, name, self._waiter)

    @property
    def _cloudformation(self) -> Any:
        return self.clients["cloudformation"]

    def _find(self, name: str) -> dict[str, Any] | None:
        """Return the stack of `name`, or None.

        Raises `ConfigurationError` for an invalid name, and `DeploymentError` if another program created the stack.
        """
        found = find(self._cloudformation.describe_stacks, StackName=stack_name(check_name(name)))
        if found is None:
            return None
        stack: dict[str, Any] = found["Stacks"][0]
        if _owner(stack) != name:
            raise DeploymentError(
                f"stack {stack['StackName']} has no tag {OWNER_TAG}={name}, so `s1-mini endpoint` did not create it: "
                "choose another name, or change it where it was created"
            )
        return stack

    def _check_free(self, deployment: Deployment) -> None:
        name = deployment.name
        stack = None if deployment.form == "batch" else self._find(name)
        if stack is not None:
            if _is_busy(stack):
                raise _busy(name, stack)
            raise DeploymentError(
                f"endpoint {name} already exists ({stack['StackStatus']}): change it with `s1-mini endpoint update "
                f"{name} …`, or delete it first with `s1-mini endpoint delete {name}`"
            )
        if deployment.form != "batch" and self._find_endpoint(name):
            raise DeploymentError(
                f"endpoint {name} already exists, but `s1-mini endpoint` did not create it: choose another name"
            )

    def _changeable(self, name: str) -> tuple[dict[str, Any], Deployment]:
        stack = self._find(name)
        if stack is None:
            raise self._missing(name)
        if _is_busy(stack):
            raise _busy(name, stack)
        if stack["StackStatus"] == "UPDATE_ROLLBACK_FAILED":
            raise DeploymentError(
                f"endpoint {name}: its last rollback failed; run `aws cloudformation continue-update-rollback "
                f"--stack-name {stack['StackName']}`, then this command again"
            )
        if not stack["StackStatus"].endswith("_COMPLETE") or stack["StackStatus"] == "ROLLBACK_COMPLETE":
            raise DeploymentError(
                f"endpoint {name} is {stack['StackStatus']} and cannot be changed: run `s1-mini endpoint delete "
                f"{name}`, then create it again"
            )
        return stack, self._deployment(stack)

    def _deployment(self, stack: Mapping[str, Any]) -> Deployment:
        answer = self._cloudformation.get_template(StackName=stack["StackId"], TemplateStage="Original")
        body = answer["TemplateBody"]
        return read_template(json.loads(body) if isinstance(body, str) else body)

    def _change(self, stack: Mapping[str, Any], deployment: Deployment, *, wait: bool) -> bool:
        name, stack_id, title = deployment.name, stack["StackId"], stack["StackName"]
        with _explained(self.clients, name, "update"):
            seen = {event["EventId"] for event in self._progress.events(stack_id)}
            change = self._cloudformation.create_change_set(
                StackName=title,
                ChangeSetName=f"update-{uuid.uuid4().hex}",
                ChangeSetType="UPDATE",
                TemplateBody=json.dumps(build_template(deployment)),
                Tags=tags(deployment),
            )["Id"]
            if not self._is_ready(change, title):
                return False
            self._cloudformation.execute_change_set(ChangeSetName=change, StackName=title)
        if wait:
            self._progress.watch(stack_id, name, "update", seen)
        return True

    def _is_ready(self, change: str, title: str) -> bool:
        """Wait for the change set; return False if it has no changes."""
        which = {"ChangeSetName": change, "StackName": title}
        while (answer := self._cloudformation.describe_change_set(**which))["Status"] != "CREATE_COMPLETE":
            if answer["Status"] == "FAILED":
                self._cloudformation.delete_change_set(**which)
                why = answer.get("StatusReason", "")
                if re.search(NO_CHANGES, why):
                    return False
                raise DeploymentError(f"CloudFormation rejected the change: {why}")
            self._waiter.sleep(POLL_S / 5)
        return True

    def _resources(self, stack: Mapping[str, Any]) -> list[dict[str, Any]]:
        pages = self._cloudformation.get_paginator("list_stack_resources").paginate(StackName=stack["StackId"])
        return [each for page in pages for each in page["StackResourceSummaries"]]

    def _endpoint(self, resources: list[dict[str, Any]]) -> dict[str, Any] | None:
        for each in resources:
            if each["LogicalResourceId"] == "Endpoint" and each.get("PhysicalResourceId"):
                return self._find_endpoint(each["PhysicalResourceId"].rpartition("/")[2])
        return None

    def _find_endpoint(self, name: str) -> dict[str, Any] | None:
        """Return SageMaker's description of the endpoint, or None."""
        return find(self.clients["sagemaker"].describe_endpoint, EndpointName=name)

    def _missing(self, name: str) -> DeploymentError:
        """Return the error for a name without a stack."""
        if self._find_endpoint(name):
            return DeploymentError(
                f"endpoint {name} has no stack {stack_name(name)}, so `s1-mini endpoint` did not create it: change or "
                "delete it where it was created"
            )
        return DeploymentError(
            f"endpoint {name} does not exist in {self.clients.region}: set --region to its region, or create it with "
            f"`s1-mini endpoint create {name} …`"
        )


class _Progress:
    """The events of stacks that AWS is changing."""

    def __init__(self, clients: Clients, waiter: Waiter) -> None:
        self._clients, self._waiter = clients, waiter

    def watch(self, stack_id: str, name: str, verb: str, seen: set[str]) -> None:
        """Show events until the stack has a final state. Raises `DeploymentError` unless it succeeded."""
        going_on = f"AWS continues to {verb} {name}: `s1-mini endpoint describe {name}` shows its progress" + (
            f", `s1-mini endpoint delete {name}` removes it" if verb == "create" else ""
        )
        try:
            with _explained(self._clients, name, verb), self._waiter.display.waiting(f"{verb} {name}") as show:
                status, events = self._wait(stack_id, seen, show)
        except KeyboardInterrupt:
            raise DeploymentError(f"interrupted. {going_on}") from None
        except DeploymentError as error:
            raise DeploymentError(f"{str(error).rstrip('.')}. {going_on}") from error
        if status == f"{verb.upper()}_COMPLETE":
            return
        if not status:
            raise DeploymentError(f"{verb} {name}: not finished after {self._waiter.limit_s:.0f} s. {going_on}")
        cause = reason(_first_failure(events), name, self._clients.region).rstrip(".")
        ending = {
            "DELETE_COMPLETE": f"Nothing that was created for {name} is left",
            "UPDATE_ROLLBACK_COMPLETE": f"{name} runs again as before",
            "UPDATE_ROLLBACK_FAILED": "The rollback failed as well: run `aws cloudformation continue-update-rollback "
            f"--stack-name {stack_name(name)}`",
        }.get(status, f"Resources are left: run `s1-mini endpoint delete {name}`")
        raise DeploymentError(f"{verb} {name}: {cause}. {ending}")

    def _wait(self, stack_id: str, seen: set[str], show: Callable[[str], None]) -> tuple[str, list[dict[str, Any]]]:
        begin, fresh = time.monotonic(), []
        while True:
            status = self._clients["cloudformation"].describe_stacks(StackName=stack_id)["Stacks"][0]["StackStatus"]
            for event in self.events(stack_id):
                if event["EventId"] not in seen:
                    seen.add(event["EventId"])
                    fresh.append(event)
                    show(f"{event['LogicalResourceId']} {event['ResourceStatus']}")
            if status in FINAL or status in BROKEN:
                return status, fresh
            if time.monotonic() - begin >= self._waiter.limit_s:
                return "", fresh
            self._waiter.sleep(POLL_S)

    def events(self, stack_id: str) -> list[dict[str, Any]]:
        """Return the events of the stack, the oldest first."""
        pages = self._clients["cloudformation"].get_paginator("describe_stack_events").paginate(StackName=stack_id)
        return [event for page in pages for event in page["StackEvents"]][::-1]


def _explained(clients: Clients, name: str, verb: str) -> Any:
    return explained(About(name, clients.region, f"{verb} {name}"))


def stack_name(name: str) -> str:
    """Return the name of the stack of an endpoint."""
    return f"s1-mini-{name}"


def _instances(endpoint: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the current and desired number of instances of each variant."""
    keys = {"variant": "VariantName", "current": "CurrentInstanceCount", "desired": "DesiredInstanceCount"}
    return [{key: each.get(field) for key, field in keys.items()} for each in endpoint.get("ProductionVariants", [])]


def _owner(stack: Mapping[str, Any]) -> str | None:
    """Return the endpoint's name from the stack's tag."""
    return next((tag["Value"] for tag in stack.get("Tags", []) if tag["Key"] == OWNER_TAG), None)


def _is_busy(stack: Mapping[str, Any]) -> bool:
    return str(stack["StackStatus"]).endswith("_IN_PROGRESS")


def _busy(name: str, stack: Mapping[str, Any]) -> DeploymentError:
    return DeploymentError(
        f"endpoint {name} is being changed ({stack['StackStatus']}): wait until `stack_status` in "
        f"`s1-mini endpoint describe {name}` ends in _COMPLETE, then run this command again"
    )


def _first_failure(events: list[dict[str, Any]]) -> str:
    """Return the reason of the first failed event; later failures are consequences of it."""
    for event in events:
        why = event.get("ResourceStatusReason", "")
        if event["ResourceStatus"].endswith("_FAILED") and not re.search(r"cancell?ed", why, re.I):
            return str(why)
    return ""


def _check_change(before: Deployment, after: Deployment) -> None:
    """Raise `DeploymentError` for changes that SageMaker would reject minutes later."""
    name = before.name
    if after.form != before.form:
        raise DeploymentError(
            f"form={after.form!r}: endpoint {name} is {before.form}, which cannot change: create an endpoint with "
            f"another name, or delete this one first with `s1-mini endpoint delete {name}`"
        )
    if before.scaling and before.form != "components" and after.instance_type != before.instance_type:
        given, current = " ".join(after.instance_type), " ".join(before.instance_type)
        raise DeploymentError(
            f"instance_type={given!r}: {name} runs {current} and scales, so the type cannot change: run `s1-mini "
            f"endpoint autoscale {name} --off`, then this command, then autoscale again"
        )
