"""Read and validate the values of a checkpoint's JSON configs, for families and codecs, without torch.

A config is a dataclass whose fields are declared with `size`, `number` and so on, and read with `read_fields`. All
`read_` functions raise `CheckpointMismatchError` for invalid values. Their argument `name`, the file and the key, is
the beginning of the message.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields
from functools import partial
from typing import Any

from s1_mini.exceptions import CheckpointMismatchError

# Far larger than in any checkpoint, but small enough that a damaged config cannot exhaust the machine's memory.
MAX_SIZE = 2**20
MAX_LAYERS = 256
MAX_LENGTH = 16  # of a list of sizes
POSITIVE = (lambda value: 0 < value < math.inf), "a positive number"  # arguments of `read_number` and `number`


def invalid(name: str, value: Any, allowed: str) -> CheckpointMismatchError:
    return CheckpointMismatchError(f"{name}={reprlib.repr(value)} must be {allowed}")


def read_size(name: str, value: Any, most: int = MAX_SIZE, *, least: int = 1) -> int:
    if type(value) is not int or not least <= value <= most:
        allowed = "a positive integer up to" if least == 1 else f"an integer from {least} to"
        raise invalid(name, value, f"{allowed} {most}")
    return value


def read_sizes(name: str, value: Any, most: int, *, least: int = 1, max_length: int = MAX_LENGTH) -> tuple[int, ...]:
    is_list = isinstance(value, list | tuple) and 1 <= len(value) <= max_length
    if not is_list or not all(type(each) is int and least <= each <= most for each in value):
        raise invalid(name, value, f"a list of 1 to {max_length} integers from {least} to {most}")
    return tuple(value)


def read_number(name: str, value: Any, fits: Callable[[float], bool], allowed: str) -> float:
    if type(value) not in (int, float) or not fits(value):
        raise invalid(name, value, allowed)
    return float(value)


def read_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise CheckpointMismatchError(f"{name}={reprlib.repr(value)} must be true or false")
    return value


def size(default: Any = MISSING, key: str = "", most: int = MAX_SIZE, *, least: int = 1) -> Any:
    return declare(default, key, partial(read_size, most=most, least=least))


def sizes(
    default: Any = MISSING, key: str = "", most: int = MAX_SIZE, *, least: int = 1, max_length: int = MAX_LENGTH
) -> Any:
    return declare(default, key, partial(read_sizes, most=most, least=least, max_length=max_length))


def number(default: Any, key: str, fits: Callable[[float], bool], allowed: str) -> Any:
    return declare(default, key, partial(read_number, fits=fits, allowed=allowed))


def flag(default: Any = MISSING, key: str = "") -> Any:
    return declare(default, key, read_flag)


def declare(default: Any, key: str, read: Callable[[str, Any], Any]) -> Any:
    """Declare a field that `read_fields` reads with `read` from the JSON key `key`; without `key`, the field's name."""
    return field(default=default, metadata={"key": key, "read": read})


def read_fields(config: type[Any], values: Mapping[str, Any], source: str = "config.json") -> dict[str, Any]:
    """Return the values of a config's declared fields by field name; absent or null values become their defaults."""
    found = {}
    for each in fields(config):
        if "read" in each.metadata:
            key = each.metadata["key"] or each.name
            value = values.get(key)
            is_default = value is None and each.default is not MISSING
            found[each.name] = each.default if is_default else each.metadata["read"](f"{source}: {key}", value)
    return found
