"""Find the family of a checkpoint by the `model_type` in its `config.json`. Families are imported at first use."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.weights.directory import read_json

if TYPE_CHECKING:
    from pydantic import BaseModel

    from s1_mini.families.base import Family

FAMILIES = {
    "dual_ar": "s1_mini.families.s1.family:S1",
    "bark": "s1_mini.families.cascade.family:Cascade",
    "speecht5": "s1_mini.families.mel.family:Mel",
    "qwen3_tts": "s1_mini.families.qwen3.family:Qwen3",
    "arktts": "s1_mini.families.s1.family:Audio8",
}
# Names of the families on the command line.
SHORT_NAMES = {"s1": "dual_ar", "cascade": "bark", "mel": "speecht5", "qwen3": "qwen3_tts", "audio8": "arktts"}
DEFAULT = "dual_ar"  # the family if there is no checkpoint, or no model_type in its config.json


def find_family(config: Mapping[str, Any]) -> Family:
    """Return the family for a `config.json`. Raises `CheckpointMismatchError` if no family supports it."""
    if config and "model_type" not in config and "dim" not in config:
        raise CheckpointMismatchError(
            f"config.json has no model_type, and its fields ({reprlib.repr(sorted(config))[1:-1]}) are not those of "
            f"{DEFAULT}, which has 'dim'. Set model_type to one of {', '.join(FAMILIES)}"
        )
    name = config.get("model_type", DEFAULT)
    if not isinstance(name, str) or name not in FAMILIES:
        raise CheckpointMismatchError(
            f"config.json: model_type must be one of {', '.join(FAMILIES)}, not {reprlib.repr(name)}"
        )
    return get_family(name)


def family_of(checkpoint: Path) -> Family:
    """Return the family of a checkpoint directory. Raises `CheckpointError`."""
    return find_family(read_json(checkpoint / "config.json"))


def family_settings() -> tuple[type[BaseModel], ...]:
    return tuple(dict.fromkeys(get_family(name).settings for name in FAMILIES))


def deferred(module: str, function: str) -> Any:
    """Return a method that calls a function of a module, which is imported only then, because it may import torch."""

    def call(_: object, *arguments: Any, **options: Any) -> Any:
        return getattr(import_module(module), function)(*arguments, **options)

    return call


def get_family(name: str = DEFAULT) -> Family:
    """Return a family of the registry; `name` is its model type or its name on the command line."""
    family: Family = resolve_name(FAMILIES[SHORT_NAMES.get(name, name)])()
    return family
