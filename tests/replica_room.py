"""Several replicas behind one port, started by the command line, for the server tests."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from commands import ENVIRONMENT
from door_room import Address
from s1_mini.exceptions import ConfigurationError
from s1_mini.remote.proxy import find_proxy
from waiting import EVENTUALLY_S, wait_until

ROOT = Path(__file__).parents[1]


def lacks_proxy() -> bool:
    """Return whether several replicas cannot be started here."""
    if sys.platform == "win32":
        return True
    try:
        find_proxy()
    except ConfigurationError:
        return True
    return False


needs_proxy = pytest.mark.skipif(lacks_proxy(), reason="several replicas need HAProxy, and a system that it runs on")


@dataclass
class Replicas(Address):
    """A running replicated server, by its process."""

    process: subprocess.Popen[str]
    port: int
    store: Path
    lines: list[str] = field(default_factory=list)

    def told(self, **fields: Any) -> list[dict[str, Any]]:
        """Return log lines with these fields."""
        parsed = [json.loads(line) for line in list(self.lines) if line.startswith("{")]
        return [line for line in parsed if fields.items() <= line.items()]

    def health(self) -> dict[str, Any]:
        with self.client() as client:
            answer: dict[str, Any] = client.get("/health").json()
            return answer

    def num_ready(self) -> int:
        assert self.process.poll() is None, self.lines
        try:
            return sum(replica["state"] == "ready" for replica in self.health()["replicas"])
        except (httpx2.TransportError, KeyError, ValueError):
            return 0

    def pids(self) -> list[int]:
        """Process ids of the replicas, by number."""
        found: dict[int, int] = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                    parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                except (OSError, IndexError):
                    continue
                if parent == self.process.pid and b"s1_mini.remote.replica" in words:
                    found[int(words[words.index(b"--index") + 1])] = int(folder.name)
        return [found[index] for index in sorted(found)]


@contextmanager
def replicated(checkpoint: Path, store: Path, *options: str, count: int = 2, **environment: str) -> Iterator[Replicas]:
    """Serve with several replicas until the block ends; all of them are ready when it begins."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "s1_mini", "serve", "--replicas", str(count), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--checkpoint", str(checkpoint), "--device", "cpu", *options]
    settings = ENVIRONMENT | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")} | environment
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=settings) as process:
        door = Replicas(process, port, store)
        reader = threading.Thread(target=lambda: door.lines.extend(iter(process.stderr.readline, "")))  # type: ignore[union-attr]
        reader.start()
        try:
            wait_until(lambda: door.num_ready() == count)
            yield door
        finally:
            process.terminate()
            try:
                process.wait(EVENTUALLY_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            finally:
                reader.join()
