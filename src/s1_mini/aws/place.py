"""Locations on S3."""

from __future__ import annotations

import re
from dataclasses import dataclass

from s1_mini.exceptions import ConfigurationError

BUCKET = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"  # valid bucket names
SCHEME = "s3://"
MAX_KEY_BYTES = 1024


def check_location(text: str) -> str:
    """Return `text`. Raises `ValueError` with the reason if it is not `s3://bucket`, with or without a key."""
    if not text.startswith(SCHEME):
        raise ValueError("must have the form s3://bucket/key")
    bucket, key = split_location(text)
    if re.fullmatch(BUCKET, bucket) is None:
        raise ValueError(
            f"{bucket[:70]!r} cannot be the name of a bucket, which has 3 to 63 lower-case letters, digits, dots and "
            "hyphens, with a letter or digit at both ends; use s3://bucket/key"
        )
    if len(key.encode(errors="replace")) > MAX_KEY_BYTES:
        raise ValueError(f"the key after the bucket's name is longer than {MAX_KEY_BYTES:,} bytes")
    return text


@dataclass(frozen=True)
class S3Place:
    """A bucket and a key or a prefix in it."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str) -> S3Place:
        """Parse `s3://bucket/prefix`. Raises `ConfigurationError`."""
        try:
            bucket, key = split_location(check_location(text))
        except ValueError as error:
            raise ConfigurationError(f"{text[:200]!r} is not a valid S3 location: {error}") from None
        if "//" in f"/{key}":
            raise ConfigurationError(f"{text[:200]!r} is not a valid S3 location: the key has an empty part (//)")
        return cls(bucket, key.strip("/"))

    def join(self, name: str) -> str:
        return f"{self.key}/{name}" if self.key else name

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


def split_location(location: str) -> tuple[str, str]:
    """Split a valid `s3://` location into bucket and key, without a check."""
    bucket, _, key = location.removeprefix(SCHEME).partition("/")
    return bucket, key
