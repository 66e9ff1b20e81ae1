"""What stands between the wire and the routes: the key, admission, and how large and how slow a body may be.

All of it is decided before a body is read, or while it is; nothing here knows what a body means.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from s1_mini.exceptions import S1MiniError
from s1_mini.server.errors import (
    BodyError,
    BodyTooLargeError,
    BodyTooSlowError,
    ClientGoneError,
    UnauthorizedError,
    error_response,
)
from s1_mini.server.gate import Gate
from s1_mini.server.record import record_of

if TYPE_CHECKING:
    from s1_mini.server.settings import ServerSettings

GUARDED = ("/v1/", "/invocations", "/models", "/endpoints/")  # behind the key
SPEAKING = ("/v1/tts", "/v1/audio/", "/invocations", "/models/", "/endpoints/")  # refused when the queue is full
LINGER_S = 1.0  # a body over the limit is read on so long, that its sender hears the answer


class Limits:
    """ASGI middleware: key, admission, size and pace of the body."""

    def __init__(self, app: ASGIApp, *, gate: Gate, settings: ServerSettings) -> None:
        self.app, self.gate, self.settings = app, gate, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one connection through, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        client = scope["client"][0] if scope.get("client") else ""
        refused = self._refusal(scope, client)
        if refused is not None:
            await self._refuse(refused, scope, receive, send)
            return
        if not _speaks(scope):
            await self.app(scope, self._bounded(scope, receive), send)
            return
        self.gate.enter(client)
        try:
            await self.app(scope, self._bounded(scope, receive), send)
        finally:
            self.gate.leave(client)

    def _refusal(self, scope: Scope, client: str) -> S1MiniError | None:
        headers = Headers(scope=scope)
        if scope["path"].startswith(GUARDED) and not self._has_key(headers):
            return UnauthorizedError("this needs the header Authorization: Bearer KEY with the server's key")
        if _speaks(scope):
            record_of(HTTPConnection(scope)).waiting = self.gate.waiting
            if (refused := self.gate.admission(client)) is not None:
                return refused
        return _declared(headers, self.settings.max_body_bytes)

    async def _refuse(self, error: S1MiniError, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of(HTTPConnection(scope))
        record.code = error.code
        response = error_response(error, record.id)
        if isinstance(error, BodyTooLargeError) and "expect" not in Headers(scope=scope):
            await _discard(receive, is_read=False)
        await response(scope, receive, send)

    def _has_key(self, headers: Headers) -> bool:
        if self.settings.api_key is None:
            return True
        kind, _, given = headers.get("authorization", "").partition(" ")
        wanted = self.settings.api_key.get_secret_value()
        return kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), wanted.encode())

    def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        """Read the body for a route, counting its bytes and its seconds."""
        if scope["type"] != "http":
            return receive
        ends = time.monotonic() + self.settings.body_timeout_s
        num_bytes, is_read = 0, False

        async def read() -> Message:
            nonlocal num_bytes, is_read
            if is_read:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, ends - time.monotonic()))
            except TimeoutError:
                raise BodyTooSlowError(f"the body took longer than {self.settings.body_timeout_s:g} s") from None
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            num_bytes += len(message.get("body", b""))
            is_read = not message.get("more_body", False)
            if num_bytes > self.settings.max_body_bytes:
                await _discard(receive, is_read=is_read)
                raise BodyTooLargeError(self.settings.max_body_bytes)
            return message

        return read


def _speaks(scope: Scope) -> bool:
    is_asked = scope["type"] == "websocket" or scope["method"] == "POST"
    return is_asked and scope["path"].startswith(SPEAKING)


def _declared(headers: Headers, allowed: int) -> S1MiniError | None:
    declared = headers.get("content-length")
    if declared is None:
        return None
    if not declared.isascii() or not declared.isdigit():
        return BodyError(f"Content-Length {declared[:40]!r} is not a number")
    return BodyTooLargeError(allowed) if int(declared) > allowed else None


async def _discard(receive: Receive, *, is_read: bool) -> None:
    """Read on for a moment: who still sends when the connection closes may not hear the answer."""
    try:
        async with asyncio.timeout(LINGER_S):
            while not is_read:
                message = await receive()
                is_read = not message.get("more_body", False)
    except TimeoutError:
        return
