"""Stores of asynchronous answers: a folder that is not left, and S3 through the real boto3."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from urllib.parse import urlsplit

import pytest

from s1_mini.exceptions import ConfigurationError
from s1_mini.sagemaker.async_store import FolderStore, S3Store, local_path, open_store
from s1_mini.server.errors import BodyError, BodyTooLargeError


class Bucket(BaseHTTPRequestHandler):
    """As much of S3 as a store asks for: objects by path."""

    objects: dict[str, tuple[bytes, str]] = {}  # noqa: RUF012

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.objects[self.path] = body, self.headers["Content-Type"]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        body, _ = self.objects.get(self.path, (b"", ""))
        self.send_response(200 if self.path in self.objects else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, tuple[bytes, str]]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{server.server_port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "local")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    Bucket.objects.clear()
    yield Bucket.objects
    server.shutdown()
    server.server_close()
    thread.join()


def test_answers_and_inputs_are_objects_of_a_bucket(bucket: dict[str, tuple[bytes, str]]) -> None:
    store = open_store("s3://speech/answers/")
    store.write("a.out", b"sound", "audio/wav")

    assert store.locate("a.out") == "s3://speech/answers/a.out"
    assert bucket == {"/speech/answers/a.out": (b"sound", "audio/wav")}
    assert store.read("s3://speech/answers/a.out", 5) == b"sound"
    with pytest.raises(BodyTooLargeError):
        store.read("s3://speech/answers/a.out", 4)
    for missing in ("s3://speech/none", "s3://x", "file:///etc/passwd", "https://speech/a", "file://[::1"):
        with pytest.raises(BodyError):
            store.read(missing, 5)


def test_a_bucket_may_have_no_prefix(bucket: dict[str, tuple[bytes, str]]) -> None:
    store = open_store("s3://speech")
    store.write("a.out", b"x", "audio/wav")

    assert [store.locate("a.out"), *bucket] == ["s3://speech/a.out", "/speech/a.out"]


@pytest.mark.parametrize("place", ["s3://", "s3://-", "s3://Speech/x"])
def test_a_place_that_is_no_bucket_is_refused(place: str) -> None:
    with pytest.raises(ConfigurationError, match="async store"):
        S3Store(place)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
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


def test_an_input_over_the_limit_is_not_read(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    (tmp_path / "in.json").write_bytes(bytes(11))

    with pytest.raises(BodyTooLargeError):
        store.read("in.json", 10)


def test_the_location_that_a_folder_names_is_one_that_it_reads(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "an swers")
    store.write("a b.out", b"sound", "audio/wav")

    assert store.read(store.locate("a b.out"), 10) == b"sound"


@pytest.mark.parametrize("path", [PureWindowsPath("C:/an swers/a.out"), PurePosixPath("/C:/an swers/a.out")])
def test_a_location_is_a_path_of_the_system_that_named_it(path: PurePath) -> None:
    folder = path.parent
    is_windows = isinstance(path, PureWindowsPath)

    found = folder / local_path(urlsplit(path.as_uri()).path, is_windows=is_windows)

    assert found == path
