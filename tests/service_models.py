"""Validation of AWS requests against botocore's service models, including enumerations, patterns and maxima."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_SCALARS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "boolean": (bool,),
    "blob": (bytes, bytearray),
}


def problems(service: str, operation: str, parameters: Mapping[str, Any]) -> Iterator[str]:
    """Yield each invalid field with its value and what is allowed; `operation` as boto3 spells it."""
    shape = _input_shape(service, operation)
    if shape is not None:
        yield from _look(shape, parameters, "")


def _look(shape: Any, value: Any, path: str) -> Iterator[str]:
    if shape.type_name == "structure":
        yield from _structure(shape, value, path)
    elif shape.type_name == "list":
        if not isinstance(value, (list, tuple)):
            yield f"{path}={value!r} must be a list"
            return
        yield from _bounds(shape, len(value), path, "items")
        for position, item in enumerate(value):
            yield from _look(shape.member, item, f"{path}[{position}]")
    elif shape.type_name == "map":
        if not isinstance(value, Mapping):
            yield f"{path}={value!r} must be a mapping"
            return
        yield from _bounds(shape, len(value), path, "entries")
        for key, item in value.items():
            yield from _look(shape.key, key, f"{path} key")
            yield from _look(shape.value, item, f"{path}[{key}]")
    else:
        yield from _scalar(shape, value, path)


def _structure(shape: Any, value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{path}={value!r} must be a structure"
        return
    prefix = f"{path}." if path else ""
    for name in shape.required_members:
        if name not in value:
            yield f"{prefix}{name} is missing"
    if getattr(shape, "is_tagged_union", False) and len(value) != 1:
        yield f"{path}: exactly one of {sorted(shape.members)} is allowed"
    for name, item in value.items():
        if name in shape.members:
            yield from _look(shape.members[name], item, prefix + name)
        else:
            yield f"{prefix}{name} is unknown{_nearest(name, shape.members)}"


def _scalar(shape: Any, value: Any, path: str) -> Iterator[str]:
    kinds = _SCALARS.get(shape.type_name)
    if kinds is not None and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
        yield f"{path}={value!r} must be {shape.type_name}"
        return
    if isinstance(value, (str, bytes, bytearray)):
        yield from _bounds(shape, len(value), path, "characters" if isinstance(value, str) else "bytes")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from _bounds(shape, value, path, "")
    if isinstance(value, str):
        allowed = getattr(shape, "enum", None)
        if allowed and value not in allowed:
            some = ", ".join(allowed[:8]) + (f" and {len(allowed) - 8} more" if len(allowed) > 8 else "")
            yield f"{path}={value!r}: must be one of {some}{_nearest(value, allowed)}"
        pattern = shape.metadata.get("pattern")
        if pattern and not _compiled(pattern).fullmatch(value):
            yield f"{path}={value!r}: does not match {pattern}"


def _bounds(shape: Any, size: float, path: str, unit: str) -> Iterator[str]:
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    given = f"{size} {unit}".rstrip()
    if low is not None and size < low:
        yield f"{path}: {given} given, at least {low} allowed"
    if high is not None and size > high:
        yield f"{path}: {given} given, at most {high} allowed"


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=3)
    return f" (near: {', '.join(close)})" if close else ""


@functools.cache
def _compiled(pattern: str) -> Any:
    import regex

    # AWS writes Java: pairs of surrogates for what lies beyond 16 bits, \z for the end.
    translated = pattern.replace(r"\uD800\uDC00-\uDBFF\uDFFF", r"\U00010000-\U0010FFFF").replace(r"\z", r"\Z")
    return regex.compile(translated)


@functools.cache
def _input_shape(service: str, operation: str) -> Any:
    model, names = _service(service)
    return model.operation_model(names[operation]).input_shape


@functools.cache
def _service(service: str) -> tuple[Any, dict[str, str]]:
    import botocore.session
    from botocore import xform_name

    model = botocore.session.get_session().get_service_model(service)
    return model, {xform_name(name): name for name in model.operation_names}
