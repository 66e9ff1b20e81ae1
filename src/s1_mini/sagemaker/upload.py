"""Upload an artifact to S3 in parts with SHA-256 checksums; a repeated upload resumes, and nothing is overwritten.

A `.tar.gz` becomes one object, and a folder becomes one object per file. The manifest is uploaded last, so a release is
complete once its manifest exists. To resume, an upload sends only the parts that S3 does not list yet (boto3's
`upload_file` cannot resume).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s1_mini.aws.failures import About, explained
from s1_mini.aws.place import S3Place
from s1_mini.exceptions import S1MiniError
from s1_mini.packaging.verify import MANIFEST, verify_directory

Progress = Callable[[int], None]

HASH = "s1-mini-sha256"  # key of the metadata that identifies the content
PART_BYTES = 16 * 2**20
MAX_PARTS = 10_000
AT_ONCE = 4
NEEDS = "s3:PutObject, s3:GetObject, s3:ListBucketMultipartUploads, s3:ListMultipartUploadParts"


class UploadError(S1MiniError, code="upload_failed"):
    """An artifact could not be uploaded, or other content exists at its location."""


def about_sending(artifact: Path, place: S3Place, region: str | None = None) -> About:
    """Return the context for an error message about an upload."""
    return About(region=region, doing=f"{artifact} could not be sent to {place}", bucket=place.bucket, needs=NEEDS)


@dataclass(frozen=True)
class Uploader:
    """Uploads files; with `kms_key`, S3 encrypts them with that key instead of the bucket's default."""

    client: Any
    kms_key: str | None = None
    part_bytes: int = PART_BYTES
    region: str | None = None  # the client's region, for error messages

    def send(self, artifact: Path, place: S3Place, progress: Progress = lambda _: None) -> str:
        """Upload a `.tar.gz` or a folder below `place`, or a `.tar.gz` to a key of that suffix; return its location.

        Raises `UploadError`, or `PackageError` for a folder that differs from its manifest.
        """
        with explained(about_sending(artifact, place, self.region), UploadError):
            if artifact.is_dir():
                return self._send_folder(artifact, place, progress)
            if not artifact.is_file():
                raise UploadError(f"{artifact} does not exist: create it with s1-mini package --output {artifact}")
            key = place.join(artifact.name) if not place.key.endswith(".tar.gz") else place.key
            self._send_file(artifact, place.bucket, key, progress)
            return f"s3://{place.bucket}/{key}"

    def _send_folder(self, folder: Path, place: S3Place, progress: Progress) -> str:
        manifest = verify_directory(folder)
        for name in (*sorted(manifest.files), MANIFEST):
            self._send_file(folder / name, place.bucket, place.join(name), progress)
        return f"s3://{place.bucket}/{place.join('')}"

    def _send_file(self, path: Path, bucket: str, key: str, progress: Progress) -> None:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        size = path.stat().st_size
        options: dict[str, Any] = {"Metadata": {HASH: sha256}, "ChecksumAlgorithm": "SHA256"}
        if self.kms_key is not None:
            options |= {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": self.kms_key}
        if self._is_there(bucket, key, sha256):
            progress(size)
        elif size > self.part_bytes:
            self._send_parts(path, bucket, key, options, progress)
        else:
            content = path.read_bytes()
            options |= {"Body": content, "ChecksumSHA256": _sum(content)}
            self.client.put_object(Bucket=bucket, Key=key, IfNoneMatch="*", **options)
            progress(size)

    def _is_there(self, bucket: str, key: str, sha256: str) -> bool:
        """Return whether this content exists at `key`. Raises `UploadError` if other content exists there."""
        try:
            found = self.client.head_object(Bucket=bucket, Key=key)
        except self.client.exceptions.ClientError as error:
            status, details = error.response["ResponseMetadata"]["HTTPStatusCode"], error.response.get("Error", {})
            if status == 404 and details.get("Code") != "NoSuchBucket":
                return False
            raise
        if found.get("Metadata", {}).get(HASH) == sha256:
            return True
        raise UploadError(
            f"s3://{bucket}/{key} already exists with different content and is never overwritten; use a new prefix"
        )

    def _send_parts(self, path: Path, bucket: str, key: str, options: dict[str, Any], progress: Progress) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        size = path.stat().st_size
        part_bytes = max(self.part_bytes, -(-size // MAX_PARTS))
        count = -(-size // part_bytes)
        upload = self._find_upload(path, bucket, key)
        if upload is None:
            upload = self.client.create_multipart_upload(Bucket=bucket, Key=key, **options)["UploadId"]
        named = {"Bucket": bucket, "Key": key, "UploadId": upload}
        pages = self.client.get_paginator("list_parts").paginate(**named)
        arrived = {part["PartNumber"]: part for page in pages for part in page.get("Parts", [])}

        def send(number: int) -> dict[str, Any]:
            with path.open("rb") as file:
                file.seek((number - 1) * part_bytes)
                content = file.read(part_bytes)
            part, checksum = arrived.get(number), _sum(content)
            if part is None or not _is_same(part, content, checksum):
                checksums = {"ChecksumAlgorithm": "SHA256", "ChecksumSHA256": checksum}
                part = self.client.upload_part(**named, **checksums, PartNumber=number, Body=content)
            return {"PartNumber": number, "ETag": part["ETag"], "ChecksumSHA256": checksum}

        parts: list[dict[str, Any]] = []
        try:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                for part in pool.map(send, range(1, count + 1)):  # a failure cancels the pending parts
                    progress(min(part_bytes, size - len(parts) * part_bytes))
                    parts.append(part)
            self.client.complete_multipart_upload(**named, IfNoneMatch="*", MultipartUpload={"Parts": parts})
        except (BotoCoreError, ClientError, OSError) as error:
            error.add_note(
                f"{len(parts)} of {count} parts of s3://{bucket}/{key} are uploaded; to resume, upload the file "
                f"again with --artifact FILE, or drop the parts: aws s3api abort-multipart-upload --bucket {bucket} "
                f"--key {key} --upload-id {upload}"
            )
            raise

    def _find_upload(self, path: Path, bucket: str, key: str) -> str | None:
        """Return the last unfinished upload of this key that is newer than the file."""
        pages = self.client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=key)
        written = path.stat().st_mtime
        begun = [
            (one["Initiated"], str(one["UploadId"]))
            for page in pages
            for one in page.get("Uploads", [])
            if one["Key"] == key and one["Initiated"].timestamp() > written
        ]
        return max(begun)[1] if begun else None


def _is_same(part: dict[str, Any], content: bytes, checksum: str) -> bool:
    """Return whether an uploaded part is `content`, by its ETag if the store keeps no checksums of parts."""
    if "ChecksumSHA256" in part:
        return bool(part["ChecksumSHA256"] == checksum)
    return bool(part["ETag"].strip('"') == hashlib.md5(content, usedforsecurity=False).hexdigest())


def _sum(content: bytes) -> str:
    return base64.b64encode(hashlib.sha256(content).digest()).decode()
