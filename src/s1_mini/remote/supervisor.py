"""The parent process of `s1-mini serve` with several replicas. It binds the port and loads no model.

It starts HAProxy on the port and the replicas behind it, admits a replica once that is ready, and restarts processes
that end or hang. SIGTERM: the proxy refuses new requests, every replica finishes what it has accepted, and the exit
code is 0. It is 1 if no replica could be started.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from s1_mini.config import EngineConfig
from s1_mini.remote.admin import AdminRoutes, num_under_way
from s1_mini.remote.devices import Machine, assign_device
from s1_mini.remote.process import Supervised
from s1_mini.remote.proxy import ADMIN, Proxy, describe_proxy, refuse_all, route
from s1_mini.remote.replica import Replica
from s1_mini.server.connections import open_more_files, openable
from s1_mini.server.logs import set_up_logging
from s1_mini.server.member import ReplicaInfo
from s1_mini.server.run import OPEN_TO_ALL, bind, is_loopback, url_of
from s1_mini.server.settings import ServerSettings

logger = logging.getLogger(__name__)

BACKLOG = 2048
PROXY_MARGIN_S = 1.0  # of the drain timeout: between the end of the replicas and that of the supervisor
EXIT_MARGIN_S = 0.5  # of the drain timeout: before the supervisor kills everything
PROXY_STARTS = 3  # failed ones in a row, after which the supervisor gives up
PROBE_S = 0.5  # timeout of the number of requests, for the log


@dataclass(frozen=True)
class Plan:
    """Configuration of the supervisor, checked before anything is started."""

    count: int
    machine: Machine
    proxy: str  # path of HAProxy
    config: EngineConfig
    settings: ServerSettings
    environment: dict[str, str]  # of every replica
    local_endpoint: str | None = None
    async_store: str | None = None


def run_replicas(plan: Plan) -> int:
    """Serve until a signal, or until no replica can be started; return the exit code."""
    set_up_logging(plan.settings.log_format)
    if not plan.settings.keys and not is_loopback(plan.settings.host):
        logger.warning(OPEN_TO_ALL)
    open_more_files()
    with _folder() as folder:
        return asyncio.run(Supervisor(plan, folder).run())


class Supervisor:
    """Replicas, proxy and admin routes. Belongs to the thread of the event loop."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan, self._settings, self._folder = plan, plan.settings, folder
        self._replicas = [self._make(index) for index in range(plan.count)]
        self._admin = AdminRoutes(self._replicas, plan.settings, lambda: self._is_draining)
        self._processes: list[Supervised] = [*self._replicas]
        self._is_draining = self._was_ready = False
        self._over = asyncio.Event()  # a signal, or nothing can be started
        self._code = 0
        self._began = time.monotonic()
        self._url = ""
        self._last_resort = threading.Timer(plan.settings.drain_timeout_s - EXIT_MARGIN_S, self._exit_now)
        self._last_resort.daemon = True

    async def run(self) -> int:
        """Serve; return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        tasks: list[asyncio.Task[None]] = []
        listeners = bind(self._settings.host, self._settings.port)
        for listener in listeners:
            listener.listen(BACKLOG)
        try:
            self._url = url_of(self._settings.host, listeners[0].getsockname()[1])
            numbers = [listener.fileno() for listener in listeners]
            members = [replica.member for replica in self._replicas]
            described = describe_proxy(self._settings, members, self._folder, numbers, openable())
            proxy = Proxy(
                self._plan.proxy,
                self._folder,
                described,
                numbers,
                on_ready=self._on_proxy_start,
                on_end=self._on_proxy_end,
            )
            self._processes.append(proxy)
            tasks = [asyncio.create_task(work) for work in (self._serve_admin(), *(p.keep() for p in self._processes))]
            over = asyncio.create_task(self._over.wait())
            await asyncio.wait([over, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done() and (error := task.exception()) is not None:
                    logger.error("the supervisor failed", exc_info=error)
                    self._code = 1
            await self._drain()
            for listener in listeners:
                listener.close()
            proxy.end(signal.SIGUSR1)  # type: ignore[attr-defined,unused-ignore] # Windows has none
            await proxy.wait(PROXY_MARGIN_S / 2)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for process in self._processes:
                process.kill()
                await process.wait()
            self._last_resort.cancel()
        return self._code

    # ---- replicas and proxy ---------------------------------------------------------------------------------------

    def _make(self, index: int) -> Replica:
        plan, drain_s = self._plan, self._settings.drain_timeout_s
        member = ReplicaInfo(index, plan.count, self._folder / str(index), plan.config.voices_path is not None)
        own = assign_device(index, plan.count, plan.machine, plan.environment)
        # The proxy must still be able to answer clients whose requests a replica had to abort.
        own["S1_MINI_SERVER_DRAIN_TIMEOUT_S"] = str(max(drain_s / 2, drain_s - PROXY_MARGIN_S - EXIT_MARGIN_S))
        own["S1_MINI_VOICES_PATH"] = str(plan.config.voices_path or self._folder / "voices")
        options = [] if plan.local_endpoint is None else ["--local-endpoint", plan.local_endpoint]
        options += [] if plan.async_store is None else ["--async-store", plan.async_store]
        return Replica(member, options, plan.environment | own, self._admit, self._on_replica_end)

    async def _admit(self, replica: Replica) -> bool:
        """Load the models of the others into a replica that is ready, and route requests to it; return success."""
        if self._is_draining:
            return False
        try:
            await self._admin.prepare(replica)
            await route(self._folder, replica.member.index, is_open=True)
        except OSError:
            return False
        if not self._was_ready:
            self._was_ready = True
            seconds = round(time.monotonic() - self._began, 1)
            fields = {"url": self._url, "device": f"{self._plan.count} replicas", "seconds": seconds}
            logger.info("ready", extra={"fields": {"event": "ready", **fields}})
        return True

    async def _on_replica_end(self, replica: Replica, exit_code: int | None) -> None:
        if self._is_draining:
            return
        await _ignore_lost(route(self._folder, replica.member.index, is_open=False))
        fields = {"event": "replica_ended", "replica": replica.member.name, "exit_code": exit_code}
        logger.error("replica ended", extra={"fields": fields})
        if not self._was_ready and all(each.num_failed for each in self._replicas):
            self._give_up("no replica could be started", {"event": "start_failed"})

    async def _on_proxy_start(self) -> None:
        for replica in self._replicas:
            if replica.is_ready:
                await _ignore_lost(route(self._folder, replica.member.index, is_open=True))

    async def _on_proxy_end(self, proxy: Proxy, exit_code: int | None) -> None:
        if self._is_draining:
            return
        logger.error("the proxy ended; it is started again", extra={"fields": {"exit_code": exit_code}})
        if proxy.num_failed == PROXY_STARTS:
            self._give_up("the proxy cannot be started", {"event": "start_failed", "reason": proxy.verdict})

    def _give_up(self, reason: str, fields: dict[str, str]) -> None:
        """End the supervisor with exit code 1."""
        logger.error(reason, extra={"fields": fields})
        self._code = 1
        self._over.set()

    # ---- the end --------------------------------------------------------------------------------------------------

    def _on_signal(self) -> None:
        """Start to drain; at the second signal, stop at once."""
        if self._is_draining:
            for replica in self._replicas:
                replica.end(signal.SIGTERM)
        self._over.set()

    async def _drain(self) -> None:
        """Refuse new requests and wait until every replica has finished what it has accepted."""
        self._is_draining = True
        for process in self._processes:
            process.is_ending = True
        if self._code == 0:
            count = num_under_way(await self._admin.healths(PROBE_S))
            logger.info("draining", extra={"fields": {"event": "draining", "requests": count}})
        self._last_resort.start()
        await _ignore_lost(refuse_all(self._folder))
        for replica in self._replicas:
            replica.end(signal.SIGTERM)
        await asyncio.gather(*(each.wait(self._settings.drain_timeout_s - PROXY_MARGIN_S) for each in self._replicas))

    def _exit_now(self) -> None:
        """Kill everything, from a thread of its own: the drain timeout is over."""
        logger.error("not everything ended in time", extra={"fields": {"event": "killed"}})
        for process in self._processes:
            process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        logging.shutdown()
        os._exit(self._code)

    async def _serve_admin(self) -> None:
        config = uvicorn.Config(
            self._admin.app,
            uds=str(self._folder / ADMIN),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_keep_alive=75,
        )
        server = uvicorn.Server(config)
        server.capture_signals = nullcontext  # type: ignore[assignment, method-assign] # they are the supervisor's
        await server.serve()


async def _ignore_lost(command: Awaitable[None]) -> None:
    """Send a command to the proxy; a proxy that is down gets its state after its restart."""
    with suppress(OSError):
        await command


@contextmanager
def _folder() -> Iterator[Path]:
    """Create the folder of sockets, of the proxy's configuration, and of voices that live as long as the server."""
    base = None if len(tempfile.gettempdir()) < 60 else "/tmp"  # noqa: S108 - the path of a socket is limited to some 100 bytes
    folder = Path(tempfile.mkdtemp(prefix="s1-mini-", dir=base))  # mode 700
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
