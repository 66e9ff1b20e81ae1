"""One HTTP request to a replica's Unix socket, in the supervisor's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import h11

MAX_ANSWER_BYTES = 16 * 2**20
READ_BYTES = 64 * 1024


@dataclass(frozen=True)
class Answer:
    """What a replica said."""

    status: int
    content_type: str
    body: bytes


async def ask(
    path: Path,
    target: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    within_s: float,
) -> Answer:
    """Ask the server that listens at `path`; headers are Latin-1. Raises `OSError`, which a `TimeoutError` is, too."""
    connection = h11.Connection(h11.CLIENT)
    sent = {"host": "localhost"} | {name.lower(): value for name, value in (headers or {}).items()}
    sent |= {"content-length": str(len(body)), "connection": "close"}
    fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in sent.items()]
    async with asyncio.timeout(within_s):
        reader, writer = await asyncio.open_unix_connection(path)  # type: ignore[attr-defined,unused-ignore] # Windows has none
        try:
            for event in (
                h11.Request(method=method, target=target, headers=fields),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                writer.write(connection.send(event) or b"")
            return await _read(connection, reader)
        except h11.ProtocolError as error:
            raise ConnectionError(str(error)) from None
        finally:
            writer.close()


async def _read(connection: h11.Connection, reader: asyncio.StreamReader) -> Answer:
    status, kind, content = 0, "", bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(READ_BYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
            kind = dict(event.headers).get(b"content-type", b"").decode("latin-1")
        elif isinstance(event, h11.Data):
            content += event.data
            if len(content) > MAX_ANSWER_BYTES:
                raise ConnectionError("the answer is too large")
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            return Answer(status, kind, bytes(content))
