"""Places on S3, a client for them, and what botocore raises as sentences: the cause and the next thing to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from s1_mini.exceptions import ConfigurationError, S1MiniError

_PLACE = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?", re.DOTALL)
MAX_KEY_BYTES = 1024

# What the service answers with, and what it means.
CAUSES = {
    "NoSuchBucket": "the bucket does not exist; make it, or name another",
    "404": "the bucket does not exist; make it, or name another",
    "AccessDenied": "these credentials may not; ask for s3:PutObject, s3:GetObject, s3:ListBucketMultipartUploads",
    "403": "these credentials may not do it, or the bucket is not yours",
    "ExpiredToken": "the session has expired; sign in again (aws sso login)",
    "ExpiredTokenException": "the session has expired; sign in again (aws sso login)",
    "InvalidAccessKeyId": "the access key is not known; see aws configure list",
    "SignatureDoesNotMatch": "the secret key is not that of the access key; see aws configure list",
    "RequestTimeTooSkewed": "this machine's clock is wrong",
    "PermanentRedirect": "the bucket is in another region; name it with AWS_REGION",
    "301": "the bucket is in another region; name it with AWS_REGION",
    "AuthorizationHeaderMalformed": "the bucket is in another region; name it with AWS_REGION",
    "PreconditionFailed": "something is there already and is never written over; name a new prefix",
    "412": "something is there already and is never written over; name a new prefix",
    "ConditionalRequestConflict": "somebody else is writing the same; look again in a while",
    "SlowDown": "S3 asks to go slower; run the same again",
    "KMS.NotFoundException": "the KMS key is not there; name one of this region with --kms-key",
    "KMS.DisabledException": "the KMS key is disabled",
    "EntityTooLarge": "it is larger than S3 takes",
    "NoSuchUpload": "the upload was dropped meanwhile; run the same again",
}
# What botocore raises before it has an answer.
LOCAL = {
    "NoCredentialsError": "there are no AWS credentials; sign in (aws configure, aws sso login) or set AWS_PROFILE",
    "PartialCredentialsError": "the AWS credentials are incomplete; see aws configure list",
    "TokenRetrievalError": "the session has expired; sign in again (aws sso login)",
    "SSOTokenLoadError": "the session has expired; sign in again (aws sso login)",
    "UnauthorizedSSOTokenError": "the session has expired; sign in again (aws sso login)",
    "NoRegionError": "no region is named; set AWS_REGION",
    "ProfileNotFound": "AWS_PROFILE names a profile that is not there",
    "EndpointConnectionError": "the service cannot be reached; is the region right, is there a network?",
    "ConnectTimeoutError": "the service cannot be reached; is there a network?",
    "ReadTimeoutError": "the service does not answer; run the same again",
    "ConnectionClosedError": "the connection broke; run the same again",
    "SSLError": "the service cannot be trusted over TLS; set AWS_CA_BUNDLE to your network's certificates",
}


@dataclass(frozen=True)
class S3Place:
    """A bucket and a key or a prefix in it."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str) -> S3Place:
        """Read `s3://bucket/prefix`. Raises `ConfigurationError`."""
        match = _PLACE.fullmatch(text)
        if match is None or "//" in f"/{match[2] or ''}" or len(text.encode()) > MAX_KEY_BYTES:
            raise ConfigurationError(f"{text[:200]!r} is not s3://bucket/prefix")
        return cls(match[1], (match[2] or "").strip("/"))

    def join(self, name: str) -> str:
        """Give the key of `name` below this place."""
        return f"{self.key}/{name}" if self.key else name

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


def make_client(service: str) -> Any:
    """Make a client with the credentials and the region of this machine. Raises `ConfigurationError`."""
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError:
        raise ConfigurationError("this needs boto3: pip install boto3") from None
    try:
        return boto3.client(service, config=Config(retries={"mode": "standard", "total_max_attempts": 5}))
    except BotoCoreError as error:
        raise ConfigurationError(LOCAL.get(type(error).__name__, str(error))) from None


@contextmanager
def explained(doing: str, kind: type[S1MiniError]) -> Iterator[None]:
    """Raise what botocore raises in this block as `kind`: what failed, why, and the notes that were added."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except ClientError as error:
        answer = error.response.get("Error", {})
        cause = CAUSES.get(str(answer.get("Code", "")), f"{answer.get('Code', '?')}: {answer.get('Message', '')}")
        raise kind("; ".join([f"{doing}: {cause}", *getattr(error, "__notes__", [])])) from None
    except BotoCoreError as error:
        cause = LOCAL.get(type(error).__name__, str(error))
        raise kind("; ".join([f"{doing}: {cause}", *getattr(error, "__notes__", [])])) from None
