"""`s1-mini endpoint`: create, change, list, invoke, scale and delete SageMaker endpoints; print templates."""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_origin, get_type_hints

import typer
from pydantic.fields import FieldInfo

from s1_mini.aws.deployment import Deployment, Described, Scaling
from s1_mini.cli.verb import FileFormat, Verb, file_format, print_table
from s1_mini.exceptions import ConfigurationError

if TYPE_CHECKING:
    from s1_mini.aws.call import Invocation
    from s1_mini.aws.clients import Clients
    from s1_mini.aws.stack import Stacks

Values = dict[str, Any]
PREFIX = "S1_MINI_AWS_"
SHORT = {"minimum": ("--min",), "maximum": ("--max",)}  # names of options that differ from the field
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the endpoint or batch.")]
Region = Annotated[str | None, typer.Option(envvar=f"{PREFIX}REGION", help="AWS region. [AWS_DEFAULT_REGION]")]
Profile = Annotated[str | None, typer.Option(help="AWS profile. [AWS_PROFILE]")]
Limit = Annotated[float, typer.Option("--wait-s", min=0, help="Maximum seconds to wait for AWS.")]


def variables() -> list[str]:
    """Return the `S1_MINI_AWS_*` variables of the endpoint commands."""
    options = [option for hint in (*_hints(Deployment), Region) for option in getattr(hint, "__metadata__", ())]
    return [option.envvar for option in options if getattr(option, "envvar", None)]


def takes(
    *, are_required: bool = True, **groups: type[Described]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the fields of each group to a command's options, and pass their values as a dict in the group's parameter.

    With `are_required=False`, options of fields without a default may be omitted, and their value is then None.
    """

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(verb, include_extras=True)
        own = [
            parameter.replace(annotation=hints[name])
            for name, parameter in inspect.signature(verb).parameters.items()
            if name not in groups
        ]
        added = [parameter for group in groups.values() for parameter in _parameters(group, are_required)]
        every = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own + added]

        @functools.wraps(verb)
        def call(**given: Any) -> None:
            values = {name: {field: given.pop(field) for field in _fields(group)} for name, group in groups.items()}
            verb(**given, **values)

        call.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
        return call

    return decorate


def _fields(group: type[Described]) -> list[str]:
    """Return the fields that are options: those with a help text."""
    return [name for name, field in group.model_fields.items() if field.description]


def _hints(group: type[Described]) -> list[Any]:
    return [parameter.annotation for parameter in _parameters(group)]


def _parameters(group: type[Described], are_required: bool = True) -> list[inspect.Parameter]:
    kinds = get_type_hints(group)  # without pydantic's metadata, which the help would show
    return [_parameter(name, group.model_fields[name], kinds[name], is_needed=are_required) for name in _fields(group)]


def _parameter(name: str, field: FieldInfo, kind: Any, *, is_needed: bool) -> inspect.Parameter:
    """Convert a field to an option. Options for a tuple or dict can be repeated; pydantic checks the bounds."""
    extra = field.json_schema_extra
    variable = extra.get("variable") if isinstance(extra, dict) else None
    is_many = get_origin(kind) in {tuple, dict}
    default: Any = field.get_default()
    if field.is_required():
        default = inspect.Parameter.empty if is_needed else None
    if is_many:
        kind, default = list[str] | None, list(default) or None
    option = typer.Option(
        *SHORT.get(name, ()), help=field.description, envvar=f"{PREFIX}{variable}" if variable else None
    )
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


commands = typer.Typer(rich_markup_mode=None)  # `app` imports this module when a command of the group is first used
No_wait = Annotated[
    bool, typer.Option("--no-wait", help="Return once AWS has accepted the change, before it is complete.")
]


@commands.command("plan", cls=Verb)
@takes(are_required=False, fields=Deployment, scale=Scaling)
def plan(
    action: Annotated[Literal["create", "update", "autoscale"], typer.Argument(metavar="ACTION")],
    name: Name,
    fields: Values,
    scale: Values,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Print the CloudFormation template of ACTION as JSON; for a batch, the transform job.

    `plan create` and `plan update` need no credentials; the template of `plan update` omits the endpoint's scaling.
    `plan autoscale` reads the stack from AWS and prints its template with the new scaling; if --image, --role and
    --artifact are all given, the command uses the options instead of the stack.
    Example: s1-mini endpoint plan create hello --image … --role … --artifact s3://…/model.tar.gz
    """
    from s1_mini.aws.batch import job
    from s1_mini.aws.preflight import check_instance_types
    from s1_mini.aws.template import build_template

    missing = [field for field in ("image", "role", "artifact") if fields[field] is None]
    scaling = Scaling.of(**scale) if action == "autoscale" else None
    if scaling is not None and missing:
        deployment = _stacks(region, profile).plan_scaling(name, scaling)
    elif missing:
        options = " and ".join(f"--{field} (or {PREFIX}{field.upper()})" for field in missing)
        raise ConfigurationError(f"plan {action} needs {options}")
    else:
        deployment = Deployment.of(name=name, **fields, scaling=scaling)
        check_instance_types(deployment)
        deployment.check_region(region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"))
    is_batch = deployment.form == "batch"
    planned = job(deployment, f"{name}-model") if is_batch else build_template(deployment)
    typer.echo(json.dumps(planned, indent=2, ensure_ascii=False))


@commands.command("create", cls=Verb)
@takes(fields=Deployment)
def create(
    name: Name,
    fields: Values,
    region: Region = None,
    profile: Profile = None,
    limit_s: Limit = 3600,
    no_wait: No_wait = False,
) -> None:
    """Create an endpoint and wait until it serves, or run a batch.

    If AWS cannot create a resource, it deletes the others, and the error says whether any are left. If this command
    stops waiting, AWS continues.
    Example: s1-mini endpoint create hello --image … --role … --artifact s3://…/model.tar.gz
    """
    deployment = Deployment.of(name=name, **fields)
    _stacks(region, profile, limit_s).create(deployment, wait=not no_wait)


@commands.command("update", cls=Verb)
@takes(fields=Deployment)
def update(
    name: Name,
    fields: Values,
    region: Region = None,
    profile: Profile = None,
    limit_s: Limit = 7200,
    no_wait: No_wait = False,
) -> None:
    """Change an endpoint while it serves; AWS rolls back if an alarm fires.

    Example: s1-mini endpoint update hello --image … --role … --artifact s3://…/2/model.tar.gz
    """
    deployment = Deployment.of(name=name, **fields)
    if not _stacks(region, profile, limit_s).update(deployment, wait=not no_wait):
        typer.echo(f"{name}: no changes", err=True)


@commands.command("list", cls=Verb)
def list_endpoints(region: Region = None, profile: Profile = None) -> None:
    """List the endpoints of s1-mini with their states and numbers of instances.

    Example: s1-mini endpoint list --region eu-west-1
    """
    stacks = _stacks(region, profile)
    listed = stacks.list_all()
    if not listed:
        typer.echo(f"no endpoints of s1-mini in {stacks.clients.region}", err=True)
        return
    rows = [(it["name"], it["status"], str(it["instances"]), f"{it['changed']:%Y-%m-%d %H:%M %Z}") for it in listed]
    print_table(rows, "name", "status", "instances", "changed")


@commands.command("describe", cls=Verb)
def describe(name: Name, region: Region = None, profile: Profile = None) -> None:
    """Print the state of an endpoint, its instances, scaling and resources, as JSON.

    Example: s1-mini endpoint describe hello
    """
    typer.echo(json.dumps(_stacks(region, profile).describe(name), indent=2, ensure_ascii=False))


@commands.command("invoke", cls=Verb)
def invoke(
    name: Name,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="In quotes; - reads stdin (only --mode bidirectional).")],
    path: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="File for the audio; - for stdout.")
    ] = Path("out.wav"),
    voice: Annotated[str | None, typer.Option(metavar="NAME", help="A voice of the artifact.")] = None,
    audio_format: FileFormat = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="The same seed gives the same audio (on a GPU only with batch invariance)."),
    ] = None,
    mode: Annotated[
        Literal["whole", "stream", "bidirectional", "async"],
        typer.Option(
            help="stream: write audio as it arrives; bidirectional: also send the text line by line; async: for async "
            "endpoints."
        ),
    ] = "whole",
    target_model: Annotated[str | None, typer.Option(help="multi-model: name of the .tar.gz to use.")] = None,
    component: Annotated[str | None, typer.Option(help="components: name of the component.")] = None,
    prefix_id: Annotated[
        str | None, typer.Option(help="Requests with the same id go to the same instance (--routing PREFIX_AWARE).")
    ] = None,
    limit_s: Limit = 900,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Speak a text with an endpoint.

    Example: s1-mini endpoint invoke hello "Good morning." -o morning.wav
    """
    from s1_mini.aws import call

    fields = {"text": text, "voice": voice, "format": file_format(str(path), audio_format), "seed": seed}
    body: dict[str, Any] = {field: value for field, value in fields.items() if value is not None}
    if mode == "stream":
        body["stream"] = True
    invocation = call.Invocation(name, body, target_model, component, prefix_id)
    _write(path, _answer(_stacks(region, profile).clients, invocation, mode, text, limit_s))
    if str(path) != "-":
        typer.echo(f"wrote {path}", err=True)


def _answer(clients: Clients, invocation: Invocation, mode: str, text: str, limit_s: float) -> Iterator[bytes]:
    """Return the audio of a request in the way that `mode` names."""
    from s1_mini.aws import call

    if mode == "stream":
        return call.stream(clients, invocation)
    if mode == "bidirectional":
        from s1_mini.aws.bidirectional import converse

        return converse(clients, invocation, sys.stdin if text == "-" else text.splitlines(keepends=True))
    if mode == "async":
        return iter([call.invoke_async(clients, invocation, limit_s=limit_s)])
    return iter([call.invoke(clients, invocation)])


@commands.command("autoscale", cls=Verb)
@takes(scale=Scaling)
def autoscale(
    name: Name,
    scale: Values,
    off: Annotated[
        bool, typer.Option("--off", help="Stop scaling; the number of instances (or copies) stays as it is.")
    ] = False,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Scale the number of instances (or copies) with the load, between --min and --max.

    Example: s1-mini endpoint autoscale hello --min 1 --max 4 --slots 8
    """
    scaling = None if off else Scaling.of(**scale)
    if not _stacks(region, profile).autoscale(name, scaling):
        typer.echo(f"{name}: no changes", err=True)


@commands.command("delete", cls=Verb)
def delete(name: Name, region: Region = None, profile: Profile = None, limit_s: Limit = 1800) -> None:
    """Delete an endpoint and everything that was created for it, but nothing in S3.

    Example: s1-mini endpoint delete hello
    """
    _stacks(region, profile, limit_s).delete(name)


def _stacks(region: str | None, profile: str | None, limit_s: float = 3600) -> Stacks:
    from s1_mini.aws.stack import Stacks

    return Stacks(region, profile, limit_s=limit_s)


def _write(output: Path, parts: Iterator[bytes]) -> None:
    """Write parts as they arrive; remove the file if the stream is interrupted."""
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
