"""Stores of asynchronous results: a confined local directory, and S3 through the real boto3."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from moto import mock_aws

from deployments import REGION
from s1_mini.exceptions import ConfigurationError
from s1_mini.sagemaker.async_store import FolderStore, S3Store, local_path, open_store
from s1_mini.server.errors import BodyError, BodyTooLargeError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of moto


@pytest.fixture
def s3(account: None) -> Iterator[Any]:
    with mock_aws():
        client = boto3.client("s3")
        client.create_bucket(Bucket="speech", CreateBucketConfiguration={"LocationConstraint": REGION})
        yield client


@pytest.mark.parametrize(("place", "key"), [("s3://speech/answers/", "answers/a.out"), ("s3://speech", "a.out")])
def test_answers_and_inputs_are_objects_of_a_bucket(s3: Any, place: str, key: str) -> None:
    store = open_store(place)
    store.write("a.out", b"sound", "audio/wav")

    found = s3.get_object(Bucket="speech", Key=key)
    assert store.locate("a.out") == f"s3://speech/{key}"
    assert (found["Body"].read(), found["ContentType"]) == (b"sound", "audio/wav")
    assert store.read(f"s3://speech/{key}", 5) == b"sound"
    with pytest.raises(BodyTooLargeError):
        store.read(f"s3://speech/{key}", 4)
    for missing in ("s3://speech/none", "s3://x", "file:///etc/passwd", "https://speech/a", "file://[::1"):
        with pytest.raises(BodyError):
            store.read(missing, 5)


@pytest.mark.parametrize("place", ["s3://", "s3://-", "s3://Speech/x"])
def test_a_location_that_is_not_a_bucket_is_refused(place: str) -> None:
    with pytest.raises(ConfigurationError, match="async store"):
        S3Store(place)


def test_a_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigurationError, match="async store"):
        FolderStore(tmp_path / "file" / "folder")


@pytest.mark.skipif(os.name == "nt", reason="Windows lets few users make links")
def test_a_link_that_leads_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    store = FolderStore(tmp_path / "store")
    (tmp_path / "store" / "link").symlink_to(tmp_path / "secret")

    with pytest.raises(BodyError):
        store.read("link", 100)


def test_a_folder_can_read_every_location_that_it_returns_up_to_the_limit(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "new" / "an swers"))
    store.write("a b.out", b"sound", "audio/wav")

    assert store.read(store.locate("a b.out"), 5) == b"sound"
    with pytest.raises(BodyTooLargeError):
        store.read(store.locate("a b.out"), 4)


@pytest.mark.parametrize("path", [PureWindowsPath("C:/an swers/a.out"), PurePosixPath("/C:/an swers/a.out")])
def test_a_location_is_a_path_of_the_system_that_named_it(path: PurePath) -> None:
    folder = path.parent
    is_windows = isinstance(path, PureWindowsPath)

    found = folder / local_path(urlsplit(path.as_uri()).path, is_windows=is_windows)

    assert found == path
