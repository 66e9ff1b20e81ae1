"""The WebSocket protocol on a connection: uvicorn's, with bounds on frames and on messages that are not whole yet."""

from __future__ import annotations

import logging
import time
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from s1_mini.exceptions import S1MiniError
from s1_mini.server.accounts import Accounts, Holding, Resource
from s1_mini.server.member import PROXY
from s1_mini.server.record import record_in

logger = logging.getLogger(__name__)

SLICE_BYTES = 4096  # read in one go: some hundred of the smallest frames
FREE_FRAMES, FRAMES_A_SECOND = 1000, 500  # of a client: many times what tokens of a language model come to
NOT_UTF8, FLOODED, TOO_BUSY = 1007, 1008, 1013  # close codes
MAX_REASON = 120  # bytes; a close frame has room for 123


class SocketWire(WebSocketsSansIOProtocol):
    """One WebSocket. A client that floods it with frames, or holds too many bytes in unfinished messages, is closed."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._accounts: Accounts = self.config.app.state.accounts  # type: ignore[union-attr]
        self._held: Holding | None = None
        self._owner = ""
        self._began = self.loop.time()
        self._num_frames = 0

    def connection_made(self, transport: Any) -> None:
        """Begin; who asks over a Unix socket is the proxy, which has no address."""
        super().connection_made(transport)
        self.client = self.client or (PROXY, 0)
        self._owner = self._accounts.client(self.client[0])
        self._held = self._accounts.hold(self._owner)

    def data_received(self, data: bytes) -> None:
        """Read on, in slices, as long as the client keeps within its bounds."""
        assert self._held is not None
        began = time.thread_time()
        for start in range(0, len(data), SLICE_BYTES):
            if self.transport.is_closing():
                return
            super().data_received(data[start : start + SLICE_BYTES])
            allowed = FREE_FRAMES + FRAMES_A_SECOND * (self.loop.time() - self._began)
            if self._num_frames > allowed:
                self._end(FLOODED, "too many frames")
        self._set_owner()
        try:
            num_bytes = len(self.conn.reader.buffer) + sum(len(frame) for frame in self.frames)
            self._held.set(Resource.BODY_BYTES, num_bytes)
        except S1MiniError as error:
            self._end(TOO_BUSY, str(error)[:MAX_REASON])
        self._accounts.spend(self._owner, time.thread_time() - began)

    def _set_owner(self) -> None:
        """Charge the client that the handshake's key or proxy names, once that is known, instead of the address."""
        record = record_in(getattr(self, "scope", None))  # set with the handshake
        if record is not None and record.client != self._owner:
            assert self._held is not None
            num_bytes = self._held.get(Resource.BODY_BYTES)
            self._held.release()
            self._owner = record.client
            self._held = self._accounts.hold(self._owner)
            self._held.set(Resource.BODY_BYTES, num_bytes, checked=False)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release its bytes and its connection."""
        if self._held is not None:
            self._held.release()
        self.config.app.state.connections.leave(self.transport)  # type: ignore[union-attr]
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Read nothing from a client that takes nothing: each ping would be one more answer that waits."""
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read on, unless a message waits to be taken."""
        super().resume_writing()
        if not self.read_paused:
            self.transport.resume_reading()

    def handle_cont(self, event: Frame) -> None:
        """Count a frame."""
        self._num_frames += 1
        super().handle_cont(event)

    def handle_text(self, event: Frame) -> None:
        """Count a frame."""
        self._num_frames += 1
        super().handle_text(event)

    def send_receive_event_to_app(self) -> None:
        """Hand a message over; close the connection for text that is not UTF-8, where uvicorn logs a traceback."""
        if self.curr_msg_data_type == "text":
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self._end(NOT_UTF8, "text that is not UTF-8")
                return
        super().send_receive_event_to_app()

    def handle_ping(self) -> None:
        """Count a frame."""
        self._num_frames += 1
        super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        """Count a frame."""
        self._num_frames += 1
        super().handle_pong(event)

    def _end(self, code: int, reason: str) -> None:
        if self.transport.is_closing():
            return
        logger.info("websocket ended", extra={"fields": {"code": code, "reason": reason}})
        if self.handshake_complete and not self.close_sent:
            self.conn.send_close(code, reason)
            self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.close()
