"""The header `X-Amzn-SageMaker-Custom-Attributes`: what a client may say in it, and what we answer in it. Pure.

SageMaker hands up to 1,024 visible ASCII characters through, both ways. Ours are `name=value` pairs with commas
between them: `route=/v1/audio/speech` on the way in, `sample_rate=44100,format=pcm` on the way out.
"""

from __future__ import annotations

import re

from s1_mini.exceptions import ParameterError
from s1_mini.server.errors import NotFoundError

HEADER = "X-Amzn-SageMaker-Custom-Attributes"
MAX_LENGTH = 1024

_VISIBLE = re.compile(r"[\x20-\x7e]*")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_VALUE = re.compile(r"[\x21-\x2b\x2d-\x7e]*")  # visible, no comma, no space
_ROUTE = re.compile(r"/[A-Za-z0-9_./-]*")


def read_attributes(header: str | None) -> dict[str, str]:
    """Read the pairs of a header; what is no pair is somebody else's and ignored.

    Raises `ParameterError` for more than `MAX_LENGTH` characters, one that is not visible ASCII, or a pair twice.
    """
    if not header:
        return {}
    if len(header) > MAX_LENGTH:
        raise ParameterError(HEADER, f"is {len(header)} characters long; at most {MAX_LENGTH} are allowed")
    if not _VISIBLE.fullmatch(header):
        raise ParameterError(HEADER, "holds characters that are not visible ASCII")
    attributes: dict[str, str] = {}
    for item in re.split(r"[,\s]+", header):
        name, found, value = item.partition("=")
        if not found or not _NAME.fullmatch(name):
            continue
        if name in attributes:
            raise ParameterError(HEADER, f"names {name} twice")
        attributes[name] = value
    return attributes


def read_route(header: str | None, routes: frozenset[str]) -> str | None:
    """Give the route that a header asks for, if it asks for one. Raises `NotFoundError` if it is none of `routes`."""
    route = read_attributes(header).get("route")
    if route is None:
        return None
    path = route if route.startswith("/") else f"/{route}"
    if not _ROUTE.fullmatch(path) or path not in routes:
        raise NotFoundError(f"{HEADER}: route={route[:100]!r} does not exist; allowed are {', '.join(sorted(routes))}")
    return path


def write_attributes(**values: str | int) -> str:
    """Put pairs into a header's value. Raises `ValueError` for a value that could end the pair or the header."""
    for name, value in values.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(str(value)):
            raise ValueError(f"{name}={value!r} does not fit into a header")
    text = ",".join(f"{name}={value}" for name, value in values.items())
    if len(text) > MAX_LENGTH:
        raise ValueError(f"{len(text)} characters of attributes; at most {MAX_LENGTH} fit")
    return text
