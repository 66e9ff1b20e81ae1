"""The HTTP protocol on a connection: uvicorn's, with an end to everything that a client may leave half done.

Uvicorn waits for ever for the head of a request, for the rest of a body that was answered before it was read, and for a
client to take what it was sent. Between two requests of a connection its keep-alive limit counts.
"""

from __future__ import annotations

import asyncio
import json
import logging
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from s1_mini.server.connections import Connections
from s1_mini.server.errors import HeadTooSlowError, HttpError, ServerError, describe, row_of
from s1_mini.server.member import PROXY

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 16 * 1024
LINGER_S = 2.0  # for the rest of a body that nobody reads
MAX_HEADERS = 100
ADDED_BYTES, ADDED_HEADERS = 1024, 2  # by the proxy before several replicas: whose request it is, and its id
FREE_PIECES = 1024  # of a body, of whatever size; all may come in one turn of the event loop
PIECE_BYTES = 512  # that further pieces have in the mean: each costs as much as a kilobyte


class Wire(H11Protocol):
    """One connection. A head that is not there in time is answered with 408; nothing at all, with nothing."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        state = self.config.app.state  # type: ignore[union-attr]
        self.conn = self._parser = Parser(h11.SERVER, MAX_HEAD_BYTES + (ADDED_BYTES if state.member else 0))
        self._parser.max_headers += ADDED_HEADERS if state.member else 0
        self._connections: Connections = state.connections
        self._allowed_s: float = state.settings.head_timeout_s
        self._waiting: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first head, if there is room for one more connection."""
        super().connection_made(transport)
        self.client = self.client or (PROXY, 0)
        if self._connections.enter(transport):
            self._look()

    def data_received(self, data: bytes) -> None:
        """Read on; wait for the rest of a head that has begun."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        super().connection_lost(exc)
        if self._lingering is not None:
            self._lingering.cancel()
        self._connections.leave(self.transport)
        self._rest()

    def on_response_complete(self) -> None:
        """Wait for the next head; if the body of this request is still to come, not for long."""
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.SEND_BODY and self.cycle.response_complete:
            self._lingering = self.loop.call_later(LINGER_S, self.transport.close)
        elif self.conn.their_state is h11.IDLE:
            self._connections.rest(self.transport)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, in the shape of all errors."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._refuse(HttpError(f"this is no HTTP request that is read here: {self._parser.complaint or msg}"))
        self.transport.close()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over."""
        self._rest()
        self._connections.work(self.transport)
        super().handle_websocket_upgrade(event)

    def _look(self) -> None:
        if self._lingering is not None and self.conn.their_state is not h11.SEND_BODY:
            self._lingering.cancel()
            self._lingering = None
        if self.transport.is_closing():
            self._rest()
        elif self.conn.their_state is not h11.IDLE:
            if self.cycle is not None and not self.cycle.response_complete:
                self._rest()
                self._connections.work(self.transport)
        else:
            self._connections.rest(self.transport)
            if self._waiting is None:
                self._waiting = self.loop.call_later(self._allowed_s, self._give_up)

    def _rest(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self._waiting = None
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


class Parser(h11.Connection):
    """h11's, which takes bodies in pieces of a byte each, as they come: each costs what a kilobyte costs."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.complaint = ""
        self.max_headers = MAX_HEADERS
        self._pieces = self._bytes = 0

    def next_event(self) -> Any:
        """Give the next event. Raises `h11.RemoteProtocolError` for a body in too small pieces."""
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            self.complaint = str(error)[:200]
            raise
        if isinstance(event, h11.Request):
            self._pieces = self._bytes = 0
            if len(event.headers) > self.max_headers:
                self.complaint = f"it has {len(event.headers)} headers; at most {MAX_HEADERS} are allowed"
                raise h11.RemoteProtocolError(self.complaint)
        elif isinstance(event, h11.Data):
            self._pieces += 1
            self._bytes += len(event.data)
            if self._pieces > FREE_PIECES + self._bytes / PIECE_BYTES:
                self.complaint = f"the body comes in pieces of {self._bytes / self._pieces:.0f} bytes; send larger ones"
                raise h11.RemoteProtocolError(self.complaint)
        return event
