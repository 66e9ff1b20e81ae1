"""`s1-mini endpoint`: make, change, list, ask, scale and remove SageMaker endpoints; `plan` shows the calls alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from s1_mini.cli.endpoint_options import Limit, Name, Profile, Range, Region, Wanted, takes
from s1_mini.cli.verb import FORMATS, Group, Verb, check_pipe, completing

if TYPE_CHECKING:
    from s1_mini.deploy.verbs import Verbs

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
    action: Annotated[
        Literal["create", "update", "autoscale", "delete"], typer.Argument(metavar="ACTION", show_default=False)
    ],
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
    """Make a new endpoint, or run a batch, and wait until it serves; if that fails, leave nothing of it.

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
    """Make an endpoint what is wanted while it serves; AWS goes back by itself if an alarm rings.

    Example: s1-mini endpoint update hello --image … --role … --artifact s3://…/2/model.tar.gz
    """
    deployment = wanted.deployment(name)
    if not _verbs(region, profile, limit_s).update(deployment, wait=not no_wait):
        typer.echo(f"{name} is that already", err=True)


@endpoint.command("list", cls=Verb)
def list_endpoints(region: Region = None, profile: Profile = None) -> None:
    """List the endpoints that were made here: what they are called, their state, their machines.

    Example: s1-mini endpoint list --region eu-west-1
    """
    from rich.console import Console
    from rich.table import Table

    verbs = _verbs(region, profile)
    listed = verbs.list_all()
    if not listed:
        typer.echo(f"no endpoint of s1-mini stands in {verbs.clients.region}", err=True)
        return
    table = Table("name", "status", "machines", "changed")
    for it in listed:
        table.add_row(it["name"], it["status"], str(it["instances"]), f"{it['changed']:%Y-%m-%d %H:%M %Z}")
    Console().print(table)


@endpoint.command("describe", cls=Verb)
def describe(name: Name, region: Region = None, profile: Profile = None) -> None:
    """Print the state of an endpoint, its machines, what scales it and all that stands under its name, as JSON.

    Example: s1-mini endpoint describe hello
    """
    typer.echo(json.dumps(_verbs(region, profile).describe(name), indent=2, ensure_ascii=False))


@endpoint.command("invoke", cls=Verb)
def invoke(
    name: Name,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to say, in quotes.", show_default=False)],
    path: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="File for the sound; - for stdout.")
    ] = Path("out.wav"),
    voice: Annotated[
        str | None, typer.Option(metavar="NAME", help="One of the artifact's.", show_default=False)
    ] = None,
    audio_format: Annotated[
        str, typer.Option("--format", help="wav, flac, mp3, opus, ogg or pcm.", autocompletion=completing(*FORMATS))
    ] = "wav",
    seed: Annotated[int | None, typer.Option(min=0, show_default=False)] = None,
    mode: Annotated[Literal["whole", "stream", "async"], typer.Option(help="async for async endpoints.")] = "whole",
    target_model: Annotated[str | None, typer.Option(help="multi-model: which .tar.gz.", show_default=False)] = None,
    component: Annotated[str | None, typer.Option(help="components: its name.", show_default=False)] = None,
    prefix_id: Annotated[str | None, typer.Option(help="Same id, same machine.", show_default=False)] = None,
    limit_s: Limit = 900,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Say a sentence at an endpoint.

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
    """Let machines (with components: copies) follow the load between two numbers.

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
    """Remove an endpoint and all that was made for it; what is in S3 stays.

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
