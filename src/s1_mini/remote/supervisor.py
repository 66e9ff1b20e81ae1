"""The parent process of `s1-mini serve` with several replicas. It binds the port and loads no model.

It starts HAProxy on the port and the replicas behind it, admits a replica once it is ready, and restarts processes that
end or hang. On SIGTERM, the proxy refuses new requests, every replica finishes its accepted requests, and the exit code
is 0. The exit code is 1 if no replica or no proxy could be started, or if the supervisor itself fails.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeGuard, TypeVar

import httpx2
import uvicorn
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from s1_mini.config import EngineConfig
from s1_mini.exceptions import EngineNotReadyError
from s1_mini.remote.child import Supervised
from s1_mini.remote.devices import LocalMachine, assign_device
from s1_mini.remote.proxy import ADMIN, Proxy, describe_proxy, refuse_all, route
from s1_mini.remote.replica import Replica
from s1_mini.server.addresses import OPEN_TO_ALL, bind, is_loopback, url_of
from s1_mini.server.connections import open_more_files, openable
from s1_mini.server.errors import BodyTooLargeError, BodyTooSlowError, ServerError, error_response, misaddressed
from s1_mini.server.logs import set_up_logging
from s1_mini.server.member import ReplicaInfo
from s1_mini.server.settings import ServerSettings

logger = logging.getLogger(__name__)

BACKLOG = 2048
PROXY_MARGIN_S = 1.0  # part of the drain timeout left to the proxy after the replicas have ended
EXIT_MARGIN_S = 0.5  # part of the drain timeout left for exiting before the supervisor kills all processes
PROXY_STARTS = 3  # the supervisor gives up after this many consecutive failed starts
PROBE_S = 0.5  # timeout for counting the open requests, which are logged
HEALTH_S = 2.0  # timeout of a replica's `/health` and `/metrics`
SHARED_S = 1.0  # how long a collected `/health` or `/metrics` answers further requests
LOAD_S = 900.0  # timeout for loading a model
MAX_BODY_BYTES = 64 * 1024  # limit of a body with the name and path of a model
FORWARDED = (b"authorization", b"content-encoding", b"content-type", b"host", b"origin", b"x-request-id", b"xi-api-key")
SUMS = {"queue": None, "slots": ("free", "total"), "recordings": None}  # fields of /health to add up; None: all numbers
LABEL = "replica"

Headers = list[tuple[bytes, bytes]]
Result = TypeVar("Result")


@dataclass(frozen=True)
class ServePlan:
    """Configuration of the supervisor, checked before anything is started."""

    count: int
    machine: LocalMachine
    proxy: str  # path to HAProxy
    config: EngineConfig
    settings: ServerSettings
    environment: dict[str, str]  # environment variables of every replica
    local_endpoint: str | None = None
    async_store: str | None = None


def run_replicas(plan: ServePlan) -> int:
    """Serve until a signal, or until no replica can be started; return the exit code."""
    set_up_logging(plan.settings.log_format)
    if not plan.settings.keys and not is_loopback(plan.settings.host):
        logger.warning(OPEN_TO_ALL)
    open_more_files()
    with _folder() as folder:
        return asyncio.run(Supervisor(plan, folder).run())


class Supervisor:
    """Replicas, proxy and admin routes. Belongs to the thread of the event loop."""

    def __init__(self, plan: ServePlan, folder: Path) -> None:
        self._plan, self._settings, self._folder = plan, plan.settings, folder
        self._replicas = [self._make(index) for index in range(plan.count)]
        self._admin = AdminRoutes(self._replicas, plan.settings, lambda: self._is_draining)
        self._processes: list[Supervised] = [*self._replicas]
        self._is_draining = self._was_ready = False
        self._over = asyncio.Event()  # set by a signal, or if nothing could be started
        self._code = 0
        self._began = time.monotonic()
        self._url = ""
        self._last_resort = threading.Timer(plan.settings.drain_timeout_s - EXIT_MARGIN_S, self._exit_now)
        self._last_resort.daemon = True

    async def run(self) -> int:
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
        # Replicas end first, so that the proxy can still answer clients whose requests a replica had to abort.
        own["S1_MINI_SERVER_DRAIN_TIMEOUT_S"] = str(max(drain_s / 2, drain_s - PROXY_MARGIN_S - EXIT_MARGIN_S))
        own["S1_MINI_VOICES_PATH"] = str(plan.config.voices_path or self._folder / "voices")
        options = [] if plan.local_endpoint is None else ["--local-endpoint", plan.local_endpoint]
        options += [] if plan.async_store is None else ["--async-store", plan.async_store]
        return Replica(member, options, plan.environment | own, self._admit, self._on_replica_end)

    async def _admit(self, replica: Replica) -> bool:
        """Load the other replicas' models into a ready replica, and route requests to it; return success."""
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
        logger.error("replica exited", extra={"fields": fields})
        if not self._was_ready and all(each.num_failed for each in self._replicas):
            self._give_up("no replica could be started", {"event": "start_failed"})

    async def _on_proxy_start(self) -> None:
        for replica in self._replicas:
            if replica.is_ready:
                await _ignore_lost(route(self._folder, replica.member.index, is_open=True))

    async def _on_proxy_end(self, proxy: Proxy, exit_code: int | None) -> None:
        if self._is_draining:
            return
        logger.error("the proxy exited; restarting it", extra={"fields": {"exit_code": exit_code}})
        if proxy.num_failed == PROXY_STARTS:
            self._give_up("the proxy could not be started", {"event": "start_failed", "reason": proxy.verdict})

    def _give_up(self, reason: str, fields: dict[str, str]) -> None:
        logger.error(reason, extra={"fields": fields})
        self._code = 1
        self._over.set()

    # ---- shutdown ------------------------------------------------------------------------------------------------

    def _on_signal(self) -> None:
        """Start to drain; at the second signal, stop immediately."""
        if self._is_draining:
            for replica in self._replicas:
                replica.end(signal.SIGTERM)
        self._over.set()

    async def _drain(self) -> None:
        """Refuse new requests and wait until every replica has finished its accepted requests."""
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
        """Kill all processes, from a separate thread, after the drain timeout."""
        logger.error("shutdown timed out; killing the remaining processes", extra={"fields": {"event": "killed"}})
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
        server.capture_signals = nullcontext  # type: ignore[assignment, method-assign] # the supervisor handles signals
        await server.serve()


async def _ignore_lost(command: Awaitable[None]) -> None:
    """Send a command to the proxy; if it is down, ignore the error, because `_on_proxy_start` sets the state again."""
    with suppress(OSError):
        await command


@contextmanager
def _folder() -> Iterator[Path]:
    """Create the folder for sockets, the proxy's configuration, and voices added without a voices path."""
    base = None if len(tempfile.gettempdir()) < 60 else "/tmp"  # noqa: S108 - the path of a socket is limited to some 100 bytes
    folder = Path(tempfile.mkdtemp(prefix="s1-mini-", dir=base))  # mode 700
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class AdminRoutes:
    """Routes for all replicas, answered by the supervisor: `/health`, `/metrics`, loading of models.

    Voices need no such route, because all replicas share one folder of added voices.
    """

    def __init__(self, replicas: Sequence[Replica], settings: ServerSettings, is_draining: Callable[[], bool]) -> None:
        self._replicas, self._settings, self._is_draining = replicas, settings, is_draining
        # The requests that loaded models, by model name, to repeat for replicas that start later.
        self._models: dict[str, tuple[Headers, bytes]] = {}
        self._changing = asyncio.Lock()  # models are loaded one at a time
        self._healths = Shared(lambda: self.healths(HEALTH_S))
        self._metrics = Shared(self._collect_metrics)
        self.app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/metrics", self._show_metrics),
                Route("/models", self._load, methods=["POST"]),
                Route("/models/{name}", self._unload, methods=["DELETE"]),
            ],
            exception_handlers={HTTPException: _refuse},
        )

    async def prepare(self, replica: Replica) -> None:
        """Load the models of the other replicas into a replica that has just started. Raises `OSError`."""
        async with self._changing:
            for headers, body in self._models.values():
                await replica.request("/models", method="POST", headers=headers, content=body, within_s=LOAD_S)

    async def healths(self, within_s: float) -> list[dict[str, Any]]:
        """Return the `/health` of each replica; an empty dictionary for a replica that does not answer."""
        responses = await self._each("/health", self._replicas, within_s)
        return [json.loads(response.content) if _is_ok(response) else {} for response in responses]

    async def _health(self, request: Request) -> Response:  # noqa: ARG002
        each = await self._healths.get()
        ready = [health for health in each if health.get("ready")] or [health for health in each if health]
        total: dict[str, Any] = dict(ready[0]) if ready else {"status": "stopped"}
        for part, names in SUMS.items():
            if part in total:
                summed = names or [name for name, value in total[part].items() if isinstance(value, int)]
                total[part] = total[part] | {
                    name: _sum(health.get(part, {}).get(name) for health in ready) for name in summed
                }
        total |= {
            "ready": not self._is_draining() and any(health.get("ready") for health in each),
            "requests": _sum(health.get("requests") for health in each),
            "server": {"requests": num_under_way(each), "draining": self._is_draining()},
            "replicas": [
                replica.health() | {"health": health} for replica, health in zip(self._replicas, each, strict=True)
            ],
        }
        return JSONResponse(total)

    async def _show_metrics(self, request: Request) -> Response:  # noqa: ARG002
        return Response(await self._metrics.get(), media_type=CONTENT_TYPE_LATEST)

    async def _collect_metrics(self) -> bytes:
        responses = await self._each("/metrics", self._replicas, HEALTH_S)
        metrics = ReplicaMetrics(self._replicas, [each.text if _is_ok(each) else "" for each in responses])
        return await asyncio.to_thread(generate_latest, metrics)

    async def _load(self, request: Request) -> Response:
        """Load a model into all replicas, or into none."""
        try:
            body = await self._read(request)
        except ServerError as error:
            return error_response(error, request.headers.get("x-request-id"))
        headers = _forwarded(request)
        async with self._changing:
            replicas = self._ready()
            responses = await self._each("/models", replicas, LOAD_S, method="POST", headers=headers, content=body)
            loaded = [each for each, response in zip(replicas, responses, strict=True) if _is_ok(response)]
            name = json.loads(body)["model_name"] if loaded else ""
            if loaded and loaded == replicas:
                self._models[name] = (headers, body)
                return _response(responses[0])
            if loaded:
                await self._each(f"/models/{name}", loaded, LOAD_S, method="DELETE", headers=_without_body(headers))
        return _response(next((each for each in responses if each is not None and not _is_ok(each)), None))

    async def _unload(self, request: Request) -> Response:
        headers, path = _without_body(_forwarded(request)), request.scope["raw_path"].decode("latin-1")
        async with self._changing:
            responses = await self._each(path, self._ready(), LOAD_S, method="DELETE", headers=headers)
            answered = [response for response in responses if response is not None]
            best = min(answered, key=lambda response: response.status_code, default=None)
            if _is_ok(best):
                self._models.pop(request.path_params["name"], None)
        return _response(best)

    def _ready(self) -> list[Replica]:
        return [replica for replica in self._replicas if replica.is_ready]

    async def _each(
        self, target: str, replicas: Iterable[Replica], within_s: float, **options: Any
    ) -> list[httpx2.Response | None]:
        """Send a request to replicas at the same time; the result is None for a replica that does not answer."""

        async def one(replica: Replica) -> httpx2.Response | None:
            try:
                return await replica.request(target, within_s=within_s, **options)
            except OSError:
                return None

        return list(await asyncio.gather(*(one(replica) for replica in replicas)))

    async def _read(self, request: Request) -> bytes:
        content = bytearray()
        try:
            async with asyncio.timeout(self._settings.body_timeout_s):
                async for piece in request.stream():
                    content += piece
                    if len(content) > MAX_BODY_BYTES:
                        raise BodyTooLargeError(MAX_BODY_BYTES)
        except TimeoutError:
            raise BodyTooSlowError(
                f"the request body was not received within {self._settings.body_timeout_s:g} s"
            ) from None
        except ClientDisconnect:
            return b""
        return bytes(content)


class Shared(Generic[Result]):
    """A result collected from the replicas for all requests: one collection at a time, reused for `SHARED_S`."""

    def __init__(self, collect: Callable[[], Coroutine[Any, Any, Result]]) -> None:
        self._collect = collect
        self._collecting: asyncio.Task[Result] | None = None
        self._is_old_at = 0.0

    async def get(self) -> Result:
        """Return the last result, or collect a new one if it is old. Raises the errors of `collect`."""
        if self._collecting is None or (self._collecting.done() and time.monotonic() > self._is_old_at):
            self._collecting = asyncio.create_task(self._run())
        return await asyncio.shield(self._collecting)  # a cancelled request does not cancel the others

    async def _run(self) -> Result:
        result = await self._collect()
        self._is_old_at = time.monotonic() + SHARED_S
        return result


class ReplicaMetrics(Collector):
    """The metrics of all replicas, labelled by replica, and the state of the replicas."""

    def __init__(self, replicas: Sequence[Replica], texts: Sequence[str]) -> None:
        self._replicas, self._texts = replicas, texts

    def collect(self) -> Iterable[Metric]:
        """Yield each metric once, with the samples of all replicas."""
        families: dict[str, Metric] = {}
        for replica, text in zip(self._replicas, self._texts, strict=True):
            for family in text_string_to_metric_families(text):
                known = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    known.add_sample(sample.name, sample.labels | {LABEL: replica.member.name}, sample.value)
        yield from families.values()
        ready = GaugeMetricFamily("s1_mini_replica_ready", "1 if the replica accepts requests", labels=[LABEL])
        starts = CounterMetricFamily(
            "s1_mini_replica_starts", "Number of times the replica was started", labels=[LABEL]
        )
        for replica in self._replicas:
            ready.add_metric([replica.member.name], float(replica.is_ready))
            starts.add_metric([replica.member.name], replica.num_starts)
        yield from (ready, starts)


def _refuse(request: Request, error: Exception) -> Response:
    """Return an error of the framework in the server's error format."""
    assert isinstance(error, HTTPException)
    allowed = (error.headers or {}).get("Allow", "")
    refused = misaddressed(request.method, request.url.path, allowed)
    return error_response(refused, request.headers.get("x-request-id"))


def num_under_way(healths: Iterable[dict[str, Any]]) -> int:
    """Return the number of requests in progress in all replicas."""
    return _sum(health.get("server", {}).get("requests") for health in healths)


def _sum(values: Iterable[Any]) -> int:
    return sum(value for value in values if isinstance(value, int))


def _forwarded(request: Request) -> Headers:
    return [(name, value) for name, value in request.headers.raw if name in FORWARDED]


def _without_body(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if not name.startswith(b"content-")]


def _is_ok(response: httpx2.Response | None) -> TypeGuard[httpx2.Response]:
    return response is not None and response.status_code == 200


def _response(response: httpx2.Response | None) -> Response:
    if response is None:
        return error_response(EngineNotReadyError("no replica is ready; try again later"), None)
    return Response(response.content, response.status_code, media_type=response.headers.get("content-type"))
