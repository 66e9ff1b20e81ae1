"""`s1-mini settings`: every setting with its variable, value, default and meaning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_origin

import typer

from s1_mini.cli.verb import print_table

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic_settings import BaseSettings

LIMITS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


class Setting(NamedTuple):
    """One line of the table."""

    variables: tuple[str, ...]  # names of the variables; each of them sets this setting
    value: str  # current value
    default: str
    meaning: str

    @property
    def is_set(self) -> bool:
        """Whether the value differs from the default."""
        return self.value != self.default


def settings(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print defaults only, as tables in Markdown.")] = False,
    changed: Annotated[
        bool, typer.Option("--changed", help="Show only settings whose value is not the default.")
    ] = False,
) -> None:
    """Show every setting: its variable, its value in this environment, its default and its meaning.

    Example: S1_MINI_DEVICE=cpu s1-mini settings --changed
    """
    from rich.table import Column

    shown = [(title, [line for line in group if line.is_set or not changed]) for title, group in groups()]
    if not any(lines for _, lines in shown):
        typer.echo("all settings have their default values")
    for title, lines in shown:
        if lines and markdown:
            typer.echo(f"## {title}\n\n{as_markdown(lines)}\n")
        elif lines:
            # Names are what readers search for, so they are never truncated.
            width = max(len(name) for line in lines for name in line.variables)
            variable = Column("variable", no_wrap=True, min_width=width)
            rows = [("\n".join(line.variables), line.value, line.default, line.meaning) for line in lines]
            print_table(rows, variable, "now", "default", "meaning", title=title, title_justify="left")


def groups() -> Iterator[tuple[str, list[Setting]]]:
    """Yield the settings of engine, server, container and cluster with their values in this environment.

    Raises `ConfigurationError` for a variable with an invalid value.
    """
    from s1_mini.config import EngineConfig
    from s1_mini.remote.ray_settings import ClusterSettings
    from s1_mini.sagemaker.settings import ContainerSettings
    from s1_mini.server.settings import ServerSettings

    kinds = {
        "Engine": EngineConfig,
        "Server": ServerSettings,
        "Container and local endpoint": ContainerSettings,
        "Stages on a cluster": ClusterSettings,
    }
    for title, kind in kinds.items():
        yield title, _describe(kind())


def as_markdown(lines: list[Setting]) -> str:
    """Return a table of defaults and meanings."""
    rows = [
        f"| {', '.join(f'`{variable}`' for variable in line.variables)} | {line.default} | {line.meaning} |"
        for line in lines
    ]
    return "\n".join(["| variable | default | meaning |", "|---|---|---|", *rows])


def _describe(chosen: BaseSettings) -> list[Setting]:
    from s1_mini.variables import variables_of

    kind = type(chosen)
    return [
        Setting(
            tuple(variables_of(kind, name)), _written(getattr(chosen, name)), _written(field.default), _meaning(field)
        )
        for name, field in kind.model_fields.items()
    ]


def _written(value: Any) -> str:
    """Return a value in the format of a variable; secrets are masked."""
    if value is None or value in ("", (), {}):
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, dict):
        return ",".join(f"{name}={each}" for name, each in value.items())
    if isinstance(value, PurePath):
        return value.as_posix()
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _meaning(field: FieldInfo) -> str:
    allowed = []
    if get_origin(field.annotation) is Literal:
        allowed.append(", ".join(map(str, get_args(field.annotation))))
    for limit in field.metadata:
        allowed += [f"{sign} {getattr(limit, name):,}" for name, sign in LIMITS.items() if hasattr(limit, name)]
    return (field.description or "") + (f" ({'; '.join(allowed)})" if allowed else "")
