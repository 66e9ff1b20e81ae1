"""Names of things that cannot change carry the hash of their content, so that a change is a new thing."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from aws_cdk import Stack
from constructs import Construct


def content_hash(scope: Construct, content: Any) -> str:
    """Hash content as it will stand in the template: 12 hexadecimal digits, the same for the same content."""
    resolved = Stack.of(scope).resolve(content)
    text = json.dumps(resolved, sort_keys=True, separators=(",", ":"), default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def hashed_name(scope: Construct, base: str, *content: Any) -> str:
    """Give `base-hash`, at most SageMaker's 63 characters."""
    return f"{base[:50].rstrip('-')}-{content_hash(scope, list(content))}"


def _plain(value: Any) -> Any:
    return value._values
