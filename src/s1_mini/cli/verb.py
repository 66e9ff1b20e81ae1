"""What all verbs share: what is wrong is told by what a person typed or set, and no summary is cut.

A verb's parameters have the names that the engine gives them; the option's own name is what its error tells.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from typer.core import TyperCommand, TyperGroup

from s1_mini.exceptions import ConfigurationError, ParameterError, RequestError, S1MiniError
from s1_mini.types import AudioFormat

if TYPE_CHECKING:
    from typer import Context

    from s1_mini.config import EngineConfig
    from s1_mini.families.find import Checkpoint

DEVICES = ("auto", "cpu", "cuda", "mps")
PRECISIONS = ("auto", "float32", "float16", "bfloat16")
FORMATS: tuple[str, ...] = get_args(AudioFormat)

WHOLE = 1000  # characters: more than any summary has
VARIABLE = "S1_MINI_"


class Verb(TyperCommand):
    """One verb."""

    def get_short_help_str(self, limit: int = WHOLE) -> str:  # noqa: ARG002 - a summary is shown whole
        """Give the first sentence of the help."""
        return super().get_short_help_str(WHOLE)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Give what the line of usage consists of, as everybody writes it: TEXT, not {TEXT}."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; where a text was not quoted, or begins with a dash, say how to write it."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # typer has its own copy of click, whose UsageError has no public name
            hint = _hint(error) if any(param.name == "text" for param in self.params) else ""
            if hint:
                error.message = f"{error.message}; {hint}"  # type: ignore[attr-defined]
            raise

    def invoke(self, ctx: Any) -> Any:
        """Do the verb's work; its errors name options and variables."""
        try:
            return super().invoke(ctx)
        except S1MiniError as error:
            raise _named(error, ctx) from None


class Group(TyperGroup):
    """Several verbs under one name."""

    def get_short_help_str(self, limit: int = WHOLE) -> str:  # noqa: ARG002
        """Give the first sentence of the help."""
        return super().get_short_help_str(WHOLE)


def completing(*values: str) -> Callable[[str], list[str]]:
    """Complete an option with these values; others are allowed, too."""

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete


def engine_config(**given: object) -> EngineConfig:
    """Make settings of the options that were given, and of variables. Raises `ConfigurationError`; loads no torch."""
    from s1_mini.config import EngineConfig

    return EngineConfig(**{name: value for name, value in given.items() if value is not None})


def open_checkpoint(path: Path | None, *, checks: bool = True, with_weights: bool = True) -> Checkpoint:
    """Find the checkpoint that an option or a setting names, and check that no file is missing, unless told otherwise.

    Raises `CheckpointError` or `ConfigurationError`; loads no torch.
    """
    from s1_mini.families.find import find_checkpoint

    checkpoint = find_checkpoint(path, with_weights=with_weights)
    return checkpoint.check_files() if checks and with_weights else checkpoint


def check_pipe() -> None:
    """Raise `ParameterError` if stdout is a terminal, which would show sound as letters."""
    if sys.stdout is not None and sys.stdout.isatty():
        raise ParameterError("path", "- sends sound to stdout, which is this terminal; add `> FILE` or `| PROGRAM`")


def _hint(error: Exception) -> str:
    """How a text has to be written that the shell or the parser took for something else."""
    option = getattr(error, "option_name", None)
    if option is not None and (" " in option or not option.startswith("--")):
        return 'a text that begins with a dash goes last, after --: s1-mini say -- "-5 degrees."'
    if "extra argument" in getattr(error, "message", ""):
        return 'put the text in quotes: s1-mini say "Good morning."'
    return ""


def _named(error: S1MiniError, ctx: Context) -> S1MiniError:
    if isinstance(error, RequestError):
        name = _spelling(error.field, ctx)
        message = str(error).removeprefix(f"{error.field}: ")
        if option := _spelling("on_unsupported", ctx):
            message = message.replace('set on_unsupported to "skip"', f"use {option} skip")
        if option := _spelling("replace", ctx):
            message = message.replace("or set replace", f"or use {option}")
        return type(error)(name or error.field, message)
    found = re.match(r"(\w+)=", str(error))  # as all settings' errors begin
    if isinstance(error, ConfigurationError) and found:
        name = _origin(found[1], ctx)
        return type(error)(name + str(error)[found.end(1) :]) if name else error
    return error


def _spelling(name: str, ctx: Context) -> str | None:
    """Give an option as it is typed, an argument as the help calls it."""
    for param in ctx.command.params:
        if param.name == name:
            return max(param.opts, key=len) if param.param_type_name == "option" else param.metavar or name.upper()
    return None


def _origin(name: str, ctx: Context) -> str | None:
    """Tell what set a setting: an option, or a variable."""
    source = ctx.get_parameter_source(name)
    if source is not None and source.name == "COMMANDLINE":
        return _spelling(name, ctx)
    variable = VARIABLE + name.upper()
    return variable if os.environ.get(variable) else None
