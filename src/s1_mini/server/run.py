"""The process: uvicorn on a socket, signals, and an end in which nothing accepted is lost.

SIGTERM: nothing new is let in (`/ping` and `/ready` are 503), what was accepted is finished, or failed when the time is
nearly up, and the exit code is 0. It is 1 if the engine could not be started or has died. The process is gone when the
time is up, whatever still hangs.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import threading
import time
from contextlib import suppress
from ipaddress import ip_address
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn

from s1_mini.audio.native_noise import keep_out
from s1_mini.exceptions import ConfigurationError
from s1_mini.runtime.process import freeze_what_is_loaded, prepare_process
from s1_mini.server.app import end_all
from s1_mini.server.connections import open_more_files
from s1_mini.server.gate import EngineDied
from s1_mini.server.logs import set_up_logging
from s1_mini.server.member import trusted_peers
from s1_mini.server.socket_wire import SocketWire
from s1_mini.server.wire import Wire

if TYPE_CHECKING:
    from fastapi import FastAPI

logger = logging.getLogger(__name__)

OPEN_TO_ALL = "whoever reaches this port may use the server: S1_MINI_SERVER_API_KEY, its key, is not set"

# Shares of the drain's time that are left when:
TELL = 0.2  # what is not finished is ended, so that its client is told
ABORT = 0.08  # connections that take nothing are cut
EXIT = 0.04  # the server goes


def check_address(host: str, port: int) -> None:
    """See, before anything is loaded, that the server can listen there. Raises `ConfigurationError`."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise ConfigurationError(f"host {host!r} is not known here; choose another with `--host`") from None
    failures = [error for family, *_, address in found if (error := _try_to_bind(family, address)) is not None]
    taken = any(error.errno == errno.EADDRINUSE for error in failures)
    if not taken and len(failures) < len(found):  # a name may have an address of a kind that is turned off
        return
    sentences = {
        errno.EADDRINUSE: f"port {port} is taken; choose another with `--port`",
        errno.EACCES: f"port {port} is not for this user; choose another with `--port`",
        errno.EADDRNOTAVAIL: f"host {host!r} is no address of this machine; choose another with `--host`",
    }
    number = errno.EADDRINUSE if taken else failures[0].errno
    other = f"cannot listen at host {host!r}, port {port}: {failures[0].strerror}"
    raise ConfigurationError(sentences.get(number or 0, other))


def _try_to_bind(family: int, address: tuple[Any, ...]) -> OSError | None:
    """Give what binding a socket to an address fails with, as the server will bind one."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if os.name != "nt":  # where it would let two listen; elsewhere it only passes over closed connections
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(address)
    except OSError as error:
        return error
    return None


def run(app: FastAPI) -> int:
    """Serve until a signal or the engine's death; give the exit code."""
    settings = app.state.settings
    member = app.state.member
    set_up_logging(
        settings.log_format,
        replica=member and member.name,
        stream=os.fdopen(keep_out(), "w", buffering=1, encoding="utf-8"),
    )
    if member is None and not settings.keys and not is_loopback(settings.host):
        logger.warning(OPEN_TO_ALL)
    open_more_files()
    prepare_process()
    server = DrainingServer(app)
    with suppress(SystemExit):  # it could not listen after all, and has told why
        server.run()
    server.last_resort.cancel()
    failure = app.state.gate.failure
    if isinstance(failure, EngineDied):
        logging.shutdown()
        os._exit(1)  # at once: a GPU that hangs would be waited for at an ordinary end
    return 1 if failure is not None or not server.started else 0


def make_config(app: FastAPI) -> uvicorn.Config:
    """Say how uvicorn is to serve `app`; logging stays as it is."""
    settings, member = app.state.settings, app.state.member
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        uds=None if member is None else str(member.socket),  # instead of host and port
        forwarded_allow_ips=None if member is None else trusted_peers(),
        http=Wire,  # h11's: strict, with bounds on heads and pieces
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=75,  # longer than a load balancer's idle 60 s, which would meet a closed connection
        ws=SocketWire,
        ws_per_message_deflate=False,  # sound does not shrink, and a little that is sent could become a lot
        ws_max_size=settings.max_body_bytes,
        ws_ping_interval=20,
        ws_ping_timeout=20,
    )


class DrainingServer(uvicorn.Server):
    """A uvicorn server that finishes what it accepted before it closes its socket."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(make_config(app))
        self._state = app.state
        self._drain_ends = float("inf")
        self._began = time.monotonic()
        self._place: dict[str, str] = {}  # the address, unless it is that of all replicas
        self._told: set[str] = set()  # events
        self._ending: asyncio.Task[None] | None = None
        self.last_resort = threading.Timer(app.state.settings.drain_timeout_s, self._leave)
        self.last_resort.daemon = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and tell where."""
        await super().startup(sockets=sockets)
        settings = self._state.settings
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            self._place = {} if self._state.member else {"url": url_of(settings.host, port)}
            self._tell("listening", **self._place)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Begin to drain; at the second signal, stop at once."""
        if self._state.gate.is_draining:
            self.should_exit = self.force_exit = True
        self._begin_drain()

    async def on_tick(self, counter: int) -> bool:
        """Look, ten times a second, whether it is time to go."""
        gate = self._state.gate
        if "ready" not in self._told and gate.refusal() is None:
            seconds = round(time.monotonic() - self._began, 1)
            self._tell("ready", **self._place, device=gate.health()["device"]["value"], seconds=seconds)
            self._state.lifecycle.submit(freeze_what_is_loaded)
        if gate.failure is not None:
            self._begin_drain()
        if gate.is_draining and "draining" not in self._told and (gate.failure is None or "ready" in self._told):
            self._tell("draining", requests=gate.num_inside)  # not by the signal, which may interrupt another line
        if gate.is_draining and not self.should_exit:
            left = (self._drain_ends - time.monotonic()) / self._state.settings.drain_timeout_s
            if left < TELL and self._ending is None:
                self._ending = asyncio.create_task(end_all(self._state))
            if left < ABORT:
                self._state.connections.abort_all()
            self.should_exit = gate.num_inside == 0 or left <= EXIT
        return await super().on_tick(counter)

    def _tell(self, event: str, **fields: object) -> None:
        self._told.add(event)
        logger.info(event, extra={"fields": {"event": event, **fields}})

    def _begin_drain(self) -> None:
        if not self._state.gate.is_draining:
            self._state.gate.is_draining = True
            self.last_resort.start()
            self._drain_ends = time.monotonic() + self._state.settings.drain_timeout_s

    def _leave(self) -> None:
        logger.error("not everything ended in time", extra={"fields": {"event": "killed"}})
        logging.shutdown()
        os._exit(int(self._state.gate.failure is not None))


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def url_of(host: str, port: int) -> str:
    """Give the address that a person on this machine opens."""
    name = "localhost" if host in ("", "0.0.0.0", "::") else f"[{host}]" if ":" in host else host  # noqa: S104
    return f"http://{name}:{port}/"
