"""The `S1_MINI_*` variables of all packages, a base class for settings, and suggestions for misspelt variables.

A package that reads variables registers its settings class here by name, so that an engine alone imports none of these
packages.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher, get_close_matches
from pkgutil import resolve_name
from typing import Any

from pydantic import AliasChoices, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from s1_mini.exceptions import ConfigurationError

ENGINE, SERVER = "S1_MINI_", "S1_MINI_SERVER_"
MAX_CHANGES = 2  # letters that a misspelt name lacks or has in addition; a wrong letter counts twice
_INJECTED = re.compile("_SERVICE_|_PORT")
OWNERS = {  # prefix: a settings class, or a function that returns the names
    ENGINE: "s1_mini.config:EngineConfig",
    SERVER: "s1_mini.server.settings:ServerSettings",
    "S1_MINI_SERVER_SAGEMAKER_": "s1_mini.sagemaker.settings:ContainerSettings",
    "S1_MINI_CLUSTER_": "s1_mini.remote.ray_settings:ClusterSettings",
    "S1_MINI_AWS_": "s1_mini.cli.endpoint:variables",
}


class Settings(BaseSettings):
    """Settings by keyword or by variable: `env_prefix` and the field's name.

    Raises `ConfigurationError` for an unknown keyword or a value out of range, naming the variable.
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_ignore_empty=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            prefix = self.model_config["env_prefix"]
            raise ConfigurationError("; ".join(_describe(prefix, problem) for problem in error.errors())) from None


def _describe(prefix: str, problem: Any) -> str:
    name = str(problem["loc"][0]) if problem["loc"] else ""
    if problem["type"] == "extra_forbidden":
        return f"{prefix}{name.upper()} is not a setting"
    value = "" if "key" in name else f"={problem['input']!r}"
    return f"{prefix}{name.upper()}{value}: {problem['msg'].removeprefix('Value error, ')}"


def entries(value: str) -> list[str]:
    """Return the entries of a comma-separated list; none for an empty string.

    Raises `ValueError` if there are only commas and white space: a mistake, for example of a script whose own variable
    is unset.
    """
    found = [part.strip() for part in value.split(",") if part.strip()]
    if value and not found:
        raise ValueError("has no entry; list at least one, separated by commas, or leave the variable unset")
    return found


def variables_of(settings: Any, field: str) -> list[str]:
    """Return the variables that set a field of a settings class, the one with precedence first."""
    alias = settings.model_fields[field].validation_alias
    prefix = str(settings.model_config.get("env_prefix", ""))
    return [str(name) for name in alias.choices] if isinstance(alias, AliasChoices) else [prefix + field.upper()]


def known_variables(prefix: str) -> list[str]:
    """Import the owner of `prefix` in `OWNERS` and return all of its variables."""
    owner: Any = resolve_name(OWNERS[prefix])
    if not hasattr(owner, "model_fields"):
        return list(owner())
    return [variable for field in owner.model_fields for variable in variables_of(owner, field)]


def check_variables(prefix: str = ENGINE) -> None:
    """Warn of each variable of `prefix` that no setting has; `SERVER` and `ENGINE` together cover all prefixes.

    Raises `ConfigurationError` for names with a wrong letter or two, because the setting that was meant would silently
    keep its default. Kubernetes sets variables such as S1_MINI_SERVICE_HOST and S1_MINI_PORT_80_TCP for a service of
    this name; they never cause the error.
    """
    misspelt = []
    for name, near in unknown_variables(os.environ, prefix):
        sentence = f"{name} is not a setting of s1_mini" + (f"; did you mean {near}?" if near else "")
        if near and os.environ[name] and not _INJECTED.search(name) and _is_misspelling(name.upper(), near):
            misspelt.append(f"{sentence} Correct or unset it")
        else:
            warnings.warn(sentence, stacklevel=4)
    if misspelt:
        raise ConfigurationError("; ".join(misspelt))


def unknown_variables(environment: Mapping[str, str], prefix: str = ENGINE) -> Iterator[tuple[str, str | None]]:
    """Yield each variable of `prefix` that no setting has, with the most similar known name.

    `SERVER` covers the variables of the server and its container, `ENGINE` all others.
    """
    unknown = [name for name in sorted(environment) if name.startswith(prefix)]
    if prefix == ENGINE:
        unknown = [name for name in unknown if not name.startswith(SERVER)]
    known: list[str] = []
    for owner in sorted(
        OWNERS, key=lambda owner: owner != prefix
    ):  # the prefix's own owner first: it is usually enough
        if unknown:
            known += known_variables(owner)
            unknown = [name for name in unknown if name.upper() not in known]
    for name in unknown:
        yield name, _most_similar(name, known)


def _is_misspelling(name: str, known: str) -> bool:
    """Return whether the names differ by one exchanged letter or pair, or by one or two missing or additional ones."""
    blocks = SequenceMatcher(None, name, known, autojunk=False).get_matching_blocks()
    return len(name) + len(known) - 2 * sum(block.size for block in blocks) <= MAX_CHANGES


def _most_similar(name: str, known: list[str]) -> str | None:
    """Return the known name most similar to `name`, whose prefix may be wrong or incomplete."""
    if near := get_close_matches(name, known, n=1, cutoff=0.9):
        return near[0]
    words = {_without_prefix(variable): variable for variable in reversed(known)}
    near = get_close_matches(_without_prefix(name), words, n=1)
    return words[near[0]] if near else None


def _without_prefix(name: str) -> str:
    return name.removeprefix(max((prefix for prefix in OWNERS if name.startswith(prefix)), key=len))
