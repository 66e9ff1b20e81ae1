"""The commands of `s1-mini`. A failed command prints its error to stderr and exits with a code other than 0."""

from __future__ import annotations

import io
import os
import sys
import warnings
from functools import cache
from typing import Any, cast

import typer
from typer.main import get_command

from s1_mini import __version__
from s1_mini.cli import bench, checkpoints, corpus, mcp, plan, say, serve, settings, voices
from s1_mini.cli.verb import Group, Verb
from s1_mini.exceptions import S1MiniError

# Without these defaults, typer loads pydantic (0.1 s) to parse options that were not given.
GROUP_DEFAULTS: dict[str, object] = {"help": False, "install_completion": False, "show_completion": False}


class EndpointGroup(Group):
    """Imports the endpoint commands on first use, because their options need pydantic, which is slow to import."""

    @property
    def commands(self) -> Any:
        """The commands by name."""
        return _endpoint_commands()

    @commands.setter
    def commands(self, value: Any) -> None:
        """Ignore the empty dict that the base class sets."""


@cache
def _endpoint_commands() -> Any:
    from s1_mini.cli.endpoint import commands

    return cast("Group", get_command(commands)).commands


endpoint = typer.Typer(
    name="endpoint",
    cls=EndpointGroup,
    help="Endpoints on AWS SageMaker: plan, create, update, list, describe, invoke, autoscale, delete.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

MAX_WIDTH = 120  # maximum width of help texts

app = typer.Typer(
    name="s1-mini",
    cls=Group,
    help="Text to speech with codec language models and SpeechT5.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={
        "default_map": {**GROUP_DEFAULTS, "voices": GROUP_DEFAULTS, "endpoint": GROUP_DEFAULTS},
        "max_content_width": MAX_WIDTH,
    },
)
app.command("say", cls=Verb)(say.say)
app.command("serve", cls=Verb)(serve.serve)
app.command("mcp", cls=Verb)(mcp.mcp)
app.command("corpus", cls=Verb)(corpus.corpus)
app.command("bench", cls=Verb)(bench.bench)
app.command("profile", cls=Verb)(bench.profile)
app.command("plan", cls=Verb)(plan.plan)
app.command("settings", cls=Verb)(settings.settings)
app.add_typer(voices.app)
app.command("convert", cls=Verb)(checkpoints.convert)
app.command("verify", cls=Verb)(checkpoints.verify)
app.command("random-checkpoint", cls=Verb)(checkpoints.random_checkpoint)
app.command("align", cls=Verb)(checkpoints.align)
app.command("compile", cls=Verb)(checkpoints.compile_checkpoint)
app.add_typer(endpoint)
app.command("package", cls=Verb)(checkpoints.package)


@app.callback(invoke_without_command=True)
def _options(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        typer.echo(f"s1-mini {__version__}")
        raise typer.Exit


def run() -> int:
    """Run the command line on `sys.argv`; return the exit code."""
    # torch reads this variable when it is loaded. PASSIVE makes waiting threads sleep, so that they leave the cores to
    # other processes: two `say` at once on two cores took 0.75 s each, and 26 s with the default, where waiting threads
    # spin. A single `say` takes the same time in both cases (2026-11).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    warnings.showwarning = _print_warning
    for stream in (sys.stdout, sys.stderr):
        _escape_unencodable(stream)
    try:
        app()
    except S1MiniError as error:
        print(f"s1-mini: {error}", file=sys.stderr)
        return 1
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    return 0


def _escape_unencodable(stream: object) -> None:
    r"""Configure a stream to write an unencodable character as an escape, such as `\u2026`, instead of failing."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors="backslashreplace")


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"s1-mini: warning: {message}", file=sys.stderr)
