"""The verbs of `s1-mini endpoint`: look, check, make the calls, wait. What a terminal shows is the command line's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from s1_mini.aws.clients import Clients
from s1_mini.aws.failures import About, explained
from s1_mini.deploy import preflight
from s1_mini.deploy.call import AwsCall
from s1_mini.deploy.calls import create_calls, delete_calls, update_calls
from s1_mini.deploy.check import check_all
from s1_mini.deploy.display import Display
from s1_mini.deploy.find import Found, find, find_all, find_endpoint
from s1_mini.deploy.run import Runner
from s1_mini.deploy.scaling import autoscale_calls
from s1_mini.deploy.spec import Batch, Deployment, Scaling
from s1_mini.deploy.watch import Watch
from s1_mini.exceptions import ConfigurationError, DeploymentError


class Verbs:
    """What can be done with endpoints of one account and region. Every method raises `S1MiniError` alone."""

    def __init__(
        self,
        region: str | None = None,
        profile: str | None = None,
        *,
        display: Display | None = None,
        limit_s: float = 3600.0,
        poll_s: float = 10.0,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self.display = display or Display()
        with explained(About(region=region)):
            self.clients = Clients(region, profile)
        self._watch = Watch(self.clients, self.display, limit_s, poll_s)
        if sleep is not None:
            self._watch.sleep = sleep

    def create(self, deployment: Deployment, *, wait: bool = True) -> None:
        """Make the endpoint, or run the batch; if that fails, leave nothing of it."""
        calls = create_calls(deployment)
        check_all(calls)
        with explained(About(deployment.name, self.clients.region, f"create {deployment.name}")):
            owner = preflight.account(self.clients)
            if not isinstance(deployment.form, Batch):
                preflight.check_free(find_endpoint(self.clients, deployment.name))
            preflight.check_artifact(self.clients, deployment, owner)
        self._runner(deployment.name).make(calls, wait_for_last=wait)

    def update(self, deployment: Deployment, *, wait: bool = True) -> bool:
        """Make the endpoint what is wanted; give False if it is that already."""
        if isinstance(deployment.form, Batch):
            raise ConfigurationError("form='batch': a batch is run with `s1-mini endpoint create`, there is no update")
        check_all(create_calls(deployment))
        with explained(About(deployment.name, self.clients.region, f"update {deployment.name}")):
            owner = preflight.account(self.clients)
            preflight.check_changeable(find_endpoint(self.clients, deployment.name))
            found = find(self.clients, deployment.name)
            preflight.check_form(found, deployment)
            preflight.check_type_change(found, deployment)
            preflight.check_artifact(self.clients, deployment, owner)
        calls = update_calls(deployment, found.standing)
        self._runner(deployment.name).make(calls, wait_for_last=wait)
        return bool(calls)

    def describe(self, name: str) -> dict[str, Any]:
        """Give what stands under `name`. Raises `DeploymentError` if nothing does."""
        found = self._found(name)
        if not found.standing.lines() and not found.status:
            raise DeploymentError(
                f"there is no endpoint {name} in {self.clients.region}: name its region with --region, or make it "
                f"with `s1-mini endpoint create {name} …`"
            )
        machines = [
            {
                "variant": it["VariantName"],
                "instances": it.get("CurrentInstanceCount"),
                "wanted": it.get("DesiredInstanceCount"),
            }
            for it in found.details.get("ProductionVariants", [])
        ]
        scales = [{"what": it["ResourceId"], "min": it["MinCapacity"], "max": it["MaxCapacity"]} for it in found.scales]
        return {
            "name": name,
            "status": found.status or "gone",
            "reason": found.why,
            "form": found.form,
            "config": found.standing.config,
            "instance_type": found.instance_type,
            "machines": machines,
            "scales": scales,
            "stands": found.standing.lines(),
        }

    def list_all(self) -> list[dict[str, Any]]:
        """Give name, status, machines and the moment of the last change of each endpoint made here, by name."""
        with explained(About(region=self.clients.region, doing="list the endpoints")):
            found = list(find_all(self.clients))
        return [
            {
                "name": it.standing.name,
                "status": it.status,
                "instances": sum(at.get("CurrentInstanceCount", 0) for at in it.details.get("ProductionVariants", [])),
                "changed": it.details["LastModifiedTime"],
            }
            for it in sorted(found, key=lambda it: it.standing.name)
        ]

    def delete(self, name: str) -> list[str]:
        """Remove all that stands under `name`; give what that was."""
        found = self._found(name)
        with explained(About(name, self.clients.region, f"delete {name}")):
            preflight.check_ours(found)
            preflight.check_at_rest(found)
        if not found.standing.lines():
            raise DeploymentError(f"nothing named {name} stands in {self.clients.region}: check the name and --region")
        self._runner(name).make_each(delete_calls(found.standing))
        return found.standing.lines()

    def autoscale(self, name: str, scaling: Scaling) -> None:
        """Let the machines or copies of the endpoint follow the load."""
        found = self._resting(name)
        calls = autoscale_calls(name, found.form, replace(scaling, replicas=scaling.replicas or found.replicas))
        if found.scales:  # it stays, whatever fails
            calls = [replace(call, takes_back=None) for call in calls]
        self._runner(name).make(calls)

    def stop_scaling(self, name: str) -> bool:
        """Leave the number as it is from now on; give False if nothing scaled."""
        found = self._resting(name)
        standing = replace(
            found.standing,
            endpoint=False,
            configs=(),
            models=(),
            components=(),
            running_transform=False,
            alarms=tuple(alarm for alarm in found.standing.alarms if alarm.endswith("-from-zero")),
        )
        calls: list[AwsCall] = delete_calls(standing)
        self._runner(name).make_each(calls)
        return bool(calls)

    def _resting(self, name: str) -> Found:
        found = self._found(name)
        with explained(About(name, self.clients.region, f"autoscale {name}")):
            preflight.check_changeable(found)
        return found

    def _found(self, name: str) -> Found:
        with explained(About(name, self.clients.region, f"look at {name}")):
            return find(self.clients, name)

    def _runner(self, name: str) -> Runner:
        return Runner(self.clients, name, self.display, self._watch)
