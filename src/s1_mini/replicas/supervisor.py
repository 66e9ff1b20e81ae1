"""The process that `s1-mini serve` is where there are several replicas: it holds the port, and everybody else's life.

It binds the port, starts HAProxy on it and the replicas behind it, lets requests go to a replica once that speaks, and
starts anew whoever ends or hangs. SIGTERM: the proxy refuses what comes from now on, every replica finishes what it has
accepted, as it does alone, and the exit code is 0. It is 1 if no replica could be started.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from s1_mini.config import EngineConfig
from s1_mini.replicas.about_all import AboutAll
from s1_mini.replicas.member_process import command_of
from s1_mini.replicas.proxy import ABOUT_ALL, COMMANDS, STATES, Commands, describe_proxy
from s1_mini.replicas.replica import LOOK_EVERY_S, STEADY_S, Replica, bound
from s1_mini.replicas.seats import Machine, seat
from s1_mini.server.connections import open_more_files, openable
from s1_mini.server.logs import set_up_logging
from s1_mini.server.member import Member
from s1_mini.server.run import OPEN_TO_ALL, is_loopback, url_of
from s1_mini.server.settings import ServerSettings

logger = logging.getLogger(__name__)

BACKLOG = 2048
SHORT_S = 1.0  # of the drain's time, between the replicas' end and ours
LAST_S = 0.5  # and before the exit, whatever still hangs
PROXY_START_S = 10.0
PROXY_LIVES_S = 5.0  # a proxy that ends sooner, so many times, cannot be helped
PROXY_STARTS = 3
START_WAIT_S = 0.02


@dataclass(frozen=True)
class Plan:
    """What is to be run: checked before anything is started."""

    count: int
    machine: Machine
    proxy: str  # path of HAProxy
    config: EngineConfig
    settings: ServerSettings
    environment: dict[str, str]  # of every replica
    local_endpoint: str | None = None
    async_store: str | None = None


def run_replicas(plan: Plan) -> int:
    """Serve until a signal, or until it is clear that no replica will speak; give the exit code."""
    set_up_logging(plan.settings.log_format)
    if not plan.settings.keys and not is_loopback(plan.settings.host):
        logger.warning(OPEN_TO_ALL)
    open_more_files()
    with _folder() as folder:
        return asyncio.run(Supervisor(plan, folder).run())


class Supervisor:
    """Replicas, proxy, and what is about all of them. Belongs to the event loop's thread."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan, self._settings, self._folder = plan, plan.settings, folder
        self._members = [
            Member(index, plan.count, folder / str(index), plan.config.voices_path is not None)
            for index in range(plan.count)
        ]
        self._replicas = [self._make(member) for member in self._members]
        self._commands = Commands(folder)
        self._about_all = AboutAll(self._replicas, plan.settings, lambda: self._is_draining)
        self._proxy: asyncio.subprocess.Process | None = None
        self._listeners: list[socket.socket] = []
        self._is_draining = self._was_ready = False
        self._over = asyncio.Event()  # a signal came, or there is no hope
        self._code = 0
        self._began = time.monotonic()
        self._url = ""
        self._last_resort = threading.Timer(plan.settings.drain_timeout_s - LAST_S, self._leave)
        self._last_resort.daemon = True

    async def run(self) -> int:
        """Serve; give the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        tasks: list[asyncio.Task[None]] = []
        try:
            self._listeners = _listen(self._settings.host, self._settings.port)
            self._url = url_of(self._settings.host, self._listeners[0].getsockname()[1])
            tasks.append(asyncio.create_task(self._answer_about_all()))
            tasks.append(asyncio.create_task(self._keep_proxy()))
            tasks += [asyncio.create_task(self._keep(replica)) for replica in self._replicas]
            over = asyncio.create_task(self._over.wait())
            await asyncio.wait([over, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done() and (error := task.exception()) is not None:
                    logger.error("the supervisor failed", exc_info=error)
                    self._code = 1
            await self._drain(tasks[2:])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._end_all()
            self._last_resort.cancel()
        return self._code

    # ---- replicas -------------------------------------------------------------------------------------------------

    def _make(self, member: Member) -> Replica:
        plan, drain_s = self._plan, self._settings.drain_timeout_s
        own = seat(member.index, plan.count, plan.machine, plan.environment)
        # As long as the proxy can tell its clients of what a replica had to end.
        own["S1_MINI_SERVER_DRAIN_TIMEOUT_S"] = str(max(drain_s / 2, drain_s - SHORT_S - LAST_S))
        own["S1_MINI_VOICES_PATH"] = str(plan.config.voices_path or self._folder / "voices")
        command = command_of(member, plan.local_endpoint, plan.async_store)
        return Replica(member, bound(command, os.getpid()), plan.environment | own)

    async def _keep(self, replica: Replica) -> None:
        """Keep one replica running, again and again, until the end."""
        while True:
            await asyncio.sleep(replica.wait_s)
            await replica.start()
            process = replica.process
            assert process is not None
            ended = asyncio.create_task(process.wait())
            was_ready = False
            while not ended.done():
                is_ready = await replica.look()
                if is_ready and not was_ready and not self._is_draining:
                    is_ready = was_ready = await self._let_in(replica)
                await asyncio.wait([ended], timeout=STEADY_S if is_ready or self._is_draining else LOOK_EVERY_S)
            replica.is_ready = False
            replica.num_failed = 0 if was_ready else replica.num_failed + 1
            if self._is_draining:
                return
            await self._try(self._commands.leave(replica.member.index))
            fields = {"event": "replica_ended", "replica": replica.member.name, "exit_code": process.returncode}
            logger.error("replica ended", extra={"fields": fields})
            if not self._was_ready and all(each.num_failed for each in self._replicas):
                logger.error("no replica could be started", extra={"fields": {"event": "start_failed"}})
                self._code = 1
                self._over.set()
                return

    async def _let_in(self, replica: Replica) -> bool:
        """Let requests go to a replica that has just become ready, once it knows what the others do; tell whether."""
        try:
            await self._about_all.prepare(replica)
            await self._commands.take(replica.member.index)
        except OSError:
            return False
        replica.is_ready = True
        if not self._was_ready:
            self._was_ready = True
            seconds = round(time.monotonic() - self._began, 1)
            told = {"url": self._url, "device": f"{self._plan.count} replicas", "seconds": seconds}
            logger.info("ready", extra={"fields": {"event": "ready", **told}})
        return True

    # ---- the proxy ------------------------------------------------------------------------------------------------

    async def _keep_proxy(self) -> None:
        """Keep the proxy running; the port stays ours meanwhile, and who connects waits."""
        described = self._folder / "haproxy.cfg"
        numbers = [listener.fileno() for listener in self._listeners]
        described.write_text(
            describe_proxy(self._settings, self._members, self._folder, numbers, openable()), encoding="utf-8"
        )
        num_short = 0
        while True:
            (self._folder / STATES).write_text(f"now {'draining' if self._is_draining else 'up'}\n", encoding="ascii")
            (self._folder / COMMANDS).unlink(missing_ok=True)
            began = time.monotonic()
            self._proxy = await asyncio.create_subprocess_exec(
                *bound([self._plan.proxy, "-db", "-f", str(described)], os.getpid()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=numbers,
                start_new_session=True,
            )
            telling = asyncio.create_task(self._tell_of(self._proxy))
            for replica in self._replicas:
                if replica.is_ready:
                    await self._try(self._when_there(self._commands.take, replica.member.index))
            code = await self._proxy.wait()
            await telling
            if self._is_draining:
                return
            logger.error("the proxy ended; it is started again", extra={"fields": {"exit_code": code}})
            num_short = num_short + 1 if time.monotonic() - began < PROXY_LIVES_S else 0
            if num_short == PROXY_STARTS:
                self._code = 1
                self._over.set()
                return

    async def _when_there(self, command: Any, index: int) -> None:
        ends = time.monotonic() + PROXY_START_S
        while not (self._folder / COMMANDS).exists() and time.monotonic() < ends:
            await asyncio.sleep(START_WAIT_S)
        await command(index)

    async def _tell_of(self, proxy: asyncio.subprocess.Process) -> None:
        """Write the proxy's lines as log lines of ours: of requests that it ended itself, and of itself."""
        assert proxy.stdout is not None
        while line := await proxy.stdout.readline():
            said = line.decode(errors="replace").strip()
            try:
                fields = json.loads(said)
            except ValueError:
                if said:
                    logger.info("proxy", extra={"fields": {"said": said}})
                continue
            if not fields["state"].startswith("C"):  # the client went; the replica tells of that
                fields["route"] = fields["route"].partition("?")[0][:200]
                level = logging.WARNING if fields["status"] >= 500 else logging.INFO
                logger.log(level, "request", extra={"fields": fields})

    # ---- the end --------------------------------------------------------------------------------------------------

    def _signalled(self) -> None:
        """Begin to drain; at the second signal, stop at once."""
        if self._is_draining:
            for replica in self._replicas:
                replica.end(signal.SIGTERM)
        self._over.set()

    async def _drain(self, keeping: list[asyncio.Task[None]]) -> None:
        """Refuse what comes, let every replica finish what it has, and let the proxy hand over the last of it."""
        self._is_draining = True
        if self._code == 0:
            logger.info("draining", extra={"fields": {"event": "draining", "requests": await self._num_inside()}})
        self._last_resort.start()
        await self._try(self._commands.drain())
        for replica in self._replicas:
            replica.end(signal.SIGTERM)
        running = [replica.process.wait() for replica in self._replicas if replica.process is not None]
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_timeout_s - SHORT_S):
                await asyncio.gather(*running)
        for task in keeping:
            task.cancel()
        for listener in self._listeners:
            listener.close()
        if self._proxy is not None and self._proxy.returncode is None:
            self._proxy.send_signal(signal.SIGUSR1)  # type: ignore[attr-defined,unused-ignore] # Windows has none
            with suppress(TimeoutError):
                async with asyncio.timeout(SHORT_S / 2):
                    await self._proxy.wait()

    async def _num_inside(self) -> int:
        from s1_mini.replicas.asking import ask

        inside = 0
        for replica in self._replicas:
            with suppress(OSError, ValueError, KeyError):
                answer = await ask(replica.member.socket, "/health", within_s=0.5)
                inside += int(json.loads(answer.body)["server"]["requests"])
        return inside

    async def _end_all(self) -> None:
        for replica in self._replicas:
            replica.end(signal.SIGKILL)  # type: ignore[attr-defined,unused-ignore] # Windows has none
        if self._proxy is not None and self._proxy.returncode is None:
            with suppress(ProcessLookupError):
                self._proxy.kill()
        for process in [self._proxy, *(replica.process for replica in self._replicas)]:
            if process is not None:
                await process.wait()

    def _leave(self) -> None:
        """End everything at once, from a thread of its own: the time is up."""
        logger.error("not everything ended in time", extra={"fields": {"event": "killed"}})
        for process in [self._proxy, *(replica.process for replica in self._replicas)]:
            if process is not None and process.returncode is None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)  # type: ignore[attr-defined,unused-ignore] # Windows has none
        shutil.rmtree(self._folder, ignore_errors=True)
        logging.shutdown()
        os._exit(self._code)

    # ---- the rest -------------------------------------------------------------------------------------------------

    async def _answer_about_all(self) -> None:
        server = _Quiet(
            uvicorn.Config(
                self._about_all.app,
                uds=str(self._folder / ABOUT_ALL),
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                timeout_keep_alive=75,
            )
        )
        await server.serve()

    async def _try(self, command: Any) -> None:
        """Tell the proxy; where it is not there, it is told anew when it is."""
        with suppress(OSError):
            await command


class _Quiet(uvicorn.Server):
    """A server that leaves signals to the supervisor."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def _listen(host: str, port: int) -> list[socket.socket]:
    """Bind the port at every address of `host`, as the server does alone. Raises `OSError`."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    failures: list[OSError] = []
    for family, kind, protocol, _, address in dict.fromkeys(found):
        free = listeners[0].getsockname()[1] if listeners else port  # of port 0, the one that the first address got
        try:
            listener = socket.socket(family, kind, protocol)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((address[0], free, *address[2:]))
            listener.listen(BACKLOG)
        except OSError as error:  # a name may have an address of a kind that is turned off
            failures.append(error)
            continue
        listeners.append(listener)
    if not listeners:
        raise failures[0]
    return listeners


@contextmanager
def _folder() -> Iterator[Path]:
    """Make the folder of sockets, of what the proxy is told, and of voices that live as long as the server."""
    base = None if len(tempfile.gettempdir()) < 60 else "/tmp"  # noqa: S108 - a socket's path has a hundred bytes
    folder = Path(tempfile.mkdtemp(prefix="s1-mini-", dir=base))  # ours alone: mode 700
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
