"""Locations on S3."""

from __future__ import annotations

import re
from dataclasses import dataclass

from s1_mini.exceptions import ConfigurationError

BUCKET = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"  # valid bucket names
_PLACE = re.compile(rf"s3://({BUCKET})(?:/(.*))?", re.DOTALL)
MAX_KEY_BYTES = 1024


@dataclass(frozen=True)
class S3Place:
    """A bucket and a key or a prefix in it."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str) -> S3Place:
        """Parse `s3://bucket/prefix`. Raises `ConfigurationError`."""
        match = _PLACE.fullmatch(text)
        if match is None or "//" in f"/{match[2] or ''}" or len(text.encode()) > MAX_KEY_BYTES:
            raise ConfigurationError(f"{text[:200]!r} is not a valid S3 location; use s3://bucket/prefix")
        return cls(match[1], (match[2] or "").strip("/"))

    def join(self, name: str) -> str:
        return f"{self.key}/{name}" if self.key else name

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


def split_location(location: str) -> tuple[str, str]:
    """Split a valid `s3://` location into bucket and key, without a check."""
    bucket, _, key = location.removeprefix("s3://").partition("/")
    return bucket, key
