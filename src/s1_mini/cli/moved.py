"""What was a verb or an option once: its error says what to do instead."""

from __future__ import annotations

import typer

from s1_mini.exceptions import ParameterError

FREE = {"ignore_unknown_options": True, "allow_extra_args": True}  # of a verb that is no more


def gone(option: str, given: object, instead: str) -> None:
    """Raise `ParameterError` if an option is given that is no more."""
    if given:
        raise ParameterError(option, f"is no option any more; {instead}")


def load(_: typer.Context) -> None:
    """Say where the load on a server went."""
    raise ParameterError("load", "left the package; in a checkout of the project: python -m benchmark.server_load")
