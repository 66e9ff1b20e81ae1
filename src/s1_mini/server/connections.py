"""Connection limits: at most N open connections; connections whose client stops reading are aborted.

Runs on the event loop and works on transports, independently of HTTP.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import sys
import time
from contextlib import suppress
from operator import methodcaller
from typing import Any

from s1_mini.server.accounts import Accounts, IdlePool, Resource
from s1_mini.server.settings import ServerSettings

if sys.platform != "win32":  # Windows lacks some of these modules
    import fcntl
    import resource
    import select
    import termios

logger = logging.getLogger(__name__)

ENOUGH_FILES = 65_536
RESERVED_FILES = 128  # for files that are not connections; at most half of the process's limit
SEND_BUFFER_BYTES = 64 * 1024  # SO_SNDBUF of a connection; Linux doubles it to 128 KiB: 1.5 s of pcm at 44.1 kHz
MAX_WAITING_BYTES = 2**20  # above this many unsent bytes the client counts as stalled
MAX_CLOSING_CHECKS = 40  # ten send timeouts, in which a closing connection must send its unsent bytes
CHECKS = 4  # checks in one send timeout
WARN_EVERY_S = 10.0  # minimum interval between warnings with the same message


class Connections(IdlePool[asyncio.Transport]):
    """Open connections of one server; at the limit, a new connection evicts another one, as in `IdlePool`.

    A connection is idle while it waits for a request or for the rest of a request, and busy while a request is being
    answered.
    """

    def __init__(self, settings: ServerSettings, accounts: Accounts) -> None:
        self._unread: set[asyncio.Transport] = set()  # transports whose client has stopped reading
        super().__init__(accounts, Resource.CONNECTIONS, methodcaller("abort"), self._unread.__contains__)
        self._stall_s = settings.send_timeout_s
        self._warnings = ThrottledWarnings()

    def open(self) -> None:
        """Cap the limit at the process's file descriptors and install the loop's exception handler."""
        self.limit = min(self.limit, openable())
        asyncio.get_running_loop().set_exception_handler(self._note)

    def accept(self, transport: asyncio.Transport) -> bool:
        """Register a connection, evicting another one if necessary; abort it and return False if none can be."""
        is_full = len(self) >= self.limit
        if not self.add(transport, self._accounts.client(_address(transport)), can_evict=_has_sent_all):
            self._warnings.warn(
                "connections refused: the limit is reached and no open connection can be closed", connections=len(self)
            )
            transport.abort()
            return False
        if is_full:
            self._warnings.warn("connections closed to make room for new ones", connections=len(self))
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        StallDetector(transport, self._stall_s, self)
        return True

    def remove(self, member: asyncio.Transport) -> None:
        self._unread.discard(member)
        super().remove(member)

    def note_reading(self, transport: asyncio.Transport, *, reads: bool) -> None:
        (self._unread.discard if reads else self._unread.add)(transport)

    def stalled(self, transport: asyncio.Transport) -> None:
        """Abort and remove a connection whose client stopped reading."""
        self._warnings.warn(
            "connection closed: the client stopped reading", seconds=self._stall_s, client=_address(transport)
        )
        transport.abort()
        self.remove(transport)

    def abort_all(self) -> None:
        """Abort every connection with a request in flight; the last step of a shutdown."""
        for transport in self.busy:
            transport.abort()

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):  # asyncio would log each error
            self._warnings.warn("cannot accept connections: too many open files", reason=error.strerror)
        else:
            loop.default_exception_handler(context)


class StallDetector:
    """Periodic check whether the client of a connection reads what was written."""

    def __init__(self, transport: asyncio.Transport, stall_s: float, connections: Connections) -> None:
        self._transport, self._connections = transport, connections
        self._every_s = stall_s / CHECKS
        self._waiting = 0  # unsent bytes at the last check
        self._num_same = self._num_closing = 0  # checks without progress; checks since closing began
        self._schedule()

    def _schedule(self) -> None:
        asyncio.get_running_loop().call_later(self._every_s, self._check)

    def _check(self) -> None:
        buffered, is_closing = self._transport.get_write_buffer_size(), self._transport.is_closing()
        if is_closing and not buffered:
            self._connections.remove(self._transport)
            return
        waiting = buffered + _unsent(self._transport) if buffered else 0
        self._num_same = self._num_same + 1 if waiting and waiting == self._waiting else 0
        self._num_closing += is_closing
        self._waiting = waiting
        self._connections.note_reading(self._transport, reads=not self._num_same)
        if self._num_same == CHECKS or buffered > MAX_WAITING_BYTES or self._num_closing > MAX_CLOSING_CHECKS:
            self._connections.stalled(self._transport)
        else:
            self._schedule()


class ThrottledWarnings:
    """Rate-limited warnings; the field `times` counts the occurrences since the message was last logged."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._suppressed: dict[str, int] = {}

    def warn(self, message: str, **fields: Any) -> None:
        """Log a message, at most once in `WARN_EVERY_S`."""
        now = time.monotonic()
        if now - self._last.get(message, float("-inf")) < WARN_EVERY_S:
            self._suppressed[message] = self._suppressed.get(message, 0) + 1
            return
        self._last[message] = now
        fields["times"] = self._suppressed.pop(message, 0) + 1
        logger.warning(message, extra={"fields": fields})


def _unsent(transport: asyncio.Transport) -> int:
    """Return the bytes in the system's send buffer; 0 if the system does not report them."""
    return _queued(transport, "TIOCOUTQ") if sys.platform == "linux" else 0


def unread(transport: asyncio.Transport) -> int:
    """Return the bytes in the system's receive buffer; 0 if the system does not report them."""
    return _queued(transport, "FIONREAD")


def _queued(transport: asyncio.Transport, request: str) -> int:
    count = bytearray(4)
    if sys.platform != "win32":
        with suppress(OSError, ValueError):  # the socket is being closed
            fcntl.ioctl(transport.get_extra_info("socket").fileno(), getattr(termios, request), count)
    return int.from_bytes(count, sys.byteorder)


def has_left(transport: asyncio.Transport) -> bool:
    """Return whether the client has closed the connection, even if data is unread; always False except on Linux."""
    if sys.platform == "linux":
        with suppress(OSError, ValueError):  # the socket is being closed
            look = select.poll()
            look.register(transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
            return bool(look.poll(0))
    return False


def open_more_files() -> None:
    """Raise the process's limit on open files, which shells set low, up to `ENOUGH_FILES` or the system's limit."""
    if sys.platform != "win32":
        soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        target = ENOUGH_FILES if most == resource.RLIM_INFINITY else min(most, ENOUGH_FILES)
        if soft != resource.RLIM_INFINITY and soft < target:
            with suppress(ValueError, OSError):  # macOS has a limit that it does not report
                resource.setrlimit(resource.RLIMIT_NOFILE, (target, most))


def openable() -> int:
    """Return the number of connections that the process can have open."""
    if sys.platform != "win32":
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            return max(1, soft - min(RESERVED_FILES, soft // 2))
    return 2**31


def _address(transport: asyncio.Transport) -> str:
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else ""


def _has_sent_all(transport: asyncio.Transport) -> bool:
    return not transport.get_write_buffer_size()
