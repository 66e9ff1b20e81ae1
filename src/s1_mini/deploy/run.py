"""Makes calls in order and waits between them; if one fails, takes back what was made, or lists what could not be.

A thing whose name says its content and which is there already is taken as it is. What an endpoint runs is never
taken back from under it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from s1_mini.aws.clients import Clients
from s1_mini.aws.failures import About, explain, is_missing, is_refusal, is_there_already
from s1_mini.deploy.call import AwsCall
from s1_mini.deploy.check import check_all
from s1_mini.deploy.display import Display
from s1_mini.deploy.watch import StillGoingError, Watch, WentBackError
from s1_mini.exceptions import DeploymentError


class Runner:
    """Makes the calls about the endpoint `name`."""

    def __init__(self, clients: Clients, name: str, display: Display, watch: Watch) -> None:
        self._clients = clients
        self._name = name
        self._display = display
        self._watch = watch

    def make(self, calls: Sequence[AwsCall], *, wait_for_last: bool = True) -> None:
        """Make them all, or raise `DeploymentError` after everything has been taken back that can be.

        What the last call begins need not be waited for.
        """
        check_all(calls)
        made: list[AwsCall] = []
        answers: dict[str, Mapping[str, Any]] = {}
        waiting = False

        def make_all() -> None:
            nonlocal waiting
            for planned in calls:
                call = planned.filled(answers)
                answers[call.name] = self._make(call, made)
                self._display.line(call.what())
                if call.wait_for is not None:
                    waiting = True
                    if wait_for_last or planned is not calls[-1]:
                        self._watch.wait(call.wait_for)
                    waiting = False
                    if call.takes_back is None:
                        _keep_used(made, call)

        error = _attempt(make_all)
        if error is not None:
            going_on = waiting and isinstance(error, (KeyboardInterrupt, StillGoingError))
            if going_on or (_changes_what_runs(made) and not isinstance(error, WentBackError)):
                raise self._as_it_is(error, made) from error
            raise self._with_remains(error, self.take_back(made)) from error

    def make_each(self, calls: Iterable[AwsCall]) -> None:
        """Make them all, going on where a thing is gone already; for what deletes. Raises `DeploymentError`."""
        calls = list(calls)
        check_all(calls)
        for position, call in enumerate(calls):
            error = _attempt(partial(self._delete, call))
            if error is not None and not is_missing(error):
                left = ", ".join(later.what() for later in calls[position:])
                sentence = self._sentence(error)
                raise DeploymentError(f"{sentence} Not done: {left}. Run the same command again to go on") from error

    def take_back(self, made: list[AwsCall]) -> list[str]:
        """Undo `made`, the last first; give what was not undone."""
        backs = [call.takes_back for call in reversed(made) if call.takes_back is not None]
        for position, back in enumerate(backs):
            error = _attempt(partial(self._take_back, back))
            if error is not None and not is_missing(error):  # what is below it may be in use: nothing more is removed
                rest = [later.what() for later in backs[position + 1 :]]
                return [f"{back.what()} ({self._sentence(error).rstrip('.')})", *rest]
        return []

    def _delete(self, call: AwsCall) -> None:
        self._send(call)
        self._display.line(call.what())
        if call.wait_for is not None:
            self._watch.wait(call.wait_for)

    def _take_back(self, call: AwsCall) -> None:
        self._send(call)
        if call.wait_for is not None:
            self._watch.wait(call.wait_for)
        self._display.line(f"taken back: {call.what()}")

    def _make(self, call: AwsCall, made: list[AwsCall]) -> Mapping[str, Any]:
        from botocore.exceptions import ClientError

        made.append(call)  # before it is sent: an answer may be lost on the way
        try:
            return self._send(call)
        except ClientError as error:
            if is_refusal(error):
                made.pop()
                if is_there_already(error) and (call.same_by_name or self._is_it(call)):
                    return {}
            raise

    def _is_it(self, call: AwsCall) -> bool:
        """Tell whether what is there already is what this very call made, at a try whose answer was lost."""
        if call.operation != "create_endpoint":
            return False
        seen = self._clients["sagemaker"].describe_endpoint(EndpointName=call.parameters["EndpointName"])
        return bool(seen["EndpointConfigName"] == call.parameters["EndpointConfigName"])

    def _send(self, call: AwsCall) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = getattr(self._clients[call.service], call.operation)(**call.parameters)
        return answer

    def _sentence(self, error: BaseException) -> str:
        if isinstance(error, KeyboardInterrupt):
            return "interrupted."
        return f"{explain(error, About(self._name, self._clients.region))}".rstrip(".") + "."

    def _with_remains(self, error: BaseException, left: list[str]) -> DeploymentError:
        if not left:
            return DeploymentError(f"{self._sentence(error)} Nothing that was made for it is left")
        return DeploymentError(
            f"{self._sentence(error)} Left over, because these could not be made: {'; '.join(left)}. "
            f"`s1-mini endpoint delete {self._name}` removes all of it"
        )

    def _as_it_is(self, error: BaseException, made: list[AwsCall]) -> DeploymentError:
        stands = ", ".join(call.what() for call in made)
        return DeploymentError(
            f"{self._sentence(error)} AWS has begun these and may go on: {stands}. "
            f"`s1-mini endpoint describe {self._name}` shows how far it is, `s1-mini endpoint delete {self._name}` "
            "removes it once it rests"
        )


def _attempt(work: Callable[[], None]) -> Exception | KeyboardInterrupt | None:
    """Return the error of `work`: after any, what was made must be removed, or listed for the user."""
    try:
        work()
    except (Exception, KeyboardInterrupt) as error:  # the display, boto3 and its plugins raise errors of any class
        return error
    return None


def _changes_what_runs(made: list[AwsCall]) -> bool:
    """Tell whether the last call put something new under what runs, so that it is unsure what is in use."""
    return bool(made) and made[-1].takes_back is None and made[-1].wait_for is not None


def _keep_used(made: list[AwsCall], user: AwsCall) -> None:
    """Take from `made` what `user` has put to use: it is not to be taken back any more."""
    used = set(_strings(user.parameters))
    made[:] = [call for call in made if call.takes_back and not used.intersection(_strings(call.takes_back.parameters))]


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)
