"""`s1-mini endpoint`: make, change, list, ask, scale and remove SageMaker endpoints; `plan` shows the calls alone."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from s1_mini.cli.verb import FormatName, Group, Verb, check_pipe, print_table
from s1_mini.exceptions import ConfigurationError

if TYPE_CHECKING:
    from s1_mini.deploy.spec import Deployment, Form, Scaling
    from s1_mini.deploy.verbs import Verbs

PREFIX = "S1_MINI_AWS_"
Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the endpoint, or of the batch.")]
Region = Annotated[str | None, typer.Option(envvar=f"{PREFIX}REGION", help="[AWS_DEFAULT_REGION]")]
Profile = Annotated[str | None, typer.Option(help="[AWS_PROFILE]")]
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
    machine_image: Annotated[str | None, _option("InferenceAmiVersion. [by the machine]")] = None
    download_timeout_s: Annotated[int, _option("Until the artifact is there.")] = 1200
    startup_timeout_s: Annotated[int, _option("Until /ping answers.")] = 900
    routing: Annotated[
        Literal["LEAST_OUTSTANDING_REQUESTS", "RANDOM", "PREFIX_AWARE"], _option("Which machine gets a request.")
    ] = "LEAST_OUTSTANDING_REQUESTS"
    tag: Annotated[list[str] | None, _option("NAME=VALUE on all that is made.")] = None
    strategy: Annotated[
        Literal["rolling", "canary", "linear", "all-at-once"] | None,
        _option("update: how the new replaces the old. [by the machines]"),
    ] = None
    step_percent: Annotated[int, _option("update: of the machines, at a step.")] = 50
    step_wait_s: Annotated[int, _option("update: between steps, for the alarms.")] = 300
    alarm: Annotated[list[str] | None, _option("update: goes back when it rings. [two of our own]")] = None
    output: Annotated[str | None, _option("async, batch: s3://… for the answers.", variable="OUTPUT")] = None
    failures: Annotated[str | None, _option("async: s3://… for what failed.")] = None
    success_topic: Annotated[str | None, _option("async: ARN of an SNS topic.")] = None
    error_topic: Annotated[str | None, _option("async: ARN of an SNS topic.")] = None
    concurrent: Annotated[int | None, _option("async, batch: requests at a machine. [4 for each engine]", min=1)] = None
    source: Annotated[str | None, _option("batch: s3://… with lines of JSON.")] = None
    copies: Annotated[int, _option("components: to begin with.", min=0)] = 1
    memory_mb: Annotated[int, _option("components: for a copy.")] = 4096
    accelerators: Annotated[int, _option("components: GPUs for a copy.", min=0)] = 1
    cpu_cores: Annotated[float, _option("components: for a copy.")] = 1.0
    min_instances: Annotated[int, _option("components: machines.", min=0)] = 0
    max_instances: Annotated[int, _option("components: machines.", min=1)] = 2

    def deployment(self, name: str) -> Deployment:
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
    replicas: Annotated[int | None, _option("Engines of a machine, or a copy. [one for each GPU]", min=1)] = None
    load: Annotated[float, _option("Share of the slots to be taken on average.")] = 0.6
    request_s: Annotated[float, _option("multi-model: how long one request takes.")] = 5.0
    backlog: Annotated[float, _option("async: requests waiting for each engine.")] = 5.0
    schedule: Annotated[
        list[str] | None, _option("TITLE=MIN:MAX@EXPRESSION, as night=0:1@cron(0 20 * * ? *); as often as needed.")
    ] = None

    def scaling(self) -> Scaling:
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
    """Add the fields of `groups` to a command's options; it is called with one object for each group, by name."""

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


endpoint = typer.Typer(
    name="endpoint",
    cls=Group,
    help="Endpoints on AWS SageMaker: plan, create, update, list, describe, invoke, autoscale, delete.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
No_wait = Annotated[bool, typer.Option("--no-wait", help="Do not wait until the last call's work is done.")]


@endpoint.command("plan", cls=Verb)
@takes(wanted=Wanted, scale=Range)
def plan(
    action: Annotated[Literal["create", "update", "autoscale", "delete"], typer.Argument(metavar="ACTION")],
    name: Name,
    wanted: Wanted,
    scale: Range,
) -> None:
    """Print every call that ACTION would make, as JSON, checked against AWS's own description; make none.

    Example: s1-mini endpoint plan create hello --image … --role … --artifact s3://…/model.tar.gz
    """
    from dataclasses import replace

    from s1_mini.deploy.calls import Standing, create_calls, delete_calls, update_calls, would_stand
    from s1_mini.deploy.check import check_all
    from s1_mini.deploy.scaling import autoscale_calls

    deployment = wanted.deployment(name)
    if action == "create":
        calls = create_calls(deployment)
    elif action == "update":
        calls = update_calls(deployment, Standing(name, endpoint=True))
    elif action == "autoscale":
        scaling = scale.scaling()
        calls = autoscale_calls(name, wanted.form, replace(scaling, replicas=scaling.replicas or deployment.replicas))
    else:
        calls = delete_calls(would_stand(deployment))
    check_all(calls)
    typer.echo(json.dumps([call.as_data() for call in calls], indent=2, ensure_ascii=False))


@endpoint.command("create", cls=Verb)
@takes(wanted=Wanted)
def create(
    name: Name,
    wanted: Wanted,
    region: Region = None,
    profile: Profile = None,
    limit_s: Limit = 3600,
    no_wait: No_wait = False,
) -> None:
    """Create an endpoint, or run a batch, and wait until it serves; if that fails, remove everything again.

    Example: s1-mini endpoint create hello --image … --role … --artifact s3://…/model.tar.gz
    """
    deployment = wanted.deployment(name)
    _verbs(region, profile, limit_s).create(deployment, wait=not no_wait)


@endpoint.command("update", cls=Verb)
@takes(wanted=Wanted)
def update(
    name: Name,
    wanted: Wanted,
    region: Region = None,
    profile: Profile = None,
    limit_s: Limit = 7200,
    no_wait: No_wait = False,
) -> None:
    """Change an endpoint while it serves; AWS rolls back by itself if an alarm fires.

    Example: s1-mini endpoint update hello --image … --role … --artifact s3://…/2/model.tar.gz
    """
    deployment = wanted.deployment(name)
    if not _verbs(region, profile, limit_s).update(deployment, wait=not no_wait):
        typer.echo(f"{name} is that already", err=True)


@endpoint.command("list", cls=Verb)
def list_endpoints(region: Region = None, profile: Profile = None) -> None:
    """List the endpoints of s1-mini: names, state, number of machines.

    Example: s1-mini endpoint list --region eu-west-1
    """
    verbs = _verbs(region, profile)
    listed = verbs.list_all()
    if not listed:
        typer.echo(f"no endpoint of s1-mini stands in {verbs.clients.region}", err=True)
        return
    rows = [(it["name"], it["status"], str(it["instances"]), f"{it['changed']:%Y-%m-%d %H:%M %Z}") for it in listed]
    print_table(rows, "name", "status", "machines", "changed")


@endpoint.command("describe", cls=Verb)
def describe(name: Name, region: Region = None, profile: Profile = None) -> None:
    """Print the state of an endpoint, its machines, what scales it and all that stands under its name, as JSON.

    Example: s1-mini endpoint describe hello
    """
    typer.echo(json.dumps(_verbs(region, profile).describe(name), indent=2, ensure_ascii=False))


@endpoint.command("invoke", cls=Verb)
def invoke(
    name: Name,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to say, in quotes.")],
    path: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="File for the audio; - for stdout.")
    ] = Path("out.wav"),
    voice: Annotated[str | None, typer.Option(metavar="NAME", help="One of the artifact's.")] = None,
    audio_format: FormatName = "wav",
    seed: Annotated[int | None, typer.Option(min=0)] = None,
    mode: Annotated[Literal["whole", "stream", "async"], typer.Option(help="async for async endpoints.")] = "whole",
    target_model: Annotated[str | None, typer.Option(help="multi-model: which .tar.gz.")] = None,
    component: Annotated[str | None, typer.Option(help="components: its name.")] = None,
    prefix_id: Annotated[str | None, typer.Option(help="Same id, same machine.")] = None,
    limit_s: Limit = 900,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Speak a sentence at an endpoint.

    Example: s1-mini endpoint invoke hello "Good morning." -o morning.wav
    """
    if str(path) == "-":
        check_pipe()

    from s1_mini.audio.container import check_format, check_writable
    from s1_mini.deploy.ask import Question, ask, ask_in_parts, ask_later

    if str(path) != "-":
        check_writable(path)
    fields = {"text": text, "voice": voice, "format": check_format(audio_format), "seed": seed}
    body: dict[str, Any] = {field: value for field, value in fields.items() if value is not None}
    if mode == "stream":
        body["stream"] = True
    question = Question(name, body, target_model, component, prefix_id)
    clients = _verbs(region, profile).clients
    if mode == "stream":
        _write(path, ask_in_parts(clients, question))
    elif mode == "async":
        _write(path, iter([ask_later(clients, question, limit_s=limit_s)]))
    else:
        _write(path, iter([ask(clients, question)]))


@endpoint.command("autoscale", cls=Verb)
@takes(scale=Range)
def autoscale(
    name: Name,
    scale: Range,
    off: Annotated[bool, typer.Option("--off", help="Stop scaling; the number stays as it is.")] = False,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Scale machines (with components: copies) with the load, between two numbers.

    Example: s1-mini endpoint autoscale hello --min 1 --max 4 --slots 8
    """
    wanted = scale.scaling()
    verbs = _verbs(region, profile)
    if off:
        typer.echo(f"{name} {'does not scale any more' if verbs.stop_scaling(name) else 'did not scale'}", err=True)
    else:
        verbs.autoscale(name, wanted)


@endpoint.command("delete", cls=Verb)
def delete(name: Name, region: Region = None, profile: Profile = None, limit_s: Limit = 1800) -> None:
    """Delete an endpoint and everything that was created for it, but nothing in S3.

    Example: s1-mini endpoint delete hello
    """
    _verbs(region, profile, limit_s).delete(name)


def _verbs(region: str | None, profile: str | None, limit_s: float = 3600) -> Verbs:
    from s1_mini.deploy.verbs import Verbs

    return Verbs(region, profile, limit_s=limit_s)


def _write(output: Path, parts: Iterator[bytes]) -> None:
    """Write parts as they arrive; remove the file if the stream breaks off."""
    if str(output) == "-":
        stream = typer.get_binary_stream("stdout")
        for part in parts:
            stream.write(part)
            stream.flush()
        return
    with ExitStack() as cleanup:
        with output.open("wb") as file:
            cleanup.callback(output.unlink, missing_ok=True)
            for part in parts:
                file.write(part)
        cleanup.pop_all()
