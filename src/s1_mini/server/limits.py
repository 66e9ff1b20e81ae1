"""Admission: readiness, API key, origin, queue limits, size and pace of bodies and responses.

A request is refused before its body is read, or while the body arrives. Responses are sent in pieces, so that audio
which the client has not read is charged to its request, and so that the time limit of a response is enforced.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from math import inf
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from s1_mini.exceptions import EngineNotReadyError, QueueFullError, S1MiniError
from s1_mini.server.accounts import Accounts, Holding, Resource
from s1_mini.server.errors import (
    ELEVENLABS_KEY,
    BodyError,
    BodyTooLargeError,
    BodyTooSlowError,
    ClientGoneError,
    ContentTypeError,
    DrainingError,
    OriginError,
    UnauthorizedError,
)
from s1_mini.server.record import RequestLog, record_of

if TYPE_CHECKING:
    from s1_mini.server.settings import ServerSettings
    from s1_mini.speech_engine import SpeechEngine
    from s1_mini.types import EngineState

PROBES = ("/ping", "/ready", "/health", "/metrics")  # need no key; load balancers may send any Host
# These paths, and those under `STATIC`, need no key; all others do.
PUBLIC = (*PROBES, "/", "/docs", "/openapi.json", "/execution-parameters")
STATIC = "/static/"
UNQUEUED = (*PUBLIC, "/models")  # a POST or WebSocket of any other path needs a place in the queue
KEY_KINDS = ("bearer", "token")  # schemes of Authorization; Deepgram's clients send Token
OWN_HOSTS = ("localhost", "127.0.0.1", "::1")
PORTS = {"http": 80, "https": 443}
# Time limit for reading the rest of a refused body, because many clients read the response only after sending the body.
LINGER_S = 1.0
UNREAD_CHECK_S = 0.5  # interval at which unread audio is charged
PIECE_BYTES = 64 * 1024  # responses are written in pieces of this size, each after the previous one was sent

FRESH_S = 0.02  # maximum age of the cached health


class EngineDied(Exception):  # noqa: N818 - not an error of a request
    """The engine was started and has failed."""


class AdmissionController:
    """Decides whether a request is admitted, and counts requests in progress. Only `health` blocks."""

    def __init__(self, engine: SpeechEngine, settings: ServerSettings, accounts: Accounts) -> None:
        self._engine, self._settings, self.accounts = engine, settings, accounts
        self._health: dict[str, Any] = {}
        self._looked = float("-inf")
        self.num_inside = 0  # POST requests and sessions in progress, from headers to end of response
        self.failure: BaseException | None = None  # why the engine did not start; `EngineDied` if it failed later
        self.is_draining = False
        self.is_unloaded = False  # the engine was stopped because it was idle; the next request starts it again
        self.is_loading = False  # that request is starting the engine
        self._used = time.monotonic()  # when a request last needed the engine
        self._loading = asyncio.Lock()

    def health(self) -> dict[str, Any]:
        """Return the engine's `health_check()`, which also queries the GPU driver.

        The result is cached for `FRESH_S`, or until the engine's status changes.
        """
        now = time.monotonic()
        if now - self._looked > FRESH_S or self._health["status"] != self._engine.state().status:
            self._health, self._looked = self._engine.health_check(), now
        return self._health

    def refusal(self, state: EngineState | None = None) -> S1MiniError | None:
        """Return why no request is admitted (starting, failed, shutting down); None if ready or unloaded."""
        if self.is_draining:
            return DrainingError("the server is shutting down; use another one")
        if self.failure is not None:
            return EngineNotReadyError("the engine could not be started, or has died; see the server's log")
        if self.is_unloaded:
            return None
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
            return QueueFullError(state.num_waiting, state.max_waiting, state.retry_after_s)
        queue_and_slots = state.max_waiting + self._engine.num_slots
        self.accounts.limits[Resource.REQUESTS] = min(self._settings.max_requests, queue_and_slots)
        return self.accounts.refusal(record.client, Resource.REQUESTS, 1)

    def enter(self) -> None:
        self.num_inside += 1

    def leave(self) -> None:
        self.num_inside -= 1
        self._used = time.monotonic()

    @property
    def idle_s(self) -> float:
        """Seconds since a request last needed the engine."""
        return 0.0 if self.num_inside else time.monotonic() - self._used

    async def unload(self, executor: Executor) -> None:
        """Stop the engine until the next request."""
        self.is_unloaded = True  # set first, so that later requests wait for `load`
        async with self._loading:
            await asyncio.get_running_loop().run_in_executor(executor, self._engine.stop)

    async def load(self, executor: Executor) -> None:
        """Load the engine again if it was unloaded. Raises `EngineNotReadyError`."""
        self._used = time.monotonic()
        if not self.is_unloaded:
            return
        async with self._loading:
            if self.is_unloaded:  # otherwise another request has already loaded it
                self.is_loading = True
                try:
                    await asyncio.get_running_loop().run_in_executor(executor, self._engine.start)
                except S1MiniError as error:
                    raise EngineNotReadyError(f"the engine could not be loaded again: {error}") from None
                finally:
                    self.is_loading = False
                self.is_unloaded = False


class AdmissionMiddleware:
    """ASGI middleware that checks the key and the limits, and charges the client of a request."""

    def __init__(self, app: ASGIApp, *, gate: AdmissionController, settings: ServerSettings) -> None:
        self.app, self.gate, self.accounts, self.settings = app, gate, gate.accounts, settings
        self._keys = [key.encode() for key in settings.keys]
        self._max_body_bytes = min(settings.max_body_bytes, gate.accounts.largest(Resource.BODY_BYTES))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers, record = Headers(scope=scope), record_of(HTTPConnection(scope))
        key = self._key_of(headers)
        record.client = self.accounts.client(scope["client"][0] if scope.get("client") else "", key)
        record.key = "" if key is None else self.settings.key_name(key)
        refused = self._no_access(scope, headers, has_key=key is not None)
        if refused is None and not is_public(scope["path"]):
            refused = await self._unready(scope)
        refused = refused or self._no_room(scope, headers, record)
        if refused is not None:
            await self._refuse(refused, scope, receive, send)
            return
        holding = record.holding = self.accounts.hold(record.client)
        needs_slot = _needs_slot(scope)
        if needs_slot:
            self.gate.enter()
        # Sessions have their own time limits.
        allowed_s = self.settings.stream_timeout_s + self.settings.request_timeout_s
        ends = asyncio.get_running_loop().time() + (inf if scope["type"] == "websocket" else allowed_s)
        try:
            with Sender(send, record, ends) as guarded:
                await self.app(scope, self._bounded(scope, receive, holding), in_pieces(guarded))
        finally:
            holding.release()
            if needs_slot:
                self.gate.leave()

    async def _unready(self, scope: Scope) -> S1MiniError | None:
        """Load the engine if it was unloaded; return the error if loading fails."""
        try:
            await asyncio.shield(self.gate.load(scope["app"].state.lifecycle))
        except EngineNotReadyError as error:
            return error
        return None

    def _no_access(self, scope: Scope, headers: Headers, *, has_key: bool) -> S1MiniError | None:
        """Return the error for a wrong Host, missing key or foreign page; None if the request has access."""
        if scope["path"] not in PROBES and (refused := self._misdirected(headers)) is not None:
            return refused
        if is_public(scope["path"]):
            return None
        if self._keys and not has_key:
            return UnauthorizedError(
                "this path requires the header Authorization: Bearer KEY, or xi-api-key: KEY, with the server's key"
            )
        return self._foreign(headers)

    def _no_room(self, scope: Scope, headers: Headers, record: RequestLog) -> S1MiniError | None:
        """Return the error for a request that is too large or not admitted now; None if it is admitted."""
        if (refused := _declared(headers, self._max_body_bytes)) is not None:
            return refused
        if scope.get("method") in ("POST", "PUT") and (refused := _encoded(headers)) is not None:
            return refused
        if not _needs_slot(scope):
            return None
        if scope["type"] == "websocket":  # the sentences of a session are admitted one by one
            return self.gate.refusal()
        return self.gate.admission(record)

    async def _refuse(self, error: S1MiniError, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond without calling the route.

        Read the rest of the body first; if it does not end within `LINGER_S`, close the connection after the response.
        """
        record = record_of(HTTPConnection(scope))
        record.code = error.code
        response = record.error_response(error, record.id)
        headers = Headers(scope=scope)
        sends = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        if scope["type"] == "http" and sends and ("expect" in headers or not await _discard(receive)):
            response.headers["Connection"] = "close"
        await response(scope, receive, send)

    def _misdirected(self, headers: Headers) -> S1MiniError | None:
        """Refuse a Host that is not a name of this server: sites can make their names point here (DNS rebinding)."""
        allowed = self.settings.allowed_hosts
        if not allowed:
            if self._keys or self.settings.host not in OWN_HOSTS:
                return None
            allowed = OWN_HOSTS
        given, _ = _address(f"//{headers.get('host', '')}")
        if given in allowed:
            return None
        return OriginError(
            f"Host {str(given)[:100]!r} is not a name of this server; add it to S1_MINI_SERVER_ALLOWED_HOSTS"
        )

    def _foreign(self, headers: Headers) -> S1MiniError | None:
        """Refuse pages of other sites, because browsers let any page send simple requests and open WebSockets."""
        origin = headers.get("origin")
        if origin is None or self._keys or {origin, "*"} & set(self.settings.cors_origins):
            return None
        scheme, _, _ = origin.partition("://")
        own = _address(f"{scheme}://{headers.get('host', '')}")  # without a port, the scheme's default
        if scheme in PORTS and own[0] is not None and _address(origin) == own:
            return None
        return OriginError(
            f"requests from pages of {origin[:100]!r} are refused; add that origin to S1_MINI_SERVER_CORS_ORIGINS"
        )

    def _key_of(self, headers: Headers) -> int | None:
        """Return the index of the request's key among those of the settings; None without a valid key."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        key = (
            given.strip()
            if kind.lower() in KEY_KINDS
            else access_key(headers) or headers.get(ELEVENLABS_KEY, "").strip()
        )
        if not key:
            return None
        sent = key.encode()
        matches = [hmac.compare_digest(sent, key) for key in self._keys]  # compare with all keys, in constant time
        return matches.index(True) if any(matches) else None

    def _bounded(self, scope: Scope, receive: Receive, holding: Holding) -> Receive:
        """Return a `receive` whose body is bounded in size and time, and charged.

        It raises `BodyTooSlowError`, `BodyTooLargeError`, `ClientGoneError`, and whatever `Holding.set` raises.
        """
        if scope["type"] != "http":
            return receive
        timeout_s, is_read = self.settings.body_timeout_s, False
        ends = time.monotonic() + timeout_s

        async def read() -> Message:
            nonlocal is_read
            if is_read:
                return await receive()
            try:
                async with asyncio.timeout(ends - time.monotonic()):
                    message = await receive()
            except TimeoutError:
                raise BodyTooSlowError(f"the body took longer than {timeout_s:g} s") from None
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            is_read = not message.get("more_body", False)
            num_bytes = holding.get(Resource.BODY_BYTES) + len(message.get("body", b""))
            try:
                if num_bytes > self._max_body_bytes:
                    raise BodyTooLargeError(self._max_body_bytes)
                holding.set(Resource.BODY_BYTES, num_bytes)
            except S1MiniError:
                holding.set(Resource.BODY_BYTES, 0)
                is_read = is_read or await _discard(receive)
                raise
            return message

        return read


class Sender:
    """A `send` that takes messages of any kind, and returns once the client has read enough.

    While a message waits for the client, its unread audio is charged every `UNREAD_CHECK_S`. Sending raises errors of
    `Holding.set` if that exceeds the client's share, and `ClientGoneError` after `ends`, in seconds of the event loop.
    Use it as a context manager.
    """

    def __init__(self, send: Callable[[Any], Awaitable[None]], record: RequestLog, ends: float) -> None:
        self._send, self._record, self._ends = send, record, ends
        self._waiting: set[asyncio.Timeout] = set()  # of the messages that are being sent: a session may send several
        self._error: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Callable[[Any], Awaitable[None]]:
        self._look_later()
        return self.send

    def __exit__(self, *_: object) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self._error = None  # its traceback refers to this object
        self._record.unread.clear()  # it refers to outputs, which cancel their requests once they are dropped

    async def send(self, message: Any) -> None:
        """Send a message."""
        waiting = asyncio.timeout(None)
        try:
            # Uvicorn waits for the client before it writes, so a message that was cancelled was not sent.
            async with waiting:
                self._waiting.add(waiting)
                await self._send(message)
        except TimeoutError:
            pass
        else:
            return
        finally:
            self._waiting.discard(waiting)
            del waiting  # it refers to the task, whose error refers to this frame
        raise self._error or TimeoutError

    def _look(self) -> None:
        self._look_later()
        if not self._waiting:
            return
        if asyncio.get_running_loop().time() >= self._ends:
            self._fail(ClientGoneError())
            return
        try:
            for charge in self._record.unread:
                charge()
        except S1MiniError as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._error = error
        for waiting in self._waiting:
            if not waiting.expired():
                waiting.reschedule(0.0)

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(UNREAD_CHECK_S, self._look)


def in_pieces(send: Send) -> Send:
    """Return an ASGI `send` that splits a body into pieces."""

    async def send_pieces(message: Message) -> None:
        content = message.get("body", b"")
        while len(content) > PIECE_BYTES:
            await send({**message, "body": bytes(content[:PIECE_BYTES]), "more_body": True})
            content = memoryview(content)[PIECE_BYTES:]
            message = {**message, "body": content}
        await send(message)

    return send_pieces


def is_public(path: str) -> bool:
    """Return whether a path needs no API key."""
    return path in PUBLIC or path.startswith(STATIC)


def access_key(headers: Headers) -> str | None:
    """Return the access key id of a request that is signed for Polly, None for others. Signatures are not verified."""
    scheme, _, parameters = headers.get("authorization", "").partition(" ")
    if scheme != "AWS4-HMAC-SHA256":
        return None
    credential = next((each for each in map(str.strip, parameters.split(",")) if each.startswith("Credential=")), "")
    key, *scope = credential.removeprefix("Credential=").split("/")
    return key if key and scope[2:] == ["polly", "aws4_request"] else None


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
    """Return host and port of a URL, or of `//host:port`; the scheme's port by default."""
    try:
        parts = urlsplit(url)
        name, port = parts.hostname, parts.port
    except ValueError:
        return None, None
    return name and name.removesuffix("."), port or PORTS.get(parts.scheme)


async def _discard(receive: Receive) -> bool:
    """Read the rest of a body for at most `LINGER_S`; return whether its end was reached."""
    try:
        async with asyncio.timeout(LINGER_S):
            while (message := await receive())["type"] == "http.request" and message.get("more_body", False):
                pass
    except TimeoutError:
        return False
    return True
