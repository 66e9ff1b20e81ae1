"""The options that say what an endpoint is to be: declared once as fields, given to each verb that takes them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from s1_mini.exceptions import ConfigurationError

if TYPE_CHECKING:
    from s1_mini.deploy.spec import Deployment, Form, Scaling

PREFIX = "S1_MINI_AWS_"
Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the endpoint, or of the batch.", show_default=False)]
Region = Annotated[str | None, typer.Option(envvar=f"{PREFIX}REGION", help="[AWS_DEFAULT_REGION]", show_default=False)]
Profile = Annotated[str | None, typer.Option(help="[AWS_PROFILE]", show_default=False)]
Limit = Annotated[float, typer.Option("--wait-s", min=0, help="How long to wait for AWS.")]


def _option(help_text: str, *names: str, variable: str | None = None, **more: Any) -> Any:
    return typer.Option(*names, help=help_text, envvar=variable and PREFIX + variable, **more)


@dataclass(frozen=True)
class Wanted:
    """What `create`, `update` and `plan` take."""

    image: Annotated[str, _option("In ECR: account.dkr.ecr.region.amazonaws.com/name:tag", variable="IMAGE")]
    role: Annotated[str, _option("ARN of what SageMaker runs the container as.", variable="ROLE")]
    artifact: Annotated[str, _option("s3://…/model.tar.gz, or a prefix s3://…/", variable="ARTIFACT")]
    form: Annotated[Literal["real-time", "async", "components", "multi-model", "batch"], _option("How it answers.")] = (
        "real-time"
    )
    instance_type: Annotated[str, _option("Which machine.", variable="INSTANCE_TYPE")] = "ml.g6.xlarge"
    instances: Annotated[int, _option("To begin with.", min=1)] = 1
    env: Annotated[list[str] | None, _option("NAME=VALUE for the container; as often as needed.")] = None
    subnet: Annotated[list[str] | None, _option("Of a private network.", variable="SUBNETS")] = None
    security_group: Annotated[list[str] | None, _option("Of a private network.", variable="SECURITY_GROUPS")] = None
    isolated: Annotated[bool, _option("Whether the container reaches no network.")] = True
    kms_key: Annotated[str | None, _option("Of volumes and outputs.", variable="KMS_KEY")] = None
    volume_gb: Annotated[int | None, _option("For machines without a disk of their own.")] = None
    machine_image: Annotated[str | None, _option("InferenceAmiVersion. [by the machine]", show_default=False)] = None
    download_timeout_s: Annotated[int, _option("Until the artifact is there.")] = 1200
    startup_timeout_s: Annotated[int, _option("Until /ping answers.")] = 900
    routing: Annotated[
        Literal["LEAST_OUTSTANDING_REQUESTS", "RANDOM", "PREFIX_AWARE"], _option("Which machine gets a request.")
    ] = "LEAST_OUTSTANDING_REQUESTS"
    tag: Annotated[list[str] | None, _option("NAME=VALUE on all that is made.")] = None
    strategy: Annotated[
        Literal["rolling", "canary", "linear", "all-at-once"] | None,
        _option("update: how the new replaces the old. [by the machines]", show_default=False),
    ] = None
    step_percent: Annotated[int, _option("update: of the machines, at a step.")] = 50
    step_wait_s: Annotated[int, _option("update: between steps, for the alarms.")] = 300
    alarm: Annotated[list[str] | None, _option("update: goes back when it rings. [two of our own]")] = None
    output: Annotated[str | None, _option("async, batch: s3://… for the answers.", variable="OUTPUT")] = None
    failures: Annotated[str | None, _option("async: s3://… for what failed.")] = None
    success_topic: Annotated[str | None, _option("async: ARN of an SNS topic.")] = None
    error_topic: Annotated[str | None, _option("async: ARN of an SNS topic.")] = None
    concurrent: Annotated[
        int | None, _option("async, batch: requests at a machine. [4 for each engine]", min=1, show_default=False)
    ] = None
    source: Annotated[str | None, _option("batch: s3://… with lines of JSON.")] = None
    copies: Annotated[int, _option("components: to begin with.", min=0)] = 1
    memory_mb: Annotated[int, _option("components: for a copy.")] = 4096
    accelerators: Annotated[int, _option("components: GPUs for a copy.", min=0)] = 1
    cpu_cores: Annotated[float, _option("components: for a copy.")] = 1.0
    min_instances: Annotated[int, _option("components: machines.", min=0)] = 0
    max_instances: Annotated[int, _option("components: machines.", min=1)] = 2

    def deployment(self, name: str) -> Deployment:
        """Give what is wanted, as data. Raises `ConfigurationError`."""
        from s1_mini.deploy.spec import Deployment, Fleet, Model, Rollout

        model = Model(
            self.image,
            self.role,
            self.artifact,
            _pairs("env", self.env),
            tuple(self.subnet or ()),
            tuple(self.security_group or ()),
            self.isolated,
        )
        fleet = Fleet(
            self.instance_type,
            self.instances,
            self.volume_gb,
            self.download_timeout_s,
            self.startup_timeout_s,
            self.machine_image,
            self.routing,
            kms_key=self.kms_key,
        )
        rollout = Rollout(self.strategy, self.step_percent, self.step_wait_s, alarms=tuple(self.alarm or ()))
        return Deployment(name, model, fleet, self._form(), rollout, _pairs("tag", self.tag))

    def _form(self) -> Form:
        from s1_mini.deploy.spec import Async, Batch, Components, MultiModel, RealTime

        if self.form == "async":
            topics = self.success_topic, self.error_topic
            output = _needed("output", self.output, "async")
            return Async(output, self.failures, *topics, self.concurrent, self.kms_key)
        if self.form == "batch":
            source, output = _needed("source", self.source, "batch"), _needed("output", self.output, "batch")
            return Batch(source, output, concurrent=self.concurrent, kms_key=self.kms_key)
        if self.form == "components":
            needs = self.memory_mb, self.accelerators, self.cpu_cores
            return Components(self.copies, *needs, self.min_instances, self.max_instances)
        return MultiModel() if self.form == "multi-model" else RealTime()


@dataclass(frozen=True)
class Range:
    """What `autoscale` takes, and `plan` too."""

    minimum: Annotated[int, _option("Machines, or copies with components.", "--min", min=0)] = 1
    maximum: Annotated[int, _option("Machines, or copies.", "--max", min=1)] = 4
    slots: Annotated[int, _option("Requests that one engine speaks at once: its S1_MINI_MAX_BATCH_SIZE.", min=1)] = 4
    replicas: Annotated[
        int | None, _option("Engines of a machine, or a copy. [one for each GPU]", min=1, show_default=False)
    ] = None
    load: Annotated[float, _option("Share of the slots to be taken on average.")] = 0.6
    request_s: Annotated[float, _option("multi-model: how long one request takes.")] = 5.0
    backlog: Annotated[float, _option("async: requests waiting for each engine.")] = 5.0
    schedule: Annotated[
        list[str] | None, _option("TITLE=MIN:MAX@EXPRESSION, as night=0:1@cron(0 20 * * ? *); as often as needed.")
    ] = None

    def scaling(self) -> Scaling:
        """Give it as data. Raises `ConfigurationError`."""
        from s1_mini.deploy.spec import Scaling

        schedule = tuple(_scheduled(entry) for entry in self.schedule or ())
        return Scaling(
            self.minimum,
            self.maximum,
            self.slots,
            self.load,
            self.request_s,
            self.backlog,
            schedule=schedule,
            replicas=self.replicas,
        )


def variables() -> list[str]:
    """Return the `S1_MINI_AWS_*` variables of the endpoint commands."""
    hints = [*get_type_hints(Wanted, include_extras=True).values(), Region]
    options = [option for hint in hints for option in getattr(hint, "__metadata__", ())]
    return [option.envvar for option in options if option.envvar]


def takes(**groups: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb the fields of `groups` as options of its own; it gets each group as one object, by its name."""

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(verb, include_extras=True)
        own = [
            parameter.replace(annotation=hints[name])
            for name, parameter in inspect.signature(verb).parameters.items()
            if name not in groups
        ]
        added = [parameter for group in groups.values() for parameter in _parameters(group)]
        every = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own + added]

        @functools.wraps(verb)
        def call(**given: Any) -> None:
            made = {
                name: group(**{field.name: given.pop(field.name) for field in fields(group)})
                for name, group in groups.items()
            }
            verb(**given, **made)

        call.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
        return call

    return decorate


def _parameters(group: type) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]


def _pairs(option: str, given: list[str] | None) -> dict[str, str]:
    pairs = {}
    for entry in given or ():
        name, equals, value = entry.partition("=")
        if not name or not equals:
            raise ConfigurationError(f"{option}={entry!r}: allowed is NAME=VALUE")
        pairs[name] = value
    return pairs


def _needed(option: str, value: str | None, form: str) -> str:
    if not value:
        raise ConfigurationError(f"{option}: form {form} needs --{option} s3://…")
    return value


def _scheduled(entry: str) -> tuple[str, str, int, int]:
    title, _, rest = entry.partition("=")
    limits, _, when = rest.partition("@")
    low, _, high = limits.partition(":")
    if not (title and when and low.isdecimal() and high.isdecimal()):
        raise ConfigurationError(f"schedule={entry!r}: allowed is TITLE=MIN:MAX@EXPRESSION")
    return title, when, int(low), int(high)
