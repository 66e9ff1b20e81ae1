"""Waits until what was asked for has come, and notices when it will not.

An update can fail after AWS took it: the status goes back to InService, with the old config. Therefore the name of
what runs is looked at as well as the status.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from s1_mini.aws.clients import Clients
from s1_mini.aws.failures import find
from s1_mini.deploy.call import Wait
from s1_mini.deploy.display import Display
from s1_mini.deploy.reasons import reason
from s1_mini.exceptions import DeploymentError

GRACE_S = 60.0  # how long an endpoint may look untouched after an update was taken


class StillGoingError(DeploymentError):
    """It has not come in the time that we wait; AWS goes on."""


class WentBackError(DeploymentError):
    """An update was taken back, or never begun: what ran before runs again, and nothing uses what is new."""


@dataclass(frozen=True)
class EndpointState:
    """What is seen at one moment: words for it, whether it is settled, and what went wrong."""

    words: str
    done: bool = False
    failed: str = ""
    untouched: bool = False  # in service, with what was there before


@dataclass
class Watch:
    """Looks every `poll_s` seconds for at most `limit_s`."""

    clients: Clients
    display: Display
    limit_s: float = 3600.0
    poll_s: float = 10.0
    sleep: Callable[[float], None] = field(default=time.sleep)
    now: Callable[[], float] = field(default=time.monotonic)

    def wait(self, wait: Wait) -> None:
        """Return once it has come. Raises `DeploymentError` if it will not, `StillGoingError` if it takes too long."""
        look = {
            "endpoint": self._endpoint,
            "component": self._component,
            "transform": self._transform,
            "endpoint gone": self._endpoint,
            "component gone": self._component,
        }[wait.kind]
        title = f"{'deleting ' if wait.kind.endswith('gone') else ''}{wait.kind.split()[0]} {wait.of}"
        begin, begun = self.now(), False
        with self.display.waiting(title) as show:
            while True:
                state = look(wait)
                show(state.words)
                spent = self.now() - begin
                if state.untouched and (begun or spent >= GRACE_S):
                    why = state.failed or "SageMaker took the update and did not begin it"
                    raise WentBackError(f"{title}: {reason(why, wait.of)}")
                if state.failed and not state.untouched:
                    raise DeploymentError(f"{title}: {reason(state.failed, wait.of)}")
                begun = begun or not state.untouched
                if state.done:
                    return
                if spent >= self.limit_s:
                    raise StillGoingError(f"{title}: still {state.words} after {spent:.0f} s; AWS goes on by itself")
                self.sleep(self.poll_s)

    def _endpoint(self, wait: Wait) -> EndpointState:
        seen = self._seen("describe_endpoint", EndpointName=wait.of)
        if seen is None:
            return EndpointState("gone", done=wait.kind == "endpoint gone", failed=_vanished(wait))
        status, why = seen["EndpointStatus"], seen.get("FailureReason", "")
        words = f"{status}, {_machines(seen)}" if _machines(seen) else str(status)
        if wait.kind == "endpoint gone":
            return EndpointState(words, failed=why if status == "Failed" and "elet" in why else "")
        if status in {"Failed", "UpdateRollbackFailed"}:
            return EndpointState(words, failed=why or f"it is {status}")
        if status != "InService":
            return EndpointState(words)
        if seen.get("EndpointConfigName") == wait.content:
            return EndpointState(words, done=True)
        return EndpointState(
            words, failed=f"SageMaker went back to what ran before: {why or 'no reason given'}", untouched=True
        )

    def _component(self, wait: Wait) -> EndpointState:
        seen = self._seen("describe_inference_component", InferenceComponentName=wait.of)
        if seen is None:
            return EndpointState("gone", done=wait.kind == "component gone", failed=_vanished(wait))
        status, why = seen["InferenceComponentStatus"], seen.get("FailureReason", "")
        copies = seen.get("RuntimeConfig", {})
        words = f"{status}, {copies.get('CurrentCopyCount', 0)} of {copies.get('DesiredCopyCount', 0)} copies"
        if wait.kind == "component gone":
            return EndpointState(words, failed=why if status == "Failed" and "elet" in why else "")
        if status == "Failed":
            return EndpointState(words, failed=why or "it is Failed")
        if status != "InService":
            return EndpointState(words)
        if seen.get("Specification", {}).get("ModelName") == wait.content:
            return EndpointState(words, done=True)
        return EndpointState(
            words, failed=f"SageMaker went back to what ran before: {why or 'no reason given'}", untouched=True
        )

    def _transform(self, wait: Wait) -> EndpointState:
        seen = self._seen("describe_transform_job", TransformJobName=wait.of)
        if seen is None:
            return EndpointState("gone", failed=_vanished(wait))
        status = str(seen["TransformJobStatus"])
        failed = seen.get("FailureReason") or "it is Failed" if status == "Failed" else ""
        return EndpointState(status, done=status in {"Completed", "Stopped"}, failed=failed)

    def _seen(self, operation: str, **which: str) -> dict[str, Any] | None:
        return find(getattr(self.clients["sagemaker"], operation), **which)


def _vanished(wait: Wait) -> str:
    return "" if wait.kind.endswith("gone") else "it is gone: somebody else deleted it"


def _machines(seen: dict[str, Any]) -> str:
    variants = seen.get("ProductionVariants", [])
    there = sum(variant.get("CurrentInstanceCount", 0) for variant in variants)
    wanted = sum(variant.get("DesiredInstanceCount", 0) for variant in variants)
    return f"{there} of {wanted} machines" if wanted or there else ""
