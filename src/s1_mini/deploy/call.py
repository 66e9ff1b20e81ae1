"""One call of one AWS service, as data: it can be printed, checked and made, and knows what takes it back."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

# A name of our own making ends in what the thing holds: same content, same name; other content, other name.
DIGEST_LENGTH = 12
_ANSWER = re.compile(r"\$\{([^{}]+)\.([A-Za-z]+)\}")


Waited = Literal["endpoint", "component", "transform", "endpoint gone", "component gone"]


@dataclass(frozen=True)
class Wait:
    """What must have come: `of` is the thing's name, `content` the config or model that it must have by then."""

    kind: Waited
    of: str
    content: str = ""


@dataclass(frozen=True)
class AwsCall:
    """`service` and `operation` as boto3 spells them, `parameters` as AWS does.

    `takes_back` undoes it. `same_by_name` says that whatever has this name already holds this content. A parameter
    `${name.Field}` stands for `Field` of the answer to the earlier call whose `name` that is. After the call, what
    `wait_for` names must have come before the next is made.
    """

    service: str
    operation: str
    parameters: Mapping[str, Any]
    takes_back: AwsCall | None = None
    same_by_name: bool = False
    name: str = ""
    wait_for: Wait | None = None

    def as_data(self) -> dict[str, Any]:
        """Give it as JSON can hold it."""
        data = {"service": self.service, "operation": self.operation, "parameters": dict(self.parameters)}
        return data | {"name": self.name} if self.name else data

    def what(self) -> str:
        """Name the call and the thing it is about, for a person."""
        for key, value in self.parameters.items():
            if key in {"EndpointName", "AlarmName", "PolicyName", "ScheduledActionName", "TransformJobName"}:
                return f"{self.operation} {value}"
        first = next((value for value in self.parameters.values() if isinstance(value, str)), "")
        return f"{self.operation} {first}".rstrip()

    def filled(self, answers: Mapping[str, Mapping[str, Any]]) -> AwsCall:
        """Give the call with every `${name.Field}` replaced from `answers`."""
        return replace(self, parameters=_fill(self.parameters, answers))


def digest(content: Any) -> str:
    """Give the first digits of the SHA-256 of `content` as JSON with sorted keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def is_ours(name: str, endpoint: str) -> bool:
    """Tell whether `name` is one that the calls here give to a config or model of `endpoint`."""
    return re.fullmatch(f"{re.escape(endpoint)}-[0-9a-f]{{{DIGEST_LENGTH}}}", name) is not None


def answer(name: str, field: str) -> str:
    """Stand for `field` of the answer to the call named `name`."""
    return f"${{{name}.{field}}}"


def _fill(value: Any, answers: Mapping[str, Mapping[str, Any]]) -> Any:
    if isinstance(value, str):
        return _ANSWER.sub(lambda found: str(answers[found[1]][found[2]]), value)
    if isinstance(value, Mapping):
        return {key: _fill(item, answers) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_fill(item, answers) for item in value]
    return value
