"""The middleware between the protocol and the routes: key, origin, admission, size and pace of the body.

Everything is decided before the body is read or while it arrives; what a body means is not known here. Responses are
sent in pieces, so that what the client does not read stays with its request, where it is charged, and ends in time.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from s1_mini.exceptions import EngineNotReadyError, QueueFullError, S1MiniError
from s1_mini.server.accounts import MAX_DELAY_S, Accounts, Holding, Metered, Resource
from s1_mini.server.errors import (
    BodyError,
    BodyTooLargeError,
    BodyTooSlowError,
    ClientGoneError,
    ContentTypeError,
    DrainingError,
    OriginError,
    TooManyRequestsError,
    UnauthorizedError,
    error_response,
)
from s1_mini.server.record import RequestLog, record_of

if TYPE_CHECKING:
    from s1_mini.engine import ProductionTTSEngine
    from s1_mini.server.record import RequestLog
    from s1_mini.server.settings import ServerSettings
    from s1_mini.types import EngineState

PROBES = ("/ping", "/ready", "/health", "/metrics")  # need no key and accept any Host, as load balancers send it
PUBLIC = (*PROBES, "/", "/docs", "/openapi.json", "/execution-parameters")  # need no key; all other paths do
STATIC = "/static/"  # public, too
UNQUEUED = (*PUBLIC, "/models")  # a POST or WebSocket of any other path needs room in the queue
NEVER_DELAYED = ("/ping", "/ready")
OWN_HOSTS = ("localhost", "127.0.0.1", "::1")
PORTS = {"http": 80, "https": 443}
LINGER_S = 1.0  # the body of a refused request is read on so long, that its sender hears the answer
UNREAD_CHECK_S = 0.5  # between charges for audio that a client does not read
PIECE_BYTES = 64 * 1024  # of an answer, handed to the connection when it has taken those before


FRESH_S = 0.02  # health cache TTL
RETRY_AFTER_S = 1.0


class EngineDied(Exception):  # noqa: N818 - an end, not an error of anybody's
    """The engine was started, and does not speak any more."""


class AdmissionController:
    """Decides whether a request is admitted, and counts those in the server."""

    def __init__(self, engine: ProductionTTSEngine, settings: ServerSettings, accounts: Accounts) -> None:
        self._engine, self._settings, self.accounts = engine, settings, accounts
        self._health: dict[str, Any] = {}
        self._looked = float("-inf")
        self.num_inside = 0  # requests that speak, from their first header to the end of their answer; sessions too
        self.failure: BaseException | None = None  # why the engine could not be started; `EngineDied` if it was
        self.is_draining = False

    def health(self) -> dict[str, Any]:
        """Give the engine's `health_check()`, at most `FRESH_S` old: it asks the driver of the GPU, too."""
        now = time.monotonic()
        if now - self._looked > FRESH_S:
            self._health, self._looked = self._engine.health_check(), now
        return self._health

    def refusal(self, state: EngineState | None = None) -> S1MiniError | None:
        """Return why no request is admitted: starting, failed or shutting down; None if the engine is ready."""
        if self.is_draining:
            return DrainingError("the server is going down; ask another one")
        if self.failure is not None:
            return EngineNotReadyError("the engine could not be started, or has died; the server's log tells why")
        state = state or self._engine.state()
        if not state.is_ready:
            doing = "starting" if state.status == "stopped" else state.status
            return EngineNotReadyError(f"the engine is {doing}; try again later")
        return None

    def admission(self, record: RequestLog) -> S1MiniError | None:
        """Return why a request to speak is refused before its body is read; None if it is admitted."""
        state = self._engine.state()
        record.waiting = state.num_waiting
        if (refused := self.refusal(state)) is not None:
            return refused
        if state.num_waiting >= state.max_waiting:
            return QueueFullError(state.num_waiting, state.max_waiting, RETRY_AFTER_S)
        queue_and_slots = state.max_waiting + self._engine.num_slots
        self.accounts.limits[Resource.REQUESTS] = min(self._settings.max_requests, queue_and_slots)
        return self.accounts.refusal(record.client, Resource.REQUESTS, 1)

    def enter(self) -> None:
        """Count a request in."""
        self.num_inside += 1

    def leave(self) -> None:
        """Count a request out."""
        self.num_inside -= 1


class AdmissionMiddleware:
    """ASGI middleware: key, admission, size and pace of the body."""

    def __init__(
        self, app: ASGIApp, *, gate: AdmissionController, accounts: Accounts, settings: ServerSettings
    ) -> None:
        self.app, self.gate, self.accounts, self.settings = app, gate, accounts, settings
        self._keys = [key.encode() for key in settings.keys]
        self._max_body_bytes = min(settings.max_body_bytes, accounts.largest(Resource.BODY_BYTES))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on to the routes, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers, record = Headers(scope=scope), record_of(HTTPConnection(scope))
        key = self._key_of(headers)
        record.client = self.accounts.client(scope["client"][0] if scope.get("client") else "", key)
        delay_s = 0.0 if scope["path"] in NEVER_DELAYED else self.accounts.delay_s(record.client)
        if delay_s:
            await asyncio.sleep(delay_s)
        refused = self._no_access(scope, headers, has_key=key is not None) or self._no_room(scope, headers, record)
        if delay_s >= MAX_DELAY_S:
            refused = TooManyRequestsError("Your requests take more CPU time than your share. Retry in one second.")
        if refused is not None:
            await self._refuse(refused, scope, receive, send)
            return
        holding = record.holding = self.accounts.hold(record.client)
        body = Body(scope, receive, holding, self._max_body_bytes, self.settings.body_timeout_s)
        needs_slot = _needs_slot(scope)
        if needs_slot:
            self.gate.enter()
        try:
            await Metered(self.app(scope, body.read, self._in_pieces(scope, send)), self.accounts, record.client)
        finally:
            holding.release()
            if needs_slot:
                self.gate.leave()

    def _no_access(self, scope: Scope, headers: Headers, *, has_key: bool) -> S1MiniError | None:
        """Return why this client may not ask; None if it may."""
        if scope["path"] not in PROBES and (refused := self._misdirected(headers)) is not None:
            return refused
        if is_public(scope["path"]):
            return None
        if self._keys and not has_key:
            return UnauthorizedError("this needs the header Authorization: Bearer KEY with the server's key")
        return self._foreign(headers)

    def _no_room(self, scope: Scope, headers: Headers, record: RequestLog) -> S1MiniError | None:
        """Return why this request is too large, or comes at a bad moment; None if it is admitted."""
        if (refused := _declared(headers, self._max_body_bytes)) is not None:
            return refused
        if scope.get("method") == "POST" and (refused := _encoded(headers)) is not None:
            return refused
        if not _needs_slot(scope):
            return None
        if scope["type"] == "websocket":  # its sentences are admitted one by one
            return self.gate.refusal()
        return self.gate.admission(record)

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
            if self._keys or self.settings.host not in OWN_HOSTS:
                return None
            allowed = OWN_HOSTS
        given, _ = _address(f"//{headers.get('host', '')}")
        if given in allowed:
            return None
        return OriginError(f"Host {str(given)[:100]!r} is not a name of this server (S1_MINI_SERVER_ALLOWED_HOSTS)")

    def _foreign(self, headers: Headers) -> S1MiniError | None:
        """Refuse a page of another site: browsers send some requests of any page without asking, and WebSockets."""
        origin = headers.get("origin")
        if origin is None or self._keys or {origin, "*"} & set(self.settings.cors_origins):
            return None
        scheme, _, _ = origin.partition("://")
        own = _address(f"{scheme}://{headers.get('host', '')}")  # a port that is left out is the scheme's own
        if scheme in PORTS and own[0] is not None and _address(origin) == own:
            return None
        return OriginError(
            f"requests from pages of {origin[:100]!r} are refused; add that origin to S1_MINI_SERVER_CORS_ORIGINS"
        )

    def _key_of(self, headers: Headers) -> int | None:
        """Return the number of the key that a request has, in the order of the settings; None if it has none."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            return None
        sent = given.strip().encode()
        matches = [hmac.compare_digest(sent, key) for key in self._keys]  # all of them, in constant time
        return matches.index(True) if any(matches) else None

    def _in_pieces(self, scope: Scope, send: Send) -> Send:
        """Return a `send` for large responses: piece by piece, each when there is room for it, and all in time.

        It raises `ClientGoneError` if the client reads too slowly, and what `Holding.set` raises if the audio that the
        client does not read is more than its share.
        """
        loop, record = asyncio.get_running_loop(), record_of(HTTPConnection(scope))
        ends = loop.time() + self.settings.stream_timeout_s + self.settings.request_timeout_s
        if scope["type"] == "websocket":
            ends = float("inf")  # a session ends by its own limits

        async def send_piece(message: Message) -> None:
            while True:
                try:
                    # Uvicorn waits for the client before it writes, so a message that was cancelled was not sent.
                    async with asyncio.timeout_at(min(ends, loop.time() + UNREAD_CHECK_S)):
                        await send(message)
                        return
                except TimeoutError:
                    if loop.time() >= ends:
                        raise ClientGoneError from None
                    if record.charge_unread is not None:
                        record.charge_unread()

        async def send_all(message: Message) -> None:
            content = memoryview(message.get("body", b""))
            while len(content) > PIECE_BYTES:
                await send_piece({**message, "body": bytes(content[:PIECE_BYTES]), "more_body": True})
                content = content[PIECE_BYTES:]
            await send_piece({**message, "body": bytes(content)} if message.get("body") else message)

        return send_all


class Body:
    """The body of one request on its way to a route: bounded in size and time, its bytes charged."""

    def __init__(self, scope: Scope, receive: Receive, holding: Holding, max_bytes: int, timeout_s: float) -> None:
        self._receive, self._holding, self._max_bytes, self._timeout_s = receive, holding, max_bytes, timeout_s
        self._ends = time.monotonic() + timeout_s
        self._is_read = scope["type"] != "http"

    async def read(self) -> Message:
        """Return the next message of the connection.

        Raises `BodyTooSlowError`, `BodyTooLargeError`, `BusyError`, `TooManyRequestsError` or `ClientGoneError`.
        """
        if self._is_read:
            return await self._receive()
        try:
            async with asyncio.timeout(self._ends - time.monotonic()):
                message = await self._receive()
        except TimeoutError:
            raise BodyTooSlowError(f"the body took longer than {self._timeout_s:g} s") from None
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        self._is_read = not message.get("more_body", False)
        num_bytes = self._holding.get(Resource.BODY_BYTES) + len(message.get("body", b""))
        try:
            if num_bytes > self._max_bytes:
                raise BodyTooLargeError(self._max_bytes)
            self._holding.set(Resource.BODY_BYTES, num_bytes)
        except S1MiniError:
            self._holding.set(Resource.BODY_BYTES, 0)
            self._is_read = self._is_read or await _discard(self._receive)
            raise
        return message


def is_public(path: str) -> bool:
    """Return whether a path needs no API key."""
    return path in PUBLIC or path.startswith(STATIC)


def _needs_slot(scope: Scope) -> bool:
    generates = scope["type"] == "websocket" or scope["method"] == "POST"
    return generates and scope["path"] not in UNQUEUED and not scope["path"].startswith(STATIC)


def _declared(headers: Headers, allowed: int) -> S1MiniError | None:
    declared = headers.get("content-length")
    if declared is None:
        return None
    if not declared.isascii() or not declared.isdigit():
        return BodyError(f"Content-Length {declared[:40]!r} is not a number")
    return BodyTooLargeError(allowed) if int(declared) > allowed else None


def _encoded(headers: Headers) -> S1MiniError | None:
    given = ", ".join(headers.getlist("content-encoding")).strip()
    if not given or given.lower() == "identity":
        return None
    return ContentTypeError(f"Content-Encoding {given[:80]!r} is not supported; send the body uncompressed")


def _address(url: str) -> tuple[str | None, int | None]:
    """Give the name and the port of a URL, or of what follows `//`; a scheme's own port where it says none."""
    try:
        parts = urlsplit(url)
        name, port = parts.hostname, parts.port
    except ValueError:
        return None, None
    return name and name.removesuffix("."), port or PORTS.get(parts.scheme)


async def _discard(receive: Receive) -> bool:
    """Read on for a moment, since who still sends may not hear the answer; tell whether that was all."""
    try:
        async with asyncio.timeout(LINGER_S):
            while (message := await receive())["type"] == "http.request" and message.get("more_body", False):
                pass
    except TimeoutError:
        return False
    return True
