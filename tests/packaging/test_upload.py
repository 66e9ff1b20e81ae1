"""Uploads to S3, on moto: multipart, resumed after a failure, never overwriting existing objects."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError
from moto import mock_aws

from deployments import REGION
from s1_mini.aws.place import S3Place
from s1_mini.cli.app import run
from s1_mini.exceptions import ConfigurationError, PackageError
from s1_mini.packaging.verify import verify_directory
from s1_mini.packaging.write import lay_out, write_archive, write_prefix
from s1_mini.sagemaker.upload import Uploader, UploadError

BUCKET = "models-of-ours"
PLACE = S3Place(BUCKET, "voices/1")
PART = 5 * 2**20  # S3's minimum
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of moto


@pytest.fixture
def s3(account: None) -> Iterator[Any]:
    with mock_aws():
        client = boto3.client("s3")
        client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        yield client


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "model.tar.gz"
    path.write_bytes(b"".join(bytes([number]) * PART for number in range(5)) + b"end")
    os.utime(path, (0, 0))  # all of moto's uploads were started in 2010
    return path


class Recorder:
    """A real client that counts its requests, and fails at a given one."""

    def __init__(self, client: Any, fails_at: int | None = None) -> None:
        self._client, self.fails_at = client, fails_at
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name in {"exceptions", "get_paginator"}:
            return found

        def ask(**values: Any) -> Any:
            if name == "upload_part" and values["PartNumber"] == self.fails_at:
                raise EndpointConnectionError(endpoint_url="https://s3")
            self.asked.append((name, values))
            return found(**values)

        return ask

    def count(self, name: str) -> int:
        return sum(asked == name for asked, _ in self.asked)


def test_an_archive_arrives_whole_in_parts_with_checksums(s3: Any, large: Path) -> None:
    client, output = Recorder(s3), []

    location = Uploader(client, part_bytes=PART).send(large, PLACE, output.append)

    assert location == f"s3://{BUCKET}/voices/1/model.tar.gz"
    assert s3.get_object(Bucket=BUCKET, Key="voices/1/model.tar.gz")["Body"].read() == large.read_bytes()
    assert sum(output) == large.stat().st_size
    parts = [values for name, values in client.asked if name == "upload_part"]
    assert len(parts) == 6
    assert all(values["ChecksumSHA256"] for values in parts)
    (completed,) = [values for name, values in client.asked if name == "complete_multipart_upload"]
    assert completed["IfNoneMatch"] == "*"


def test_a_failed_upload_resumes_where_it_stopped(s3: Any, large: Path) -> None:
    broken = Recorder(s3, fails_at=5)
    with pytest.raises(
        UploadError, match=r"cannot reach AWS.*parts of .* are uploaded; to resume, .* --artifact FILE.*abort-multipart"
    ):
        Uploader(broken, part_bytes=PART).send(large, PLACE)
    arrived = broken.count("upload_part")

    again = Recorder(s3)
    Uploader(again, part_bytes=PART).send(large, PLACE)

    assert arrived >= 4
    assert again.count("create_multipart_upload") == 0
    assert again.count("upload_part") == 6 - arrived
    assert s3.get_object(Bucket=BUCKET, Key="voices/1/model.tar.gz")["Body"].read() == large.read_bytes()
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=BUCKET)


def test_a_file_that_changed_meanwhile_is_sent_as_it_is_now(s3: Any, large: Path) -> None:
    with pytest.raises(UploadError):
        Uploader(Recorder(s3, fails_at=5), part_bytes=PART).send(large, PLACE)
    content = bytearray(large.read_bytes())
    content[0] = 99
    large.write_bytes(content)

    Uploader(s3, part_bytes=PART).send(large, PLACE)

    assert s3.get_object(Bucket=BUCKET, Key="voices/1/model.tar.gz")["Body"].read() == content


def test_existing_objects_are_neither_sent_again_nor_overwritten(s3: Any, large: Path) -> None:
    Uploader(s3, part_bytes=PART).send(large, PLACE)
    before = large.read_bytes()

    again = Recorder(s3)
    Uploader(again, part_bytes=PART).send(large, PLACE)
    large.write_bytes(b"another")
    with pytest.raises(UploadError, match="already exists with different content and is never overwritten"):
        Uploader(s3, part_bytes=PART).send(large, PLACE)

    assert {name for name, _ in again.asked} == {"head_object"}
    assert s3.get_object(Bucket=BUCKET, Key="voices/1/model.tar.gz")["Body"].read() == before


def test_of_two_concurrent_uploads_one_wins_and_the_other_is_refused(
    s3: Any, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put_object(Bucket=BUCKET, Key="voices/1/model.tar.gz", Body=b"first")
    monkeypatch.setattr(Uploader, "_is_there", lambda *_: False)

    with pytest.raises(UploadError, match="never overwritten"):
        Uploader(s3, part_bytes=PART).send(large, PLACE)
    large.write_bytes(b"small")
    with pytest.raises(UploadError, match="never overwritten"):
        Uploader(s3, part_bytes=PART).send(large, PLACE)

    assert s3.get_object(Bucket=BUCKET, Key="voices/1/model.tar.gz")["Body"].read() == b"first"


def test_a_folder_arrives_file_by_file_its_manifest_last(s3: Any, oracle: Path, tmp_path: Path) -> None:
    write_prefix(lay_out(oracle), tmp_path / "model")
    client = Recorder(s3)

    location = Uploader(client, kms_key="alias/ours").send(tmp_path / "model", PLACE)

    assert location == f"s3://{BUCKET}/voices/1/"
    sent = [values for name, values in client.asked if name == "put_object"]
    assert sent[-1]["Key"] == "voices/1/manifest.json"
    assert {values["SSEKMSKeyId"] for values in sent} == {"alias/ours"}
    for key in (values["Key"] for values in sent):
        path = tmp_path / "back" / key.removeprefix("voices/1/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())
    assert verify_directory(tmp_path / "back") == verify_directory(tmp_path / "model")


def test_a_damaged_folder_is_not_sent(s3: Any, oracle: Path, tmp_path: Path) -> None:
    write_prefix(lay_out(oracle), tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text("{}")

    with pytest.raises(PackageError, match=r"config\.json"):
        Uploader(s3).send(tmp_path / "model", PLACE)

    assert s3.list_objects_v2(Bucket=BUCKET)["KeyCount"] == 0


def test_the_command_line_packages_and_sends_and_says_where(
    s3: Any, oracle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["package", "--checkpoint", str(oracle), "-o", str(tmp_path / "model.tar.gz")]
    monkeypatch.setattr(sys, "argv", ["s1-mini", *options, "--upload", f"s3://{BUCKET}/a"])

    assert run() == 0

    assert capsys.readouterr().out.strip() == f"s3://{BUCKET}/a/model.tar.gz"
    found = s3.get_object(Bucket=BUCKET, Key="a/model.tar.gz")["Body"].read()
    assert found == (tmp_path / "model.tar.gz").read_bytes()


def test_a_failure_names_the_cause_and_the_next_command(
    s3: Any, oracle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_archive(lay_out(oracle), tmp_path / "model.tar.gz")
    monkeypatch.setattr(
        sys,
        "argv",
        ["s1-mini", "package", "--artifact", str(tmp_path / "model.tar.gz"), "--upload", "s3://not-there/a"],
    )

    assert run() == 1

    said = capsys.readouterr().err
    assert "bucket not-there does not exist" in said
    assert "aws s3 mb" in said
    assert "s1-mini package --artifact" in said


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("bucket/prefix", "must have the form s3://bucket/key"),
        ("s3://", "'' cannot be the name of a bucket"),
        ("s3://UPPER/x", "'UPPER' cannot be the name of a bucket"),
        ("s3://bucket//x", "the key has an empty part"),
        ("https://bucket/x", "must have the form s3://bucket/key"),
    ],
)
def test_an_invalid_s3_location_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        S3Place.parse(text)
