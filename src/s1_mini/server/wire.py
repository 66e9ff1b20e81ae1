"""Connection protocols: uvicorn's HTTP and WebSocket, with limits for everything that a client can leave unfinished.

By itself, uvicorn waits without limit for the head of a request, for the rest of a body after an early response, and
for a client to read its response; and while a pipelined request waits, uvicorn notices no disconnect. Between two
requests of a connection, uvicorn's own keep-alive timeout applies.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
import sys
from http import HTTPStatus
from typing import Any, NoReturn

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from s1_mini.exceptions import S1MiniError
from s1_mini.server.accounts import Accounts, Resource
from s1_mini.server.connections import Connections, has_left, unread
from s1_mini.server.errors import HeadTooSlowError, HttpError, ServerError, describe, row_of
from s1_mini.server.member import PROXY
from s1_mini.server.record import record_in
from s1_mini.server.state import state_in

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 16 * 1024
TOO_LONG = f"its head is larger than {MAX_HEAD_BYTES} bytes"
LINGER_S = 2.0  # time limit for the rest of a body after an early response
MAX_AHEAD_BYTES = 2 * MAX_HEAD_BYTES  # limit on buffered pipelined requests
WATCH_S = 0.25  # interval of checks for a disconnect while nothing is read
MAX_HEADERS = 100
ADDED_BYTES, ADDED_HEADERS = 1024, 2  # the replicas' proxy adds X-Forwarded-For and X-Request-Id
RESETS = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)  # SO_LINGER on, 0 s
FREE_PIECES = 1024  # body pieces that may have any size; one iteration of the event loop may receive all of them
PIECE_BYTES = 512  # minimum mean size of further pieces; handling one costs about as much as 1 kB of data

SLICE_BYTES = 4096  # parsed per iteration; several hundred frames of the smallest size
FREE_FRAMES, FRAMES_A_SECOND = 1000, 500  # WebSocket frames per connection, far above a language model's token rate
NOT_UTF8, FLOODED, TOO_BUSY = 1007, 1008, 1013  # close codes
MAX_REASON = 120  # bytes; a close frame has room for 123


class HttpProtocol(H11Protocol):
    """One HTTP connection. A head that does not arrive in time gets 408; an idle connection is closed."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        state = state_in(self.config.app)
        self.conn = self._parser = Parser(h11.SERVER, MAX_HEAD_BYTES + (ADDED_BYTES if state.member else 0))
        self._parser.max_headers += ADDED_HEADERS if state.member else 0
        self._connections: Connections = state.connections
        self._allowed_s: float = state.settings.head_timeout_s
        self._head_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._watch_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.client = self.client or (PROXY, 0)  # a peer on a Unix socket has no address
        if self._connections.accept(transport):
            self._update_timers()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._update_timers()
        if self._watch_timer is None:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._linger_timer, self._watch_timer):
            if timer is not None:
                timer.cancel()
        self._connections.remove(self.transport)
        self._stop_head_timer()

    def handle_events(self) -> None:
        """Handle received data; make interrupted HTTP/1.0 responses reset their connection."""
        super().handle_events()
        if self.cycle is not None and self.conn.their_http_version == b"1.0":
            self.cycle.transport = Resetting(self.transport, self.conn)  # type: ignore[assignment]

    def on_response_complete(self) -> None:
        """Wait for the next head, or at most `LINGER_S` for the rest of this request's body."""
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.SEND_BODY and self.cycle.response_complete:
            self._linger_timer = self.loop.call_later(LINGER_S, self.transport.close)
        elif self.conn.their_state is h11.IDLE:
            self._connections.mark_idle(self.transport)

    def send_400_response(self, msg: str) -> None:
        """Refuse malformed HTTP with the JSON of all errors."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._refuse(HttpError(f"malformed HTTP request: {self._parser.complaint or msg}"))
        self.transport.close()

    def _should_upgrade(self) -> bool:
        """Ignore `Upgrade` unless the method is GET, because no other opens a WebSocket (RFC 6455, 4.1)."""
        return self.scope["method"] == "GET" and super()._should_upgrade()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Switch to WebSocket; refuse a malformed handshake, which uvicorn would leave unanswered."""
        self._stop_head_timer()
        self._connections.mark_busy(self.transport)
        super().handle_websocket_upgrade(event)
        protocol = self.transport.get_protocol()
        assert isinstance(protocol, SocketWire)
        error = protocol.conn.handshake_exc
        if error is not None and not self.transport.is_closing():
            self.send_400_response(str(error.__cause__ or error)[:200])

    def _update_timers(self) -> None:
        if self._linger_timer is not None and self.conn.their_state is not h11.SEND_BODY:
            self._linger_timer.cancel()
            self._linger_timer = None
        if self.transport.is_closing():
            self._stop_head_timer()
        elif self.conn.their_state is not h11.IDLE:
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_head_timer()
                if self.conn.their_state is not h11.SEND_BODY:  # while the body arrives, the connection counts as idle
                    self._connections.mark_busy(self.transport)
        else:
            self._connections.mark_idle(self.transport)
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(self._allowed_s, self._end_head)

    def _watch(self) -> None:
        """Detect a disconnect while a pipelined request is unread, because its bytes hide the end of the stream."""
        self._watch_timer = None
        if self.flow.read_paused and not self.transport.is_closing():
            is_ahead = self.conn.their_state is h11.DONE
            num_ahead = len(self.conn.trailing_data[0]) + unread(self.transport) if is_ahead else 0
            if num_ahead > MAX_AHEAD_BYTES or has_left(self.transport):
                self.transport.abort()
            else:
                self._watch_timer = self.loop.call_later(WATCH_S, self._watch)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_head(self) -> None:
        self._head_timer = None
        if self.transport.is_closing() or self.conn.their_state is not h11.IDLE:
            return
        if self.conn.trailing_data[0]:
            self._refuse(HeadTooSlowError(f"the head of the request took longer than {self._allowed_s:g} s"))
        self.transport.close()

    def _refuse(self, error: ServerError) -> None:
        status = row_of(error).status
        fields = {"status": status, "code": error.code, "client": self.client and self.client[0]}
        logger.info("connection refused", extra={"fields": fields})
        content = json.dumps(describe(error, None)).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(content))), ("Connection", "close")]
        answer = h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase.encode())
        for event in (answer, h11.Data(data=content), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")


class SocketWire(WebSocketsSansIOProtocol):
    """One WebSocket, closed if its client floods it with frames or holds too many bytes in unfinished messages."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._accounts: Accounts = state_in(self.config.app).accounts
        self._held = self._accounts.hold("")
        self._began = self.loop.time()
        self._num_events = 0  # frames and the handshake

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.client = self.client or (PROXY, 0)
        self._held = self._accounts.hold(self._accounts.client(self.client[0]))

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), SLICE_BYTES):
            if self.transport.is_closing():
                return
            super().data_received(data[start : start + SLICE_BYTES])
            allowed = FREE_FRAMES + FRAMES_A_SECOND * (self.loop.time() - self._began)
            if self._num_events > allowed:
                self._end(FLOODED, "too many frames")
        self._set_owner()
        try:
            num_bytes = len(self.conn.reader.buffer) + sum(len(frame) for frame in self.frames)
            self._held.set(Resource.BODY_BYTES, num_bytes)
        except S1MiniError as error:
            self._end(TOO_BUSY, str(error)[:MAX_REASON])

    def _set_owner(self) -> None:
        """Charge the client that the handshake's key or the proxy identifies, once known, instead of the address."""
        record = record_in(getattr(self, "scope", None))  # set with the handshake
        if record is not None and record.client != self._held.client:
            num_bytes = self._held.get(Resource.BODY_BYTES)
            self._held.release()
            self._held = self._accounts.hold(record.client)
            self._held.set(Resource.BODY_BYTES, num_bytes, checked=False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._held.release()
        state_in(self.config.app).connections.remove(self.transport)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Stop reading from a client that has stopped reading, because each of its pings would add an unread pong."""
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.read_paused:
            self.transport.resume_reading()

    def send_keepalive_ping(self) -> None:
        """Send no ping after unsent bytes: its own would look as if the client read, to `StallDetector`."""
        if self.transport.get_write_buffer_size():
            self.schedule_ping()
        else:
            super().send_keepalive_ping()

    def handle_events(self) -> None:
        self._num_events += len(self.conn.events)
        super().handle_events()

    def handle_cont(self, event: Frame) -> None:
        """Collect an unfinished message in one buffer: a list of tiny pieces would need far more than their bytes."""
        super().handle_cont(event)
        if self.frames:
            pieces: list[Any] = self.frames
            whole, piece = pieces
            pieces[:] = [whole if isinstance(whole, bytearray) else bytearray(whole)]
            pieces[0] += piece

    def send_receive_event_to_app(self) -> None:
        """Close the connection if text is not UTF-8, for which uvicorn would log a traceback."""
        if self.curr_msg_data_type == "text":
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self._end(NOT_UTF8, "text that is not UTF-8")
                return
        super().send_receive_event_to_app()

    def _end(self, code: int, reason: str) -> None:
        if self.transport.is_closing():
            return
        logger.info("websocket ended", extra={"fields": {"code": code, "reason": reason}})
        if self.handshake_complete and not self.close_sent:
            self.conn.send_close(code, reason)
            self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.close()


class Resetting:
    """A transport that is reset if a response is interrupted.

    An HTTP/1.0 response of unknown length ends when the connection closes, so a truncated one would look complete.
    """

    def __init__(self, transport: asyncio.Transport, conn: h11.Connection) -> None:
        self._transport, self._conn = transport, conn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        if self._conn.our_state is not h11.SEND_BODY:
            self._transport.close()
            return
        if (sock := self._transport.get_extra_info("socket")) is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETS)
        self._transport.abort()


class Parser(h11.Connection):
    """h11's parser, which also limits headers and refuses bodies in tiny pieces."""

    def __init__(self, role: Any, max_head_bytes: int) -> None:
        super().__init__(role, max_head_bytes)
        self.complaint = ""
        self.max_headers, self._max_head_bytes = MAX_HEADERS, max_head_bytes
        self._pieces = self._bytes = 0

    def next_event(self) -> Any:
        is_head = self.their_state is h11.IDLE
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            # A head that arrives in parts; h11 accepts any that comes at once.
            is_long = is_head and error.error_status_hint == 431
            self.complaint = TOO_LONG if is_long else str(error)[:200]
            raise
        if isinstance(event, h11.Request):
            self._pieces = self._bytes = 0
            if len(event.headers) > self.max_headers:
                self._refuse(f"it has {len(event.headers)} headers; at most {MAX_HEADERS} are allowed")
            num_bytes = len(event.target) + sum(len(name) + len(value) + 4 for name, value in event.headers)
            if num_bytes > self._max_head_bytes:
                self._refuse(TOO_LONG)
            if {b"content-length", b"transfer-encoding"} <= {name for name, _ in event.headers}:
                self._refuse("it has both Content-Length and Transfer-Encoding, which can mislead proxies")
        elif isinstance(event, h11.Data):
            self._pieces += 1
            self._bytes += len(event.data)
            if self._pieces > FREE_PIECES + self._bytes / PIECE_BYTES:
                self._refuse(f"the body comes in pieces of {self._bytes / self._pieces:.0f} bytes; send larger ones")
        return event

    def _refuse(self, complaint: str) -> NoReturn:
        self.complaint = complaint
        raise h11.RemoteProtocolError(complaint)
