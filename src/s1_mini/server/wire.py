"""The HTTP protocol on a connection: uvicorn's, which waits no longer than it must for the head of a request.

Uvicorn itself waits for ever. Between two requests of a connection its keep-alive limit counts, not this one.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from s1_mini.server.errors import HeadTooSlowError, describe, row_of

logger = logging.getLogger(__name__)


class Wire(H11Protocol):
    """One connection. A head that is not there in time is answered with 408; nothing at all, with nothing."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._allowed_s: float = self.config.app.state.settings.head_timeout_s  # type: ignore[union-attr]
        self._waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first head."""
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        """Read on; wait for the rest of a head that has begun."""
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        super().connection_lost(exc)
        self._rest()

    def _look(self) -> None:
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._rest()
        elif self._waiting is None:
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

    def _refuse(self, error: HeadTooSlowError) -> None:
        fields = {"status": row_of(error).status, "code": error.code, "client": self.client and self.client[0]}
        logger.info("connection refused", extra={"fields": fields})
        content = json.dumps(describe(error, None)).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(content))), ("Connection", "close")]
        answer = h11.Response(status_code=row_of(error).status, headers=headers, reason=b"Request Timeout")
        for event in (answer, h11.Data(data=content), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
