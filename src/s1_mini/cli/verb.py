"""Shared parts of all commands: options, tables, untruncated summaries, and errors that name the option or variable.

The engine's errors name its own parameters; `Verb` replaces these names by those of the command's options.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from s1_mini.exceptions import ConfigurationError, ParameterError, RequestError, S1MiniError
from s1_mini.types import REQUEST_OPTIONS, AudioFormat, Option

if TYPE_CHECKING:
    from typer import Context

    from s1_mini.config import EngineConfig
    from s1_mini.families.find import Checkpoint as FoundCheckpoint

DEVICES = ("auto", "cpu", "cuda", "mps")
PRECISIONS = ("auto", "float32", "float16", "bfloat16")
FORMATS: tuple[str, ...] = get_args(AudioFormat)

PIPE = "-"
WHOLE = 1000  # characters; longer than any summary
VARIABLE = "S1_MINI_"


def completing(*values: str) -> Callable[[str], list[str]]:
    """Return a shell completion for these values; the option also accepts other values."""

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete


def _check_folder(path: Path | None) -> Path | None:
    if path is not None and not path.is_dir():
        raise ConfigurationError(f"--voices-path: the folder {str(path)!r} does not exist")
    return path


DEVICE_HELP, FORMAT_HELP = "auto, cpu, cuda, cuda:1, mps.", "wav, flac, mp3, aac, opus, ogg, pcm, mulaw or alaw."
Checkpoint = Annotated[
    Path | None,
    typer.Option("--checkpoint", help="Directory, or name on the Hugging Face hub. [the built-in voice]"),
]
VoicesPath = Annotated[
    Path | None,
    typer.Option("--voices-path", help="Folder of added voices. [S1_MINI_VOICES_PATH]"),
]
ExistingVoicesPath = Annotated[  # of commands that add no voice
    Path | None,
    typer.Option("--voices-path", callback=_check_folder, help="Folder of added voices. [S1_MINI_VOICES_PATH]"),
]
Device = Annotated[str | None, typer.Option(help=DEVICE_HELP, autocompletion=completing(*DEVICES))]
DeviceName = Annotated[str, typer.Option(help=DEVICE_HELP, autocompletion=completing(*DEVICES))]
Precision = Annotated[
    str | None,
    typer.Option(help="Number format: auto, float32, float16 or bfloat16.", autocompletion=completing(*PRECISIONS)),
]
FileFormat = Annotated[  # of commands that write one file
    str | None,
    typer.Option("--format", help=f"{FORMAT_HELP} [the file's suffix]", autocompletion=completing(*FORMATS)),
]
FormatName = Annotated[str, typer.Option("--format", help=FORMAT_HELP, autocompletion=completing(*FORMATS))]


def with_options(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of requests to a command, except `without`; it gets their values in its argument `options`.

    They are listed in the command's help where `options` stands. `TTSRequest` checks the values.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        added = {each.name: _parameter(each) for each in REQUEST_OPTIONS if each.name not in without}

        @wraps(command)
        def call(**given: Any) -> None:
            options = {name: given.pop(name) for name in added}
            command(**given, options=options)

        parameters: list[inspect.Parameter] = []
        for each in signature.parameters.values():
            parameters += added.values() if each.name == "options" else [each]
        call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {each.name: each.annotation for each in parameters}
        return call

    return decorate


def _parameter(option: Option) -> inspect.Parameter:
    """Return the parameter of a command for an option of requests."""
    kind: Any = option.kind if option.kind in (int, float) else str
    shown = typer.Option(
        help=f"{option.help} [{option.without}]" if option.without else option.help,
        autocompletion=completing(*get_args(option.kind)) if get_origin(option.kind) is Literal else None,
    )
    given: Any = kind | None if option.is_optional else kind
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(option.name, keyword, default=option.default, annotation=Annotated[given, shown])


class Verb(TyperCommand):
    """One command."""

    def get_short_help_str(self, limit: int = WHOLE) -> str:  # noqa: ARG002 - a summary is shown whole
        return super().get_short_help_str(WHOLE)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line with TEXT instead of {TEXT}."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; errors say how to write a text that needs quotes or begins with a dash."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # typer has its own copy of click, whose UsageError has no public name
            if message := getattr(error, "message", ""):
                hint = _hint(error) if any(param.name == "text" for param in self.params) else ""
                parts = (message.removeprefix("Value error, "), hint)  # pydantic's prefix
                error.message = "; ".join(filter(None, parts))  # type: ignore[attr-defined]
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except S1MiniError as error:
            raise _named(error, ctx) from None


class Group(TyperGroup):
    """Several commands under one name."""

    def get_short_help_str(self, limit: int = WHOLE) -> str:  # noqa: ARG002
        return super().get_short_help_str(WHOLE)


def engine_config(**given: object) -> EngineConfig:
    """Return the settings from the variables and from those options that are not None.

    Raises `ConfigurationError`; does not load torch.
    """
    from s1_mini.config import EngineConfig

    return EngineConfig(**{name: value for name, value in given.items() if value is not None})


def named_checkpoint(path: Path | None, *, checks: bool = True, with_weights: bool = True) -> FoundCheckpoint:
    """Find the checkpoint of an option or a setting and, with `checks`, check that no file is missing.

    Raises `CheckpointError` or `ConfigurationError`; does not load torch.
    """
    from s1_mini.families.find import find_checkpoint

    checkpoint = find_checkpoint(path, with_weights=with_weights)
    return checkpoint.check_files() if checks and with_weights else checkpoint


def print_table(rows: Iterable[Iterable[str]], *columns: Any, **options: Any) -> None:
    """Print a table; `columns` and `options` are passed to rich."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, **options)
    for row in rows:
        table.add_row(*map(Text, row))  # brackets in cells are not markup
    Console().print(table)


def file_format(output: str | None, named: str | None) -> AudioFormat:
    """Return the format for a file, for stdout (`PIPE`) or for no output (None): the named one, or the file's.

    Raises `ParameterError` if the file cannot be written, if its suffix is unknown or contradicts the name, and if
    stdout is a terminal.
    """
    if output == PIPE:
        _check_pipe()

    from s1_mini.audio.container import check_format, check_writable, format_of, media_type

    file = None if output == PIPE else output
    if file is not None:
        check_writable(file)  # before generating, which may take an hour
    if named is None:
        return "wav" if file is None else format_of(file)
    chosen = check_format(named, encodes=False)  # the caller may not encode it here
    if (
        file is not None
        and Path(file).suffix[1:].lower() in FORMATS
        and media_type(format_of(file)) != media_type(chosen)
    ):
        raise ParameterError("audio_format", f"{chosen} does not match {file}; omit --format, or rename the file")
    return chosen


def _check_pipe() -> None:
    """Raise `ParameterError` if stdout is a terminal, which would show audio as characters."""
    if sys.stdout is not None and sys.stdout.isatty():
        raise ParameterError("path", "- writes audio to stdout, which is this terminal; add `> FILE` or `| PROGRAM`")


def _hint(error: Exception) -> str:
    """Return a hint for a text that the shell has split or the parser has taken for an option, otherwise ""."""
    option = getattr(error, "option_name", None)
    if option is not None and (" " in option or not option.startswith("--")):
        return 'a text that begins with a dash goes last, after --: s1-mini say -- "-5 degrees."'
    if "extra argument" in getattr(error, "message", ""):
        return 'put the text in quotes: s1-mini say "Good morning."'
    return ""


def _named(error: S1MiniError, ctx: Context) -> S1MiniError:
    if isinstance(error, RequestError):
        name = _spelling(error.field, ctx)
        message = error.reason
        if option := _spelling("on_unsupported", ctx):
            message = message.replace('set on_unsupported to "skip"', f"use {option} skip")
        if option := _spelling("replace", ctx):
            message = message.replace("or set replace", f"or use {option}")
        return type(error)(name or error.field, message)
    found = re.match(r"(\w+)=", str(error))  # settings' errors begin with NAME=
    if isinstance(error, ConfigurationError) and found:
        name = _origin(found[1], ctx)
        return type(error)(name + str(error)[found.end(1) :]) if name else error
    return error


def _spelling(name: str, ctx: Context) -> str | None:
    """Return the name of an option as it is typed, or of an argument as in the help."""
    for param in ctx.command.params:
        if param.name == name:
            return max(param.opts, key=len) if param.param_type_name == "option" else param.metavar or name.upper()
    return None


def _origin(name: str, ctx: Context) -> str | None:
    """Return the option or the variable that set a setting."""
    source = ctx.get_parameter_source(name)
    if source is not None and source.name == "COMMANDLINE":
        return _spelling(name, ctx)
    variable = VARIABLE + name.upper()
    return variable if os.environ.get(variable) else None
