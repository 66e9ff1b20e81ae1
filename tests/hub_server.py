"""A stand-in for the Hugging Face hub on a loopback socket: the API calls that resolve and download files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

TOKEN = "hf_may_read"


@dataclass
class Repository:
    """The commits of a repository with their files, and the targets of its branches and tags."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    is_gated: bool = False
    told_sizes: dict[str, int] = field(default_factory=dict)  # sizes in the listing that differ from the real ones

    def commit(self, files: dict[str, bytes], ref: str = "main") -> str:
        """Add a commit that `ref` points to from now on; return its hash."""
        content = b"".join(name.encode() + hashlib.sha256(data).digest() for name, data in sorted(files.items()))
        sha = hashlib.sha1(content).hexdigest()
        self.commits[sha] = files
        self.refs[ref] = sha
        return sha


def files_of(directory: Path) -> dict[str, bytes]:
    """Return the files that a repository of this directory would have."""
    paths = [path for path in directory.rglob("*") if path.is_file()]
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in paths}


class Hub(ThreadingHTTPServer):
    """The server; `asked` has every request about a repository as METHOD and path."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, Repository] = {}
        self.asked: list[str] = []
        self.fails_with: int | None = None

    @property
    def url(self) -> str:
        """Base URL of the server."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def downloads(self, repository: str = "") -> set[str]:
        """Return the names of all downloaded files, of one repository or of all."""
        sent = [line for line in self.asked if line.startswith(f"GET /{repository}")]
        return {line.partition("/resolve/")[2].partition("/")[2] for line in sent} - {""}


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Serve until the end of the block."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        owner, name, kind, *rest = [*path.removeprefix("/api/models").strip("/").split("/"), ""]
        repository = self.server.repositories.get(f"{owner}/{name}")
        if repository is not None:
            self.server.asked.append(f"{self.command} {path}")
        token = self.headers.get("Authorization")
        if self.server.fails_with is not None:
            self._send(self.server.fails_with, b"")
        elif token and token.endswith("expired"):
            self._send(401, b"", {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif repository is None and token:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif repository is None:  # as the hub answers unauthorised clients
            self._send(401, b"", {"X-Error-Message": "Invalid username or password."})
        elif kind == "resolve":
            self._send_file(repository, rest[0], "/".join(rest[1:]).strip("/"))
        else:
            self._send_facts(repository, f"{owner}/{name}", kind, "/".join(rest).strip("/") or "main")

    def _send_facts(self, repository: Repository, name: str, kind: str, revision: str) -> None:
        sha = revision if revision in repository.commits else repository.refs.get(revision)
        if sha is None:
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif kind == "tree":
            self._send_json([self._entry(repository, file, data) for file, data in repository.commits[sha].items()])
        else:
            self._send_json({"id": name, "sha": sha, "siblings": []})

    def _send_file(self, repository: Repository, sha: str, file: str) -> None:
        token = self.headers.get("Authorization")
        data = repository.commits[sha].get(file)
        if repository.is_gated and file != "README.md" and token != f"Bearer {TOKEN}":
            self._send(403 if token else 401, b"", {"X-Error-Code": "GatedRepo"})
        elif data is None:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        else:
            self._send(200, data, {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": sha})

    def _entry(self, repository: Repository, file: str, data: bytes) -> dict[str, object]:
        oid = hashlib.sha1(data).hexdigest()
        return {"type": "file", "path": file, "size": repository.told_sizes.get(file, len(data)), "oid": oid}

    def _send_json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
