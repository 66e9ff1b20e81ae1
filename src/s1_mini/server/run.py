"""The server process: uvicorn on a socket, signals, and a graceful shutdown.

On SIGTERM, new requests are refused (`/ping` and `/ready` return 503). Accepted requests are finished; those that are
not finished shortly before the end of the drain timeout fail. While the engine is starting, the process exits at once.
The exit code is 0, or 1 if the server could not listen, or the engine could not be started or has died. The process
exits at the end of the drain timeout even if something hangs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import uvicorn

from s1_mini.audio.native_noise import keep_out
from s1_mini.files import delete_temporary_folders
from s1_mini.runtime.process import freeze_what_is_loaded, prepare_process
from s1_mini.server.addresses import OPEN_TO_ALL, is_loopback, url_of
from s1_mini.server.app import end_all
from s1_mini.server.connections import open_more_files
from s1_mini.server.limits import EngineDied
from s1_mini.server.logs import set_up_logging
from s1_mini.server.member import trusted_peers
from s1_mini.server.state import state_in
from s1_mini.server.wire import HttpProtocol, SocketWire

if TYPE_CHECKING:
    import socket

    from fastapi import FastAPI

logger = logging.getLogger(__name__)

# Shares of the drain timeout that remain when:
FAIL = 0.2  # unfinished requests fail, so that their clients get an error
ABORT = 0.08  # connections with a request in flight are aborted
EXIT = 0.04  # the server exits


def run(app: FastAPI) -> int:
    """Serve until a signal arrives or the engine fails; return the exit code.

    If the engine failed after its start, exit from the process with code 1 instead of returning.
    """
    state = state_in(app)
    settings, member = state.settings, state.member
    set_up_logging(
        settings.log_format,
        replica=member.name if member else None,
        stream=os.fdopen(keep_out(), "w", buffering=1, encoding="utf-8"),
    )
    if member is None and not settings.keys and not is_loopback(settings.host):
        logger.warning(OPEN_TO_ALL)
    open_more_files()
    prepare_process()
    server = DrainingServer(app)
    with suppress(SystemExit):  # uvicorn could not listen after all, and has logged why
        server.run()
    server.last_resort.cancel()
    failure = state.gate.failure
    if isinstance(failure, EngineDied):
        _exit(1)  # an ordinary exit would wait for a GPU that hangs
    return 1 if failure is not None or not server.started else 0


def make_config(app: FastAPI) -> uvicorn.Config:
    """Return uvicorn's configuration for `app`; logging is not configured."""
    state = state_in(app)
    settings, member = state.settings, state.member
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        uds=None if member is None else str(member.socket),  # replaces host and port
        forwarded_allow_ips=None if member is None else trusted_peers(),
        http=HttpProtocol,  # on h11: strict, with limits for heads and chunks
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=75,  # longer than the idle timeout of load balancers, 60 s
        ws=SocketWire,
        ws_per_message_deflate=False,  # audio does not compress, and small messages could expand
        ws_max_size=settings.max_body_bytes,
        ws_ping_interval=20,  # for proxies that close idle connections
        # A client that plays audio as it reads it finds a ping only behind the audio. `Connections` ends connections
        # whose client stops reading, and `Session` idle ones.
        ws_ping_timeout=None,
    )


class DrainingServer(uvicorn.Server):
    """A uvicorn server that finishes accepted requests before it closes its socket."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(make_config(app))
        self._state = state_in(app)
        self._drain_ends = float("inf")
        self._began = time.monotonic()
        self._place: dict[str, str] = {}  # the address, unless all replicas share it
        self._logged: set[str] = set()  # events that were logged
        self._ending: asyncio.Task[None] | None = None
        self.last_resort = threading.Timer(self._state.settings.drain_timeout_s, self._exit_now)
        self.last_resort.daemon = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        settings = self._state.settings
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            self._place = {} if self._state.member else {"url": url_of(settings.host, port)}
            self._log("listening", **self._place)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Start to drain; at the second signal, stop immediately."""
        if self._state.gate.is_draining:
            self.should_exit = self.force_exit = True
        self._begin_drain()

    async def on_tick(self, counter: int) -> bool:
        """Check, ten times a second, whether to exit."""
        gate = self._state.gate
        if "ready" not in self._logged and gate.refusal() is None:
            seconds = round(time.monotonic() - self._began, 1)
            health = await asyncio.to_thread(gate.health)
            self._log("ready", **self._place, device=health["device"]["value"], seconds=seconds)
            self._state.lifecycle.submit(freeze_what_is_loaded)
        if gate.failure is not None:
            self._begin_drain()
        if gate.is_draining and "draining" not in self._logged and (gate.failure is None or "ready" in self._logged):
            self._log("draining", requests=gate.num_inside)  # not in the signal handler, which may interrupt a log line
        if gate.is_draining and not self.should_exit:
            left = (self._drain_ends - time.monotonic()) / self._state.settings.drain_timeout_s
            if left < FAIL and self._ending is None:
                self._ending = asyncio.create_task(end_all(self._state))
            if left < ABORT:
                self._state.connections.abort_all()
            self.should_exit = gate.num_inside == 0 or left <= EXIT
        if self.should_exit and self._is_starting:
            # Nothing can interrupt `engine.start`, for which an ordinary exit would wait. If the engine has its own
            # process, that process ends with this one.
            _exit(0)
        return await super().on_tick(counter)

    @property
    def _is_starting(self) -> bool:
        gate, status = self._state.gate, self._state.engine.state().status
        is_idle = gate.is_unloaded and not gate.is_loading
        return status == "stopped" and not is_idle and gate.failure is None and self._ending is None

    def _log(self, event: str, **fields: object) -> None:
        self._logged.add(event)
        logger.info(event, extra={"fields": {"event": event, **fields}})

    def _begin_drain(self) -> None:
        if not self._state.gate.is_draining:
            self._state.gate.is_draining = True
            self.last_resort.start()
            self._drain_ends = time.monotonic() + self._state.settings.drain_timeout_s

    def _exit_now(self) -> None:
        logger.error("shutdown timed out", extra={"fields": {"event": "killed"}})
        _exit(int(self._state.gate.failure is not None))


def _exit(code: int) -> NoReturn:
    """End the process without waiting for its threads."""
    logging.shutdown()
    delete_temporary_folders()
    os._exit(code)
