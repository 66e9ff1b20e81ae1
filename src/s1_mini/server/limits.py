"""What stands between the wire and the routes: the key, who may ask, admission, and how large and slow a body may be.

All of it is decided before a body is read, or while it is; nothing here knows what a body means. Answers go out in
pieces, so that one which nobody takes stays with its request, where it is counted, and ends in time.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from s1_mini.exceptions import S1MiniError
from s1_mini.server.errors import (
    BodyError,
    BodyTooLargeError,
    BodyTooSlowError,
    ClientGoneError,
    OriginError,
    UnauthorizedError,
    error_response,
)
from s1_mini.server.gate import Gate
from s1_mini.server.record import record_of

if TYPE_CHECKING:
    from s1_mini.server.settings import ServerSettings

GUARDED = ("/v1/", "/invocations", "/models", "/endpoints/")  # behind the key
SPEAKING = ("/v1/tts", "/v1/audio/", "/v1/voices", "/invocations", "/models/", "/endpoints/")  # need room in the queue
OPEN = ("/ping", "/ready", "/health", "/metrics")  # by whatever name a load balancer calls us
OWN_HOSTS = ("localhost", "127.0.0.1", "::1")
LINGER_S = 1.0  # the body of a refused request is read on so long, that its sender hears the answer
PIECE_BYTES = 64 * 1024  # of an answer, handed to the connection when it has taken those before


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
        body = Body(scope, receive, self.gate, self.settings)
        speaks = _speaks(scope)
        if speaks:
            self.gate.enter(client)
        try:
            await self.app(scope, body.read, self._in_pieces(scope, send))
        finally:
            body.let_go()
            if speaks:
                self.gate.leave(client)

    def _refusal(self, scope: Scope, client: str) -> S1MiniError | None:
        headers = Headers(scope=scope)
        if scope["path"] not in OPEN and (refused := self._misdirected(headers)) is not None:
            return refused
        if scope["path"].startswith(GUARDED):
            if not self._has_key(headers):
                return UnauthorizedError("this needs the header Authorization: Bearer KEY with the server's key")
            if (refused := self._foreign(headers)) is not None:
                return refused
        if (refused := _declared(headers, self.settings.max_body_bytes)) is not None:
            return refused
        if not _speaks(scope):
            return None
        record_of(HTTPConnection(scope)).waiting = self.gate.num_waiting
        return self.gate.admission(client)

    async def _refuse(self, error: S1MiniError, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer without the route; what the client still sends is read for a moment, else the connection ends."""
        record = record_of(HTTPConnection(scope))
        record.code = error.code
        response = error_response(error, record.id)
        headers = Headers(scope=scope)
        sends = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        if scope["type"] == "http" and sends and ("expect" in headers or not await _discard(receive)):
            response.headers["Connection"] = "close"
        await response(scope, receive, send)

    def _misdirected(self, headers: Headers) -> S1MiniError | None:
        """Refuse a name that is not ours: a page can make its own name mean this machine (DNS rebinding)."""
        allowed = self.settings.allowed_hosts
        if not allowed:
            if self.settings.api_key is not None or self.settings.host not in OWN_HOSTS:
                return None
            allowed = OWN_HOSTS
        given, _ = _address(f"//{headers.get('host', '')}")
        if given in allowed:
            return None
        return OriginError(f"Host {str(given)[:100]!r} is not a name of this server (S1_MINI_SERVER_ALLOWED_HOSTS)")

    def _foreign(self, headers: Headers) -> S1MiniError | None:
        """Refuse a page of another site: browsers send some requests of any page without asking, and WebSockets."""
        origin = headers.get("origin")
        if origin is None or self.settings.api_key is not None or {origin, "*"} & set(self.settings.cors_origins):
            return None
        name, port = _address(origin)
        own_name, own_port = _address(f"//{headers.get('host', '')}")
        if name is not None and (name, port) == (own_name, own_port or port):
            return None
        return OriginError(f"a page of {origin[:100]!r} may not ask here (S1_MINI_SERVER_CORS_ORIGINS)")

    def _has_key(self, headers: Headers) -> bool:
        if self.settings.api_key is None:
            return True
        kind, _, given = headers.get("authorization", "").partition(" ")
        wanted = self.settings.api_key.get_secret_value()
        return kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), wanted.encode())

    def _in_pieces(self, scope: Scope, send: Send) -> Send:
        """Send large answers piece by piece, each when there is room for it, and all of them in time."""
        if scope["type"] != "http":
            return send
        allowed_s = self.settings.stream_timeout_s + self.settings.request_timeout_s
        ends = asyncio.get_running_loop().time() + allowed_s

        async def give(message: Message) -> None:
            content = memoryview(message.get("body", b""))
            try:
                async with asyncio.timeout_at(ends):
                    while len(content) > PIECE_BYTES:
                        await send({**message, "body": bytes(content[:PIECE_BYTES]), "more_body": True})
                        content = content[PIECE_BYTES:]
                    await send({**message, "body": bytes(content)} if message.get("body") else message)
            except TimeoutError:
                raise ClientGoneError from None  # it is there, but takes what it asked for too slowly

        return give


class Body:
    """The body of one request on its way to a route: its bytes and seconds counted, and those of all together."""

    def __init__(self, scope: Scope, receive: Receive, gate: Gate, settings: ServerSettings) -> None:
        self._receive, self._settings, self._held = receive, settings, gate.hold()
        self._ends = time.monotonic() + settings.body_timeout_s
        self._is_read = scope["type"] != "http"

    async def read(self) -> Message:
        """Give the next message of the connection. Raises what a body that is too large or slow comes to."""
        if self._is_read:
            return await self._receive()
        try:
            async with asyncio.timeout(self._ends - time.monotonic()):
                message = await self._receive()
        except TimeoutError:
            raise BodyTooSlowError(f"the body took longer than {self._settings.body_timeout_s:g} s") from None
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        self._is_read = not message.get("more_body", False)
        num_bytes = self._held.num_bytes + len(message.get("body", b""))
        try:
            if num_bytes > self._settings.max_body_bytes:
                raise BodyTooLargeError(self._settings.max_body_bytes)
            self._held.set(num_bytes)
        except S1MiniError:
            self.let_go()
            self._is_read = self._is_read or await _discard(self._receive)
            raise
        return message

    def let_go(self) -> None:
        """Count its bytes no more."""
        self._held.set(0)


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


def _address(url: str) -> tuple[str | None, int | None]:
    """Give the name and the port of a URL, or of what follows `//`; a scheme's own port where it says none."""
    try:
        parts = urlsplit(url)
        name, port = parts.hostname, parts.port
    except ValueError:
        return None, None
    return name and name.removesuffix("."), port or {"http": 80, "https": 443}.get(parts.scheme)


async def _discard(receive: Receive) -> bool:
    """Read on for a moment, since who still sends may not hear the answer; tell whether that was all."""
    try:
        async with asyncio.timeout(LINGER_S):
            while (message := await receive())["type"] == "http.request" and message.get("more_body", False):
                pass
    except TimeoutError:
        return False
    return True
