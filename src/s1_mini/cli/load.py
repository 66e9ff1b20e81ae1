"""`s1-mini load`: many streams on a server, half of whose clients vanish; nothing of the others' may be lost."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

if TYPE_CHECKING:
    from s1_mini.bench.server_load import Place

KEY = "S1_MINI_SERVER_API_KEY"


def load(
    streams: Annotated[int, typer.Option(min=1, help="At a time; every second client vanishes.")] = 64,
    seconds: Annotated[float, typer.Option(min=1)] = 180.0,
    url: Annotated[str | None, typer.Option(help="Of a server. [one is started]", show_default=False)] = None,
    pid: Annotated[int | None, typer.Option(help="Of that server, for its memory.", show_default=False)] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="[the voice that ships]", show_default=False)] = None,
    max_batch_size: Annotated[int, typer.Option(min=1, help="Sentences spoken at once.")] = 16,
) -> None:
    """Load a server: a table by minutes, then one line of JSON. The exit code is 1 if anything was lost.

    Example: s1-mini load --checkpoint tests/assets/s1_tiny --streams 64 --seconds 180
    """
    from s1_mini.bench.server_load import Place

    if url is not None:
        parts = urlsplit(url)
        place = Place(parts.hostname or "127.0.0.1", parts.port or 80, os.environ.get(KEY))
        raise typer.Exit(_measure(place, streams, seconds, pid, None))
    with _served(checkpoint, max_batch_size) as (place, process):
        raise typer.Exit(_measure(place, streams, seconds, process.pid, process))


def _measure(
    place: Place, streams: int, seconds: float, pid: int | None, process: subprocess.Popen[bytes] | None
) -> int:
    import asyncio
    import json

    from s1_mini.bench.server_load import has_lost, report, run, until_ready

    asyncio.run(until_ready(place, lambda: process is None or process.poll() is None))
    rows, facts = report(asyncio.run(run(place, streams, seconds, pid)), streams, seconds)
    print(rows)
    print(f"{facts['whole']} whole, {facts['vanished']} vanished, failed: {facts['failed'] or 'none'}")
    print(json.dumps(facts))
    return int(has_lost(facts))


@contextmanager
def _served(checkpoint: Path | None, max_batch_size: int) -> Iterator[tuple[Place, subprocess.Popen[bytes]]]:
    """Serve until the block ends: where, and by which process."""
    from s1_mini.bench.server_load import Place
    from s1_mini.extras import require

    require("server", "a server of our own (or name one with --url)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--host", "127.0.0.1", "--port", str(port), "--max-batch-size", str(max_batch_size)]
    options += ["--checkpoint", str(checkpoint)] if checkpoint else []
    command = [sys.executable, "-m", "s1_mini", "serve", *options]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:  # noqa: S603 - ourselves
        try:
            yield Place("127.0.0.1", port, os.environ.get(KEY)), process
        finally:
            process.terminate()
